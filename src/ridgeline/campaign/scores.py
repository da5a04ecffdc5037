"""What the search measured, as it may be compared: which settings looked best, and how far from the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.records.run import Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.nodes import NodeEffect, corrected, corrections, node_effects, node_runs
from ridgeline.stats.regimes import Regimes, baseline_course
from ridgeline.stats.survey import Look, next_look
from ridgeline.store.history import History


def better_than_baseline(study: Study, history: History) -> list[Point]:
    """Settings that looked better than the baseline in the search, best first."""
    base = _mean([score for _, score in compared_scores(study, history, Stage.BASELINE, Stage.SENTINEL)])
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


def compared_scores(study: Study, history: History, *stages: Stage) -> list[tuple[Trial, float]]:
    """Scores as they may be compared, wherever and whenever they were measured."""
    through = yardstick(study, history)
    return [(trial, study.goal.score(through.value(run, study.goal.metric))) for trial, run in history.ok_runs(*stages)]


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What makes values of different nodes and hours comparable: the baseline's course, and factors of nodes."""

    course: Regimes
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether it makes values other than they were measured."""
        return self.course.changed or bool(self.factors)

    def value(self, run: Run, metric: str) -> float:
        """As it would have been on usual nodes, at the baseline's mean level."""
        return self.course.seen_through(corrected(run.metrics[metric], run.ending.nodes, self.factors), run.number)

    def as_measured(self, value: float, number: int) -> float:
        """What run `number` would measure, on usual nodes, of what is `value` at the baseline's mean level."""
        return value / self.course.seen_through(1.0, number)


def yardstick(study: Study, history: History) -> Yardstick:
    effects = effects_of_nodes(study, history) if _on_several_nodes(history) else []
    return Yardstick(_course(study, history, effects), corrections(effects, study.goal.direction))


def _on_several_nodes(history: History) -> bool:
    """Asked first because of long campaigns on one node: the effects of nodes look at every run."""
    return len({run.ending.nodes for run in history.runs.values()}) > 1


def _course(study: Study, history: History, effects: list[NodeEffect]) -> Regimes:
    """How the baseline went while the search lasted."""
    runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
    return baseline_course(runs, study.goal.metric, effects, study.goal.direction, study.confirm.level)


def effects_of_nodes(study: Study, history: History) -> list[NodeEffect]:
    """What all good runs of the journal say of the nodes they were on."""
    runs = node_runs(history.ok_runs(*Stage), study.goal.metric)
    return node_effects(runs, study.goal.direction, study.confirm.level)


def slow_nodes(study: Study, history: History, width: int = 1) -> tuple[str, ...]:
    """Nodes to avoid; none where, of the nodes that were seen, fewer others are left than a job of this width takes."""
    effects = effects_of_nodes(study, history)
    slow = tuple(effect.node for effect in effects if effect.verdict == "slow")
    return slow if len(effects) - len(slow) >= width else ()


def next_look_at_nodes(study: Study, history: History, width: int) -> Look:
    """Where the baseline should be run next, on a job of so many nodes."""
    runs = node_runs(history.ok_runs(*Stage), study.goal.metric)
    effects = node_effects(runs, study.goal.direction, study.confirm.level)
    return next_look(runs, point_key(study.baseline), effects, width, _nodes_there_are(study, history))


def _nodes_there_are(study: Study, history: History) -> int:
    """At least so many, seen or not: a job may ask for as many. None is waited for once a look at one was lost."""
    looks = (Stage.BASELINE, Stage.SENTINEL)
    lost = any(
        run.outcome is not None and run.outcome.kind.retryable and history.trials[run.trial].stage in looks
        for run in history.runs.values()
    )
    return 0 if lost else study.site.nodes


def baseline_score(study: Study, history: History) -> float | None:
    """As it was measured; sentinels are runs of the baseline too."""
    runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
    return _mean([study.goal.score(run.metrics[study.goal.metric]) for _, run in runs])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def looked_like(study: Study, history: History, score: float) -> float | None:
    """The ratio of a compared score with the baseline's, above 1 for better; None where there is no ratio."""
    base = _mean([own for _, own in compared_scores(study, history, Stage.BASELINE, Stage.SENTINEL)])
    if base is None or base * score <= 0:
        return None
    return score / base if score > 0 else base / score
