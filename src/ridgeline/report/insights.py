"""What a campaign shows besides its answer: which knobs brought the gain, and which nodes are not like their peers."""

from __future__ import annotations

from collections import Counter

from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.contribution import contributions, text
from ridgeline.stats.nodes import NodeRun, node_effects
from ridgeline.store.history import History


def insights(study: Study, history: History) -> list[str]:
    """One sentence each; empty where the runs say nothing of the kind."""
    return [*_what_brought_it(study, history), *_unusual_nodes(study, history)]


def _what_brought_it(study: Study, history: History) -> list[str]:
    winner: Point | None = (history.verdict or {}).get("winner")
    if winner is None:
        return []
    runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL, Stage.SEARCH)
    trials = [(trial.point, run.metrics[study.goal.metric]) for trial, run in runs]
    found = contributions(study.baseline, winner, trials, study.goal.direction, study.confirm.level)
    if not any(part.detectable for part in found):
        return []
    return [f"what brought it, as far as the search can tell: {text(found)}"]


def _unusual_nodes(study: Study, history: History) -> list[str]:
    """Only settings that ran more than once can tell a slow node from a slow setting."""
    runs = history.ok_runs(*Stage)
    times = Counter(trial.key for trial, _ in runs)
    repeated = [
        NodeRun(point_key(trial.point), run.ending.nodes, run.metrics[study.goal.metric])
        for trial, run in runs
        if times[trial.key] > 1
    ]
    effects = node_effects(repeated, study.goal.direction, study.confirm.level)
    return [str(effect) for effect in effects if effect.verdict in ("slow", "fast")]
