"""200 one-second jobs on a real one-machine Slurm: by plain sbatch, through our executor, and as a whole campaign.

    python benchmarks/slurm_200_jobs.py [--jobs 200] [--rounds 1] [--json]

All are timed in one run, from the first submission until all jobs have ended; the plain way asks squeue every half
second, as often as ours does. The campaign is `ridgeline tune` with journal, sampler, reading and report.
Target: within 1.5 times of plain sbatch, no job lost, one question to Slurm an interval.
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
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from ridgeline.executors.slurm import slurm
from ridgeline.records.run import Job
from ridgeline.records.site import Site
from tests.slurm_cluster import missing, slurm_cluster

POLL_S = 0.5
COMMAND = "sleep 1"
STUDY = r"""
version: 1
name: many
workload: {kind: command, run: "sleep 1; echo rate {n}", metrics: {rate: {regex: 'rate ([0-9]+)'}}}
site: {batch: slurm, queue: debug, poll_s: %s, jobs_at_once: %d}
space: {n: {from: 1, to: %d}}
goal: {maximize: rate}
baseline: {n: 1}
budget: {trials: %d}
job: {limit: 60s}
stages:
  baseline: {repeats: 1}
  search: {sampler: grid, sentinel_every: 0}
  confirm: {top: 0}
"""


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


def campaign(jobs: int, folder: Path) -> dict[str, object]:
    (folder / "study.yaml").write_text(STUDY % (POLL_S, jobs, jobs, jobs - 1))
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "tune", "study.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    total_s = time.monotonic() - began
    journal = [json.loads(line) for line in (folder / "studies/many/journal.jsonl").read_text().splitlines()]
    ended = [event for event in journal if event["event"] == "ended"]
    outcomes = dict(Counter(event["outcome"]["kind"] for event in ended))
    return {"total_s": total_s, "outcomes": outcomes, "exit_code": done.returncode}


def show(row: dict[str, Any]) -> None:
    seen, whole = row["ours"], row["campaign"]
    print(f"plain sbatch {row['plain']:6.1f} s")
    print(f"executor     {seen['total_s']:6.1f} s   {row['ours_ratio']:.2f}x   {seen['endings']}, ", end="")
    print(f"{seen['questions']} questions in {seen['intervals']:.0f} intervals")
    print(f"campaign     {whole['total_s']:6.1f} s   {row['campaign_ratio']:.2f}x   {whole['outcomes']}", flush=True)


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
        os.environ |= cluster.where
        for number in range(chosen.rounds):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            # which goes first changes: the controller grows slower with the jobs it remembers
            order = [plain, ours, campaign] if number % 2 == 0 else [campaign, ours, plain]
            row: dict[str, Any] = {way.__name__: way(chosen.jobs, folder) for way in order}
            for way in ("ours", "campaign"):
                row[f"{way}_ratio"] = row[way]["total_s"] / row["plain"]
            rows.append(row)
            if not chosen.json:
                show(row)
    if chosen.json:
        print(json.dumps({"jobs": chosen.jobs, "rounds": rows}, indent=1))


if __name__ == "__main__":
    main()
