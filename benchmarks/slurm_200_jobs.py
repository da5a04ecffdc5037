"""200 one-second jobs on a real one-machine Slurm: through our executor, and by plain sbatch. Times both in one run.

    python benchmarks/slurm_200_jobs.py [--jobs 200] [--rounds 1] [--json]

Both ways submit everything, then wait until all jobs have ended; the plain one asks squeue every half second, as often
as our executor does. Target: ours within 1.5 times of plain sbatch, no job lost, one question to Slurm an interval.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from ridgeline.executors.slurm import slurm
from ridgeline.records.run import Job
from ridgeline.records.site import Site
from tests.slurm_cluster import missing, slurm_cluster

POLL_S = 0.5
COMMAND = "sleep 1"


def plain(jobs: int, folder: Path) -> float:
    script = folder / "plain.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH --output={folder}/plain-%j.out\n#SBATCH --time=2\n{COMMAND}\n")
    began = time.monotonic()
    for _ in range(jobs):
        subprocess.run(["sbatch", "--parsable", str(script)], check=True, stdout=subprocess.DEVNULL)
    while subprocess.run(["squeue", "--me", "-h"], check=True, capture_output=True).stdout.strip():
        time.sleep(POLL_S)
    return time.monotonic() - began


def ours(jobs: int, folder: Path) -> dict[str, object]:
    runner = slurm(Site(batch="slurm", queue="debug", poll_s=POLL_S, jobs_at_once=jobs))
    began = time.monotonic()
    tickets: list[str] = []
    for number in range(jobs):
        home = folder / f"{number:04d}"
        home.mkdir()
        tickets.append(runner.submit(Job(f"j{number}", home, COMMAND, limit_s=60.0)))
    submitted_s = time.monotonic() - began
    waited, endings = time.monotonic(), {}
    while len(endings) < jobs:
        endings |= runner.poll([ticket for ticket in tickets if ticket not in endings])
        runner.wait(POLL_S)
    total_s = time.monotonic() - began
    ends = Counter(f"{ending.cause} {ending.exit_code}" for ending in endings.values())
    intervals = (time.monotonic() - waited) / POLL_S
    return {
        "total_s": total_s,
        "submit_s": submitted_s,
        "endings": dict(ends),
        "questions": runner.questions,
        "intervals": intervals,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if reason := missing():
        sys.exit(f"no Slurm here: {reason}")
    rows = []
    with slurm_cluster() as cluster, tempfile.TemporaryDirectory() as temporary:
        os.environ |= cluster.env
        for number in range(chosen.rounds):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            # which goes first changes: the controller grows slower with the jobs it remembers
            order = [plain, ours] if number % 2 == 0 else [ours, plain]
            row = {way.__name__: way(chosen.jobs, folder) for way in order}
            row["ratio"] = row["ours"]["total_s"] / row["plain"]
            rows.append(row)
            if not chosen.json:
                seen = row["ours"]
                print(f"plain sbatch {row['plain']:6.1f} s   ridgeline {seen['total_s']:6.1f} s   {row['ratio']:.2f}x")
                print(
                    f"  endings {seen['endings']}; {seen['questions']} questions in {seen['intervals']:.0f} intervals"
                )
    if chosen.json:
        print(json.dumps({"jobs": chosen.jobs, "rounds": rows}, indent=1))


if __name__ == "__main__":
    main()
