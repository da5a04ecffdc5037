"""What the engine itself costs: time per trial of a no-op program, memory, resume of a long journal, `--help`.

    .venv/bin/python benchmarks/engine_overhead.py

The peer for the time of a trial is the same command started as plainly as can be: `sh -c` from a Python loop.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = """\
version: 1
name: noop
workload:
  kind: command
  run: 'echo "score $(( {x} * 7 % 101 + {y} ))"'
  metrics:
    score: {regex: 'score (\\d+)'}
space:
  x: {from: 0, to: 400}
  y: {from: 0, to: 100}
goal: {maximize: score}
baseline: {x: 0, y: 0}
budget: {trials: TRIALS}
search: {sampler: SAMPLER, seed: 3}
confirm: {top: 1, blocks: 3}
"""

MEASURED = """\
import contextlib, io, resource, sys, time
began = time.perf_counter()
from ridgeline.cli.main import run
with contextlib.redirect_stdout(io.StringIO()):
    try:
        run(sys.argv[1:])
    except SystemExit as left:
        assert not left.code, left.code
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measured(*arguments: str) -> tuple[float, float]:
    """Seconds and MB of one ridgeline process, its start included."""
    command = [sys.executable, "-c", MEASURED, *arguments]
    seconds, megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(megabytes)


def plain_loop(count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        subprocess.run(["sh", "-c", f'echo "score {number}"'], check=True, capture_output=True)
    return (time.perf_counter() - began) / count * 1000


def long_journal(folder: Path, trials: int) -> None:
    """A journal as a long campaign leaves it: the runs of a short one, repeated under new numbers."""
    lines = (folder / "journal.jsonl").read_text().splitlines()
    opened = [line for line in lines if '"opened"' in line][:1]
    life = [
        json.loads(line)
        for line in lines
        if any(f'"{word}"' in line for word in ("trial", "run", "submitted", "ended"))
    ]
    lives: dict[int, list[dict[str, object]]] = {}
    for event in life:
        lives.setdefault(int(event.get("run") or event["trial"]), []).append(event)
    searched = [events for events in lives.values() if events[0].get("stage") == "search"]
    kept = [line for number in (1, 2, 3) for line in map(json.dumps, lives[number])]
    for number in range(4, trials + 4):
        for event in searched[number % len(searched)]:
            copy = dict(event) | {name: number for name in ("run", "trial") if name in event}
            if copy["event"] == "trial":
                point = {"x": number % 401, "y": number // 401 % 101}
                copy |= {"point": point, "settings": point}
            kept.append(json.dumps(copy))
    (folder / "journal.jsonl").write_text("\n".join([*opened, *kept]) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for sampler in ("random", "guided"):
            study = root / f"{sampler}.yaml"
            study.write_text(STUDY.replace("TRIALS", "200").replace("SAMPLER", sampler))
            seconds, megabytes = measured("tune", str(study), "--out", str(root / sampler))
            runs = len(list((root / sampler / "runs").iterdir()))
            cost = f"{seconds / runs * 1000:6.1f} ms a run over {runs} runs"
            print(f"{sampler:7} {cost}, start and report included; {megabytes:.0f} MB")
        print(f"{'plain':7} {plain_loop(200):6.1f} ms a run: sh -c from a Python loop, nothing kept")
        for sampler in ("random", "guided"):
            long_journal(root / sampler, 10_000)
            seconds, megabytes = measured("status", str(root / sampler), "--json")
            print(f"{sampler:7} status of 10,000 trials {seconds:5.2f} s, {megabytes:.0f} MB")
            seconds = time_to_first_act(root / sampler)
            print(f"{sampler:7} resume of 10,000 trials: {seconds:5.2f} s until it acts")
        starts = []
        for _ in range(7):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "ridgeline", "--help"], check=True, capture_output=True)
            starts.append((time.perf_counter() - began) * 1000)
        print(f"--help  {statistics.median(starts):6.0f} ms (median of 7)")
    print(f"this machine: {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")


def time_to_first_act(folder: Path) -> float:
    """From the call of `ridgeline resume` to the first new line of the journal after its own opening."""
    journal = folder / "journal.jsonl"
    study = folder / "study.yaml"
    study.write_text(study.read_text().replace("trials: 200", "trials: 10010"))
    size = journal.stat().st_size
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "ridgeline", "resume", str(folder)], stdout=subprocess.DEVNULL)
    while journal.stat().st_size - size < 200 and process.poll() is None:
        time.sleep(0.005)
    seconds = time.perf_counter() - began
    process.terminate()
    process.wait()
    return seconds


if __name__ == "__main__":
    main()
