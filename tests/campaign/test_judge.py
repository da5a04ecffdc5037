"""What a run's end and its logs are taken for."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign import judge as room
from ridgeline.campaign.judge import find_signature, last_line
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.records.measurement import Measurement, Reading
from ridgeline.records.outcome import Evidence, Kind, Outcome, Signature
from ridgeline.records.run import Cause, Ending
from tests.campaign.harness import guards, judged, study

BOOM = (Signature(re.compile("boom"), Kind.CRASH, "it went boom"),)


def outcome(folder: Path, ending: Ending) -> Outcome:
    return judged(ending, Reading(), folder, PROGRAM_FAILURES, ("stderr", "stdout"))


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


@pytest.mark.parametrize(
    ("passed", "nodes", "settings", "kind"),
    [
        (False, 4, {"x": 7}, Kind.REJECTED),
        (True, 4, {"x": 7}, Kind.NODE_FAULT),
        (True, 1, {"x": 7}, Kind.REJECTED),
        (True, 4, {"build": "solver-b"}, Kind.REJECTED),
    ],
    ids=["the baseline lacks it", "only this node lacks it", "there is one machine", "a knob names it"],
)
def test_who_must_bring_what_is_not_there(
    tmp_path: Path, passed: bool, nodes: int, settings: dict[str, object], kind: Kind
) -> None:
    (tmp_path / "stderr").write_text("run.sh: 20: ./solver-b: not found\n")
    asked = study(tmp_path, site=replace(study(tmp_path).site, nodes=nodes))
    logs = ("stderr", "stdout")
    more = {"asked": asked, "settings": settings, "reference": {"rate": 1.0} if passed else {}}
    told = judged(Ending(Cause.EXITED, 127), Reading(), tmp_path, PROGRAM_FAILURES, logs, **more)
    assert told.kind is kind
    assert bool(told.lacking) == (kind is Kind.REJECTED)
    assert told.evidence == Evidence("stderr", 1, "run.sh: 20: ./solver-b: not found")


@pytest.mark.parametrize("line", ["mpirun noticed that process rank 0 exited on signal 9 (Killed).", "Killed"])
def test_what_a_launcher_says_of_our_own_kill_decides_nothing(tmp_path: Path, line: str) -> None:
    (tmp_path / "stderr").write_text(f"{line}\n")
    assert outcome(tmp_path, Ending(Cause.TIME_LIMIT, 137, 9)).kind is Kind.TIMEOUT
    assert outcome(tmp_path, Ending(Cause.EXITED, 137, 9)).kind is Kind.OOM_RUN


def test_of_several_exceptions_the_last_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text("KeyError: 'a'\nDuring handling\nValueError: grid 7\n")
    found = outcome(tmp_path, Ending(Cause.EXITED, 1))
    assert found.reason == "Python stopped with ValueError: grid 7" and found.remedy


def test_a_guard_on_what_could_not_be_read_is_not_the_one_to_correct(tmp_path: Path) -> None:
    asked = study(tmp_path, guards=guards("rate < 5"))
    reading = Reading(problem="rate: stdout has no text", remedy="set `file: stderr`")
    found = judged(Ending(Cause.EXITED, 0), reading, tmp_path, (), ("stdout",), asked=asked)
    assert (found.reason, found.remedy) == ("rate: stdout has no text", "set `file: stderr`")


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


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.NODE_FAILED, Kind.NODE_FAULT),
        (Cause.LOST, Kind.SITE_FAULT),
        (Cause.CANCELLED, Kind.CANCELLED),
        (Cause.NEVER_STARTS, Kind.REJECTED),
    ],
)
def test_what_the_site_says_comes_before_what_the_log_says(tmp_path: Path, cause: Cause, kind: Kind) -> None:
    (tmp_path / "stderr").write_text("MemoryError: no\n")
    assert outcome(tmp_path, Ending(cause, reason="so it was")) == Outcome(kind, "so it was")


@pytest.mark.parametrize(
    ("ending", "kind", "reason"),
    [
        (Ending(Cause.TIME_LIMIT), Kind.TIMEOUT, "wall limit"),
        (Ending(Cause.SILENCE), Kind.HANG, "silence limit"),
        (Ending(Cause.OUTPUT_LIMIT, reason="wrote 9 GB"), Kind.CRASH, "wrote 9 GB"),
        (Ending(Cause.MEMORY_LIMIT), Kind.OOM_RUN, "more memory than it asked for"),
        (Ending(Cause.EXITED, 139, 11), Kind.CRASH, "died by SIGSEGV"),
        (Ending(Cause.EXITED, None, 9), Kind.CRASH, "often the host ran out of memory"),
        (Ending(Cause.EXITED, 3), Kind.CRASH, "exit code 3"),
    ],
)
def test_an_end_that_no_line_explains_keeps_the_last_words(
    tmp_path: Path, ending: Ending, kind: Kind, reason: str
) -> None:
    (tmp_path / "stdout").write_text("later\n")
    (tmp_path / "stderr").write_text("step 1\nstep 2\n\n")
    found = outcome(tmp_path, ending)
    assert found.kind is kind
    assert reason in found.reason
    assert found.evidence == Evidence("stderr", 2, "step 2")


def test_the_signature_that_comes_first_in_the_table_decides_not_the_first_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text("worker lost\nroot cause\nroot cause again\n")
    table = (
        Signature(re.compile("root cause"), Kind.OOM_RUN, "cause"),
        Signature(re.compile("worker lost"), Kind.CRASH, "consequence"),
    )
    found = find_signature(tmp_path, ("stderr", "stdout"), table)
    assert found == Outcome(Kind.OOM_RUN, "cause", Evidence("stderr", 2, "root cause"))


@pytest.mark.parametrize("even", [True, False])
def test_a_program_that_left_well_is_failed_only_by_signatures_that_say_so(tmp_path: Path, even: bool) -> None:
    (tmp_path / "stdout").write_text("boom\n")
    table = (Signature(re.compile("boom"), Kind.WRONG, "it went boom", even_if_exit_0=even),)
    reading = Reading((Measurement("rate", 1.0, "", "stdout"),))
    found = judged(Ending(Cause.EXITED, 0), reading, tmp_path, table, ("stdout",))
    assert found.kind is (Kind.WRONG if even else Kind.OK)


GOOD = (Measurement("rate", 1.0, "", "stdout"),)


@pytest.mark.parametrize(
    ("reading", "kind", "reason"),
    [
        (Reading(GOOD), Kind.OK, ""),
        (Reading((Measurement("rate", 9.0, "", "stdout"),), problem="also odd"), Kind.WRONG, "rate"),
        (Reading(GOOD, problem="half a file"), Kind.WRONG, "half a file"),
        (Reading(GOOD, problem="half a file", unverified="another flag"), Kind.WRONG, "half a file"),
        (Reading(), Kind.WRONG, "rate"),
        (Reading(GOOD, unverified="another flag"), Kind.UNVERIFIED, "another flag"),
        (Reading(GOOD, contaminated="a neighbour"), Kind.UNVERIFIED, "a neighbour"),
    ],
)
def test_a_result_counts_only_when_nothing_speaks_against_it(
    tmp_path: Path, reading: Reading, kind: Kind, reason: str
) -> None:
    asked = study(tmp_path, guards=guards("rate < 5"))
    found = judged(Ending(Cause.EXITED, 0), reading, tmp_path, (), ("stdout",), asked=asked)
    assert found.kind is kind
    assert reason in found.reason


def test_a_quoted_line_cannot_steer_the_terminal_and_is_short(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text("\x1b]0;owned\x07boom\t" + "x" * 5000 + "\n")
    found = find_signature(tmp_path, ("stderr",), BOOM)
    assert found is not None
    assert found.evidence is not None
    assert found.evidence.text.isprintable()
    assert len(found.evidence.text) == 400


def gzipped_guard(folder: Path, content: bytes, sentence: str) -> Outcome:
    (folder / "out.gz").write_bytes(content)
    asked = study(folder, guards=guards(sentence))
    reading = Reading((Measurement("rate", 1.0, "", "stdout"),))
    return judged(Ending(Cause.EXITED, 0), reading, folder, (), ("stdout",), asked=asked)


def test_a_guard_reads_the_text_of_a_gzipped_file(tmp_path: Path) -> None:
    bad = gzip.compress(b"step 1\nenergy nan\n")
    assert gzipped_guard(tmp_path, bad, 'out.gz lacks "nan"') == Outcome(Kind.WRONG, "out.gz says 'nan'")
    assert gzipped_guard(tmp_path, bad, 'out.gz contains "energy"').kind is Kind.OK
    torn = gzipped_guard(tmp_path, bad[:-12], 'out.gz lacks "nan"')
    assert torn.kind is Kind.WRONG
    assert "cannot be shown" in torn.reason
    assert "torn gzip file" in torn.reason


def test_of_a_gzip_bomb_a_guard_reads_no_more_than_of_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "GUARDED_TEXT_BYTES", 1000)
    bomb = gzip.compress(b"a" * 1000 + b"nan" + b"a" * 10_000_000)
    assert gzipped_guard(tmp_path, bomb, 'out.gz lacks "nan"').kind is Kind.OK
