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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.assembly import assemble_campaign
from ridgeline.campaign.status import read_answer
from ridgeline.errors import StoreError
from ridgeline.study.folder import StudyFolder
from ridgeline.study.lock import StudyLock
from tests import command_line

# of samplers whose next trial does not depend on what a run cost, which no two campaigns share
SHUFFLED = "grid, order: shuffled"
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
    done = command_line.ridgeline(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def answer(folder: Path) -> dict[str, object]:
    result = read_answer(folder)[0].as_json()
    return {"settings": result["settings"], "verdict": result["verdict"], "score": result["best"]["score"]}


@dataclass(frozen=True)
class Calm:
    """What a campaign that nobody disturbed came to: the same for every kill, so it is run once for a sampler."""

    events: int
    starts: Counter[str]
    searched: list[object]
    answer: dict[str, object]


@pytest.fixture(scope="module")
def calm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    here = tmp_path_factory.mktemp("calm")
    (here / "study.yaml").write_text(STUDY.replace("SAMPLER", request.param))
    finish("tune", "study.yaml", "--out", "calm", cwd=here)
    folder = here / "calm"
    return Calm(len(events(folder)), starts(folder), searched(folder), answer(folder))


def resume(folder: Path) -> None:
    """To the end, as a controller that comes later: here, to save the start of a process fifty times."""
    wait_for_lock(folder)
    with assemble_campaign(StudyFolder.open(folder)) as campaign:
        campaign.run()


def starts(folder: Path) -> Counter[str]:
    """How often the program was really started at each point, by its own account."""
    return Counter({p.name: len(p.read_text().splitlines()) for p in folder.glob("started-*")})


def uncounted(journal: list[dict[str, Any]]) -> Counter[str]:
    """Starts of trials that do not count: a block that a kill cut in two is run again as a whole, after a warm-up."""
    gone = {number for event in journal if event["event"] == "set-aside" for number in event["trials"]}
    gone |= {event["trial"] for event in journal if event["event"] == "trial" and event["stage"] == "warm-up"}
    points = {event["trial"]: event["point"] for event in journal if event["event"] == "trial"}
    runs = [event["trial"] for event in journal if event["event"] == "run" and event["trial"] in gone]
    return Counter("-".join(["started", *map(str, points[trial].values())]) for trial in runs)


def searched(folder: Path) -> list[object]:
    return [e["point"] for e in events(folder) if e["event"] == "trial" and e["stage"] == "search"]


@pytest.mark.parametrize(
    ("calm", "sampler", "attempts"), [("random", "random", 14), (SHUFFLED, SHUFFLED, 6)], indirect=["calm"]
)
def test_killed_at_random_moments(tmp_path: Path, calm: Calm, sampler: str, attempts: int) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.replace("SAMPLER", sampler))
    rng = random.Random(11)
    kills = 0
    for attempt in range(attempts):
        folder = tmp_path / f"killed-{attempt}"
        process = ridgeline("tune", "study.yaml", "--out", folder.name, cwd=tmp_path)
        # a moment counted in events, not in seconds: a loaded machine is killed as evenly as an idle one
        wait_for_lines(folder / "journal.jsonl", rng.randrange(calm.events), process)
        time.sleep(rng.uniform(0.0, 0.03))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate(timeout=600)
        if not (folder / "journal.jsonl").exists():
            finish("tune", "study.yaml", "--out", folder.name, cwd=tmp_path)
        kept = {e["run"] for e in events_intact(folder) if e["event"] == "ended"}
        resume(folder)

        after = events(folder)
        ended = Counter(e["run"] for e in after if e["event"] == "ended")
        assert kept <= ended.keys(), "a finished run was lost"
        assert set(ended.values()) == {1}, "a run was recorded twice"
        assert starts(folder) - uncounted(after) == calm.starts, "a run was started twice or never"
        assert searched(folder) == calm.searched
        assert answer(folder) == calm.answer
    assert kills > attempts // 2, "the campaign was over before the kill; the test shows nothing"


def wait_for_lock(folder: Path) -> None:
    """A job that was just being started by the killed controller holds the lock until it becomes its own program."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with StudyLock(folder / "lock"):
                return
        except StoreError:
            assert time.monotonic() < deadline, "the lock outlives its holder"
            time.sleep(0.01)


def wait_for_lines(journal: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and (journal.read_bytes().count(b"\n") if journal.exists() else 0) < lines:
        assert time.monotonic() < deadline, f"{journal} has not come to {lines} lines"
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
    deadline = time.monotonic() + 120
    while not (journal.exists() and '"ended"' in journal.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, "no run has ended"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
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
    wait_for_lines(tmp_path / "one" / "journal.jsonl", 1, process)
    other = ridgeline("resume", "one", cwd=tmp_path)
    _, errors = other.communicate(timeout=600)
    assert other.returncode == 5, errors
    assert str(process.pid).encode() in errors
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    assert process.returncode == 130
