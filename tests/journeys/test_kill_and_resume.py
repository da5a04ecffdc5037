"""kill -9 of the controller at any moment, then resume: nothing is lost or run twice, the answer is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

STUDY = """\
version: 1
name: killed
workload:
  kind: command
  run: echo run >> ../../started-{x}-{y}; sleep 0.02; echo "score $(( {x} * 37 % 101 + {y} ))"
  metrics:
    score: {regex: 'score (\\d+)'}
space:
  x: {from: 0, to: 30}
  y: [0, 5, 9]
goal: {maximize: score}
baseline: {x: 0, y: 0}
budget: {trials: 9}
search: {sampler: SAMPLER, seed: 5, sentinel_every: 6}
confirm: {top: 1, blocks: 3}
"""


def ridgeline(*arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ridgeline", *arguments], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(*arguments: str, cwd: Path) -> None:
    process = ridgeline(*arguments, cwd=cwd)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def answer(folder: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "ridgeline", "best", str(folder), "--json"]
    result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return {"settings": result["settings"], "verdict": result["verdict"], "score": result["best"]["score"]}


def starts(folder: Path) -> Counter[str]:
    """How often the program was really started at each point, by its own account."""
    return Counter({p.name: len(p.read_text().splitlines()) for p in folder.glob("started-*")})


def searched(folder: Path) -> list[object]:
    return [e["point"] for e in events(folder) if e["event"] == "trial" and e["stage"] == "search"]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_killed_at_random_moments(tmp_path: Path, sampler: str) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.replace("SAMPLER", sampler))
    finish("tune", "study.yaml", "--out", "calm", cwd=tmp_path)
    calm = tmp_path / "calm"
    length = len(events(calm))

    rng = random.Random(11)
    kills = 0
    for attempt in range(25):
        folder = tmp_path / f"killed-{attempt}"
        process = ridgeline("tune", "study.yaml", "--out", folder.name, cwd=tmp_path)
        # a moment counted in events, not in seconds: a loaded machine is killed as evenly as an idle one
        wait_for_lines(folder / "journal.jsonl", rng.randrange(length), process)
        time.sleep(rng.uniform(0.0, 0.03))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
        if not (folder / "journal.jsonl").exists():
            finish("tune", "study.yaml", "--out", folder.name, cwd=tmp_path)
        kept = {e["run"] for e in events_intact(folder) if e["event"] == "ended"}
        finish("resume", folder.name, cwd=tmp_path)

        after = events(folder)
        ended = Counter(e["run"] for e in after if e["event"] == "ended")
        assert kept <= ended.keys(), "a finished run was lost"
        assert set(ended.values()) == {1}, "a run was recorded twice"
        assert starts(folder) == starts(calm), "a run was started twice or never"
        assert searched(folder) == searched(calm)
        assert answer(folder) == answer(calm)
    assert kills > 10, "the campaign was over before the kill; the test shows nothing"


def wait_for_lines(journal: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and (journal.read_bytes().count(b"\n") if journal.exists() else 0) < lines:
        time.sleep(0.002)


def events_intact(folder: Path) -> list[dict[str, object]]:
    """As `events`, without a torn last line."""
    whole = []
    for line in (folder / "journal.jsonl").read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            break
    return whole


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.replace("SAMPLER", "random").replace("sleep 0.02", "sleep 0.2"))
    process = ridgeline("tune", "study.yaml", "--out", "stopped", cwd=tmp_path)
    journal = tmp_path / "stopped" / "journal.jsonl"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (journal.exists() and '"ended"' in journal.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"ridgeline resume stopped" in errors
    assert b"Traceback" not in errors
    assert events(tmp_path / "stopped")[-1]["event"] == "stopped"
    finish("resume", "stopped", cwd=tmp_path)
    finish("tune", "study.yaml", "--out", "calm", cwd=tmp_path)
    assert answer(tmp_path / "stopped") == answer(tmp_path / "calm")


def test_a_second_controller_is_turned_away(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.replace("SAMPLER", "random").replace("sleep 0.02", "sleep 0.2"))
    process = ridgeline("tune", "study.yaml", "--out", "one", cwd=tmp_path)
    while not (tmp_path / "one" / "journal.jsonl").exists():
        time.sleep(0.02)
    other = ridgeline("resume", "one", cwd=tmp_path)
    _, errors = other.communicate(timeout=30)
    assert other.returncode == 5, errors
    assert str(process.pid).encode() in errors
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 130
