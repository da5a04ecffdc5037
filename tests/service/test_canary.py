"""A change is tried on one server first: it goes on where it is shown to cost nothing, and goes back otherwise."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.service import rolling
from ridgeline.serving.service.keep.watch import ServerPoll
from ridgeline.serving.service.rolling import _judge, canary_restart

from .test_operate import ask, operator
from .test_operate import file as file  # a service of two twins behind a stand-in router

NAMES = ("server-0", "server-1", "server-2")
Polls = dict[str, ServerPoll]


def rows(speed: float, count: int = 13, noise: float = 0.1, on_it: float = 8.0, seed: int = 1) -> list[Polls]:
    """Polls at three servers, of which the first is `speed` times as fast as the others."""
    chance = random.Random(seed)
    made = dict.fromkeys(NAMES, 0.0)
    found: list[Polls] = []
    for step in range(count):
        found.append({name: ServerPoll(5.0 * step, running=on_it, tokens=made[name]) for name in NAMES})
        for name in NAMES:
            made[name] += 5 * on_it * 40 * (speed if name == "server-0" else 1) * chance.uniform(1 - noise, 1 + noise)
    return found


def verdict(polls: list[Polls]) -> rolling.CanaryVerdict:
    return _judge("server-0", NAMES[1:], polls)


def test_one_that_is_as_fast_goes_on_and_one_that_is_slower_goes_back() -> None:
    good = verdict(rows(1.0))
    assert good.goes_on
    low, high = re.search(r"\((\d\.\d\d) to (\d\.\d\d)\)", good.reason).groups()  # type: ignore[union-attr]
    assert float(low) < 1 < float(high)
    slow = verdict(rows(0.7))
    assert not slow.goes_on
    assert "of the others' tokens a second and request" in slow.reason
    assert slow.reason.endswith(": slower")


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_a_change_that_costs_more_than_is_allowed_hardly_ever_goes_on(noise: float) -> None:
    wrong = sum(verdict(rows(0.88, noise=noise, seed=seed)).goes_on for seed in range(200))
    assert wrong <= 0.05 * 200


def test_what_is_not_shown_goes_back() -> None:
    assert "too little load" in verdict(rows(1.0, count=6)).reason
    assert "too little load" in verdict(rows(1.0, on_it=0.0)).reason
    assert "not shown to keep 90%" in verdict(rows(0.95, count=8, noise=0.6)).reason
    ended = rows(1.0)
    ended[-1]["server-0"] = ServerPoll(99.0, ended="exit code 1")
    assert verdict(ended).reason == "server-0 ended: exit code 1"
    assert not verdict([]).goes_on


def test_a_server_that_hangs_goes_back() -> None:
    polls = rows(1.0)
    hung = [{**row, "server-0": ServerPoll(row["server-0"].at_s, running=8.0, tokens=5.0)} for row in polls]
    assert verdict(hung).reason.endswith(": slower")


def counting(speed: float) -> Callable[[], Polls]:
    waiting = iter(rows(speed))
    return lambda: next(waiting)


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling, "STEP_S", 0.01)


def changed(file: Path) -> None:
    file.write_text(file.read_text().replace("settings: {tp: 1}", "settings: {tp: 1}, env: {CHANGED: 'yes'}"))


def test_the_others_follow_a_good_one(file: Path) -> None:
    url = operator(file).up(120)
    changed(file)
    service = operator(file)
    with service.action():
        canary_restart(service, service.servers, 120, 0.12, counting(1.0))
    assert {name: start.generation for name, start in service.folder.started.items()} == {
        "server-0": 2,
        "server-1": 2,
        "router": 1,
    }
    scripts = [(service.folder.of(member) / "start.sh").read_text() for member in service.servers]
    assert all("CHANGED=yes" in script for script in scripts)
    assert [ask(url) for _ in range(4)] == [2] * 4


def test_a_bad_one_goes_back_and_the_others_are_left_alone(file: Path) -> None:
    url = operator(file).up(120)
    before = (file.parent / "service" / "members" / "server-0" / "start.sh").read_text()
    changed(file)
    service = operator(file)
    with service.action(), pytest.raises(SiteError, match=r"slower; server-0 runs as it did before, and no other"):
        canary_restart(service, service.servers, 120, 0.12, counting(0.5))
    generations = {name: start.generation for name, start in service.folder.started.items()}
    assert generations == {"server-0": 3, "server-1": 1, "router": 1}
    assert (file.parent / "service" / "members" / "server-0" / "start.sh").read_text() == before
    assert [ask(url) for _ in range(4)] == [2] * 4, "both serve"
    assert not service.folder.drained


def test_without_load_nothing_is_shown(file: Path) -> None:
    url = operator(file).up(120)
    argv = [
        sys.executable,
        "-m",
        "ridgeline",
        "service",
        "restart",
        str(file),
        "--folder",
        str(file.parent / "service"),
    ]
    done = subprocess.run(
        [*argv, "--rolling", "--canary", "1"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 3
    assert "too little load to compare them" in done.stderr
    assert "server-0: serves again, as before" in done.stdout
    assert [ask(url) for _ in range(4)] == [2] * 4
    done = subprocess.run(
        [*argv, "server-1", "--canary", "1"], capture_output=True, text=True, timeout=600, check=False
    )
    assert "--canary goes with `restart --rolling`" in done.stderr


def test_looks_count_what_servers_make(file: Path) -> None:
    service = operator(file)
    url = service.up(120)
    before = rolling._poll(service)
    assert [ask(url) for _ in range(4)] == [2] * 4
    after = rolling._poll(service)
    for name in ("server-0", "server-1"):
        assert (after[name].made or 0) > (before[name].made or 0)


def test_one_that_does_not_start_goes_back(file: Path) -> None:
    url = operator(file).up(120)
    file.write_text(file.read_text().replace("{tp: 1}", "{tp: 1, mem_fraction_static: 0.01}"))
    service = operator(file)
    with service.action(), pytest.raises(SiteError, match=r"ended before it was ready") as error:
        canary_restart(service, service.servers, 120, 0.12, counting(1.0))
    assert "server-0 runs as it did before" in str(error.value)
    assert {state.state for state in service.status()} == {"ready"}
    assert [ask(url) for _ in range(4)] == [2] * 4


def test_there_must_be_somebody_to_compare_with(file: Path) -> None:
    file.write_text(file.read_text().replace("replicas: 2", "replicas: 1"))
    service = operator(file)
    with pytest.raises(InputError, match="nothing to compare it with"):
        canary_restart(service, service.servers, 120, 1)
