"""How one setting scales: run over the values of one knob, repeated and interleaved. A campaign without a search."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ridgeline.campaign.agenda import Agenda, Next
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.engine import Campaign
from ridgeline.campaign.ledger import Ledger
from ridgeline.executors.base import Executor
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.samplers.base import Sampler
from ridgeline.stats.scaling import scaling
from ridgeline.store.history import History
from ridgeline.store.journal import Journal

UNITS = {"nodes": "node", "ranks_per_node": "rank", "ranks": "rank", "threads": "thread", "gpus": "GPU"}
RESAMPLING_SEED = 1  # the same runs give the same intervals


def as_scaling(study: Study, scale: Mapping[str, Any]) -> Study:
    """The study with the smallest size as its baseline and no search of its own."""
    return replace(
        study,
        baseline=scale["points"][0],
        presets=(),
        budget=replace(study.budget, trials=None),
        baseline_stage=replace(study.baseline_stage, repeats=1),
        search=replace(study.search, sampler="random", options={}, sentinel_every=0),
    )


@dataclass
class ScalingAgenda(Agenda):
    """Every size `repeats` times: up through the sizes, down again, and so on, so that drift falls on all alike."""

    points: Sequence[Point] = field(default_factory=list)
    repeats: int = 1

    def fresh(self) -> Next | None:
        if (first := self._baseline()) is not None or not self._baseline_finished():
            return first
        failed = failures(self.history)
        started = Counter(trial.key for trial in self.history.trials.values())
        for step in range(self.repeats):
            for point in self.points if step % 2 == 0 else reversed(self.points):
                key = point_key(point)
                if key in failed:
                    continue
                if not started[key]:
                    return self._new(point, Stage.SEARCH, "scale") if self._fits(point, searching=False) else None
                started[key] -= 1
        return None


@dataclass
class ScalingCampaign(Campaign):
    """A campaign whose verdict is speed-up by size."""

    def _next_stage(self) -> None:
        scale = self.history.overrides["scale"]
        self.record({"event": "verdict", "verdict": verdict(self.study, self.history, scale)})


def scaling_campaign(
    found: CheckedStudy, executor: Executor, sampler: Sampler, journal: Journal, history: History, ledger: Ledger
) -> ScalingCampaign:
    """The campaign that the history's overrides ask for."""
    study, scale = found.study, history.overrides["scale"]
    agenda = ScalingAgenda(study, history, sampler, ledger, points=scale["points"], repeats=scale["repeats"])
    return ScalingCampaign(study, found.workload, executor, journal, history, agenda, ledger)


def failures(history: History) -> dict[str, str]:
    """Sizes that did not pass, each with the reason of its last run."""
    failed = {}
    for trial in history.trials.values():
        run = history.final_run(trial)
        if run and run.outcome and run.outcome.kind is not Kind.OK and run.outcome.kind is not Kind.CANCELLED:
            failed[trial.key] = str(run.outcome)
    return failed


def verdict(study: Study, history: History, scale: Mapping[str, Any]) -> dict[str, Any]:
    """Speed-up and efficiency by size with intervals, and where more stops paying; as it stands in the journal."""
    over, metric = scale["over"], study.goal.metric
    runs: dict[int, list[float]] = {}
    for trial, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH):
        runs.setdefault(int(trial.point[over]), []).append(run.metrics[metric])  # type: ignore[arg-type]
    failed = failures(history)
    lost = {str(p[over]): failed[point_key(p)] for p in scale["points"] if point_key(p) in failed}
    lost |= scale["refused"]
    if len(runs) < 2:
        why = "; ".join(f"{size}: {reason}" for size, reason in lost.items()) or "the budget had room for no more"
        headline = f"scaling needs runs at two sizes or more, {len(runs)} passed ({why})"
        return {"kind": "nothing-passed", "headline": headline, "failed": lost}
    result = scaling(
        runs,
        study.goal.direction,
        random.Random(RESAMPLING_SEED),
        level=study.confirm.level,
        unit=UNITS.get(over, over),
    )
    return {
        "kind": "scaling",
        "headline": result.headline,
        "over": over,
        "metric": metric,
        "setting": {name: value for name, value in scale["points"][0].items() if name != over},
        "steps": [asdict(step) | {"mean": statistics.fmean(runs[step.size])} for step in result.steps],
        "law": None if result.law is None else asdict(result.law) | {"name": result.law.name},
        "pays_to": result.pays_to,
        "sure": result.sure,
        "level": result.level,
        "failed": lost,
    }
