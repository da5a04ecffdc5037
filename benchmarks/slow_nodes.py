"""How soon a slow node is named, and how often an innocent one: campaigns on made-up clusters whose nodes are known.

    python benchmarks/slow_nodes.py [--campaigns 200] [--noise 0.02] [--slow 0.08] [--runs 40]

A campaign is what `tune` runs first: three baselines, a search over a made-up space of 3 to 7 knobs that act alone and
in pairs (settings differ by 10 to 60% and more), and the baseline again after every eighth trial, or sooner and where
the survey of nodes asks for it. Other runs are on nodes drawn at random; a job takes one node or two.
On a disturbed machine 5% of the runs are 10 to 40% slow, and it loses 3% over the campaign. `named` counts campaigns in
which the slow node, and no other, was named by the last run; `wrong` those in which another was; `false` those on equal
nodes in which any node was called slow or fast; `looks` are the runs of the baseline on equal nodes.
"""

from __future__ import annotations

import argparse
import math
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from stated_effects import knobs_of, truth_over

from ridgeline import catalog
from ridgeline.records.lesson import Lesson
from ridgeline.records.space import Point, Space, point_key
from ridgeline.stats.nodes import NodeRun, node_effects
from ridgeline.stats.survey import Look, next_look

SENTINEL_EVERY, URGENT_EVERY = 8, 1


@dataclass(frozen=True)
class Cluster:
    """`slow` is the loss of speed of its first node; a job takes `width` nodes."""

    nodes: int
    width: int
    slow: float
    noise: float
    disturbed: float = 0.0
    drift: float = 0.0


def campaign(cluster: Cluster, seed: int, sampler_name: str, runs: int) -> list[NodeRun]:
    rng = random.Random(seed)
    knobs = knobs_of(rng)
    truth = truth_over(knobs, rng)
    baseline: Point = {knob.name: rng.choice(knob.values) for knob in knobs}
    sampler = catalog.part("samplers", sampler_name)(Space(tuple(knobs), {}), seed, {}, lambda point: None)
    names = [f"n{number}" for number in range(cluster.nodes)]
    seen: list[NodeRun] = []

    def run(point: Point, nodes: tuple[str, ...]) -> float:
        log = truth(point) + rng.gauss(0, cluster.noise) + cluster.drift * len(seen) / runs
        log += math.log(1 - cluster.slow) * ("n0" in nodes) / len(nodes)
        if rng.random() < cluster.disturbed:
            log += math.log(rng.uniform(0.6, 0.9))
        seen.append(NodeRun(point_key(point), nodes, math.exp(log), tuple(point.items()), len(seen)))
        return math.exp(log)

    def look() -> Look:
        effects = node_effects(seen, "maximize")
        return next_look(seen, point_key(baseline), effects, cluster.width, "maximize")

    def anywhere() -> tuple[str, ...]:
        return tuple(sorted(rng.sample(names, cluster.width)))

    for _ in range(3):
        sampler.tell(Lesson(baseline, run(baseline, look().nodes or anywhere())))
    trials = sentinels = 0
    while len(seen) < runs:
        where = look()
        if trials // (URGENT_EVERY if where.urgent else SENTINEL_EVERY) > sentinels:
            sentinels += 1
            run(baseline, where.nodes or anywhere())
            continue
        trials += 1
        proposal = sampler.ask(())
        if proposal is None:
            break
        sampler.tell(Lesson(proposal.point, run(proposal.point, anywhere())))
    return seen


def unlike(runs: list[NodeRun]) -> set[str]:
    effects = node_effects(runs, "maximize")
    return {f"{effect.node} {effect.verdict}" for effect in effects if effect.verdict in ("slow", "fast")}


def one(of: tuple[Cluster, int, str, int]) -> tuple[bool, bool, bool, int]:
    cluster, seed, sampler, runs = of
    found = unlike(campaign(cluster, seed, sampler, runs))
    alike = campaign(replace(cluster, slow=0.0), 10_000 + seed, sampler, runs)
    looks = sum(run.setting == alike[0].setting for run in alike)
    return found == {"n0 slow"}, bool(found - {"n0 slow"}), bool(unlike(alike)), looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--slow", type=float, default=0.08)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    print("nodes  of a job  machine     named   wrong   false  looks")
    with ProcessPoolExecutor(asked.processes) as pool:
        for machine, disturbed, drift in (("calm", 0.0, 0.0), ("disturbed", 0.05, -0.03)):
            for nodes, width in ((2, 1), (4, 1), (8, 1), (4, 2), (8, 2)):
                cluster = Cluster(nodes, width, asked.slow, asked.noise, disturbed, drift)
                each = [(cluster, seed, asked.sampler, asked.runs) for seed in range(asked.campaigns)]
                *counts, looks = (sum(column) for column in zip(*pool.map(one, each, chunksize=4), strict=True))
                shares = "  ".join(f"{n / asked.campaigns:6.1%}" for n in counts)
                print(f"{nodes:5}  {width:8}  {machine:<9}  {shares}  {looks / asked.campaigns:5.1f}", flush=True)


if __name__ == "__main__":
    main()
