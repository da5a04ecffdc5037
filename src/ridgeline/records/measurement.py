"""What was read out of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from ridgeline import catalog

Origin = Literal["measured", "modelled"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number with its unit, the file it came from (relative to the run folder), and how it came about."""

    metric: str
    value: float
    unit: str = ""
    source: str = ""
    origin: Origin = "measured"

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"{self.metric} from {self.source or 'a run'} is {self.value}, not a number we can rank")


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything a workload read from one run.

    `unverified` says what the program shows it did not apply as asked; `contaminated` says why the figures do not
    describe the setting (a cache warmed by the same prompts, for example). Either keeps the run out of the ranking.
    """

    measurements: tuple[Measurement, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    unverified: str = ""
    contaminated: str = ""
    wrong: str = ""  # what the workload itself found wrong with the result, as a guard would
    problem: str = ""  # why something that must be there could not be read
    remedy: str = ""  # what the study's author should change so that it can
    applied: Mapping[str, object] = field(default_factory=dict)  # arguments, as the program itself says it applied them

    @property
    def metrics(self) -> dict[str, float]:
        return {m.metric: m.value for m in self.measurements}


# Every metric that is known by name: its unit, which way is better, what it means, and who makes it.
#
# A metric's unit is written in its row and nowhere else: workloads make their measurements with `reported`, `check`
# knows from here which metrics a study may name, and editors and docs/reference/metrics.md list them all. Wings bring
# rows of their own (`Wing.metrics`). Metrics that a study declares itself (`workload: metrics:`) carry the unit that it
# gives.

_Better = Literal["higher", "lower", ""]  # "": neither, it describes the run

DOLLARS_PER_TOKENS = "dollars_per_million_tokens"
DOLLARS, JOULES, CO2 = "dollars", "joules", "co2_g"
# of a run that a model stands for: the real thing's figure for the goal over the predicted one, 90%
MODEL_LOW, MODEL_HIGH = "model_low", "model_high"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One row. `makers` are who makes it: `run` every run, `command` programs, `prices` those of a study or its site;
    wings have makers of their own. `former_units` are what earlier releases wrote into journals that are still read.
    `named`: it is said by its name, since its unit alone would be taken for another metric's."""

    name: str
    unit: str
    better: _Better
    meaning: str
    makers: tuple[str, ...]
    former_units: tuple[str, ...] = ()
    named: bool = False


_OURS = tuple(
    MetricDefinition(*row)
    for row in (
        ("wall_s", "s", "lower", "Time that the run took, from its start to its end.", ("run",)),
        (
            "cpu_s",
            "s",
            "lower",
            "CPU time of the command and what it waited for, on one node without `srun`; on PBS of the whole job.",
            ("command",),
        ),
        ("max_rss_bytes", "bytes", "lower", "Most memory held at once, where the site reports it.", ("command",)),
        (DOLLARS, "dollars", "lower", "Cost of the run: its node-hours and its energy, by `prices`.", ("prices",)),
        (JOULES, "J", "lower", "Energy of the run, by the `meters` of `prices` or from its `node_watts`.", ("prices",)),
        (CO2, "g", "lower", "CO2 of that energy, by the `co2_g_per_kwh` of `prices`.", ("prices",)),
        (DOLLARS_PER_TOKENS, "dollars", "lower", "Cost of a million tokens, by the node-hours of `prices`.",
         ("prices",)),
    )
)  # fmt: skip
COSTS = tuple(row.name for row in _OURS if "prices" in row.makers)


@cache
def _shipped() -> dict[str, MetricDefinition]:
    rows = [*_OURS, *(row for wing in catalog.own_wings() if wing.metrics for row in catalog.at(wing.metrics))]
    return {row.name: row for row in rows}


def known_metrics() -> dict[str, MetricDefinition]:
    """All of them by name: the core's, then each wing's."""
    found = dict(_shipped())
    for wing, _ in catalog.wings():
        if wing.metrics:
            found |= {row.name: row for row in catalog.at(wing.metrics) if row.name not in found}
    return found


def metric_named(metric: str) -> MetricDefinition | None:
    """None for one that a study declares itself."""
    return _shipped().get(metric) or known_metrics().get(metric)


def metrics_of(*makers: str) -> tuple[str, ...]:
    """Names of what these make, of the metrics that come with Ridgeline, in the table's order."""
    return tuple(row.name for row in _shipped().values() if set(makers) & set(row.makers))


def unit_of(metric: str) -> str:
    """Empty where no table has the metric."""
    row = metric_named(metric)
    return "" if row is None else row.unit


def reported(metric: str, value: float, source: str, origin: Origin = "measured") -> Measurement:
    """A measurement of a metric that is known by name, in its unit."""
    row = metric_named(metric)
    if row is None:
        raise KeyError(metric)
    return Measurement(metric, float(value), row.unit, source, origin)
