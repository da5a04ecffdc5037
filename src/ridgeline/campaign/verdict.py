"""What every kind of campaign says when it is over, and the answer that follows from it: a setting with its figures.

A verdict that an earlier release wrote is judged by today's rules (`judged_today`). Since the first releases more is
known of what makes a win that is none: a block that a stop cut in two may have been on two machines, the first run of a
block is cold, looks share the error. What those releases concluded stays in the journal, and `study verify` derives it
again as they did; what a person is told is judged again, from the same runs.

One rule of today does not hold for them: the test of the drawn order (`stats/sign_flips.py`) counts on coins, and those
releases ran palindromes, begun by the baseline or by settings in turn. A machine that swings at their pace favours the
same setting every time, and no row of coins says how often. What palindromes do give, that a steady drift cancels, is
what their interval over blocks rests on, so that is what they are judged by; nodes count as today.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.confirmation import (
    ConfirmationVerdict,
    blocks_so_far,
    cut_blocks,
    disqualified,
    judged_blocks,
    trials_of,
)
from ridgeline.records.answer import Answer, BrokenLimit, Candidate, Conclusion, Gain, Reference, Use
from ridgeline.records.exhibit import changes
from ridgeline.records.measurement import MODEL_HIGH, MODEL_LOW, Measurement
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.compare import PROTOCOL, both_sides, reach, where_they_ran
from ridgeline.stats.contribution import search_gain
from ridgeline.stats.verdict import FEWEST_BLOCKS, Block, Comparison, Verdict
from ridgeline.stats.wording import MetricText, count, metric_text, ratio_range, ratio_text
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History
from ridgeline.workloads.base import terms_of

NOT_PROVABLE = "not_provable"  # of a verdict's details: why it does not stand by today's rules


def answer_of(
    kind: str,
    verdict: VerdictLine | None,
    reference: Reference,
    candidate: Candidate | None,
    facts: Mapping[str, Any],
    use: Use = Use.CANDIDATE,
) -> Answer:
    """The answer of a campaign that may not be over."""
    if verdict is None:
        return Answer(kind, None, "no verdict yet", reference, candidate, facts, use)
    paste, unproven = (str(verdict.details.get(name, "")) for name in ("paste", NOT_PROVABLE))
    said = (kind, verdict.conclusion, verdict.headline)
    return Answer(*said, reference, candidate, facts, use, paste, unproven=unproven)


def with_figures(answer: Answer, study: Study, history: History) -> Answer:
    """The answer with what its numbers are: before and after, their unit, and whether anything was measured."""
    goal, candidate, before = goal_text(study, history), answer.candidate, answer.reference.value
    change = ""
    if candidate is not None:
        values = goal.value(candidate.value) if before is None else goal.before_after(before, candidate.value)
        change = values if candidate.gain is None else f"{values}, {candidate.gain}"
    simulated = is_simulated(study, history)
    return replace(
        answer,
        change=change,
        unit=goal.unit,
        simulated=simulated,
        broken=_broken_limits(study, history, answer),
        model_error=_model_error(history, answer) if simulated and candidate is not None else "",
    )


def _broken_limits(study: Study, history: History, answer: Answer) -> tuple[BrokenLimit, ...]:
    """Limits of the question that the setting to use does not keep, over all of its runs."""
    if answer.to_use is None:
        return ()
    found = []
    for limit in terms_of(study).limits:
        measured = _mean_of(history, answer.to_use, limit.metric)
        if measured is not None and measured > limit.most:
            most = metric_text(limit.most)
            text = f"{limit.called} {_above(measured, most)} {limit.unit} (limit {most})"
            before = _mean_of(history, answer.reference.point, limit.metric)
            found.append(BrokenLimit(limit.metric, limit.most, measured, before, text))
    return tuple(found)


def _above(measured: float, limit: str) -> str:
    """With as many digits as show that it is beyond the limit: 50.19 of 50."""
    texts = (metric_text(measured), *(f"{measured:,.{digits}g}" for digits in range(5, 12)))
    return next((text for text in texts if text != limit), f"{measured:,}")


def _mean_of(history: History, point: Point, metric: str) -> float | None:
    """Over the runs of the confirmation where there are any, else over all that passed."""
    runs = [(trial, run.metrics[metric]) for trial, run in history.ok_runs(*Stage) if metric in run.metrics]
    of_point = [(trial.stage, value) for trial, value in runs if trial.point == point]
    values = [value for stage, value in of_point if stage is Stage.CONFIRM] or [value for _, value in of_point]
    return fmean(values) if values else None


def _model_error(history: History, answer: Answer) -> str:
    """How far a simulated figure may be from a measured one, which no interval over simulated runs can show."""
    to_use = answer.reference.point if answer.to_use is None else answer.to_use
    ends = [_mean_of(history, to_use, end) for end in (MODEL_LOW, MODEL_HIGH)]
    if None in ends:
        return "the model's own error is not in it"
    low, high = ends
    real = f"the real figure is {low:.2f} to {high:.2f} times the predicted one"
    return f"the model's own error is not in it (90%: {real})"


def goal_text(study: Study, history: History) -> MetricText:
    """How the goal is said, in the unit that its measurements carry."""
    found = _of_the_goal(study, history)
    return MetricText(study.goal.metric, "" if found is None else found.unit, study.goal.direction)


def is_simulated(study: Study, history: History) -> bool:
    found = _of_the_goal(study, history)
    return found is not None and found.origin == "modelled"


def _of_the_goal(study: Study, history: History) -> Measurement | None:
    """The first measurement of the goal: all of a study are read in the same way."""
    found = (m for run in history.runs.values() for m in run.measurements if m.metric == study.goal.metric)
    return next(found, None)


def _gain_of(comparison: Comparison, goal: MetricText) -> Gain | None:
    """What fresh interleaved runs showed of one setting; without an interval where blocks are too few for one."""
    ratio, low, high, level = comparison.ratio, comparison.low, comparison.high, comparison.level
    if ratio is None:
        return None
    if low is None or high is None:
        text = f"{ratio_text(ratio)}{goal.sense} (too few blocks for an interval)"
    else:
        shown, interval = ratio_range(ratio, low, high)
        # what is the same in every block has no interval to show
        text = f"{shown}{goal.sense}" + ("" if low == high else f" ({level * 100:g}%: {interval})")
    return Gain(ratio, low, high, level, text)


def trial_of(history: History, key: str) -> Trial | None:
    """The search trial that first tried this point."""
    return next((t for t in history.trials.values() if t.key == key and t.stage is Stage.SEARCH), None)


def judged_pair(
    study: Study, history: History, verdict: ConfirmationVerdict | None, label: str, short: str
) -> tuple[float, Candidate] | None:
    """The reference's value and the candidate that was compared with it, both from the same interleaved blocks: once
    fresh runs were compared only theirs count, whatever the search had seen."""
    if verdict is None or (judged := verdict.spoken_of) is None:
        return None
    trial = trial_of(history, judged.candidate)
    sides = both_sides(confirmation.blocks_so_far(study, history), judged.candidate, judged.scale)
    if trial is None or sides is None:
        return None
    gain, won = _gain_of(judged, goal_text(study, history)), verdict.winner is not None
    return sides[0], Candidate(label, trial.number, trial.point, trial.settings, sides[1], gain, won, short)


def judged_text(study: Study, history: History, judged: Comparison, than: str = "baseline") -> str:
    """'302 -> 317 steps/s, 1.05x baseline (95%: 1.03 to 1.07; 5 blocks on 2 nodes)', or that no difference shows."""
    blocks, goal = confirmation.blocks_so_far(study, history), goal_text(study, history)
    where = where_they_ran(blocks, history.protocol)
    text, sides = judged.text(where, than, goal), both_sides(blocks, judged.candidate, judged.scale)
    if sides is None or judged.verdict is Verdict.TOO_FEW_BLOCKS:
        return text
    values = goal.before_after(*sides)
    if judged.verdict is Verdict.NO_DIFFERENCE:
        return f"{text}, {values}{reach(judged, where)}"
    return f"{values}, {text}"


def best_of_search(study: Study, history: History) -> Candidate | None:
    """The best setting of the search, as long as it did not fail when it was run again."""
    failed = disqualified(study, history)
    ranked = [found for found in scores.ranking(study, history) if point_key(found[0]) not in failed]
    if not ranked:
        return None
    point = ranked[0][0]
    trial = trial_of(history, point_key(point))
    value = scores.mean_value(study, history, Stage.SEARCH, key=point_key(point))
    assert trial is not None and value is not None  # it was ranked, so it ran and passed
    gain = _search_estimate(study, history, [study.goal.score(score) for _, score in ranked])
    return Candidate("the best of the search", trial.number, point, trial.settings, value, gain, short="best")


def _search_estimate(study: Study, history: History, tried: list[float]) -> Gain | None:
    compared = scores.compared_scores(study, history, Stage.BASELINE, Stage.SENTINEL)
    baseline = [study.goal.score(score) for _, score in compared]
    found = search_gain(tried, baseline, study.goal.direction, study.confirm.level)
    if found is None:
        return None
    low, high = (None if end is None else 1 + end for end in (found.low, found.high))
    return Gain(1 + found.change, low, high, found.level, found.text(goal_text(study, history)))


def refuted_text(study: Study, history: History, verdict: ConfirmationVerdict, candidate: Candidate | None) -> str:
    """What fresh runs made of the search's favourite; empty where it held, or where the answer speaks of it anyway."""
    ranked = scores.ranking(study, history)
    if not ranked or (candidate is not None and point_key(ranked[0][0]) == point_key(candidate.point)):
        return ""
    key = point_key(ranked[0][0])
    trial = trial_of(history, key)
    assert trial is not None  # it was ranked, so it ran
    who = f"the best of the search, #{trial.number} ({changes(study.baseline, trial.point)}),"
    if reason := verdict.disqualified.get(key):
        return f"{who} failed when it was run again: {reason}"
    judged = next((c for c in verdict.comparisons if c.candidate == key), None)
    if judged is None or judged.verdict in (Verdict.BETTER, Verdict.TOO_FEW_BLOCKS):
        return ""
    return f"{who} did not hold: {judged_text(study, history, judged)}"


_IN_BLOCKS = ("search", "compare")  # kinds whose verdict is one about interleaved blocks


def judged_today(kind: str, study: Study, history: History) -> History:
    """The history with its verdict as today's rules see it: with today's intervals, or as not provable, and why."""
    if history.verdict is None or kind not in _IN_BLOCKS:
        return history
    now, line, cut = copy.copy(history), history.verdict, cut_blocks(history)
    # as a campaign of today does at once, only that nobody has run them again
    now.uncounted = history.uncounted | {trial.number for block in cut for trial in trials_of(history, block)}
    found, why = _judged(study, now, cut, ConfirmationVerdict.from_line(line))
    if found is None:
        return history
    details = {**line.details, **found.details()}
    if why:
        details = {name: value for name, value in details.items() if name != "paste"} | {NOT_PROVABLE: why}
    now.verdict = VerdictLine(str(found.conclusion), found.headline, details)
    return now


def _judged(
    study: Study, history: History, cut: Sequence[int], found: ConfirmationVerdict
) -> tuple[ConfirmationVerdict | None, str]:
    """None where nothing is to be said again."""
    stated = found.spoken_of
    if stated is None or stated.verdict not in (Verdict.BETTER, Verdict.WORSE):
        return None, ""
    if history.protocol >= PROTOCOL and not cut:
        return None, ""
    # with its first run a block cancels a steady drift, without it a cold start: it must stand either way
    whole = blocks_so_far(study, history)
    results = [judged_blocks(study, history, b, today=True) for b in (_without_cold_runs(study, history, whole), whole)]
    judged, cancelling = (each.comparisons.get(stated.candidate) for each in results)
    result = results[0]
    if judged is not None and cancelling is not None and judged.verdict is stated.verdict is not cancelling.verdict:
        judged, result = cancelling, results[1]
    if judged is not None and judged.verdict is stated.verdict:
        return replace(found, comparisons=tuple(result.comparisons.get(c.candidate, c) for c in found.comparisons)), ""
    why = f"{_shown(judged)}{_cut_text(cut, history)}"
    text = f"not provable: {why}; the release that ran it had concluded: {found.headline}"
    rows = tuple(result.comparisons.values())
    return replace(found, conclusion=Conclusion.UNCONFIRMED, headline=text, winner=None, comparisons=rows), why


def _shown(judged: Comparison | None) -> str:
    if judged is None:
        return "no block is left that compares them"
    if judged.verdict is Verdict.TOO_FEW_BLOCKS:
        return f"only {count(judged.blocks, 'block')} can be counted and {FEWEST_BLOCKS} are needed"
    return f"by today's rules the same runs show {judged}"


def _cut_text(cut: Sequence[int], history: History) -> str:
    if not cut:
        return ""
    which = f"block{'' if len(cut) == 1 else 's'} {', '.join(str(block + 1) for block in cut)} of {history.blocks}"
    return f" ({which}: stopped in the middle and resumed, perhaps on another machine)"


def _without_cold_runs(study: Study, history: History, blocks: Sequence[Block]) -> list[Block]:
    """Where the baseline began every block, whatever makes a first run slow is the baseline's alone: it is left out,
    as long as there is another run of the baseline in its block."""
    if history.order_seed is not None:
        return list(blocks)
    base, kept = point_key(study.baseline), []
    for block in blocks:
        first = trials_of(history, block.number)[0]
        cold = first.key == base and len(block.baseline) > 1
        kept.append(replace(block, baseline=block.baseline[1:], opening=None) if cold else block)
    return kept
