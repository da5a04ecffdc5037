"""examples/09-challenge: what its script calls, and that its studies keep their own task rules."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ridgeline.campaign.check import check_study

HERE = Path(__file__).parent.parent.parent / "examples" / "09-challenge"


def called(tmp_path: Path, *tasks: str, leaves: int = 0) -> tuple[int, list[str]]:
    """Its exit code and what it calls of us, with a stand-in that writes a journal where `tune` would."""
    stand_in, log = tmp_path / "ridgeline", tmp_path / "log"
    stand_in.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n[ "$1" != tune ] || {{ mkdir -p "$4"; echo x > "$4/journal.jsonl"; }}\n'
        f'case "$1" in tune|resume) exit {leaves};; esac\n'
    )
    stand_in.chmod(0o755)
    env = {**os.environ, "OUT": str(tmp_path / "out"), "RIDGELINE": str(stand_in)}
    done = subprocess.run([str(HERE / "run.sh"), *tasks], env=env, capture_output=True, text=True, check=False)
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return done.returncode, [line.replace(str(tmp_path / "out"), "OUT").replace(str(HERE), "HERE") for line in lines]


def test_the_script_goes_from_the_task_sheet_to_the_deck(tmp_path: Path) -> None:
    code, lines = called(tmp_path, "sglang")
    assert code == 0
    assert lines == [
        "check HERE/study-sglang.yaml",
        "tune HERE/study-sglang.yaml --out OUT/sglang",
        "study verify OUT/sglang",
        "report OUT/sglang --format html",
        "report OUT/sglang --format slides",
    ]
    _, again = called(tmp_path, "sglang")
    assert again[1] == "resume OUT/sglang", "a stopped one goes on"


@pytest.mark.parametrize(("leaves", "code", "verified"), [(1, 0, True), (3, 3, False)])
def test_no_better_setting_is_an_answer_and_trouble_is_not(
    tmp_path: Path, leaves: int, code: int, verified: bool
) -> None:
    left, lines = called(tmp_path, "sglang", leaves=leaves)
    assert left == code
    assert ("study verify OUT/sglang" in lines) is verified


def test_an_unknown_task_is_named(tmp_path: Path) -> None:
    assert called(tmp_path, "chess") == (2, [])


def test_the_simulated_task_keeps_its_own_rules() -> None:
    found = check_study(HERE / "study-sglang.yaml")
    assert found.study.task is not None and found.study.task.prompts == 2000
