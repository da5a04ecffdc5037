"""The dashboard as a person uses it: a real browser, a campaign that grows meanwhile, buttons that do something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ridgeline.study.history import read_history
from ridgeline.study.lock import holder_of
from tests.browser import NEEDS_CHROMIUM, Browser, Tab, open_browser, pixels
from tests.report.live.served import served
from tests.report.live.test_access import quick

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]

# a run goes on until the test lets it: nothing here depends on how fast anything is
STUDY = """\
version: 1
name: grows
question: What does the page show meanwhile?
workload:
  kind: command
  run: sh waits.sh {x}
  files: [waits.sh]
  metrics: {rate: {regex: 'rate (.*)', unit: GF/s}}
space: {x: {from: 1, to: 9}}
goal: {maximize: rate}
baseline: {x: 1}
budget: {trials: 3}
search: {sampler: random, seed: 1, sentinel_every: 0}
stages: {baseline: {repeats: 1}}
confirm: {top: 1, blocks: 3}
job: {limit: 600}
"""
WAITS = """\
echo "x is $1 <b onclick=alert(1)>&amp;"
until [ -e ../../go ]; do [ -e ../../go-$1 ] && break; sleep 0.05; done
echo rate 10$1
"""
HOSTILE = '</script><img src=x onerror="window.pwned=1"><svg onload=window.pwned=1>\'"&'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@contextmanager
def tuned(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "grows.yaml").write_text(STUDY)
    (folder / "waits.sh").write_text(WAITS)
    command = [sys.executable, "-m", "ridgeline", "tune", "grows.yaml", "--out", "grows"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (folder / "grows" / "journal.jsonl").exists())
        yield process
    finally:
        (folder / "grows" / "go").touch()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)


def wait_for(happens: object, limit_s: float = 60.0) -> None:
    import time

    deadline = time.monotonic() + limit_s
    while not happens():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def says(place: str, text: str) -> str:
    return f"document.getElementById({json.dumps(place)}).innerText.includes({json.dumps(text)})"


def test_a_campaign_grows_while_the_page_is_open_and_is_paused_and_resumed_from_it(
    tmp_path: Path, browser: Browser
) -> None:
    with tuned(tmp_path) as process, served(tmp_path / "grows") as there:
        study = tmp_path / "grows"
        tab = browser.open(there.url)
        assert "token" not in tab.value("location.href"), "the token does not stay in the history"
        tab.until(says("running", "#1 baseline"))
        tab.until(says("running", "x is 1 <b onclick=alert(1)>&amp;"))
        tab.click("button[data-act=pause]")
        tab.until(says("state", "paused"))
        (study / "go-1").touch()
        tab.until(says("running", "Nothing runs"))
        tab.until(says("runs", "101 GF/s"))
        assert len(read_history(study).trials) == 1, "nothing new is started"
        tab.click("button[data-act=resume]")
        tab.until(says("running", "search"))
        _try_and_extend_and_cancel(tab, study)
        (study / "go").touch()
        tab.until(says("state", "finished"))
        tab.until(says("headline", "109 GF/s"))
        assert process.wait(60) == 0
        tab.click("#report summary")
        tab.until("document.getElementById('report').dataset.drawn")
        assert tab.value("document.querySelectorAll('#progress .wide .m [data-t]').length") >= 4
        tab.hover("#progress .wide .m [data-t]")
        tab.until("document.querySelector('.tip:not([hidden])')?.innerText.includes('the baseline: 101')")
        assert not tab.value("window.pwned || document.querySelector('pre.log b') !== null")
        assert len(set(pixels(tab.picture(scale=0.5)).rows)) > 50, "a blank page has one kind of row"
        # a browser notes every answer that is no success; the one refusal asked for above is all there is
        assert [error for error in tab.errors if "400 (Bad Request)" not in error] == []
        assert len(tab.errors) == 1
        tab.until("document.getElementById('steering').hidden")


def _try_and_extend_and_cancel(tab: Tab, study: Path) -> None:
    tab.value("document.querySelector('[data-knob=x]').value = '9'")
    tab.click("form[data-act=try] button")
    tab.until(says("told", "it is tried as soon as a run can start"))
    tab.value("document.querySelector('[data-more=trials]').value = '2'")
    tab.click("form[data-act=extend] button")
    tab.until(says("told", "extend by 2 trials: the budget is extended"))
    tab.until(says("gauges", "of 5 trials"))
    tab.value("document.querySelector('[data-more=trials]').value = 'many'")
    tab.click("form[data-act=extend] button")
    tab.until("document.getElementById('answer').innerText.includes('trials must be a whole number above 0')")
    tab.click("button[data-act=cancel]")
    tab.until(says("told", "is cancelled; its setting is not tried again"))
    tab.until(says("running", "x 9"))
    tab.until(says("running", "requested by a person"))


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_names_and_logs_of_an_enemy_are_only_text_and_nothing_is_wider_than_a_phone(
    tmp_path: Path, browser: Browser, width: int, dark: bool
) -> None:
    study = quick(tmp_path, finish=False)
    text = (study / "study.yaml").read_text()
    (study / "study.yaml").write_text(text.replace("name: quick", f"name: quick\nquestion: {json.dumps(HOSTILE)}"))
    long = "w" * 3000
    trial = {"event": "trial", "trial": 1, "stage": "search", "proposer": HOSTILE, "why": HOSTILE + long}
    trial |= {"point": {"x": 0.123456789}, "settings": {"x": 0.123456789}, "at": 1.0}
    run = {"event": "run", "run": 1, "trial": 1, "attempt": 1, "folder": "runs/0001", "resources": {}, "at": 2.0}
    (study / "runs" / "0001").mkdir(parents=True)
    (study / "runs" / "0001" / "stdout").write_bytes(f"{HOSTILE}\n\x1b[31m{long}\n\0\xff".encode() + b"\xff\xfe\n")
    outcome = {"kind": "crash", "reason": HOSTILE, "evidence": ["stderr", 1, HOSTILE + long]}
    ended = {"event": "ended", "run": 1, "ending": {"cause": "exited", "started": 2, "ended": 3}, "at": 3.0}
    more = [trial, run, ended | {"outcome": outcome}, {**trial, "trial": 2}, {**run, "run": 2, "trial": 2}]
    with (study / "journal.jsonl").open("a") as journal:
        journal.writelines(json.dumps(line) + "\n" for line in more)
    with served(study) as there:
        tab = browser.open(there.url, width=width, dark=dark)
        tab.until(says("running", "onerror"))
        tab.until(says("crashes", "onerror"))
        assert HOSTILE in tab.text()
        assert tab.value("typeof window.pwned") == "undefined"
        assert tab.value("document.querySelectorAll('main img, main svg[onload]').length") == 0
        assert tab.sideways_px <= 0
        background = tab.value("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") != dark
        assert tab.errors == []


def test_a_controller_that_is_gone_is_said_and_what_waits_too(tmp_path: Path, browser: Browser) -> None:
    with tuned(tmp_path) as process, served(tmp_path / "grows") as there:
        study = tmp_path / "grows"
        tab = browser.open(there.url)
        tab.until(says("running", "#1 baseline"))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        assert holder_of(study / "lock")["pid"] == process.pid
        tab.until(says("state", "controller not running"))
        tab.until(says("state", "ridgeline resume"))
        tab.until("document.querySelector('#buttons button, #running button') === null")  # nobody would do it
        assert there.tell("grows", {"id": "x" * 8, "act": "pause"}).status < 300
        tab.until(says("told", "no controller is running on this folder"))
        (study / "go").touch()
        with (study / "journal.jsonl").open("a") as journal:
            journal.write('{"event": "tri')
        assert not tab.value("document.getElementById('state').innerText.includes('cannot be read')"), (
            "torn, not damaged"
        )
        with (study / "journal.jsonl").open("a") as journal:
            journal.write('\n{"event": "stopped", "at": 9, "reason": "x"}\n')
        tab.until(says("state", "cannot be read"))
        tab.until(says("state", "Restore a copy of it"))
        assert tab.value("document.getElementById('running').innerText.includes('#1')"), "what was known stays"
        assert tab.errors == []


def test_several_studies_are_listed_and_new_ones_join(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "a").mkdir()
    quick(tmp_path / "a")
    with served(tmp_path) as there:
        tab = browser.open(there.url, width=400)
        tab.until(says("studies", "finished"))
        (tmp_path / "b").mkdir()
        quick(tmp_path / "b", finish=False)
        tab.until("document.querySelectorAll('#studies a').length === 2")
        assert tab.sideways_px <= 0
        tab.click("#studies a[href*='/a-']")
        tab.until("document.getElementById('headline') !== null")
        tab.until("document.querySelector('#progress svg[role=img]') !== null")
        assert tab.errors == []


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished studies in a folder."""
    home = tmp_path_factory.mktemp("two")
    for name in ("a", "b"):
        (home / name).mkdir()
        quick(home / name)
    return home


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_wrong_with_any_page_as_it_is_laid_out(two: Path, browser: Browser, dark: bool) -> None:
    with served(two) as there:
        tab = browser.open(there.url)
        studies = tab.value("[...document.querySelectorAll('#studies a')].map(a => a.href)")
        assert len(studies) == 2
        for width in (1400, 800, 400):
            for page, ready in (
                (f"{there.origin}/", "document.querySelector('#studies .badge')"),
                (studies[0], "document.querySelector('#progress svg[role=img]')"),
                (f"{there.origin}/compare", "document.querySelector('figure svg')"),
            ):
                tab.open(page, width, dark=dark)
                tab.until(f"{ready} !== null")
                assert tab.complaints() == [], (page, width)
        assert tab.errors == []


def test_studies_are_picked_and_compared_at_an_address_that_can_be_kept(two: Path, browser: Browser) -> None:
    with served(two) as there:
        tab = browser.open(there.url)
        tab.until("document.querySelectorAll('#studies input[type=checkbox]').length === 2")
        tab.click("#studies input[type=checkbox]")
        tab.until("document.getElementById('compare').textContent === 'Compare 1 of these studies'")
        one = tab.value("document.getElementById('compare').href")
        tab.value("document.querySelectorAll('#studies input[type=checkbox]')[1].click()")
        both = tab.value("document.getElementById('compare').href")
        assert one.count("study=") == 1 and both.count("study=") == 2
        for address, number in ((one, 1), (both, 2), (f"{there.origin}/compare", 2)):
            tab.open(address)
            assert tab.value("document.querySelector('h1').textContent") == "Studies compared"
            rows = "document.querySelector('table').querySelectorAll('tr').length - 1"
            assert tab.value(rows) == number
        assert there.ask("/compare?study=nobody", **there.cookie).status == 404
        assert there.ask("/compare").status != 200, "not without the token"


def test_a_run_has_an_address_and_the_command_can_be_copied(two: Path, browser: Browser) -> None:
    with served(two / "a" / "quick") as there:
        report = f"{there.origin}/study/quick/report"
        tab = browser.open(there.url)
        tab.until("document.querySelector('#headline .copy:not([hidden])') !== null")
        tab.value("navigator.clipboard.writeText = async text => { window.copied = text; }")
        tab.value("window.setTimeout = () => 0")  # the word stays, however late we look
        tab.click("#headline .copy")
        shown = tab.value("document.querySelector('#headline pre').textContent")
        tab.until("window.copied !== undefined")
        assert tab.value("window.copied") == shown
        tab.until("document.querySelector('#headline .copy').textContent === 'copied'")
        tab.open(f"{report}#run-2")
        tab.until("document.querySelector('tr.lit') !== null")
        assert tab.value("document.querySelector('tr.lit').dataset.t") == "2"
        assert tab.value("document.querySelector('tr.lit').getBoundingClientRect().top") < 900
        tab.value("location.hash = '#run-3'")
        tab.until("document.querySelector('tr.lit').dataset.t === '3'")
        tab.value(
            "document.querySelector('svg [data-t=\"1\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        )
        assert tab.value("location.hash") == "#run-1"
        headings = "[...document.querySelectorAll('h2 a, h3 a')]"
        assert tab.value(f"{headings}.filter(a => !document.getElementById(a.hash.slice(1))).length") == 0
        assert tab.errors == []
