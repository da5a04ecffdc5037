"""Short trials before whole ones: fewer prompts or iterations for most settings, all of them for those that promise.

Short runs are a stage of their own: they are never ranked, confirmed or compared with whole ones. What they say of a
whole run is a ratio learned from settings that ran both ways, the baseline first of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.errors import NothingFound, Problem
from ridgeline.records.expression import Expression, is_number
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Run
from ridgeline.records.space import Point, Settings, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.short_runs import ShortRunRatio, short_run_ratio
from ridgeline.study.history import History

WHERE = ("stages", "search", "short")


def shortened(study: Study) -> Study:
    """The study as its short trials run it."""
    short, derived = study.search.short, study.space.derived
    values = {name: Expression.parse(repr(value)) for name, value in short.items() if name in derived}
    options = study.workload.options
    for name, value in short.items():
        if name not in derived:
            options = _with(options, name.split("."), value)
    return replace(
        study,
        space=replace(study.space, derived={**derived, **values}),
        workload=replace(study.workload, options=options),
    )


def _with(options: Mapping[str, object], path: Sequence[str], value: object) -> dict[str, object]:
    inner = options.get(path[0])
    if len(path) > 1 and isinstance(inner, Mapping):
        return {**options, path[0]: _with(inner, path[1:], value)}
    return {**options, path[0]: value}


def _numbers(options: Mapping[str, object], before: str = "") -> Iterator[str]:
    """Names of the numbers in the options, those within mappings with dots."""
    for name, value in options.items():
        if is_number(value):
            yield f"{before}{name}"
        elif isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}.")


def settings_of(study: Study, point: Point, stage: Stage) -> Settings:
    """The settings of a trial of this stage."""
    return (shortened(study) if stage is Stage.SHORT else study).space.settings(point)


def short_problems(study: Study) -> list[Problem]:
    """What is wrong with the names and values of `short`."""
    known = [*study.space.derived, *_numbers(study.workload.options)]
    offered = f"one of {', '.join(known)}" if known else "a derived value such as `derived: {steps: 2000}`"
    return [
        Problem((*WHERE, name), f"is neither a derived value nor a number of the workload; name {offered}")
        for name in study.search.short
        if name not in known
    ]


def short_baseline_failure(study: Study, outcome: Outcome) -> NothingFound:
    less = ", ".join(f"{name}: {value}" for name, value in study.search.short.items())
    return NothingFound(
        f"the baseline passes whole, but not short ({less}): {outcome}. Make short trials longer, word guards so that "
        "they hold for them too, or leave `search.short` out; then tune anew"
    )


@dataclass
class ShortTrials:
    """What short runs have shown, and which of their settings deserve a whole run."""

    study: Study
    history: History

    def __bool__(self) -> bool:
        return bool(self.study.search.short)

    @property
    def begun(self) -> bool:
        """Whether the baseline has run short, without which nothing can be said of others."""
        return any(trial.key == point_key(self.study.baseline) for trial, _ in self._ran())

    @property
    def settings_tried(self) -> int:
        """Without the baseline."""
        base = point_key(self.study.baseline)
        return sum(t.stage is Stage.SHORT and t.key != base for t in self.history.trials.values())

    def ratio(self) -> ShortRunRatio | None:
        """Learned from all settings that ran both short and whole."""
        whole = self._whole_values()
        return short_run_ratio([(short, whole[key]) for key, short in self._short_values().items() if key in whole])

    def promising(self, at_least: int = 0) -> tuple[Point, str] | None:
        """A setting to run whole, and why: one that may beat the best whole one, or that is among the `at_least`
        most promising. None: no setting that ran short deserves it."""
        ratio, whole, points = self.ratio(), self._whole_values(), self._points()
        waiting = {k: v for k, v in self._short_values().items() if k not in whole and k not in self._failed_whole()}
        if ratio is None or not waiting:
            return None
        gain = self.study.goal.score
        key = max(waiting, key=lambda k: gain(waiting[k]))
        expected = ratio.whole(waiting[key])
        best = max(whole.values(), key=gain, default=None)
        lead = 0.0 if best is None else math.log(expected / best) * (1 if gain(1.0) > 0 else -1)
        if lead < -ratio.spread and len(self._ran_whole()) >= at_least:
            return None
        times = math.exp(ratio.spread)
        return points[key], f"short it promises {expected:.4g}, give or take a factor of {times:.2f}"

    def _ran(self) -> Iterator[tuple[Trial, Run]]:
        for run in self.history.runs.values():
            trial = self.history.trials[run.trial]
            if trial.stage is Stage.SHORT and run.outcome is not None and run.outcome.kind is Kind.OK:
                yield trial, run

    def _points(self) -> dict[str, Point]:
        return {trial.key: trial.point for trial, _ in self._ran()}

    def _short_values(self) -> dict[str, float]:
        return {trial.key: run.metrics[self.study.goal.metric] for trial, run in self._ran()}

    def _whole_values(self) -> dict[str, float]:
        runs = self.history.ok_runs(Stage.BASELINE, Stage.SEARCH)
        return {trial.key: run.metrics[self.study.goal.metric] for trial, run in runs}

    def _ran_whole(self) -> set[str]:
        return {t.key for t in self.history.trials.values() if t.stage is Stage.SEARCH}

    def _failed_whole(self) -> set[str]:
        """Failed, or still under way."""
        return self._ran_whole() - self._whole_values().keys()
