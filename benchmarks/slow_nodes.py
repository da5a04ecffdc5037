"""How soon a slow node is named, and how often an innocent one: campaigns on made-up clusters whose nodes are known.

    python benchmarks/slow_nodes.py [--campaigns 30] [--noise 0.03] [--slow 0.08] [--runs 40] [--first 0] [--averaged]

A campaign is what `tune` runs first: three baselines, a search over a made-up space of 3 to 7 knobs that act alone and
in pairs (settings differ by 10 to 60% and more), and the baseline again after every eighth trial, or sooner and where
the survey of nodes asks for it. Runs of the search take the nodes in turn, in an order drawn anew for each turn, as on
a site that keeps all of them busy (`--scattered`: drawn for each run). A job takes one node or two, and waits for the
slowest (`--averaged`: it is as fast as its nodes are on average). Noise is normal on a calm machine. On a rough one it
has the tails of Student's t with four degrees of freedom and the same standard deviation, 3% of the runs are 10 to 40%
slow, and the machine loses 3% over the campaign.

`named` counts campaigns in which the slow node, and no other, was named by the last run; `wrong` those in which another
was; `false` those on equal nodes in which any node was called slow or fast at any time; `looks` are the runs of the
baseline on equal nodes. Campaigns are numbered from `--first`, so that fresh ones can be had.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass, replace

from stated_effects import knobs_of, truth_over

from ridgeline import catalog
from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, Space, point_key
from ridgeline.stats.nodes import BaselinePlacement, NodeRun, NodeRuns, next_baseline_run, node_effects

SENTINEL_EVERY = 8


@dataclass(frozen=True)
class Cluster:
    """`slow` is the loss of speed of its first node; a job takes `width` nodes."""

    nodes: int
    width: int
    slow: float
    noise: float
    averaged: bool = False
    scattered: bool = False
    rough: bool = False

    @property
    def disturbed(self) -> float:
        return 0.03 if self.rough else 0.0

    def of_one_run(self, rng: random.Random) -> float:
        if not self.rough:
            return rng.gauss(0, self.noise)
        # Student's t with four degrees of freedom has a variance of two
        return self.noise / math.sqrt(2) * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(2, 2) / 4)


def campaign(cluster: Cluster, seed: int, sampler_name: str, runs: int) -> tuple[list[NodeRun], bool]:
    """Its runs, and whether any node was called slow or fast on the way."""
    rng = random.Random(seed)
    knobs = knobs_of(rng)
    truth = truth_over(knobs, rng)
    baseline: Point = {knob.name: rng.choice(knob.values) for knob in knobs}
    sampler = catalog.part("samplers", sampler_name)(Space(tuple(knobs), {}), seed, {}, lambda point: None)
    names = [f"n{number}" for number in range(cluster.nodes)]
    seen: list[NodeRun] = []
    counted = NodeRuns()
    waiting: list[str] = []
    accused = False

    def run(point: Point, nodes: tuple[str, ...]) -> float:
        log = truth(point) + cluster.of_one_run(rng) - 0.03 * cluster.rough * len(seen) / runs
        log += math.log(1 - cluster.slow) * ("n0" in nodes) / (len(nodes) if cluster.averaged else 1)
        if rng.random() < cluster.disturbed:
            log += math.log(rng.uniform(0.6, 0.9))
        seen.append(NodeRun(point_key(point), nodes, math.exp(log), tuple(point.items()), len(seen)))
        counted.add(seen[-1])
        return math.exp(log)

    def look() -> BaselinePlacement:
        nonlocal accused
        effects = counted.effects("maximize")
        accused = accused or any(effect.verdict in ("slow", "fast") for effect in effects)
        return next_baseline_run(counted, point_key(baseline), effects, cluster.width, cluster.nodes)

    def place(where: BaselinePlacement) -> tuple[str, ...]:
        return where.nodes or tuple(rng.sample([n for n in names if n not in where.avoid], cluster.width))

    def anywhere() -> tuple[str, ...]:
        if cluster.scattered:
            return tuple(rng.sample(names, cluster.width))
        if len(waiting) < cluster.width:
            waiting[:] = rng.sample(names, len(names))
        return tuple(waiting.pop() for _ in range(cluster.width))

    for _ in range(3):
        sampler.tell(Observation(baseline, run(baseline, place(look()))))
    trials = sentinels = 0
    while len(seen) < runs:
        where = look()
        if sentinels < max(trials // SENTINEL_EVERY, trials * where.urgent):
            sentinels += 1
            run(baseline, place(where))
            continue
        trials += 1
        proposal = sampler.ask(())
        if proposal is None:
            break
        sampler.tell(Observation(proposal.point, run(proposal.point, anywhere())))
    look()
    return seen, accused


def unlike(runs: list[NodeRun]) -> set[str]:
    effects = node_effects(runs, "maximize")
    return {f"{effect.node} {effect.verdict}" for effect in effects if effect.verdict in ("slow", "fast")}


def one(of: tuple[Cluster, int, str, int]) -> tuple[bool, bool, bool, int]:
    cluster, seed, sampler, runs = of
    found = unlike(campaign(cluster, seed, sampler, runs)[0])
    alike, accused = campaign(replace(cluster, slow=0.0), 10_000 + seed, sampler, runs)
    looks = sum(run.setting == alike[0].setting for run in alike)
    return found == {"n0 slow"}, bool(found - {"n0 slow"}), accused, looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--slow", type=float, default=0.08)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--averaged", action="store_true")
    parser.add_argument("--scattered", action="store_true")
    parser.add_argument("--shapes", default="4x1,8x1,16x1,4x2,8x2,16x2", help="nodes x nodes of a job")
    parser.add_argument("--machines", default="calm,rough")
    asked = parser.parse_args()
    print("nodes  of a job  machine     named   wrong   false  looks")
    for machine in asked.machines.split(","):
        for nodes, width in (map(int, shape.split("x")) for shape in asked.shapes.split(",")):
            rough = machine == "rough"
            cluster = Cluster(nodes, width, asked.slow, asked.noise, asked.averaged, asked.scattered, rough)
            seeds = range(asked.first, asked.first + asked.campaigns)
            each = [one((cluster, seed, asked.sampler, asked.runs)) for seed in seeds]
            *counts, looks = (sum(column) for column in zip(*each, strict=True))
            shares = "  ".join(f"{n / asked.campaigns:6.1%}" for n in counts)
            print(f"{nodes:5}  {width:8}  {machine:<9}  {shares}  {looks / asked.campaigns:5.1f}", flush=True)


if __name__ == "__main__":
    main()
