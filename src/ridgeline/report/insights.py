"""What a campaign shows besides its answer: where the gain comes from, which nodes differ from their peers, and
whether the machine itself changed while it was measured."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from ridgeline.records.answer import CONFIRMED, Answer
from ridgeline.records.space import point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.contribution import contributions, text
from ridgeline.stats.drift import MOST_REPEATS, Repeat, baseline_course, drift, outliers
from ridgeline.stats.nodes import NodeEffect, corrected, corrections, node_effects, node_runs
from ridgeline.stats.wording import MetricText, count
from ridgeline.study.history import History

_FEWEST_FOR_OUTLIERS = 10  # repeats; of fewer, a usual scatter makes an odd one too often


def insights(study: Study, history: History, answer: Answer, gain: bool = True) -> list[str]:
    """One sentence each; empty where the runs say nothing of the kind. Without `gain`, nothing of what each change
    gained nor of where it was confirmed: a page shows both."""
    goal = MetricText(study.goal.metric, answer.unit, study.goal.direction)
    effects = _effects_of_nodes(study, history)
    unusual = [
        f"{node_text(effect, goal)}; the ranking of settings allows for it"
        for effect in effects
        if effect.verdict in ("slow", "fast")
    ]
    return [
        *(_gain_by_change(study, history, answer) if gain else ()),
        *unusual,
        *_unsteady(study, history, effects, answer.reference.label, goal),
        *_compared_through(study, history, effects),
        *(_where_it_was_confirmed(history) if gain else ()),
        *_run_again(history),
    ]


def node_text(effect: NodeEffect, goal: MetricText) -> str:
    """`node n2 is 10% slower in rate than its peers`; of 1.5 times the run time `50% slower in time`."""
    assert effect.speed is not None and effect.low is not None and effect.high is not None
    size, *ends = (abs(goal.own_change(speed - 1)) * 100 for speed in (effect.speed, effect.low, effect.high))
    interval = f"({effect.level * 100:g}%: {min(ends):.0f}% to {max(ends):.0f}%)"
    if goal.direction == "minimize" and not goal.is_time:
        side = "higher" if effect.verdict == "slow" else "lower"
        return f"node {effect.node} has {size:.0f}% {side} {goal.metric} than its peers {interval}"
    side = "slower" if effect.verdict == "slow" else "faster"
    of = "time" if goal.is_time else goal.metric
    return f"node {effect.node} is {size:.0f}% {side} in {of} than its peers {interval}"


def _gain_by_change(study: Study, history: History, answer: Answer) -> list[str]:
    if answer.candidate is None or answer.conclusion != CONFIRMED:
        return []
    winner = answer.candidate.point
    runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL, Stage.SEARCH)
    trials = [(trial.point, run.metrics[study.goal.metric]) for trial, run in runs]
    found = contributions(study.baseline, winner, trials, study.goal.direction, study.confirm.level)
    if not any(part.detectable for part in found):
        # a well-guided search tries few settings that change one knob alone
        together = [part.name for part in found if not part.small]
        line = f"the gain can't be attributed: {', '.join(together)} were almost always changed together"
        return (
            [f"{line}; `ridgeline study steps --each` measures one after the other, as far as each is legal by itself"]
            if len(together) > 1
            else []
        )
    of = study.goal.metric if study.goal.direction == "maximize" else f"speed, the inverse of {study.goal.metric}"
    return [f"gain by change, in percent of {of}, estimated from the search: {text(found)}"]


def _compared_through(study: Study, history: History, effects: Sequence[NodeEffect]) -> list[str]:
    """That values of the search were not compared as they were measured."""
    runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
    sentinels = sum(trial.stage is Stage.SENTINEL for trial, _ in runs)
    goal = study.goal
    course = baseline_course(runs, goal.metric, effects, goal.direction, study.confirm.level)
    if not sentinels or not course.changed:
        return []
    times = count(sentinels, "run")
    return [f"the machine changed: values of the search were compared through {times} of the baseline meanwhile"]


def _where_it_was_confirmed(history: History) -> list[str]:
    details = {} if history.verdict is None else history.verdict.details
    machines = details.get("machines", ())
    return [f"the confirmation ran on {', '.join(machines)}"] if len(machines) > 1 else []


def _run_again(history: History) -> list[str]:
    if not history.set_aside:
        return []
    why = Counter(aside.reason for aside in history.set_aside)
    reasons = "; ".join(f"{reason} ({n}x)" if n > 1 else reason for reason, n in why.items())
    number = len(history.set_aside)
    return [f"{count(number, 'block')} of the confirmation {'was' if number == 1 else 'were'} run again: {reasons}"]


def _effects_of_nodes(study: Study, history: History) -> list[NodeEffect]:
    runs = node_runs(history.ok_runs(*Stage), study.goal.metric)
    return node_effects(runs, study.goal.direction, study.confirm.level)


def _unsteady(
    study: Study, history: History, effects: Sequence[NodeEffect], baseline: str, goal: MetricText
) -> list[str]:
    """What the repeats of the baseline say of the machine, freed from what is known of its nodes."""
    base, metric, direction = point_key(study.baseline), study.goal.metric, study.goal.direction
    runs = [(trial, run) for trial, run in history.ok_runs(*Stage) if trial.key == base]
    if len({run.ending.nodes for _, run in runs}) > 1:
        # a block of the confirmation keeps its nodes: their differences, in a row, would look like a change in time
        runs = [(trial, run) for trial, run in runs if trial.stage is not Stage.CONFIRM]
    runs = runs[:: len(runs) // MOST_REPEATS + 1]
    factors = corrections(effects, direction)
    repeats = [Repeat(corrected(run.metrics[metric], run.ending.nodes, factors), run.ending.nodes) for _, run in runs]
    found = drift([repeat.value for repeat in repeats], direction, random.Random(0), study.confirm.level)
    said = []
    if found.kind in ("step", "trend"):
        said = [f"the machine changed meanwhile: {goal.changed(found.change, 1)} for {baseline} {found.when}"]
    if len(repeats) < _FEWEST_FOR_OUTLIERS:
        return said
    odd = [o for o in outliers(repeats, direction, found) if o.cause != "trend"]
    return said + [
        f"#{runs[o.index][0].number}, a run of {baseline}, had {goal.changed(o.change)} than the others: {o.reason}"
        for o in odd
    ]
