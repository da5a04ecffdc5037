"""What the controller itself costs as a campaign grows: its own processor time a run, on a simulated cluster.

    .venv/bin/python benchmarks/controller_cost.py [--at 150,1100,5000] [--nodes 6] [--sampler random] [--profile FILE]

For each mark the journal of a campaign that is WINDOW runs short of it is made up, and `resume` runs those for real.
The program is a line of awk, so all that takes time is ours; jobs are children and don't count, nor does the replay.
One of the nodes is slow, so the look at nodes has work to do. Processor time on a busy machine is up to twice that on
an idle one: compare figures of the same hour.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from ridgeline.campaign.engine import Campaign
from ridgeline.cli.main import run

WINDOW = 50  # runs
EVERY = 8  # trials of the search between two sentinels
SLOW, NOISE = {"n002": 0.91}, 0.015
STUDY = """\
version: 1
name: controller-cost
workload:
  kind: command
  run: 'awk "BEGIN { print \\"score\\", (({x} * 7) % 101 + {y} + 1000) * $RIDGELINE_SPEED }"'
  metrics:
    score: {regex: 'score ([\\d.]+)'}
site: site.yaml
space:
  x: {from: 0, to: 400}
  y: {from: 0, to: 100}
goal: {maximize: score}
baseline: {x: 0, y: 0}
budget: {trials: 20000}
search: {sampler: SAMPLER, seed: 3}
confirm: {top: 1, blocks: 3}
"""
SITE = """\
version: 1
name: made-up
batch: simulated
nodes: NODES
options: {prefix: n, seed: 1, slow: {n002: 0.91}, noise: 0.015}
"""


class EnoughError(Exception):
    """As many runs as were asked for have ended."""


def spent_ms(arguments: list[str], runs: int) -> list[float]:
    """The processor time of this process after each of so many runs of a campaign."""
    spent: list[float] = []
    record = Campaign.record

    def noting(campaign: Campaign, event: dict[str, Any]) -> None:
        record(campaign, event)
        if event["event"] == "ended":
            spent.append(time.process_time() * 1e3)
            if len(spent) == runs:
                raise EnoughError

    Campaign.record = noting  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(EnoughError):
            run(arguments)
    finally:
        Campaign.record = record  # type: ignore[method-assign]
    return spent


def lengthen(journal: Path, runs: int, nodes: int) -> None:
    """The journal as `runs` runs would have left it, after the pattern of the last run in it."""
    rng, lines = random.Random(1), [json.loads(line) for line in journal.read_text().splitlines()]
    lines = [line for line in lines if line["event"] != "stopped"]
    last = lines[-1]["run"]
    life = [line for line in lines if last in (line.get("run"), line["event"] == "trial" and line["trial"])]
    for number in range(last + 1, runs + 1):
        search = number % (EVERY + 1) != 0
        point = {"x": number % 401, "y": number // 401 % 101} if search else {"x": 0, "y": 0}
        node = f"n{rng.randrange(nodes) + 1:03d}"
        score = (point["x"] * 7 % 101 + point["y"] + 1000) * SLOW.get(node, 1.0) * rng.lognormvariate(0, NOISE)
        for line in life:
            copy = line | {name: number for name in ("run", "trial") if name in line}
            if copy["event"] == "trial":
                copy |= {"stage": "search" if search else "sentinel", "point": point, "settings": point}
            elif copy["event"] == "run":
                copy["folder"] = f"runs/{number:04d}-made-up"
            elif copy["event"] == "ended":
                copy["ending"] = copy["ending"] | {"nodes": [node], "machines": [[node, "", []]]}
                (measured,) = (each for each in copy["measurements"] if each[0] == "score")
                copy["measurements"] = [[measured[0], score, *measured[2:]]]
            lines.append(copy)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", default="150,1100,5000", help="after how many runs")
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--profile", help="where to leave what cProfile saw of the last mark")
    asked = parser.parse_args()
    print(f"{asked.nodes} nodes, {asked.sampler}: processor time of the controller")
    for mark in map(int, asked.at.split(",")):
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            (root / "site.yaml").write_text(SITE.replace("NODES", str(asked.nodes)))
            (root / "study.yaml").write_text(STUDY.replace("SAMPLER", asked.sampler))
            spent_ms(["tune", str(root / "study.yaml"), "--out", str(root / "out")], 8)
            lengthen(root / "out" / "journal.jsonl", mark - WINDOW, asked.nodes)
            seen = cProfile.Profile() if asked.profile else contextlib.nullcontext()
            with seen:
                spent = spent_ms(["resume", str(root / "out")], WINDOW)
            files = sum(len(names) for _, _, names in os.walk(root / "out" / "runs")) / (WINDOW + 8)
        if isinstance(seen, cProfile.Profile):
            seen.dump_stats(asked.profile)
        each = (spent[-1] - spent[0]) / (len(spent) - 1)
        print(f"{mark:6} runs  {each:6.1f} ms a run; {files:.1f} files a run", flush=True)


if __name__ == "__main__":
    main()
