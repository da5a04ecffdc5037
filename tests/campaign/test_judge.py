"""What a run's end and its logs are taken for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeline.campaign import judge as room
from ridgeline.campaign.judge import find_signature, judge, last_line
from ridgeline.records.measurement import Reading
from ridgeline.records.outcome import Kind, Outcome, Signature
from ridgeline.records.run import Cause, Ending
from ridgeline.workloads.signatures import PROGRAM_FAILURES
from tests.campaign.harness import study

BOOM = (Signature(re.compile("boom"), Kind.CRASH, "it went boom"),)


def outcome(folder: Path, ending: Ending) -> Outcome:
    return judge(ending, Reading(), folder, PROGRAM_FAILURES, ("stderr", "stdout"), study(folder), {}, {})


def test_what_the_shell_says_about_our_own_kill_decides_nothing(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_text("step 7\n")
    (tmp_path / "stderr").write_text("Killed\n")
    hung = outcome(tmp_path, Ending(Cause.SILENCE, 137, 9, "wrote nothing for 2 s"))
    assert hung.kind is Kind.HANG
    assert hung.evidence is not None
    assert hung.evidence.text == "step 7", "the program's last words, not the shell's"
    late = outcome(tmp_path, Ending(Cause.TIME_LIMIT, 137, 9))
    assert late.kind is Kind.TIMEOUT
    assert outcome(tmp_path, Ending(Cause.EXITED, 137, 9)).kind is Kind.OOM_RUN, "somebody else killed it"


def test_memory_that_ran_out_before_a_hang_is_still_seen(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text("MemoryError: no\nKilled\n")
    assert outcome(tmp_path, Ending(Cause.SILENCE, 137, 9)).kind is Kind.OOM_RUN


@pytest.mark.parametrize("place", ["head", "tail"])
def test_both_ends_of_a_huge_log_are_searched_with_right_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(room, "SEARCHED_BYTES", 2000)
    lines = [f"line {n}" for n in range(1, 5001)]
    at = {"head": 10, "tail": 4990}[place]
    lines[at - 1] = "boom"
    (tmp_path / "stdout").write_text("\n".join(lines) + "\n")
    found = find_signature(tmp_path, ("stdout",), BOOM)
    assert found is not None
    assert found.evidence is not None
    assert (found.evidence.line_number, found.evidence.text) == (at, "boom")
    last = last_line(tmp_path, ("stdout",))
    assert last is not None
    assert (last.line_number, last.text) == (5000, "line 5000")


def test_a_log_without_line_ends_is_not_read_as_one_line(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"x" * 30_000_000 + b"\nboom\n")
    found = find_signature(tmp_path, ("stdout",), (*BOOM, *PROGRAM_FAILURES))
    assert found is not None
    assert found.evidence is not None
    assert found.evidence.line_number == 2
    assert last_line(tmp_path, ("stdout",)) == found.evidence
