"""What the search measured, as it may be compared: which settings looked best, and how far from the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from ridgeline.records.run import Run, short_names
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.drift import Regimes, baseline_course
from ridgeline.stats.nodes import (
    BaselinePlacement,
    NodeEffect,
    NodeRuns,
    corrected,
    corrections,
    next_baseline_run,
    node_runs,
)
from ridgeline.study.history import History


def better_than_baseline(study: Study, history: History) -> list[Point]:
    """Settings that looked better than the baseline in the search, best first."""
    base = _compared_baseline(study, history)
    return [point for point, score in ranking(study, history) if base is None or score > base]


def ranking(study: Study, history: History) -> list[tuple[Point, float]]:
    """Settings that passed in the search, best first, each with its mean score; the baseline is not among them."""
    scores: dict[str, list[float]] = {}
    points: dict[str, Point] = {}
    base = point_key(study.baseline)
    for trial, score in compared_scores(study, history, Stage.SEARCH):
        if (key := trial.key) != base:
            points[key] = trial.point
            scores.setdefault(key, []).append(score)
    means = {key: sum(values) / len(values) for key, values in scores.items()}
    return [(points[key], means[key]) for key in sorted(means, key=lambda k: -means[k])]


def _compared_baseline(study: Study, history: History) -> float | None:
    return _mean([score for _, score in compared_scores(study, history, Stage.BASELINE, Stage.SENTINEL)])


def compared_scores(study: Study, history: History, *stages: Stage) -> list[tuple[Trial, float]]:
    """Scores as they may be compared, wherever and whenever they were measured."""
    through = normalisation(study, history)
    return [(trial, study.goal.score(through.value(run, study.goal.metric))) for trial, run in history.ok_runs(*stages)]


@dataclass(frozen=True, slots=True)
class Normalisation:
    """What makes values of different nodes and hours comparable: the baseline's course, and factors of nodes."""

    course: Regimes
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def corrects_by(self) -> tuple[Any, ...]:
        """All that makes values other than they were measured: with the same one they compare alike."""
        return self.course.places, self.course.levels, dict(self.factors)

    def value(self, run: Run, metric: str) -> float:
        """As it would have been on usual nodes, at the baseline's mean level."""
        return self.course.seen_through(corrected(run.metrics[metric], run.ending.nodes, self.factors), run.number)

    def as_measured(self, value: float, number: int) -> float:
        """What run `number` would measure, on usual nodes, of what is `value` at the baseline's mean level."""
        return value / self.course.seen_through(1.0, number)


def normalisation(study: Study, history: History) -> Normalisation:
    seen = _seen(study, history)
    # asked first because of long campaigns on one node: numpy is needed to tell several apart
    effects = seen.effects(study) if len(seen.placements) > 1 else []
    factors = corrections(effects, study.goal.direction)
    unknown = frozenset(effect.node for effect in effects if effect.verdict == "undecided")
    asked = (seen.baselines, frozenset(factors.items()), unknown, study.goal.direction, study.confirm.level)
    if seen.last is None or seen.last[0] != asked:
        runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
        course = baseline_course(runs, study.goal.metric, effects, study.goal.direction, study.confirm.level)
        seen.last = asked, Normalisation(course, factors)
    return seen.last[1]


class _Seen:
    """What the runs of a history say of nodes, counted once each: the controller asks after every run."""

    def __init__(self, metric: str, uncounted: int) -> None:
        self.metric, self.uncounted = metric, uncounted
        self.placements: set[tuple[str, ...]] = set()
        self.baselines = 0  # good runs of it, sentinels too
        self.lost = False  # a run of it, to the site, or to a node that it was to avoid: there are no others
        self.last: tuple[tuple[Any, ...], Normalisation] | None = None  # and what it was made from
        self._taken = 0  # of the runs of the history
        self._runs, self._good = NodeRuns(), list[tuple[Trial, Run]]()  # counted, and not counted yet

    def take(self, history: History) -> None:
        if self._taken == len(history.runs):
            return
        fresh = list(islice(history.runs.values(), self._taken, None))
        self._taken += len(fresh)
        good = history.good(fresh, *Stage)
        looks = (Stage.BASELINE, Stage.SENTINEL)
        self.placements.update(run.ending.nodes for run in fresh)
        self.baselines += sum(trial.stage in looks for trial, _ in good)
        self.lost = self.lost or any(
            (run.outcome is not None and run.outcome.kind.retryable)
            or not short_names(run.ending.nodes).isdisjoint(short_names(history.kept_off.get(run.number, ())))
            for run in fresh
            if history.trials[run.trial].stage in looks
        )
        self._good += good

    @property
    def runs(self) -> NodeRuns:
        """Counted when first asked for: where there is one node nobody does."""
        for run in node_runs(self._good, self.metric):
            self._runs.add(run)
        self._good.clear()
        return self._runs

    def effects(self, study: Study) -> list[NodeEffect]:
        return self.runs.effects(study.goal.direction, study.confirm.level)


_SEEN: WeakKeyDictionary[History, _Seen] = WeakKeyDictionary()


def _seen(study: Study, history: History) -> _Seen:
    seen = _SEEN.get(history)
    if seen is None or (seen.metric, seen.uncounted) != (study.goal.metric, len(history.uncounted)):
        seen = _SEEN[history] = _Seen(study.goal.metric, len(history.uncounted))
    seen.take(history)
    return seen


def effects_of_nodes(study: Study, history: History) -> list[NodeEffect]:
    """What all good runs of the journal say of the nodes they were on."""
    return _seen(study, history).effects(study)


def slow_nodes(study: Study, history: History, width: int = 1) -> tuple[str, ...]:
    """Nodes to avoid; none where, of the nodes that were seen, fewer others are left than a job of this width takes."""
    effects = effects_of_nodes(study, history)
    slow = tuple(effect.node for effect in effects if effect.verdict == "slow")
    return slow if len(effects) - len(slow) >= width else ()


def next_baseline_placement(study: Study, history: History, width: int) -> BaselinePlacement:
    """Where the baseline should be run next, on a job of so many nodes."""
    seen = _seen(study, history)
    # at least so many, seen or not: a job may ask for as many. None is waited for once a look at one was lost
    there_are = 0 if seen.lost else study.site.nodes
    return next_baseline_run(seen.runs, point_key(study.baseline), seen.effects(study), width, there_are)


def mean_value(study: Study, history: History, *stages: Stage, key: str = "") -> float | None:
    """The goal as it was measured: the mean of the runs that passed in these stages, of one point where it is named."""
    return _mean([run.metrics[study.goal.metric] for trial, run in history.ok_runs(*stages) if key in ("", trial.key)])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def looked_like(study: Study, history: History, score: float) -> float | None:
    """The ratio of a compared score with the baseline's, above 1 for better; None where there is no ratio."""
    base = _compared_baseline(study, history)
    if base is None or base * score <= 0:
        return None
    return score / base if score > 0 else base / score
