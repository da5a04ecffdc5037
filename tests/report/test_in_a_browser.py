"""The report in a real browser: drawn, sorted, filtered, dark, on a phone, without scripts, and with hostile names."""

from __future__ import annotations

import base64
import re
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.report import study_text, write_journal
from ridgeline.campaign.status import CampaignStatus, answer_on_paper, read_status_as_far
from ridgeline.records.outcome import Evidence, Kind, Outcome
from ridgeline.records.space import Discrete, Space
from ridgeline.report.html import Folders
from ridgeline.report.page import whole_page, write_page, write_report
from ridgeline.report.sections import Findings
from ridgeline.report.slides import deck
from ridgeline.report.studies import StudySeen, project_sections
from ridgeline.study.history import read_history
from ridgeline.testing import ScriptedAnswer
from tests.browser import NEEDS_CHROMIUM, Tab, open_browser, pixels
from tests.campaign.harness import campaign, study

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "search": ROOT / "examples/05-sglang-h200/results/deepseek-v2-lite",
    "compare": ROOT / "examples/05-sglang-h200/results/llama-8b-compare",
    "edge": ROOT / "tests/samples/study-folders/edge-finished",
    "scale": ROOT / "tests/samples/study-folders/scale-finished",
    "running": ROOT / "tests/samples/study-folders/twin-killed",
}
HOSTILE = ("<!--<script>", "</script><b>", '"><img src=x onerror=document.title="owned">', "'; alert(1) //")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser.tab()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("pages")
    found = {}
    for name, folder in FOLDERS.items():
        now, notes = read_status_as_far(folder)
        out = home / f"{name}.html"
        shown = Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes)
        write_report(shown, out)
        found[name] = out.as_uri()
        deck_at = write_page(deck(shown), home / f"{name}-slides.html")
        found[f"{name}-slides"] = deck_at.as_uri()
    failing = _failing(home / "failing")
    found["failing"] = write_report(failing, home / "failing.html").as_uri()
    found["failing-slides"] = write_page(deck(failing), home / "failing-slides.html").as_uri()
    seen = [read_status_as_far(folder)[0] for folder in FOLDERS.values()]
    studies = [StudySeen(one.study.name, one.study, one.history, answer_on_paper(one)) for one in seen]
    whole = whole_page("project", "", project_sections(studies), Folders(home, None))
    found["project"] = write_page(whole, home / "project.html").as_uri()
    return found


def _failing(folder: Path) -> Findings:
    """Runs of much memory fail, and some others in four ways, with all that an engine has to say of it."""
    folder.mkdir()
    (folder / "study.yaml").write_text(study_text())
    write_journal(folder, 120)
    now, notes = read_status_as_far(folder)
    line = Evidence("sglang.log", 10, "[2026-11-17 14:41:50 DP0 TP0] Capture target decode CUDA graph begin. " * 3)
    others = (Kind.CRASH, Kind.HANG, Kind.WRONG, Kind.TIMEOUT)
    for number, run in now.history.runs.items():
        assert run.outcome is not None
        kind = others[number // 9 % 4] if number % 9 == 5 and number < 70 else run.outcome.kind
        if kind is not Kind.OK:
            why = "CUDA graphs could not be captured: lower the memory fraction or the largest graph. " * 3
            now.history.runs[number] = replace(run, outcome=Outcome(kind, why, line))
    return Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes)


@pytest.mark.parametrize("name", FOLDERS)
def test_opens_at_every_width_without_a_complaint_or_sideways_scrolling(
    tab: Tab, pages: dict[str, str], name: str
) -> None:
    for width in (1400, 800, 400):
        tab.open(pages[name], width)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.value("document.querySelector('.ratio, .headline').textContent.length") > 5
    assert tab.errors == []


VISIBLE = "[...document.querySelectorAll('figure svg[role=img]')].filter(e => e.getBoundingClientRect().width > 0)"


@pytest.mark.parametrize("width", [1400, 700])
def test_every_figure_is_drawn(tab: Tab, pages: dict[str, str], width: int) -> None:
    tab.open(pages["search"], width)
    tab.value(f"{VISIBLE}.forEach((e, at) => e.id = 'look-' + at)")
    number = tab.value(f"{VISIBLE}.length")
    assert number >= 10
    for at in range(number):
        colours = pixels(tab.picture(f"#look-{at}", scale=0.5)).colours()
        paper = max(colours, key=lambda colour: colours[colour])
        vivid = sum(n for c, n in colours.items() if c != paper and max(c) - min(c) > 60)
        assert vivid > 6, f"figure {at} has next to no colour: nothing was drawn"


def test_no_text_of_a_figure_is_cut_off(tab: Tab, pages: dict[str, str]) -> None:
    """Labels may not leave the figure to the left or right; what is too long is cut with an ellipsis instead."""
    for name in ("search", "edge", "scale"):
        for width in (1400, 400):
            tab.open(pages[name], width)
            out = tab.value(f"""{VISIBLE}.flatMap(e => {{ const box = e.getBoundingClientRect();
                return [...e.querySelectorAll('text')].filter(t => {{ const b = t.getBoundingClientRect();
                return b.left < box.left - 14 || b.right > box.right + 14; }}).map(t => t.textContent); }})""")
            assert out == []


def test_dark_is_dark_and_light_is_light(tab: Tab, pages: dict[str, str]) -> None:
    brightness = {}
    for dark in (False, True):
        tab.open(pages["search"], 800, dark=dark)
        colours = pixels(tab.picture(".facts")).colours()
        brightness[dark] = sum(sum(c) / 3 * n for c, n in colours.items()) / sum(colours.values())
        ink = tab.value("getComputedStyle(document.body).color")
        assert ink == ("rgb(230, 234, 240)" if dark else "rgb(22, 32, 44)")
    assert brightness[True] < 80 < 200 < brightness[False]


TABLE = "document.querySelectorAll('table.sortable')[0]"


def column(tab: Tab, name: str) -> list[str]:
    at = tab.value(f"[...{TABLE}.tHead.rows[0].cells].map(c => c.textContent)").index(name)
    rows = f"[...{TABLE}.tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[{at}].textContent)"
    found: list[str] = tab.value(rows)
    return found


def click_heading(tab: Tab, name: str) -> None:
    tab.value(f"[...{TABLE}.tHead.rows[0].cells].find(c => c.textContent === '{name}').click()")


def test_a_click_sorts_and_another_turns_it_round(tab: Tab, pages: dict[str, str]) -> None:
    tab.open(pages["search"])
    click_heading(tab, "total_tok_s")
    up = [float(text) for text in column(tab, "total_tok_s") if text]
    assert len(up) > 3 and up == sorted(up)
    click_heading(tab, "total_tok_s")
    assert [float(text) for text in column(tab, "total_tok_s") if text] == up[::-1]


def test_the_filter_leaves_what_fits(tab: Tab, pages: dict[str, str]) -> None:
    tab.open(pages["search"])
    every = len(column(tab, "trial"))
    put = """(text => { const e = document.querySelector('.tools input');
        e.value = text; e.dispatchEvent(new Event('input')); })"""
    tab.value(f"{put}('baseline')")
    kept = column(tab, "is")
    assert 0 < len(kept) < every
    assert tab.value("document.querySelector('#confirm-runs').open")
    knob = column(tab, "max_running_requests")
    asked = knob[-1]
    tab.value(f"{put}('max_running_requests {asked}')")
    assert set(column(tab, "max_running_requests")) == {asked}, "a column and its value, as in `tp 8`"
    tab.value(f"{put}('#1')")
    assert set(column(tab, "trial")) == {"#1"}, "and not #10"
    tab.value(f"{put}('no such thing')")
    assert column(tab, "trial") == []
    tab.value(f"{put}('')")
    assert len(column(tab, "trial")) == every


def test_a_mark_leads_to_its_run(tab: Tab, pages: dict[str, str]) -> None:
    tab.open(pages["search"])
    tab.value("document.querySelector('#parallel .pc').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    trial = tab.value("document.querySelector('#parallel .pc').dataset.t")
    assert tab.value("[...document.querySelectorAll('tr.lit')].map(row => row.dataset.t)") == [trial]


def test_the_setting_can_be_copied(tab: Tab, pages: dict[str, str]) -> None:
    tab.open(pages["search"])
    assert tab.value("!document.querySelector('.copy').hidden")
    tab.value("navigator.clipboard.writeText = async text => { window.copied = text; }")
    tab.value("document.querySelector('.copy').click()")
    assert "--max-running-requests 512" in tab.value("window.copied")


def test_without_scripts_everything_is_there(tab: Tab, pages: dict[str, str]) -> None:
    tab.open(pages["search"], 1400, scripts=False)
    assert tab.value("document.querySelector('.copy').hidden && document.querySelector('.tools').hidden")
    assert tab.value(f"{VISIBLE}.length") >= 10
    assert len(column(tab, "trial")) > 3


def test_no_value_of_a_knob_breaks_the_page(tab: Tab, tmp_path: Path) -> None:
    """After `<!--<script>` inside a script element a browser takes the rest of the page for script."""
    x = Discrete("x", (0, 1, 2), ordered=True)
    y = Discrete("y<b>'\"", HOSTILE, ordered=False)
    question = study(tmp_path, name=HOSTILE[2], space=Space((x, y), {}), baseline={"x": 0, "y<b>'\"": HOSTILE[0]})
    ran = campaign(tmp_path, question, lambda settings: ScriptedAnswer({"rate": 100.0 + settings["x"]}))
    ran.run()
    now = CampaignStatus(ran.question, question, read_history(tmp_path))
    now.history.runs[4] = replace(now.history.runs[4], outcome=Outcome(Kind.CRASH, HOSTILE[2]))
    page = write_report(Findings(question, now.history, now.answer, now.exhibits), tmp_path / "report.html")
    tab.errors.clear()
    tab.open(page.as_uri())
    assert tab.errors == []
    assert tab.value("document.title") == HOSTILE[2]
    assert tab.value("document.querySelectorAll('img, b').length") == 0
    assert tab.value("document.querySelectorAll('tr[data-t]').length") == len(now.history.runs)


def test_a_run_folder_can_be_opened_from_the_table(tab: Tab, tmp_path: Path) -> None:
    folder = tmp_path / "a study"
    shutil.copytree(FOLDERS["search"], folder)
    now, notes = read_status_as_far(folder)
    shown = Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes)
    page = write_report(shown, folder / "report.html")
    tab.open(page.as_uri())
    paths = "[...document.querySelectorAll('tr[data-t] a')].map(a => decodeURIComponent(new URL(a.href).pathname))"
    links = tab.value(paths)
    assert len(links) == len(now.history.runs)
    assert all(Path(link).is_dir() for link in links)


def test_paper_is_wide_enough(tab: Tab, pages: dict[str, str]) -> None:
    """A browser shrinks everything until the widest table fits the sheet, so none may be wider."""
    tab.open(pages["search"], 760)
    tab.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert tab.value("document.documentElement.scrollWidth") <= 760
        assert tab.value("getComputedStyle(document.querySelector('.tools')).display") == "none"
        assert tab.value("document.querySelector('.proof').getBoundingClientRect().width") > 280, (
            "as wide as its column"
        )
    finally:
        tab.call("Emulation.setEmulatedMedia", media="")


# the page as a reader sees it: checked on what the browser laid out, since pictures differ with a machine's fonts


@pytest.mark.parametrize("width", [1400, 400])
def test_the_first_screen_holds_answer_interval_command_and_proof(tab: Tab, pages: dict[str, str], width: int) -> None:
    tab.open(pages["search"], width)
    parts = "['.ratio', '.change', '.sure', '.facts', '.do>.sub', '.answer pre', '.proof svg[role=img]']"
    sides = tab.value(f"""Object.fromEntries({parts}.map(what => [what,
        [...document.querySelectorAll(what)].map(e => e.getBoundingClientRect()).map(r => [r.top, r.bottom])]))""")
    # this answer is of a benchmark only, which is said first: on a phone its proof begins on the first screen
    begins = ".proof svg[role=img]" if width == 400 else ""
    last = {what: max(side[0 if what == begins else 1] for side in found) for what, found in sides.items()}
    assert all(0 < end <= 900 for end in last.values()), last
    assert tab.value("document.querySelector('.ratio strong').textContent") == "1.22x"


@pytest.mark.parametrize("width", [1400, 800, 400])
def test_everything_ends_at_one_right_edge(tab: Tab, pages: dict[str, str], width: int) -> None:
    tab.open(pages["search"], width)
    past = tab.value("""(() => { const edge = document.querySelector('main').getBoundingClientRect().right;
        return [...document.querySelectorAll('main section > *')]
            .filter(e => e.getBoundingClientRect().right > edge + 1).map(e => e.outerHTML.slice(0, 80)); })()""")
    assert past == []
    full = tab.value("""(() => { const edge = document.querySelector('main').getBoundingClientRect().right;
        return [...document.querySelectorAll('section > figure:not(.half)')]
            .map(e => edge - e.getBoundingClientRect().right); })()""")
    assert full and all(abs(gap) <= 1 for gap in full)


def test_commands_break_between_words_only_and_are_not_clipped(tab: Tab, pages: dict[str, str]) -> None:
    for width in (1400, 800, 400):
        tab.open(pages["search"], width)
        words = "[...document.querySelectorAll('.answer pre .w')]"
        assert tab.value(f"{words}.length") > 5
        assert tab.value(f"{words}.filter(w => w.getClientRects().length > 1).map(w => w.textContent)") == []
        assert tab.value("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.answer pre'))") <= 0
        assert "--max-running-requests 512" in tab.value("document.querySelector('.answer pre').textContent")


def test_the_contents_stay_in_sight_and_lead_everywhere(tab: Tab, pages: dict[str, str]) -> None:
    for width in (1400, 800, 400):
        tab.open(pages["search"], width)
        tab.value("scrollTo(0, document.documentElement.scrollHeight)")
        assert tab.value("document.querySelector('.contents').getBoundingClientRect().top") >= -1
        links = "[...document.querySelectorAll('.contents a')]"
        assert tab.value(f"{links}.filter(a => !document.getElementById(a.hash.slice(1))).length") == 0


DECKS = (*FOLDERS, "failing")
PAGES = (*DECKS, *(f"{name}-slides" for name in DECKS), "project")


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_wrong_with_the_page_as_it_is_laid_out(
    tab: Tab, pages: dict[str, str], name: str, dark: bool
) -> None:
    for width in (1400, 800, 400):
        tab.open(pages[name], width, dark=dark)
        assert tab.complaints() == [], width


def test_a_page_that_is_wrong_would_be_noticed(tab: Tab, tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text(
        "<!doctype html><html lang=en><title>wrong</title><body style='color: #222; background: #fff'><main><h1>so</h1>"
        "<p style='color: #ccc'>pale</p><p id=a>dark</p><p id=a style='background: #222'>dark on dark</p></main>"
    )
    tab.open(page.as_uri())
    pale, dark, twice = tab.complaints()
    assert pale.endswith(" pale") and dark.endswith(" 1.00 dark on dark") and twice == "an id twice: a"


def test_every_slide_fits_and_the_keys_turn_them(tab: Tab, pages: dict[str, str]) -> None:
    for name in DECKS:
        for width, height in ((1400, 900), (800, 600)):
            tab.open(pages[f"{name}-slides"], width, height)
            over = tab.value("""[...document.querySelectorAll('.inside, .sides, .sides > div, .slides figure')]
                .filter(e => e.getClientRects().length && e.scrollHeight > e.clientHeight + 1)
                .map(e => e.closest('.slide').id + ' ' + e.className + ' ' + e.scrollHeight + '>' + e.clientHeight)""")
            assert over == [], (name, width)
    tab.open(pages["search-slides"])
    press = "dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
    at_top = "[...document.querySelectorAll('.slide')].find(e => Math.abs(e.getBoundingClientRect().top) < 2)?.id"
    for key, slide in (("ArrowRight", "method"), ("PageDown", "search"), ("ArrowLeft", "method"), ("End", "use")):
        tab.value(f"document.body.{press % key}")
        tab.until(f"{at_top} === '{slide}'")
    assert tab.value("location.hash") == "#use"


@pytest.mark.parametrize("name", DECKS)
def test_each_slide_is_printed_on_a_sheet_of_its_own(tab: Tab, pages: dict[str, str], name: str) -> None:
    tab.open(pages[f"{name}-slides"])
    slides = tab.value("document.querySelectorAll('.slide').length")
    made = base64.b64decode(tab.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    objects = dict(re.findall(rb"\n(\d+) 0 obj\n(.*?)\nendobj", made, re.DOTALL))
    sheets = [
        found[1]
        for text in objects.values()
        if (found := re.search(rb"/Type /Page\n.*/Contents (\d+)", text, re.DOTALL))
    ]
    assert len(sheets) == slides
    drawn = [zlib.decompress(re.search(rb"stream\r?\n(.*)\r?\nendstream", objects[n], re.DOTALL)[1]) for n in sheets]
    assert all(text.count(b"Tj") > 1 for text in drawn), "more than the number of the slide"
    tab.call("Emulation.setEmulatedMedia", media="print")
    try:
        numbers = tab.value("[...document.querySelectorAll('.slide footer nav')].map(e => e.innerText.trim())")
    finally:
        tab.call("Emulation.setEmulatedMedia", media="")
    assert numbers == [f"{at} / {slides}" for at in range(1, slides + 1)], "each sheet has its number, and no links"


def test_slides_turn_without_scripts_by_links(tab: Tab, pages: dict[str, str]) -> None:
    tab.open("about:blank")  # else it would be another place of the same page
    tab.open(f"{pages['search-slides']}#proof", 1400, scripts=False)
    tab.until("Math.abs(document.getElementById('proof').getBoundingClientRect().top) < 2")
    assert tab.value("document.querySelector('#proof footer a:last-child').getAttribute('href')") == "#next"
