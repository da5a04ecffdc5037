"""A campaign on the twin runs out of memory, moves the way the failure advises, and does the same after kill -9."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import command_line

EXAMPLE = Path(__file__).parents[2] / "examples" / "04-deepseek-r1-16-gpus"
KILLS = 2


def ridgeline(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ridgeline", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*arguments: str, cwd: Path) -> str:
    done = command_line.ridgeline(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def searched(folder: Path) -> list[tuple[Any, ...]]:
    trials = [e for e in events(folder) if e["event"] == "trial" and e["stage"] == "search"]
    return [(e["point"], e["proposer"], e.get("why")) for e in trials]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with fewer trials, of a sampler that knows nothing of memory, run to its end."""
    home = tmp_path_factory.mktemp("twin")
    shutil.copytree(EXAMPLE, home, dirs_exist_ok=True)
    text = (home / "study.yaml").read_text()
    changed = text.replace("{seed: 5}", "{seed: 5, sampler: random}").replace("trials: 36", "trials: 8")
    (home / "study.yaml").write_text(changed.replace("{top: 3, blocks: 5}", "{top: 1, blocks: 3}"))
    finish("tune", "study.yaml", "--out", "calm", cwd=home)
    return home / "calm"


def test_memory_that_ran_out_moves_the_fraction_down_and_everybody_says_so(calm: Path) -> None:
    journal = events(calm)
    trials = {e["trial"]: e for e in journal if e["event"] == "trial"}
    runs = {e["run"]: e["trial"] for e in journal if e["event"] == "run"}
    failed = [e for e in journal if e["event"] == "ended" and e["outcome"]["kind"] == "oom-run"]
    first = trials[runs[failed[0]["run"]]]
    assert failed[0]["outcome"]["advice"][0][:2] == ["mem_fraction_static", -1]
    later = [t for n, t in trials.items() if n > first["trial"] and t["stage"] == "search"]
    step = first["point"]["mem_fraction_static"] - later[0]["point"]["mem_fraction_static"]
    assert step == pytest.approx(0.01)
    assert {**later[0]["point"], "mem_fraction_static": 0} == {**first["point"], "mem_fraction_static": 0}
    said = f"moved mem_fraction_static down after run-time OOM of trial {first['trial']}"
    moved = json.loads(finish("status", str(calm), "--json", cwd=calm))["moved"]
    assert any(row["why"].startswith(said) for row in moved)
    assert "moved mem_fraction_static down after" in finish("status", str(calm), cwd=calm)
    assert said in (calm / "report.html").read_text()


def test_killed_and_resumed_it_moves_the_same(calm: Path) -> None:
    home, length = calm.parent, len(events(calm))
    rng = random.Random(7)
    for attempt in range(KILLS):
        folder = home / f"killed-{attempt}"
        process = ridgeline("tune", "study.yaml", "--out", folder.name, cwd=home)
        wait_for_lines(folder / "journal.jsonl", rng.randrange(8, length), process)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), output
        finish("resume", folder.name, cwd=home)
        assert searched(folder) == searched(calm)


def wait_for_lines(journal: Path, lines: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and (journal.read_bytes().count(b"\n") if journal.exists() else 0) < lines:
        time.sleep(0.002)
