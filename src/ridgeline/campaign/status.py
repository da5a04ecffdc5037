"""Where a campaign stands: what the live picture, `status` and `best` show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.campaign.advice import PROPOSER
from ridgeline.campaign.confirmation import baseline_score, ranking, runs_needed
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.search_gain import search_gain
from ridgeline.stats.wording import percent, percent_range
from ridgeline.store.history import History, OpenRun


@dataclass(frozen=True, slots=True)
class Gain:
    """A setting over the baseline as a ratio, oriented so that above 1 is better."""

    ratio: float
    low: float | None
    high: float | None
    level: float

    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class Best:
    """The best setting known: the confirmed winner, else the best of the search (an estimate, and said so)."""

    trial: Trial
    value: float
    gain: Gain | None
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Standing:
    study: Study
    history: History
    stage: str
    best: Best | None
    baseline: float | None

    @property
    def headline(self) -> str:
        if self.history.verdict is not None:
            return str(self.history.verdict["headline"])
        return "no verdict yet"

    @property
    def verdict_kind(self) -> str | None:
        return None if self.history.verdict is None else str(self.history.verdict["kind"])

    @property
    def running(self) -> list[tuple[Trial, OpenRun]]:
        return [(self.history.trials[run.trial], run) for run in self.history.open_runs.values()]

    @property
    def moved(self) -> list[Trial]:
        """Trials that a failure asked for; `why` says what was moved after which."""
        return [trial for trial in self.history.trials.values() if trial.proposer == PROPOSER]

    @property
    def confirm_runs(self) -> int:
        """Runs of the confirmation, planned or, before it is planned, foreseen."""
        if self.history.candidates is not None:
            return runs_needed(self.study.confirm, len(self.history.candidates), self.history.blocks)
        return runs_needed(self.study.confirm, self.study.confirm.top, self.study.confirm.blocks)

    @property
    def runs_left(self) -> int | None:
        """Runs until the verdict; None while the search is limited by time or node-hours alone."""
        history, study = self.history, self.study
        left = self.confirm_runs - history.count(Stage.CONFIRM)
        if history.candidates is not None:
            return left
        if study.budget.trials is None:
            return None
        every = study.search.sentinel_every
        searched = study.budget.trials + (study.budget.trials // every if every else 0)
        return left + max(0, searched - history.count(Stage.SEARCH, Stage.SENTINEL))

    def as_json(self) -> dict[str, Any]:
        history = self.history
        return {
            "name": self.study.name,
            "stage": self.stage,
            "headline": self.headline,
            "verdict": history.verdict,
            "trials": history.count(Stage.SEARCH),
            "runs": len(history.runs),
            "running": [{"trial": t.number, "point": dict(t.point), "ticket": r.ticket} for t, r in self.running],
            "outcomes": {kind.value: n for kind, n in history.outcomes.items()},
            "moved": [{"trial": t.number, "why": t.why, "outcome": _ended(history, t)} for t in self.moved],
            "node_hours": history.node_hours,
            "wall_s": history.wall_s,
            "budget": {
                "trials": self.study.budget.trials,
                "wall_s": self.study.budget.wall_s,
                "node_hours": self.study.budget.node_hours,
            },
            "baseline": self.baseline,
            "best": None if self.best is None else _best_json(self.best, self.study),
            "builds": {b.key: {"outcome": str(b.outcome), "files": b.files_kept} for b in history.builds.values()},
            "stopped": None if history.stopped is None else history.stopped["reason"],
        }


def standing(study: Study, history: History) -> Standing:
    score = baseline_score(study, history)
    base = None if score is None else study.goal.score(score)
    return Standing(study, history, stage_of(history), _best(study, history), base)


def stage_of(history: History) -> str:
    if history.verdict is not None:
        return "finished"
    if history.candidates is not None:
        return Stage.CONFIRM.value
    return Stage.SEARCH.value if history.count(Stage.SEARCH) else Stage.BASELINE.value


def _best(study: Study, history: History) -> Best | None:
    verdict = history.verdict or {}
    if verdict.get("kind") == "edge":
        key = point_key(verdict["point"])
        passed = [(t, r) for t, r in history.ok_runs(Stage.BASELINE, Stage.SEARCH) if t.key == key]
        value = sum(run.metrics[study.goal.metric] for _, run in passed) / len(passed)
        return Best(passed[0][0], value, None, True)
    winner: Point | None = verdict.get("winner")
    if winner is not None:
        row: Mapping[str, Any] = next(c for c in verdict["comparisons"] if c["candidate"] == point_key(winner))
        gain = _confirmed_gain(row) if row["scale"] == "ratio" else None
        return Best(_trial_of(history, winner), _mean_value(study, history, winner), gain, True)
    ranked = ranking(study, history)
    if not ranked:
        return None
    point, score = ranked[0]
    tried = [study.goal.score(value) for _, value in ranked]
    baseline = [r.metrics[study.goal.metric] for _, r in history.ok_runs(Stage.BASELINE, Stage.SENTINEL)]
    found = search_gain(tried, baseline, study.goal.direction, study.confirm.level)
    gain = None
    if found is not None:
        low, high = (None if v is None else 1 + v for v in (found.low, found.high))
        gain = Gain(1 + found.change, low, high, found.level, str(found))
    return Best(_trial_of(history, point), study.goal.score(score), gain, False)


def _ended(history: History, trial: Trial) -> str | None:
    run = history.final_run(trial)
    return None if run is None or run.outcome is None else run.outcome.kind.value


def _confirmed_gain(row: Mapping[str, Any]) -> Gain:
    interval = percent_range(row["low"] - 1, row["high"] - 1)
    words = f"{percent(row['estimate'] - 1)} over baseline ({row['level'] * 100:g}%: {interval})"
    return Gain(row["estimate"], row["low"], row["high"], row["level"], words)


def _trial_of(history: History, point: Point) -> Trial:
    """The search trial that first tried this point."""
    key = point_key(point)
    return next(t for t in history.trials.values() if t.key == key and t.stage is Stage.SEARCH)


def _mean_value(study: Study, history: History, point: Point) -> float:
    key = point_key(point)
    values = [r.metrics[study.goal.metric] for t, r in history.ok_runs(Stage.CONFIRM) if t.key == key]
    return sum(values) / len(values)


def _best_json(best: Best, study: Study) -> dict[str, Any]:
    return {
        "trial": best.trial.number,
        "point": dict(best.trial.point),
        "settings": dict(best.trial.settings),
        study.goal.metric: best.value,
        "confirmed": best.confirmed,
        "ratio": None if best.gain is None else best.gain.ratio,
        "low": None if best.gain is None else best.gain.low,
        "high": None if best.gain is None else best.gain.high,
    }
