"""What people see: values that can be pasted back, leftovers, and messages instead of stacks of calls."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli.text.answer import paste_lines
from ridgeline.cli.text.wording import leftover_text, run_time_text, yaml_text
from ridgeline.study.yaml_tree import resolve
from tests.command_line import ridgeline

QUICK = """\
version: 1
name: quick
workload:
  kind: command
  run: "{what}; echo rate {{x}}"
  metrics: {{rate: {{regex: 'rate (.*)'}}}}
space: {{x: {{from: 0.123456789, to: 0.5, step: 0.1}}}}
goal: {{maximize: rate}}
baseline: {{x: 0.123456789}}
budget: {{trials: 2}}
stages: {{baseline: {{repeats: 1}}}}
confirm: {{top: 1, blocks: 3}}
job: {{limit: 60}}
"""


def message(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("finished")
    (home / "study.yaml").write_text(QUICK.format(what="setsid sleep 77 & true"))
    done = ridgeline("tune", "study.yaml", "--out", "out", cwd=home)
    assert done.returncode == 0, done.stderr
    assert "left behind and ended:" in done.stdout
    assert "sleep 77" in done.stdout
    return home


WORDS = st.text(st.characters(exclude_categories=("Cs",)))


@given(value=st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), WORDS))
def test_a_value_pasted_into_a_study_is_the_same_value(value: object) -> None:
    words = yaml_text(value)
    again = yaml.safe_load(words) if words.startswith('"') else resolve(words)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("text", ["on", "", "1e3", "a b", "-O2", "null", "{x}", "# no", "true", "0x10"])
def test_a_word_stays_a_word(text: str) -> None:
    words = yaml_text(text)
    assert (yaml.safe_load(words) if words.startswith('"') else resolve(words)) == text


def test_of_many_leftovers_two_are_named() -> None:
    assert leftover_text(["1 a", "2 b", "3 c"]) == "1 a, 2 b and 1 more"


def test_best_gives_every_digit(finished: Path) -> None:
    assert "x: 0.423456789" in ridgeline("best", "out", cwd=finished).stdout


def test_the_report_holds_the_command_to_paste_and_what_it_changes(finished: Path) -> None:
    text = (finished / "out" / "report.html").read_text()
    assert "echo rate 0.423456789" in text
    assert "<tr class=changed><td>x<td class=num>0.123456789<td class=num>0.423456789</tr>" in text


def test_the_report_holds_the_baselines_command_too(finished: Path) -> None:
    text = (finished / "out" / "report.html").read_text()
    assert text.count("For comparison, the command of the baseline") == 1
    assert text.index("echo rate 0.423456789") < text.index("For comparison, the command of the baseline")
    assert "echo rate 0.123456789" in text[text.index("For comparison, the command of the baseline") :]
    ridgeline("report", "out", "--out", "out/again.html", cwd=finished)
    assert (finished / "out/again.html").read_text() == text


def test_an_export_holds_the_answer_of_the_runs(finished: Path) -> None:
    told = json.loads(ridgeline("best", "out", "--json", cwd=finished).stdout)
    whole = json.loads(ridgeline("study", "export", "out", "--json", cwd=finished).stdout)
    assert whole["answer"] == told
    assert whole["answer"]["verdict"] == "confirmed"
    assert whole["answer"]["best"]["low"] is not None
    rows = list(csv.DictReader(io.StringIO(ridgeline("study", "export", "out", cwd=finished).stdout)))
    assert len(rows) == len(whole["runs"])
    of_best = [row for row in rows if row["answer.is"] == "candidate"]
    assert {row["set.x"] for row in of_best} == {"0.423456789"}
    assert {row["answer.verdict"] for row in of_best} == {"confirmed"}
    assert {float(row["answer.low"]) for row in of_best} == {whole["answer"]["best"]["low"]}
    assert {row["set.x"] for row in rows if row["answer.is"] == "reference"} == {"0.123456789"}
    assert {row["answer.verdict"] for row in rows if row["answer.is"] != "candidate"} == {""}


@pytest.mark.parametrize(("verb", "code"), [("study export", 2), ("report", 5)])
@pytest.mark.parametrize("out", ["/nowhere/at/all.txt", "."])
def test_a_file_that_cannot_be_written_is_named(finished: Path, verb: str, code: int, out: str) -> None:
    assert "--out" in message(ridgeline(*verb.split(), "out", "--out", out, cwd=finished), code)


def test_a_folder_name_that_is_too_long_is_named(finished: Path) -> None:
    assert "too long" in message(ridgeline("tune", "study.yaml", "--out", "a" * 300, cwd=finished), 5)


def test_a_build_source_that_is_not_there_is_found_by_check(tmp_path: Path) -> None:
    builds = "builds: {make: 'true', keep: [a], sources: [none.c]}\n"
    (tmp_path / "study.yaml").write_text(QUICK.format(what="true") + builds)
    told = message(ridgeline("check", "study.yaml", cwd=tmp_path), 2)
    assert "study.yaml:14: builds.sources[0]: nothing matches none.c" in told


def test_a_programs_garbage_does_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(QUICK.format(what=r"printf '\\033[2Jred\\007' >&2; exit 3"))
    done = ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
    message(done, 1)
    assert "[2Jred" in done.stdout
    assert not {"\033", "\007"} & set(done.stdout + done.stderr)


def test_a_folder_that_takes_no_files_any_more_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(QUICK.format(what="rm -rf ../../runs; touch ../../runs; true"))
    told = message(ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path), 5)
    assert "ridgeline resume" in told


def test_ctrl_c_twice_leaves_nothing_running_and_says_how_to_go_on(tmp_path: Path) -> None:
    builds = "builds: {make: 'sleep 78', keep: [a]}\n"
    (tmp_path / "study.yaml").write_text(QUICK.format(what="true") + builds)
    command = [sys.executable, "-m", "ridgeline", "tune", "study.yaml", "--out", "out"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as controller:
        claim = ""
        while "silence_limit_s" not in claim:  # its last word: the file is there before all of it is written
            time.sleep(0.02)
            assert controller.poll() is None
            claim = "".join(path.read_text() for path in tmp_path.glob("out/builds/*/process"))
        controller.send_signal(signal.SIGINT)
        controller.send_signal(signal.SIGINT)
        _, told = controller.communicate(timeout=600)
    assert controller.returncode == 130
    assert "ridgeline resume out" in told
    pid = int(claim.partition("pid=")[2].split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_is_to_be_pasted_can_be_pasted() -> None:
    """A here-document ends only where its last word starts the line."""
    assert paste_lines("./app -n 2") == ["  ./app -n 2"]
    text = "cat > in <<'END'\nstart\nEND\n./app in"
    assert "\n".join(paste_lines(text)) == text


def test_short_runs_show_how_long_they_took() -> None:
    assert [run_time_text(s) for s in (0.04, 1.66, 9.94, 75)] == ["0.0s", "1.7s", "9.9s", "1:15"]


def test_the_answer_to_how_far_is_not_the_fastest_size(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "version: 1\nname: far\nspace: {threads: [1, 2, 4]}\ngoal: {maximize: rate}\nbaseline: {threads: 1}\n"
        "workload: {kind: command, run: 'echo rate $((100 + {threads}))', metrics: {rate: {regex: 'rate (.*)'}}}\n"
    )
    assert ridgeline("study", "scale", "study.yaml", "--out", "out", cwd=tmp_path).returncode == 0
    answer = ridgeline("best", "out", cwd=tmp_path).stdout
    assert "speed-up" in answer and "as YAML" not in answer
    assert "best" not in ridgeline("status", "out", cwd=tmp_path).stdout


def test_a_comparison_speaks_of_two_settings(tmp_path: Path) -> None:
    """Nobody searched: there is no best of the search, and A need not be the baseline."""
    (tmp_path / "study.yaml").write_text(QUICK.format(what="echo rate 1; exit 0"))
    done = ridgeline("compare", "study.yaml", "x=0.223456789", "--out", "out", cwd=tmp_path)
    assert "A and B: no detectable difference" in done.stdout
    assert "setting A again" in done.stdout
    told = [done.stdout, ridgeline("best", "out", cwd=tmp_path).stdout, ridgeline("status", "out", cwd=tmp_path).stdout]
    for text in told:
        assert not [word for word in ("best", "search", "baseline") if word in text], text
    answer = json.loads(ridgeline("best", "out", "--json", cwd=tmp_path).stdout)
    assert answer["kind"] == "compare"
    assert answer["a"]["point"]["x"] == 0.123456789 and answer["b"]["point"]["x"] == 0.223456789
    assert "best" not in answer
    page = (tmp_path / "out" / "report.html").read_text()
    ours = page[page.rindex("<body") :]
    assert "The two settings" in ours
    assert not [word for word in ("best of the search", "against the baseline") if word in ours]
