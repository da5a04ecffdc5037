"""Confirm: fresh, interleaved, node-blocked runs of the best settings against the baseline."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.campaign.ledger import Reserve
from ridgeline.records.answer import CONFIRMED, NOTHING_PASSED
from ridgeline.records.exhibit import ComparedSetting
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import ConfirmStage, Study
from ridgeline.records.trial import Stage
from ridgeline.stats.compare import confirm, nearest
from ridgeline.stats.verdict import FEWEST_BLOCKS, Block, Comparison, Confirmation, Verdict
from ridgeline.store.events import VerdictLine
from ridgeline.store.history import History

UNCONFIRMED = "unconfirmed"  # too few interleaved runs, or none, for a verdict
NO_DIFFERENCE = "no-difference"


@dataclass(frozen=True, slots=True)
class ConfirmationPlan:
    candidates: tuple[Point, ...]
    blocks: int


def runs_needed(stage: ConfirmStage, candidates: int, blocks: int) -> int:
    """Every block runs the baseline and each candidate `repeats` times."""
    return stage.repeats * (candidates + 1) * blocks if candidates else 0


def reserve(study: Study) -> Reserve:
    stage = study.confirm
    if stage.top == 0:
        return Reserve()
    least = runs_needed(stage, 1, min(stage.blocks, FEWEST_BLOCKS))
    return Reserve(runs_needed(stage, stage.top, stage.blocks), least)


def choose(study: Study, history: History, affordable_runs: float) -> ConfirmationPlan:
    """The top settings of the search, as many as can be afforded; first fewer settings, then fewer blocks.

    Settings that looked worse than the baseline are left out, unless none looked better: then the best one is
    measured all the same, since one noisy look decides nothing.
    """
    ranked = ranking(study, history)
    if study.confirm.top == 0 or not ranked:
        return ConfirmationPlan((), 0)
    base = baseline_score(study, history)
    better = [point for point, score in ranked if base is None or score > base]
    points = tuple(better[: study.confirm.top] or [point for point, _ in ranked[:1]])
    stage, blocks = study.confirm, study.confirm.blocks
    while len(points) > 1 and runs_needed(stage, len(points), blocks) > affordable_runs:
        points = points[:-1]
    while blocks > FEWEST_BLOCKS and runs_needed(stage, len(points), blocks) > affordable_runs:
        blocks -= 1
    if runs_needed(stage, len(points), blocks) > affordable_runs:
        return ConfirmationPlan((), 0)
    return ConfirmationPlan(points, blocks)


def ranking(study: Study, history: History) -> list[tuple[Point, float]]:
    """Settings that passed in the search, best first, each with its mean score; the baseline is not among them."""
    scores: dict[str, list[float]] = {}
    points: dict[str, Point] = {}
    base = point_key(study.baseline)
    for trial, run in history.ok_runs(Stage.SEARCH):
        if (key := trial.key) != base:
            points[key] = trial.point
            scores.setdefault(key, []).append(study.goal.score(run.metrics[study.goal.metric]))
    means = {key: sum(values) / len(values) for key, values in scores.items()}
    return [(points[key], means[key]) for key in sorted(means, key=lambda k: -means[k])]


def baseline_score(study: Study, history: History) -> float | None:
    values = [
        study.goal.score(run.metrics[study.goal.metric]) for _, run in history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
    ]
    return sum(values) / len(values) if values else None


def block_order(study: Study, candidates: Sequence[Point], block: int) -> list[Point]:
    """A B B A; or, with one run of each in a block, A B and in the next block B A."""
    forward = [study.baseline, *candidates]
    if study.confirm.repeats == 1:
        return forward if block % 2 == 0 else forward[::-1]
    return [*forward, *reversed(forward)]


def next_in_block(study: Study, history: History, block: int) -> Point | None:
    """The next setting to run in this block, or None when the block is complete."""
    assert history.candidates is not None
    started = Counter(t.key for t in history.trials.values() if t.stage is Stage.CONFIRM and t.block == block)
    failed = disqualified(study, history)
    for point in block_order(study, history.candidates, block):
        key = point_key(point)
        if key in failed:
            continue
        if not started[key]:
            return point
        started[key] -= 1
    return None


def disqualified(study: Study, history: History) -> dict[str, str]:
    """Candidates that failed in the confirmation: a setting that works only sometimes is not the answer.

    The baseline stays, whatever happens to it: there is nothing else to compare with.
    """
    failed: dict[str, str] = {}
    base = point_key(study.baseline)
    for trial in history.trials.values():
        candidate = trial.stage is Stage.CONFIRM and trial.key != base
        run = history.final_run(trial) if candidate else None
        if run and run.outcome and (run.outcome.kind.caused_by_setting or run.outcome.kind is Kind.UNVERIFIED):
            failed.setdefault(trial.key, str(run.outcome))
    return failed


def nodes_of_block(history: History, block: int) -> tuple[str, ...]:
    """Where the first run of a block ran; its other runs go to the same nodes."""
    for trial in history.trials.values():
        if trial.stage is Stage.CONFIRM and trial.block == block and (run := history.final_run(trial)):
            return run.ending.nodes
    return ()


def blocks_so_far(study: Study, history: History) -> list[Block]:
    base = point_key(study.baseline)
    failed = disqualified(study, history)
    values: dict[int, dict[str, list[float]]] = {}
    for trial, run in history.ok_runs(Stage.CONFIRM):
        if trial.block is not None:
            block = values.setdefault(trial.block, {})
            block.setdefault(trial.key, []).append(run.metrics[study.goal.metric])
    return [
        Block(number, nodes_of_block(history, number), runs.get(base, ()), _without(runs, base, failed))
        for number, runs in sorted(values.items())
    ]


def _without(runs: Mapping[str, list[float]], base: str, failed: Mapping[str, str]) -> dict[str, list[float]]:
    return {key: values for key, values in runs.items() if key != base and key not in failed}


@dataclass(frozen=True, slots=True)
class ConfirmationVerdict:
    """What fresh, interleaved runs showed; `winner` is shown to be better than what it was compared with."""

    conclusion: str  # confirmed, no-difference, unconfirmed, nothing-passed; of a comparison also worse
    headline: str
    winner: Point | None = None
    comparisons: tuple[Comparison, ...] = ()
    disqualified: Mapping[str, str] = field(default_factory=dict)

    @property
    def recommended(self) -> Point | None:
        return self.winner

    @property
    def spoken_of(self) -> Comparison | None:
        """The comparison whose interval the headline shows."""
        if self.winner is not None:
            return next(c for c in self.comparisons if c.candidate == point_key(self.winner))
        return nearest(self.comparisons)

    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.comparisons:
            found["winner"] = None if self.winner is None else dict(self.winner)
            found["comparisons"] = [asdict(c) | {"verdict": c.verdict.value} for c in self.comparisons]
        if self.comparisons or self.disqualified:
            found["disqualified"] = dict(self.disqualified)
        return found

    @classmethod
    def from_line(cls, line: VerdictLine) -> ConfirmationVerdict:
        rows = tuple(_comparison_from(row) for row in line.details.get("comparisons", ()))
        winner, failed = line.details.get("winner"), line.details.get("disqualified", {})
        return cls(line.conclusion, line.headline, winner, rows, failed)


def _comparison_from(row: Mapping[str, Any]) -> Comparison:
    return Comparison(**{**row, "verdict": Verdict(row["verdict"]), "notes": tuple(row.get("notes", ()))})


def verdict(study: Study, history: History) -> ConfirmationVerdict:
    """What the search and its confirmation found."""
    if not history.count(Stage.SEARCH):
        headline = "nothing was tried: the budget has no room beyond the baseline"
        return ConfirmationVerdict(UNCONFIRMED, headline)
    if not ranking(study, history):
        return ConfirmationVerdict(NOTHING_PASSED, f"no setting passed the guards ({outcomes_of_search(history)})")
    if not history.candidates:
        none_asked = "the study asks for no confirmation"
        why = "the budget left no room for interleaved runs" if study.confirm.top else none_asked
        return ConfirmationVerdict(UNCONFIRMED, f"not confirmed: {why}")
    result = confirm(blocks_so_far(study, history), study.confirm.level, study.goal.direction)
    failed = disqualified(study, history)
    if not result.comparisons:
        if all(point_key(p) in failed for p in history.candidates):
            headline = f"no setting passed the guards when it was run again: {next(iter(failed.values()))}"
            return ConfirmationVerdict(NOTHING_PASSED, headline, disqualified=failed)
        return ConfirmationVerdict(UNCONFIRMED, result.headline, disqualified=failed)
    return _judged(result, history.candidates, failed)


def _judged(result: Confirmation, candidates: Sequence[Point], failed: Mapping[str, str]) -> ConfirmationVerdict:
    winner = next((p for p in candidates if point_key(p) == result.winner), None)
    enough = any(c.blocks >= FEWEST_BLOCKS for c in result.comparisons.values())
    conclusion = CONFIRMED if winner is not None else NO_DIFFERENCE if enough else UNCONFIRMED
    return ConfirmationVerdict(conclusion, result.headline, winner, tuple(result.comparisons.values()), failed)


def outcomes_of_search(history: History) -> str:
    """How the trials of the search ended: `3 crash, 1 oom-run`."""
    counts = Counter(
        run.outcome.kind.value
        for trial in history.trials.values()
        if trial.stage is Stage.SEARCH and (run := history.final_run(trial)) and run.outcome
    )
    return ", ".join(f"{n} {kind}" for kind, n in counts.most_common())


# what the faces show of it


def compared_settings(baseline: Point, comparisons: Sequence[Comparison]) -> tuple[ComparedSetting, ...]:
    return tuple(
        ComparedSetting(changes(baseline, json.loads(c.candidate)), c.estimate, c.low, c.high, c.verdict.value)
        for c in comparisons
        if c.scale == "ratio" and c.estimate is not None and c.low is not None and c.high is not None
    )


def changes(baseline: Point, candidate: Point) -> str:
    """What a candidate changes, in the order of the study's knobs."""
    names = [name for name in dict.fromkeys((*baseline, *candidate)) if baseline.get(name) != candidate.get(name)]
    return ", ".join(f"{name} {_shown(candidate.get(name))}" for name in names)


def _shown(value: object) -> str:
    return "absent" if value is None else "''" if value == "" else str(value)


def mean_value(study: Study, history: History, key: str, *stages: Stage) -> float | None:
    """The goal's mean over the runs of this point that passed in these stages."""
    values = [r.metrics[study.goal.metric] for t, r in history.ok_runs(*stages) if t.key == key]
    return sum(values) / len(values) if values else None
