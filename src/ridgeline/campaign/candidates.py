"""Which setting an answer speaks of, with figures of its own runs: the search's best, or one that fresh runs judged."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.blocks import disqualified
from ridgeline.campaign.confirmation import ConfirmationVerdict
from ridgeline.campaign.verdict import gain_of, goal_text
from ridgeline.records.answer import Candidate, Gain
from ridgeline.records.exhibit import changes
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.compare import both_sides, reach, where_they_ran
from ridgeline.stats.contribution import search_gain
from ridgeline.stats.verdict import Block, Comparison, Verdict
from ridgeline.study.history import History


def trial_of(history: History, key: str) -> Trial | None:
    """The search trial that first tried this point."""
    return next((t for t in history.trials.values() if t.key == key and t.stage is Stage.SEARCH), None)


def judged_pair(
    study: Study, history: History, judged: Comparison, label: str, won: bool, short: str
) -> tuple[float, Candidate] | None:
    """The reference's value and the candidate that was compared with it, both from the same interleaved blocks."""
    trial = trial_of(history, judged.candidate)
    sides = both_sides(confirmation.blocks_so_far(study, history), judged.candidate, judged.scale)
    if trial is None or sides is None:
        return None
    gain = gain_of(judged, goal_text(study, history))
    return sides[0], Candidate(label, trial.number, trial.point, trial.settings, sides[1], gain, won, short)


def judged_text(study: Study, history: History, judged: Comparison, than: str = "baseline") -> str:
    """'302 -> 317 steps/s, 1.05x baseline (95%: 1.03 to 1.07; 5 blocks on 2 nodes)', or that no difference shows."""
    blocks, goal = confirmation.blocks_so_far(study, history), goal_text(study, history)
    where = where_they_ran(blocks, history.protocol)
    text = judged.text(where, than, goal)
    if (sides := _sides(blocks, judged)) is None:
        return text
    values = goal.before_after(*sides)
    if judged.verdict is Verdict.NO_DIFFERENCE:
        return f"{text}, {values}{reach(judged, where)}"
    return f"{values}, {text}"


def _sides(blocks: Sequence[Block], judged: Comparison) -> tuple[float, float] | None:
    return None if judged.verdict is Verdict.TOO_FEW_BLOCKS else both_sides(blocks, judged.candidate, judged.scale)


def best_of_search(study: Study, history: History) -> Candidate | None:
    """The best setting of the search, as long as it did not fail when it was run again."""
    failed = disqualified(study, history)
    ranked = scores.ranking(study, history)
    if failed:
        ranked = [(point, score) for point, score in ranked if point_key(point) not in failed]
    if not ranked:
        return None
    point = ranked[0][0]
    trial = trial_of(history, point_key(point))
    value = confirmation.mean_value(study, history, point_key(point), Stage.SEARCH)
    assert trial is not None and value is not None  # it was ranked, so it ran and passed
    gain = _search_estimate(study, history, [study.goal.score(score) for _, score in ranked])
    return Candidate("the best of the search", trial.number, point, trial.settings, value, gain, short="best")


def _search_estimate(study: Study, history: History, tried: list[float]) -> Gain | None:
    compared = scores.compared_scores(study, history, Stage.BASELINE, Stage.SENTINEL)
    baseline = [study.goal.score(score) for _, score in compared]
    found = search_gain(tried, baseline, study.goal.direction, study.confirm.level)
    if found is None:
        return None
    text, ratio = found.text(goal_text(study, history)), 1 + found.change
    if found.low is None or found.high is None:
        return Gain(ratio, None, None, found.level, text)
    return Gain(ratio, 1 + found.low, 1 + found.high, found.level, text)


def refuted_text(study: Study, history: History, verdict: ConfirmationVerdict, spoken_of: Point | None) -> str:
    """What fresh runs made of the search's favourite; empty where it held, or where the answer speaks of it anyway."""
    ranked = scores.ranking(study, history)
    key = point_key(ranked[0][0]) if ranked else ""
    if not key or (spoken_of is not None and key == point_key(spoken_of)):
        return ""
    trial = trial_of(history, key)
    assert trial is not None  # it was ranked, so it ran
    who = f"the best of the search, #{trial.number} ({changes(study.baseline, trial.point)}),"
    if reason := verdict.disqualified.get(key):
        return f"{who} failed when it was run again: {reason}"
    judged = next((c for c in verdict.comparisons if c.candidate == key), None)
    if judged is None or judged.verdict in (Verdict.BETTER, Verdict.TOO_FEW_BLOCKS):
        return ""
    return f"{who} did not hold: {judged_text(study, history, judged)}"
