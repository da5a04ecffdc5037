"""`ridgeline ci gate`: a reference that can be committed, exit codes for scripts, files for CI systems."""

from __future__ import annotations

import json
import os
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import ExitCode
from tests import command_line

STUDY = """\
version: 1
name: solver
workload: {kind: command, run: 'echo work $(cat WORK)', metrics: {work: {regex: 'work (.*)'}}}
space: {x: [1]}
goal: {minimize: work}
"""


def written(folder: Path) -> Path:
    """A study whose program's 'time' is the number in a file."""
    (folder / "work").write_text("100\n")
    (folder / "study.yaml").write_text(STUDY.replace("WORK", str(folder / "work")))
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = written(tmp_path_factory.mktemp("reference"))
    done = ridgeline(home, "study.yaml", "--against", "ref.json", "--update")
    assert done.returncode == 0, done.stderr
    return (home / "ref.json").read_text()


@pytest.fixture
def home(tmp_path: Path, reference: str) -> Path:
    """The study and its reference, measured elsewhere on this machine."""
    (written(tmp_path) / "ref.json").write_text(reference)
    return tmp_path


def ridgeline(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run(home, "ci", "gate", *words, **env)


def run(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return command_line.ridgeline(*words, cwd=home, env={**os.environ, "GITHUB_ACTIONS": "", **env})


def edited(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_reference_says_what_how_and_where(home: Path) -> None:
    stored = json.loads((home / "ref.json").read_text())
    assert stored["values"] == [100.0] * 16 and stored["setting"] == {"x": 1}
    assert (stored["metric"], stored["direction"], stored["study"]) == ("work", "minimize", "solver")
    assert {"name", "cores"} <= set(stored["machine"])
    assert stored["measured"]["runs"] == 16 and "--update" in stored["measured"]["command"]


@pytest.mark.parametrize(
    ("work", "code", "says"),
    [("100", ExitCode.DONE, "not slower"), ("97", ExitCode.DONE, "not slower"), ("104", ExitCode.WORSE, "slower than")],
)
def test_a_gate_leaves_with_what_it_found(home: Path, work: str, code: ExitCode, says: str) -> None:
    (home / "work").write_text(work)
    done = ridgeline(home, "study.yaml", "--against", "ref.json")
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
    assert "finds a 3% slowdown 90% of the time, with 1 false alarm in 100" in done.stdout


@pytest.mark.parametrize(
    ("others", "work", "code", "says"),
    [
        (-10.0, "104", ExitCode.CANNOT_JUDGE, "the machine is busier"),
        (+10.0, "104", ExitCode.WORSE, "slower than the reference"),
        (+10.0, "100", ExitCode.CANNOT_JUDGE, "the reference was measured on a busier machine"),
        (-10.0, "100", ExitCode.DONE, "not slower than the reference"),
    ],
)
def test_load_that_differs_from_the_references_is_no_verdict_on_the_program(
    home: Path, others: float, work: str, code: ExitCode, says: str
) -> None:
    # so far from any load that there is, that what this machine does meanwhile decides nothing
    stored = json.loads((home / "ref.json").read_text())
    state = {**stored["measured"]["state"], "others": others, "watched_s": 100.0}
    edited(home / "ref.json", values=[100.0, 100.1] * 8, measured={**stored["measured"], "state": state})
    (home / "work").write_text(work)
    done = ridgeline(home, "study.yaml", "--against", "ref.json")
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout + done.stderr


TWO = """\
version: 1
name: two
workload: {kind: command, run: 'echo work {work}', metrics: {work: {regex: 'work (.*)'}}}
space: {work: [100, 101, 104]}
goal: {minimize: work}
baseline: {work: 100}
"""


@pytest.mark.parametrize(
    ("new", "old", "code", "says"),
    [
        ("104", "100", ExitCode.WORSE, "slower than the old one: work 100 -> 104, slowdown +4.0%"),
        ("100", "104", ExitCode.DONE, "not slower than the old one: work 104 -> 100, slowdown -3.8%"),
        ("101", "100", ExitCode.DONE, "not slower than the old one"),
    ],
)
def test_two_settings_of_a_study_run_in_turn(tmp_path: Path, new: str, old: str, code: ExitCode, says: str) -> None:
    (tmp_path / "study.yaml").write_text(TWO)
    done = ridgeline(
        tmp_path, "study.yaml", "--at", f"work={new}", "--against-setting", f"work={old}", "--junit", "j.xml"
    )
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
    assert "finds a 3% slowdown 90% of the time, with 1 false alarm in 100" in done.stdout
    assert ET.fromstring((tmp_path / "j.xml").read_text()).attrib["failures"] == str(int(code == ExitCode.WORSE))
    lines = [json.loads(line) for line in (tmp_path / "studies/two-gate/journal.jsonl").read_text().splitlines()]
    order = [line["point"]["work"] for line in lines if line["event"] == "trial" and line["stage"] == "search"]
    pairs = [order[n : n + 2] for n in range(0, len(order), 2)]
    assert all(sorted(pair) == sorted([int(new), int(old)]) for pair in pairs)
    assert len({tuple(pair) for pair in pairs}) == 2, "which comes first is drawn"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--against-command", "true", "--", "true"), "both commands are the same"),
        (("--against-command", "true", "--update", "--", "false"), "leave out --against and --update"),
        (("--against-command", "true", "study.yaml"), "make the program a knob"),
        (("--against-setting", "work=100", "--", "true"), "is of a study file"),
        (("study.yaml", "--against-setting", "work=100"), "are the same setting"),
        (("study.yaml", "--at", "work=104", "--against-setting", "work=7"), "outside the study's space"),
    ],
)
def test_what_cannot_run_in_turn_is_named(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    (tmp_path / "study.yaml").write_text(TWO)
    done = ridgeline(tmp_path, *words)
    assert done.returncode == ExitCode.WRONG_INPUT and says in done.stderr, done.stderr
    assert not (tmp_path / "studies").exists()


def test_two_commands_run_in_turn_without_a_reference(tmp_path: Path) -> None:
    # by a factor of 20 in wall time, so that no load on the machine decides it
    done = ridgeline(tmp_path, "--against-command", "sleep 0.01", "--", "sleep", "0.2")
    assert done.returncode == ExitCode.WORSE, done.stdout + done.stderr
    assert "slower than the old one" in done.stdout and "in turn" in done.stdout
    assert not list(tmp_path.glob("*.gate.json"))
    failed = ridgeline(tmp_path, "--against-command", "sleep 0.01", "--", "cat", "missing")
    assert failed.returncode == ExitCode.NOTHING_BETTER, failed.stderr


def test_ci_systems_read_the_same_verdict(home: Path) -> None:
    (home / "work").write_text("110")
    files = ("--junit", "junit.xml", "--gitlab", "quality.json", "--markdown", "summary.md")
    done = ridgeline(
        home, "study.yaml", "--against", "ref.json", *files, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="page.md"
    )
    assert done.returncode == ExitCode.WORSE
    suite = ET.fromstring((home / "junit.xml").read_text())
    assert suite.attrib["failures"] == "1"
    failure = suite.find("testcase/failure")
    assert failure is not None and "slowdown +10.0%" in failure.attrib["message"]
    (entry,) = json.loads((home / "quality.json").read_text())
    assert entry["severity"] == "major" and entry["location"]["path"] == "ref.json" and entry["fingerprint"]
    (line,) = re.findall("^::error .*$", done.stdout, re.M)
    assert line.startswith("::error file=ref.json,title=solver%3A slower::") and "10.0%25" in line
    assert (home / "page.md").read_text() == (home / "summary.md").read_text()
    assert "| work | 100 | 110 | +10.0% |" in (home / "page.md").read_text()


def test_a_reference_of_another_machine_cannot_judge_and_nothing_runs(home: Path) -> None:
    stored = json.loads((home / "ref.json").read_text())
    edited(home / "ref.json", machine={**stored["machine"], "name": "another"})
    (home / "work").write_text("200")
    done = ridgeline(home, "study.yaml", "--against", "ref.json", "--junit", "junit.xml")
    assert done.returncode == ExitCode.CANNOT_JUDGE
    assert "measured on another machine (name another, here " in done.stderr and "--machine" in done.stderr
    assert ET.fromstring((home / "junit.xml").read_text()).attrib["skipped"] == "1"
    assert not (home / "studies" / "solver-gate").exists()
    alike = ridgeline(home, "study.yaml", "--against", "ref.json", "--machine", "another")
    assert alike.returncode == ExitCode.WORSE, "one name for machines that are alike"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metric": "wall_s"}, "name the reference of this setting"),
        ({"setting": {"x": 2}}, "name the reference of this setting"),
        ({"values": [1.0]}, "has 1 run, 12 above 0 are needed"),
        ({"values": "many"}, "the reference is not whole"),
        ({"ridgeline_reference": 99}, "not a reference file of this version"),
    ],
)
def test_a_reference_that_does_not_fit_is_named(home: Path, change: dict[str, Any], says: str) -> None:
    edited(home / "ref.json", **change)
    done = ridgeline(home, "study.yaml", "--against", "ref.json")
    assert done.returncode == ExitCode.WRONG_INPUT
    assert says in done.stderr and "--update" in done.stderr


def test_missing_and_foreign_files_are_named(home: Path) -> None:
    assert "no such reference; measure it once with --update" in ridgeline(home, "study.yaml").stderr
    (home / "notes.json").write_text('{"mine": 1}')
    done = ridgeline(home, "study.yaml", "--against", "notes.json", "--update")
    assert done.returncode == ExitCode.WRONG_INPUT and "name another file" in done.stderr
    assert (home / "notes.json").read_text() == '{"mine": 1}'


def test_an_update_keeps_the_earlier_reference_in_short(home: Path) -> None:
    (home / "work").write_text("104")
    assert ridgeline(home, "study.yaml", "--against", "ref.json", "--update").returncode == 0
    stored = json.loads((home / "ref.json").read_text())
    assert set(stored["values"]) == {104.0}
    (before,) = stored["before"]
    assert before["median"] == 100.0 and before["runs"] == 16
    assert ridgeline(home, "study.yaml", "--against", "ref.json").returncode == 0


def test_a_program_that_fails_is_not_slow_but_failed(home: Path) -> None:
    (home / "work").unlink()
    assert ridgeline(home, "study.yaml", "--against", "ref.json").returncode == ExitCode.NOTHING_BETTER


@pytest.mark.parametrize("words", [[], ["--update"]])
def test_values_without_a_ratio_cannot_be_judged_and_are_measured_once(home: Path, words: list[str]) -> None:
    (home / "work").write_text("0\n")
    done = ridgeline(home, "study.yaml", "--against", "ref.json", *words)
    assert done.returncode == ExitCode.CANNOT_JUDGE, done.stderr
    assert "work is 0, and ratios need values above 0" in done.stderr and done.stdout.count("work 0 ") == 2


def test_a_gate_that_was_stopped_goes_on_and_a_finished_one_starts_anew(home: Path) -> None:
    ridgeline(home, "study.yaml", "--against", "ref.json")
    journal = home / "studies" / "solver-gate" / "journal.jsonl"
    lines = journal.read_text().splitlines()
    cut = next(i for i, line in enumerate(lines) if '"event": "ended"' in line or '"event":"ended"' in line)
    journal.write_text("\n".join(lines[: cut + 1]) + "\n")
    done = ridgeline(home, "study.yaml", "--against", "ref.json")
    assert done.returncode == 0 and "kept" in done.stdout, done.stdout
    assert not (home / "studies" / "solver-gate-2").exists()
    ridgeline(home, "study.yaml", "--against", "ref.json")
    assert (home / "studies" / "solver-gate-2" / "journal.jsonl").exists()


def test_a_command_needs_no_study_file(tmp_path: Path) -> None:
    # by a factor of 100 in wall time, so that no load on the machine decides it
    (tmp_path / "pause").write_text("0.01")
    (tmp_path / "prog.sh").write_text("sleep $(cat pause)\n")
    done = ridgeline(tmp_path, "--update", "--runs", "12", "--", "sh", "prog.sh")
    assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / "prog.gate.json").read_text())
    assert stored["setting"] == {"command": "sh prog.sh"} and stored["metric"] == "wall_s"
    assert len(stored["values"]) == 12
    other = ridgeline(tmp_path, "--against", "prog.gate.json", "--", "sh", "other.sh")
    assert other.returncode == ExitCode.WRONG_INPUT and "name the reference of this setting" in other.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("true", "cat missing", "--blocks", "3"), ExitCode.NOTHING_BETTER, "B did not pass"),
        (("true", "true"), ExitCode.WRONG_INPUT, "both commands are the same"),
        (("true", " "), ExitCode.WRONG_INPUT, "the command is empty"),
        (("true", "echo 'a"), ExitCode.NOTHING_BETTER, "B did not pass"),
        (("true", "false", "--a", "x=1"), ExitCode.WRONG_INPUT, "--a is a setting of a study file"),
        (("missing.yaml", "x=1"), ExitCode.WRONG_INPUT, "missing.yaml"),
        (("missing", "x=1"), ExitCode.WRONG_INPUT, "missing"),
    ],
)
def test_two_commands_are_compared_without_a_study_file(
    tmp_path: Path, words: tuple[str, ...], code: ExitCode, says: str
) -> None:
    done = run(tmp_path, "compare", *words)
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_the_history_of_gates_is_a_page_with_its_changes(home: Path) -> None:
    said = ""
    for work in ("100", "100", "104", "104", "104"):
        (home / "work").write_text(work)
        done = ridgeline(
            home, "study.yaml", "--against", "ref.json", "--history", "past.jsonl", GITHUB_SHA=f"{work}abcdef"
        )
        said += done.stderr
    lines = (home / "past.jsonl").read_text().splitlines()
    assert [json.loads(line)["conclusion"] for line in lines] == ["not-slower"] * 2 + ["slower"] * 3
    page = (home / "past.html").read_text()
    assert re.search(r"4\.0% slower since \d{4}-\d\d-\d\d 104abcdef", page), "the change, where it was first seen"
    assert "other machines" not in page
    (home / "notes.txt").write_text("mine\n")
    refused = ridgeline(home, "study.yaml", "--against", "ref.json", "--history", "notes.txt")
    assert "notes.txt: holds no gate" in refused.stderr
    assert (home / "notes.txt").read_text() == "mine\n", "what is not ours stays"
