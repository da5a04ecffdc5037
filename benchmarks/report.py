"""How long the report of a long campaign takes, and how large it is.

    .venv/bin/python benchmarks/report.py [RUNS]

A journal of 1,000 runs is written as a campaign would leave it (eight knobs, failures of three kinds, sentinels, a
confirmation in ten blocks on four nodes, twenty metrics a run). Then `ridgeline report` is timed as a person calls it,
start of Python included. The aim is under 3 s and under 1.5 MB.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KNOBS: dict[str, list[Any]] = {
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4],
    "batch": [64, 128, 256, 512, 1024, 2048, 4096],
    "memory": [round(0.70 + 0.01 * n, 2) for n in range(25)],
    "chunk": [1024, 2048, 4096, 8192],
    "backend": ["fa3", "flashinfer", "triton"],
    "graph": [True, False],
    "page": [1, 16, 32],
}
BASELINE = {name: values[0] for name, values in KNOBS.items()}
WINNER = {**{name: values[-1] for name, values in KNOBS.items()}, "memory": 0.88, "backend": "fa3", "graph": True}
METRICS = [f"metric_{n}" for n in range(19)]
BLOCKS = 10


def study_text() -> str:
    return json.dumps(
        {
            "version": 1, "name": "long", "question": "How long does a report take?",
            "workload": {
                "kind": "command",
                "run": "echo " + " ".join(f"{{{k}}}" for k in KNOBS),
                "metrics": {"rate": {"regex": "(.*)"}},
            },
            "space": KNOBS, "goal": {"maximize": "rate"}, "baseline": BASELINE, "confirm": {"top": 1, "blocks": BLOCKS},
        }
    )  # fmt: skip


def rate(point: dict[str, Any], rng: random.Random) -> float:
    speed = 1000.0 * point["tp"] ** 0.6 * point["batch"] ** 0.3 * (1.2 if point["backend"] == "fa3" else 1.0)
    return speed * (1 + rng.gauss(0, 0.01))


def write_journal(folder: Path, runs: int) -> None:
    rng = random.Random(1)
    plan: list[tuple[str, dict[str, Any], int | None]] = [("baseline", BASELINE, None)] * 3
    searched = runs - 3 - 4 * BLOCKS
    for at in range(searched):
        point = BASELINE if at % 9 == 8 else {name: rng.choice(values) for name, values in KNOBS.items()}
        plan.append(("sentinel" if at % 9 == 8 else "search", point, None))
    for block in range(BLOCKS):
        plan += [("confirm", point, block) for point in (BASELINE, WINNER, WINNER, BASELINE)]
    at = 1_700_000_000.0
    lines: list[dict[str, Any]] = [
        {
            "at": at,
            "event": "opened",
            "kind": "search",
            "question": {},
            "asked": {},
            "receipt": {"host": "h", "seed": 1},
        }
    ]
    for number, (stage, point, block) in enumerate(plan, 1):
        if block == 0 and not any(line["event"] == "confirm" for line in lines[-2:]) and plan[number - 2][2] is None:
            lines.append({"at": at, "event": "confirm", "candidates": [WINNER], "blocks": BLOCKS})
        lines += run_lines(number, stage, point, block, at, rng)
        at += 300.0
    lines.append({"at": at, "event": "stopped", "reason": "finished"})
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def run_lines(
    number: int, stage: str, point: dict[str, Any], block: int | None, at: float, rng: random.Random
) -> list[dict[str, Any]]:
    place = f"runs/{number:04}"
    trial = {
        "at": at,
        "event": "trial",
        "trial": number,
        "stage": stage,
        "proposer": "guided",
        "point": point,
        "settings": point,
    }
    if block is not None:
        trial["block"] = block
    run = {
        "at": at,
        "event": "run",
        "run": number,
        "trial": number,
        "attempt": 1,
        "folder": place,
        "resources": {"nodes": 1},
    }
    ending = {"cause": "exited", "started": at, "ended": at + 290, "exit_code": 0, "nodes": [f"n{1 + number // 4 % 4}"]}
    oom = stage == "search" and point["memory"] > 0.90
    ended: dict[str, Any] = {"at": at + 290, "event": "ended", "run": number, "ending": ending}
    if oom or (stage == "search" and rng.random() < 0.03):
        ended["outcome"] = {"kind": "oom-run" if oom else rng.choice(["crash", "hang"]), "reason": "it did not pass"}
    else:
        values = [["rate", rate(point, rng), "tok/s", "stdout", "measured"]]
        values += [[name, rng.random(), "", "stdout", "measured"] for name in METRICS]
        ended |= {"outcome": {"kind": "ok"}, "measurements": values}
    return [trial, run, {"at": at, "event": "submitted", "run": number, "ticket": place}, ended]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory(prefix="ridgeline-report-benchmark-") as home:
        folder = Path(home, "long")
        folder.mkdir()
        (folder / "study.yaml").write_text(study_text())
        write_journal(folder, runs)
        for form in ("html", "md"):
            before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "ridgeline", "report", str(folder), "--format", form]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            wall, now = time.perf_counter() - before, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
            size = (folder / f"report.{form}").stat().st_size / 1e6
            print(
                f"{form:4}  {runs} runs  {wall:5.2f} s wall  {cpu:5.2f} s CPU  "
                f"{now.ru_maxrss / 1024:.0f} MB of memory  file {size:.2f} MB"
            )


if __name__ == "__main__":
    main()
