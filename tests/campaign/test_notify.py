"""`notify:` of a study: whoever is named there hears once that the campaign ended, and how."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.command_line import ridgeline

STUDY = """\
version: 1
name: told
workload: {{kind: command, run: 'echo rate 1{{x}}', metrics: {{rate: {{regex: 'rate (.*)', unit: GF/s}}}}}}
space: {{x: [0, 9]}}
goal: {{maximize: rate}}
baseline: {{x: 0}}
budget: {{trials: 1}}
stages: {{baseline: {{repeats: 1}}}}
confirm: {{top: 1, blocks: 3, repeats: 1}}
notify: {{command: '{command}'}}
"""


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ridgeline(*words, cwd=folder)


def alerts(folder: Path) -> list[dict[str, object]]:
    file = folder / "told.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_the_end_of_a_campaign_is_told_once_with_its_answer(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.format(command="(cat; echo) >> told.jsonl"))
    done = tune(tmp_path, "tune", "study.yaml", "--out", "out")
    (alert,) = alerts(tmp_path)
    assert (alert["study"], alert["kind"]) == ("told", "finished")
    assert str(alert["text"]) in done.stdout and "19 GF/s" in str(alert["text"])
    tune(tmp_path, "resume", "out")
    assert len(alerts(tmp_path)) == 1, "nothing new happened"


def test_a_campaign_that_stops_tells_why(tmp_path: Path) -> None:
    text = STUDY.format(command="(cat; echo) >> told.jsonl").replace("echo rate 1{x}", "false {x}")
    (tmp_path / "study.yaml").write_text(text)
    done = tune(tmp_path, "tune", "study.yaml", "--out", "out")
    (alert,) = alerts(tmp_path)
    assert done.returncode != 0 and alert["kind"] == "stopped"
    assert "the baseline" in str(alert["text"])


def test_a_channel_that_fails_changes_nothing_but_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.format(command="echo no >&2; exit 3"))
    done = tune(tmp_path, "tune", "study.yaml", "--out", "out")
    assert done.returncode == 0 and "Confirmed" in done.stdout
    assert "notify: command failed (exit code 3: no)" in done.stderr


def test_a_wrong_key_is_named_before_anything_runs(tmp_path: Path) -> None:
    text = STUDY.format(command="true").replace("notify: {command: ", "notify: {comand: ")
    (tmp_path / "study.yaml").write_text(text)
    done = tune(tmp_path, "check", "study.yaml")
    assert done.returncode == 2 and "did you mean command?" in done.stderr + done.stdout
