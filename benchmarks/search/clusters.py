"""Clusters whose truth is hidden from the sampler: the twin with other physics, and things no twin has.

    python -m benchmarks.search.clusters [--seeds 10] [--trials 40] [--samplers guided,reversed,tpe,random]

Each cluster is a study of its own (8 to 104 GPUs, offline throughput or latency under a rate). Its truth is the twin
with every factor of its physics drawn within 40%, an edge of memory that lies elsewhere, pairs of values that help or
hurt each other by some percent, heavy-tailed noise and a slow node. `guided` is guided by the twin as it comes;
`reversed` by the same twin with its order turned round; `blind` is guided without one. Reported are node-hours until a
setting within 2% of the best is chosen, and crashes.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import statistics
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from benchmarks.search.race import Noise, Race, as_cost, race  # noqa: E402
from ridgeline import catalog  # noqa: E402
from ridgeline.campaign.check import CheckedStudy, check_study  # noqa: E402
from ridgeline.campaign.guidance.expectations import outlook_of  # noqa: E402
from ridgeline.records.lesson import Expectation, Lesson  # noqa: E402
from ridgeline.records.space import Point, point_key  # noqa: E402
from ridgeline.serving.twin.factors import NAMES  # noqa: E402

START_S = 240.0  # start-up, load and capture of a run; a crash costs about that much
LASTS_S = 300.0  # of the benchmark itself at the best setting
OFF = 0.4  # factors are drawn within so much
PAIR = 0.06  # half width of what two values do to each other
REQUESTS = 120
NOISE = Noise(heavy_tail=0.05)


@dataclass(frozen=True)
class Cluster:
    """`goal` is maximize: total_tok_s, or minimize: e2e_p95_ms under `rate`."""

    name: str
    model: str
    gpu: str
    nodes: int
    gpus: int
    goal: str = "maximize: total_tok_s"
    rate: float | None = None


CLUSTERS = (
    Cluster("llama-8b, 8 H100", "llama-8b", "h100", 1, 8),
    Cluster("qwen3-32b, 8 A100", "qwen3-32b", "a100", 1, 8),
    Cluster("llama-70b, 8 H100", "llama-70b", "h100", 1, 8),
    Cluster("llama-70b, 16 H200, latency", "llama-70b", "h200", 2, 8, "minimize: e2e_p95_ms", 8.0),
    Cluster("deepseek-r1, 16 H100", "deepseek-r1", "h100", 2, 8),
    Cluster("qwen3-235b, 16 H200", "qwen3-235b-a22b", "h200", 2, 8),
    Cluster("deepseek-r1, 32 H800", "deepseek-r1", "h800", 4, 8),
    Cluster("deepseek-v3, 104 H100", "deepseek-v3", "h100", 13, 8),
)

STUDY = """
version: 1
name: hidden
workload:
  kind: twin
  model: {model}
  gpu: {gpu}
  traffic: {{dataset: sharegpt, requests: {requests}, seed: 7}}
{more}
site: {{version: 1, name: hidden, batch: simulated, nodes: {nodes}, gpus_per_node: {gpus}}}
space:
  tp: [1, 2, 4, 8, 16]
  pp: [1, 2, 4, 8, 13]
  dp: [1, 2, 4, 8, 13]
  attn_dp: [1, 2, 4, 8]
  max_running_requests: [64, 256, 1024, 4096]
  mem_fraction_static: [0.70, 0.80, 0.86, 0.90, 0.94]
  attention_backend: [fa3, flashinfer, triton]
derived:
  gpus: tp * pp * dp
rules:
  - {{refuse: gpus != {all_gpus}, because: use the whole cluster}}
  - {{refuse: attn_dp > tp, because: attention DP splits a tensor-parallel group}}
goal: {{{goal}}}
baseline: {baseline}
job: {{nodes: {nodes}, gpus: {gpus}}}
"""


class Hidden:
    """A cluster with its truth, drawn from the seed."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        rng = random.Random(f"{cluster.name} {seed}")
        self.cluster, self._seed = cluster, seed
        factors = {name: math.exp(rng.uniform(-OFF, OFF)) for name in NAMES}
        (folder / "truth.json").write_text(json.dumps({"version": 1, "factors": factors, "spread": 0.05}))
        self.study = _study(cluster, folder, "study.yaml", "")
        self._true = _study(cluster, folder, "true.yaml", "  calibration: truth.json")
        knobs = sorted(self.study.study.space.by_name)
        self._interacting = rng.sample(list(itertools.combinations(knobs, 2)), 2)
        self._edge = rng.uniform(0.15, 0.85)  # the chance at which memory really ends
        outlook, self._really = (
            outlook_of(self.study.study, self.study.workload),
            outlook_of(self._true.study, self._true.workload),
        )
        assert outlook is not None and self._really is not None
        self.outlook = outlook
        self._known: dict[str, float | None] = {}
        space = self.study.study.space
        self.legal = [point for point in space.points() if self.study.refusal(point) is None]
        self.best = max(score for score in map(self._score, self.legal) if score is not None)

    def truth(self, point: Point) -> float | None:
        score = self._score(point)
        return None if score is None else score - self.best

    def _score(self, point: Point) -> float | None:
        key = point_key(point)
        if key not in self._known:
            said = self._really(point) if self._really else None
            fails = said is None or said.mean is None or said.chance < self._edge
            logs = (
                0.0
                if fails or said is None or said.mean is None
                else math.copysign(1, said.mean) * math.log(abs(said.mean))
            )
            self._known[key] = None if fails else logs + self._pairs(point)
        return self._known[key]

    def _pairs(self, point: Point) -> float:
        """What the values of two pairs of knobs do to each other, which no model knows."""
        return sum(PAIR * (2 * _dice(f"{self._seed} {a}={point[a]} {b}={point[b]}") - 1) for a, b in self._interacting)

    def node_hours(self, point: Point, value: float | None) -> float:
        seconds = START_S if value is None else START_S + min(LASTS_S * math.exp(-value), 3600.0)
        return self.cluster.nodes * seconds / 3600.0


def _dice(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF


def _study(cluster: Cluster, folder: Path, name: str, more: str) -> CheckedStudy:
    if cluster.rate:
        more += f"\n  rate: {cluster.rate}"
    whole = cluster.nodes * cluster.gpus
    base = {"tp": 8, "pp": cluster.nodes, "dp": 1, "attn_dp": 1, "max_running_requests": 256}
    base |= {"mem_fraction_static": 0.8, "attention_backend": "flashinfer"}
    facts: Mapping[str, object] = {
        "model": cluster.model, "gpu": cluster.gpu, "nodes": cluster.nodes, "gpus": cluster.gpus, "more": more,
        "all_gpus": whole, "goal": cluster.goal, "requests": REQUESTS, "baseline": json.dumps(base),
    }  # fmt: skip
    path = folder / name
    path.write_text(STUDY.format(**facts))
    return check_study(path)


def _turned(outlook: Expectation | None) -> Expectation | None:
    return (
        None
        if outlook is None or outlook.mean is None
        else replace(outlook, mean=1.0 / outlook.mean, low=None, high=None)
    )


def _one(job: tuple[int, int, int, tuple[str, ...]]) -> list[tuple[str, Race]]:
    number, seeds, trials, samplers = job
    cluster = CLUSTERS[number]
    with tempfile.TemporaryDirectory() as folder:
        hidden = Hidden(cluster, Path(folder), number)
        space, baseline = hidden.study.study.space, hidden.study.study.baseline
        score = math.exp if cluster.goal.startswith("max") else as_cost
        found = []
        for seed, name in itertools.product(range(seeds), samplers):
            kind = "guided" if name in ("reversed", "blind") else name
            sampler = catalog.part("samplers", kind)(space, seed, {}, hidden.study.refusal)
            if name == "guided":
                sampler.expect(hidden.outlook)
            elif name == "reversed":
                sampler.expect(lambda point: _turned(hidden.outlook(point)))
            if (value := hidden.truth(baseline)) is not None:
                sampler.tell(Lesson(baseline, score(value)))
            result = race(sampler, name, seed, hidden.truth, trials, NOISE, hidden.node_hours, score)
            found.append((f"{cluster.name} ({len(hidden.legal)} legal)", result))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--samplers", default="guided,reversed,blind,tpe,random")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", default=list(range(len(CLUSTERS))))
    asked = parser.parse_args()
    jobs = [(number, asked.seeds, asked.trials, tuple(asked.samplers.split(","))) for number in asked.only]
    with ProcessPoolExecutor(asked.processes) as pool:
        for races in pool.map(_one, jobs):
            _show(races, asked.trials)


def _show(races: list[tuple[str, Race]], trials: int) -> None:
    print(f"\n{races[0][0]}")
    print("  sampler    node-hours to 2%   trials   found   regret at 20   crashes", flush=True)
    for name in dict.fromkeys(r.sampler for _, r in races):
        rows = [r for _, r in races if r.sampler == name]
        hours = statistics.median(r.cost_at if r.cost_at is not None else r.cost for r in rows)
        reached = statistics.median(r.found_at or trials + 1 for r in rows)
        found = sum(r.found_at is not None for r in rows)
        crashes, regret = statistics.mean(r.crashes for r in rows), statistics.median(r.regret[20] for r in rows)
        print(
            f"  {name:9}  {hours:10.2f}   {reached:12.1f}   {found:3}/{len(rows)}   {regret:8.1%}   {crashes:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
