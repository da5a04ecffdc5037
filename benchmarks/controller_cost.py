"""What the controller itself costs as a campaign grows: its own processor time a run, on a simulated cluster.

    .venv/bin/python benchmarks/controller_cost.py [--at 500,2000,5000] [--nodes 6] [--sampler random] [--profile FILE]
    .venv/bin/python benchmarks/controller_cost.py --status 10000    # what `ridgeline status` of so many trials costs

For each mark the journal of a campaign that is WINDOW runs short of it is made up, and `resume` runs those for real.
The program is a line of awk, so all that takes time is ours; jobs are children and don't count, nor does the replay.
One of the nodes is slow, so the look at nodes has work to do; it and the sampler are also given by themselves.
Processor time on a busy machine is up to twice that on an idle one: a loop of Python's own is timed beside it, so that
figures of different hours can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.kinds.search import SearchAgenda
from ridgeline.cli.main import run
from ridgeline.stats.nodes import NodeRuns

WINDOW = 128  # runs: twice what lies between two looks for slow nodes
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
    SHARES.clear()
    record = Campaign.record

    def noting(campaign: Campaign, event: dict[str, Any]) -> None:
        record(campaign, event)
        if event["event"] == "ended":
            spent.append(time.process_time() * 1e3)
            if len(spent) == 1:
                SHARES.clear()
            if len(spent) == runs:
                raise EnoughError

    untaught, weigh = SearchAgenda._untaught, NodeRuns._weigh

    def made(agenda: SearchAgenda) -> Any:
        sampler: Any = untaught(agenda)
        if sampler is not agenda._sampler:  # a new one
            sampler.ask, sampler.tell = timed("sampler", sampler.ask), timed("sampler", sampler.tell)
        return sampler

    Campaign.record = noting  # type: ignore[method-assign]
    SearchAgenda._untaught = made  # type: ignore[method-assign]
    NodeRuns._weigh = timed("nodes", weigh)  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(EnoughError):
            run(arguments)
    finally:
        Campaign.record = record  # type: ignore[method-assign]
        SearchAgenda._untaught = untaught  # type: ignore[method-assign]
        NodeRuns._weigh = weigh  # type: ignore[method-assign]
    return spent


SHARES: Counter[str] = Counter()  # ms of processor time, by what took them


def timed(what: str, act: Callable[..., Any]) -> Callable[..., Any]:
    def acts(*args: Any, **more: Any) -> Any:
        began = time.process_time()
        try:
            return act(*args, **more)
        finally:
            SHARES[what] += (time.process_time() - began) * 1e3

    return acts


def loop_ms() -> float:
    """A million turns of a loop: 50 to 70 ms on an idle core of this decade."""
    began, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number * number % 7
    return (time.process_time() - began) * 1e3


def status_s(folder: Path) -> float:
    """The processor time of `ridgeline status`, start of Python included."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "ridgeline", "status", str(folder)], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


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
                copy["measurements"] = [
                    [m[0], score if m[0] == "score" else m[1], *m[2:]] for m in copy["measurements"]
                ]
            lines.append(copy)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))


@contextlib.contextmanager
def study(nodes: int, sampler: str, runs: int) -> Iterator[Path]:
    """The folder of a campaign after so many runs, all but eight of them made up."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        site = SITE if nodes > 1 else SITE.replace("slow: {n002: 0.91}, ", "")
        (root / "site.yaml").write_text(site.replace("NODES", str(nodes)))
        (root / "study.yaml").write_text(STUDY.replace("SAMPLER", sampler))
        spent_ms(["tune", str(root / "study.yaml"), "--out", str(root / "out")], 8)
        lengthen(root / "out" / "journal.jsonl", runs, nodes)
        yield root / "out"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", default="500,2000,5000", help="after how many runs")
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--profile", help="where to leave what cProfile saw of the last mark")
    parser.add_argument("--status", type=int, metavar="TRIALS", help="time `ridgeline status` of so many instead")
    asked = parser.parse_args()
    if asked.status:
        with study(asked.nodes, asked.sampler, asked.status * (EVERY + 1) // EVERY) as folder:
            each = sorted(status_s(folder) for _ in range(5))
            print(
                f"status of {asked.status} trials on {asked.nodes} nodes: {each[0]:.2f} to {each[-1]:.2f} s", end="; "
            )
            print(f"a million turns of a loop: {loop_ms():.0f} ms")
        return
    print(f"{asked.nodes} nodes, {asked.sampler}: processor time of the controller")
    for mark in map(int, asked.at.split(",")):
        with study(asked.nodes, asked.sampler, mark - WINDOW) as folder:
            seen = cProfile.Profile(time.process_time) if asked.profile else contextlib.nullcontext()
            with seen:
                spent = spent_ms(["resume", str(folder)], WINDOW)
            files = sum(len(names) for _, _, names in os.walk(folder / "runs")) / (WINDOW + 8)
        if isinstance(seen, cProfile.Profile):
            seen.dump_stats(asked.profile)
        runs = len(spent) - 1
        each, sampler, nodes = (spent[-1] - spent[0]) / runs, SHARES["sampler"] / runs, SHARES["nodes"] / runs
        print(
            f"{mark:6} runs  {each - sampler:6.1f} ms a run, {nodes:.1f} of it weighing nodes; "
            f"sampler {sampler:.1f} ms; {files:.1f} files a run; a million turns of a loop: {loop_ms():.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
