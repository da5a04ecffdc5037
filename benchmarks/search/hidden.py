"""Clusters whose truth is hidden from the sampler: the twin with other physics, and things no twin has.

The truth of a cluster is the twin with every factor of its physics drawn within 40%, an edge of memory that lies
elsewhere, two pairs of knobs whose values help or hurt each other, and a few settings that hang. What the twin says of
every legal setting is worked out once for each draw of the factors and kept as a file, so that a race takes seconds.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.sampling import prior_of
from ridgeline.records.observation import Expectation
from ridgeline.records.space import Point, point_key
from ridgeline.samplers.base import Prior
from ridgeline.serving.traffic.requests import Slo, summarise
from ridgeline.serving.twin.calibration import NAMES
from ridgeline.serving.twin.simulate import SimulationResult
from ridgeline.serving.workloads.twin.workload import TwinWorkload

START_S = 240.0  # start-up, load and capture of a run; a crash costs about that much
LASTS_S = 300.0  # of the benchmark itself at the best setting
LIMIT_S = 1800.0  # of a job: what a hang costs
OFF = 0.4  # factors are drawn within so much
PAIR = 0.06  # half width of what two values do to each other
HANGS = 0.03  # of the legal settings
LIMITS = (Slo.parse("ttft_p95_ms=2000"), Slo.parse("tpot_p95_ms=60"))


@dataclass(frozen=True)
class Cluster:
    """Offline throughput, or with a `rate` the requests a second that keep the limits of users at that rate."""

    name: str
    model: str
    gpu: str
    nodes: int
    rate: float | None = None

    @property
    def goal(self) -> str:
        return "maximize: total_tok_s" if self.rate is None else "maximize: requests_s"


CLUSTERS = (
    Cluster("llama-8b, 8 H100", "llama-8b", "h100", 1),
    Cluster("qwen3-32b, 8 A100", "qwen3-32b", "a100", 1),
    Cluster("llama-70b, 8 H100, goodput", "llama-70b", "h100", 1, 12.0),
    Cluster("llama-70b, 16 H200, goodput", "llama-70b", "h200", 2, 30.0),
    Cluster("deepseek-r1, 16 H100", "deepseek-r1", "h100", 2),
    Cluster("qwen3-235b, 16 H200", "qwen3-235b-a22b", "h200", 2),
    Cluster("deepseek-r1, 32 H800, goodput", "deepseek-r1", "h800", 4, 16.0),
    Cluster("deepseek-v3, 104 H100", "deepseek-v3", "h100", 13),
)
GPUS = 8  # of a node

STUDY = """
version: 1
name: hidden
workload:
  kind: twin
  model: {model}
  gpu: {gpu}
  traffic: {{dataset: sharegpt, requests: 120, seed: 7}}
{more}
site: {{version: 1, name: hidden, batch: simulated, nodes: {nodes}, gpus_per_node: 8}}
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
job: {{nodes: {nodes}, gpus: 8}}
"""

Table = Mapping[str, Expectation | None]  # by the key of the point


class _GoodputTwin(TwinWorkload):
    """Predicts the requests a second that keep the limits of users."""

    def _predicted(self, result: SimulationResult) -> float | None:
        summary = summarise(result.records, LIMITS)
        return max(summary.goodput_s or 0.0, 0.5 / summary.duration_s)  # half a request, where none kept them


class Hidden:
    """A cluster with its truth: `physics` draws the factors, `seed` what no twin has (physics again unless told).
    `tables` is a folder where what was worked out is kept."""

    def __init__(self, cluster: Cluster, tables: Path, physics: int, seed: int | None = None) -> None:
        seed = physics if seed is None else seed
        rng = random.Random(f"{cluster.name} {seed} beside its factors")
        self.cluster, self._seed = cluster, seed
        self.study, self.legal, self._sensitivities = _known(cluster, tables)
        self.predicted = predicted(cluster, tables)
        self._really = predicted(cluster, tables, physics)
        knobs = sorted(self.study.study.space.by_name)
        self._interacting = rng.sample(list(itertools.combinations(knobs, 2)), 2)
        self._edge = rng.uniform(0.15, 0.85)  # the chance at which memory really ends
        self._scores = {point_key(point): self._score(point) for point in self.legal}
        self.best = max(score for score in self._scores.values() if score is not None)

    def truth(self, point: Point) -> float | None:
        """Log of its speed over that of the best; None where it fails."""
        score = self._scores[point_key(point)]
        return None if score is None else score - self.best

    def prior(self, how: str = "") -> Prior:
        """What the twin says, the reverse of it (`turned`), or what it says of other settings (`muddled`)."""
        others = list(self.legal)
        if how == "muddled":
            random.Random(f"muddled {self._seed}").shuffle(others)
        mixed = {point_key(point): other for point, other in zip(self.legal, others, strict=True)}
        return _TablePrior(self.predicted, self._sensitivities, how == "turned", mixed)

    def refusal(self, point: Point) -> str | None:
        return None if point_key(point) in self.predicted else "not legal"

    def hangs(self, point: Point) -> bool:
        return _dice(f"hang {self._seed} {point_key(point)}") < HANGS

    def _score(self, point: Point) -> float | None:
        said = self._really[point_key(point)]
        if said is None or said.mean is None or said.chance < self._edge or self.hangs(point):
            return None
        return math.log(said.mean) + self._pairs(point)

    def _pairs(self, point: Point) -> float:
        """What the values of two pairs of knobs do to each other, which no model knows."""
        return sum(PAIR * (2 * _dice(f"{self._seed} {a}={point[a]} {b}={point[b]}") - 1) for a, b in self._interacting)

    def node_hours(self, point: Point, value: float | None) -> float:
        if value is None:
            seconds = LIMIT_S if self.hangs(point) else START_S
        else:
            seconds = START_S + min(LASTS_S * math.exp(-value), LIMIT_S - START_S)
        return self.cluster.nodes * seconds / 3600.0


@dataclass(frozen=True)
class _TablePrior(Prior):
    said: Table
    moves: _Sensitivities
    turned: bool
    taken_for: Mapping[str, Point]

    def __call__(self, point: Point) -> Expectation | None:
        said = self.said[point_key(self.taken_for[point_key(point)])]
        if not self.turned or said is None or said.mean is None or said.low is None or said.high is None:
            return said
        return replace(said, mean=1.0 / said.mean, low=1.0 / said.high, high=1.0 / said.low)

    def sensitivities(self, point: Point) -> tuple[float, ...]:
        sign = -1.0 if self.turned else 1.0
        return tuple(sign * move for move in self.moves.of(self.taken_for[point_key(point)]))


class _Sensitivities:
    """What the twin's own answers rest on, asked of it where a sampler asks; memory hardly matters to that."""

    def __init__(self, cluster: Cluster, study: CheckedStudy, tables: Path) -> None:
        self._study, self._workload = study.study, _twin(cluster, study)
        self._path = tables / f"{_name(cluster, {})}.sensitivities"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self._known: dict[str, tuple[float, ...]] = {key: tuple(moves) for key, moves in map(json.loads, lines)}

    def of(self, point: Point) -> tuple[float, ...]:
        key = point_key({**point, "mem_fraction_static": 0.0})
        if key not in self._known:
            self._known[key] = self._workload.sensitivities(self._study.space.settings(point))
            with self._path.open("a") as file:
                file.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]


@cache
def _known(cluster: Cluster, tables: Path) -> tuple[CheckedStudy, Sequence[Point], _Sensitivities]:
    """What all truths of a cluster share, as it takes seconds to work out."""
    study = _study(cluster, tables, "")
    legal = [point for point in study.study.space.points() if study.refusal(point) is None]
    return study, legal, _Sensitivities(cluster, study, tables)


def factors(cluster: Cluster, seed: int) -> dict[str, float]:
    """Of the physics of a truth."""
    rng = random.Random(f"{cluster.name} {seed}")
    return {name: math.exp(rng.uniform(-OFF, OFF)) for name in NAMES}


@cache
def predicted(cluster: Cluster, tables: Path, physics: int | None = None) -> Table:
    """What the twin with these physics (None: its own) says of every legal setting; read from the file where it is
    there."""
    drawn = {} if physics is None else factors(cluster, physics)
    name = _name(cluster, drawn)
    path = tables / f"{name}.json"
    if not path.exists():
        more = ""
        if drawn:
            (tables / f"{name}.factors").write_text(json.dumps({"version": 1, "factors": drawn, "spread": 0.05}))
            more = f"  calibration: {name}.factors"
        study = _study(cluster, tables, more)
        prior = prior_of(study.study, _twin(cluster, study))
        assert prior is not None
        rows = [[point_key(point), _kept(prior(point))] for point in _known(cluster, tables)[1]]
        path.write_text(json.dumps(rows))
    return {key: None if row is None else Expectation(*row) for key, row in json.loads(path.read_text())}


def _name(cluster: Cluster, factors: Mapping[str, float]) -> str:
    told = f"{_text(cluster, '')} {cluster.rate} {sorted(factors.items())}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _twin(cluster: Cluster, study: CheckedStudy) -> TwinWorkload:
    return (TwinWorkload if cluster.rate is None else _GoodputTwin)(study.study)


def _kept(said: Expectation | None) -> list[float | None] | None:
    return None if said is None else [said.mean, said.low, said.high, said.chance]


def _dice(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF


def _text(cluster: Cluster, more: str) -> str:
    if cluster.rate:
        more += f"\n  rate: {cluster.rate}"
    base = {"tp": 8, "pp": cluster.nodes, "dp": 1, "attn_dp": 1, "max_running_requests": 256}
    base |= {"mem_fraction_static": 0.8, "attention_backend": "flashinfer"}
    facts: Mapping[str, object] = {
        "model": cluster.model, "gpu": cluster.gpu, "nodes": cluster.nodes, "more": more,
        "all_gpus": cluster.nodes * GPUS, "goal": cluster.goal, "baseline": json.dumps(base),
    }  # fmt: skip
    return STUDY.format(**facts)


def _study(cluster: Cluster, folder: Path, more: str) -> CheckedStudy:
    path = folder / f"{hashlib.sha256((cluster.name + more).encode()).hexdigest()[:16]}.yaml"
    path.write_text(_text(cluster, more))
    return check_study(path)
