"""Patterns of people against text of programs: found as re finds them, and given up where that would never end."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.campaign import judge as judge_room
from ridgeline.campaign.judge import judge
from ridgeline.records import matching
from ridgeline.records.guard import parse_guard
from ridgeline.records.matching import TooSlow, values
from ridgeline.records.measurement import Reading
from ridgeline.records.outcome import Kind, Signature
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.workloads.extract import ByRegex, Metric, MetricMissing
from tests.campaign.harness import study

ENDLESS = re.compile(r"(a+)+$", re.MULTILINE)
BAIT = "a" * 60 + "!\n"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "BASE_S", 0.5)


@given(
    st.sampled_from([r"\d+", r"(?m)^(\w+)=(\d*)", r"x|(y)", ".*", r"[^a]*b", r"\s+$"]),
    st.text(st.sampled_from("ab xy=10\n\r é\u2028"), max_size=60),
)
def test_what_is_found_is_what_re_finds(pattern: str, text: str) -> None:
    compiled = re.compile(pattern, re.MULTILINE)
    group = 1 if compiled.groups else 0
    here = [match[group] for match in compiled.finditer(text) if match[group] is not None]
    assert values(compiled, text, group) == here
    assert values(compiled, text, group, most=1) == here[:1]


def test_a_long_text_is_searched_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "é rate 1.5\n\r\nrate 2\n"
    here = values(re.compile(r"rate ([\d.]+)|\r"), text, 0)
    monkeypatch.setattr(matching, "LONGEST_TEXT_HERE", 3)
    assert values(re.compile(r"rate ([\d.]+)|\r"), text, 0) == here == ["rate 1.5", "\r", "rate 2"]


@pytest.mark.parametrize("longest_here", [1 << 20, 3], ids=["here", "in another process"])
def test_a_pattern_that_never_ends_is_given_up(longest_here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "LONGEST_TEXT_HERE", longest_here)
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TooSlow, match=r"repeat inside a repeat"):
        values(ENDLESS, BAIT)
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0


def test_a_thread_has_the_same_limit() -> None:
    raised: list[BaseException] = []

    def search() -> None:
        try:
            values(ENDLESS, BAIT)
        except TooSlow as error:
            raised.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert raised


def test_a_signal_still_reaches_us_in_the_middle_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "BASE_S", 600.0)

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    left = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            values(ENDLESS, BAIT)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
        signal.signal(signal.SIGALRM, before)


def test_the_metric_is_named_with_what_to_do() -> None:
    with pytest.raises(MetricMissing, match=r"^rate: in stdout, the pattern .*avoid a repeat inside a repeat"):
        Metric("rate", ByRegex(ENDLESS)).read(BAIT)


def test_a_guard_that_cannot_be_looked_for_does_not_hold() -> None:
    for verb in ("contains", "lacks"):
        failure = parse_guard(f'stdout {verb} "(a+)+$"').failure({}, {}, lambda name: BAIT)
        assert failure and "cannot be shown" in failure


@pytest.mark.parametrize(("exit_code", "kind"), [(0, Kind.WRONG), (1, Kind.CRASH)])
def test_a_signature_that_cannot_be_looked_for_lets_nothing_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int, kind: Kind
) -> None:
    monkeypatch.setattr(judge_room, "SIGNATURES_S", 0.5)
    (tmp_path / "stdout").write_text(BAIT)
    endless = Signature(ENDLESS, Kind.CRASH, "never", even_if_exit_0=True)
    run = Run(1, 1, 1, tmp_path, Resources(1), Ending(Cause.EXITED, exit_code))
    workload = SimpleNamespace(signatures=(endless,), logs=("stdout",))
    found = judge(run, Reading(), workload, study(tmp_path), {}, {})  # type: ignore[arg-type]
    assert found.kind is kind
    assert "(a+)+$" in found.reason
