"""What the search measured, as it may be compared: which settings looked best, and how far from the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.regimes import PlacedRepeat, Regimes, regimes
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
    """Scores as they may be compared: where the machine changed meanwhile, seen through the sentinels around them."""
    course = search_course(study, history)
    return [
        (trial, study.goal.score(course.seen_through(run.metrics[study.goal.metric], run.number)))
        for trial, run in history.ok_runs(*stages)
    ]


def search_course(study: Study, history: History) -> Regimes:
    """How the baseline went while the search lasted."""
    repeats = [
        PlacedRepeat(run.number, run.metrics[study.goal.metric], run.ending.nodes)
        for _, run in history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
    ]
    return regimes(repeats, study.goal.direction, study.confirm.level)


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
