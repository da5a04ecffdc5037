"""What each step brought, which setting to use, and whether a simpler one does as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ridgeline.campaign.confirmation import NO_DIFFERENCE, UNCONFIRMED, ConfirmationVerdict
from ridgeline.records.answer import CONFIRMED, KEEP_BASELINE
from ridgeline.records.exhibit import TextTable, changes
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.stats.compare import confirm
from ridgeline.stats.verdict import Block, Comparison, Confirmation, Verdict
from ridgeline.stats.wording import count, percent, percent_range
from ridgeline.study.codec import VerdictLine

Judge = Callable[[Sequence[Block], float], Confirmation]  # of blocks, at a level
SIMPLER_WITHIN = 0.01  # of the goal: a setting with fewer changes that is shown to lose no more is preferred


@dataclass(frozen=True, slots=True)
class StepGain:
    """What one step brought: its ratio to the step before, above 1 for better; None where there is too little to say.

    `name` is the group of what was changed, `change` the change itself.
    """

    name: str
    change: str
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str

    def __str__(self) -> str:
        if self.ratio is None or self.low is None or self.high is None:
            return f"{self.change}: {self.verdict}"
        if self.verdict == Verdict.NO_DIFFERENCE:
            return f"{self.change}: no detectable difference"
        return f"{self.change} {percent(self.ratio - 1)}"


@dataclass(frozen=True, slots=True)
class StepsVerdict(ConfirmationVerdict):
    """`comparisons` are those with the baseline; `steps` those of neighbours. `simpler` says that, and why, a setting
    with fewer changes is the one to use."""

    steps: tuple[StepGain, ...] = ()
    simpler: str = ""

    def details(self) -> dict[str, Any]:
        found = ConfirmationVerdict.details(self)
        if self.steps:
            found["steps"] = [asdict(step) for step in self.steps]
        return found | ({"simpler": self.simpler} if self.simpler else {})

    @classmethod
    def from_line(cls, line: VerdictLine) -> StepsVerdict:
        plain = ConfirmationVerdict.from_line(line)
        same = {name: getattr(plain, name) for name in ConfirmationVerdict.__dataclass_fields__}
        steps = tuple(StepGain(**row) for row in line.details.get("steps", ()))
        return cls(**same, steps=steps, simpler=line.details.get("simpler", ""))


def judged_steps(
    study: Study,
    blocks: Sequence[Block],
    points: Sequence[Point],
    names: Sequence[str],
    simpler: Point | None,
    failed: Mapping[str, str],
    by_node: bool = True,
) -> StepsVerdict:
    """Steps that failed are left out; what they changed is part of the next step's change."""
    judge = partial(confirm, direction=study.goal.direction, by_node=by_node)
    ran = {key for block in blocks for key in block.candidates}
    way = [(name, point) for name, point in zip(names, points, strict=True) if point_key(point) in ran]
    against_base = judge(blocks, study.confirm.level)
    steps = _gains(study, blocks, way, judge)
    compared = tuple(against_base.comparisons.values())
    last = None if not way else against_base.comparisons.get(point_key(way[-1][1]))
    if last is None or last.verdict is Verdict.TOO_FEW_BLOCKS:
        return StepsVerdict(UNCONFIRMED, "too few blocks to say what each step brought", None, compared, failed)
    if last.verdict is not Verdict.BETTER:
        worse = last.verdict is Verdict.WORSE
        conclusion = KEEP_BASELINE if worse else NO_DIFFERENCE
        text = f"the setting is not shown to be better than the baseline: {last}"
        return StepsVerdict(conclusion, text, None, compared, failed, steps=steps)
    others = [point for _, point in way[:-1]] + ([simpler] if simpler and point_key(simpler) in ran else [])
    chosen, why = _simplest(study, blocks, way[-1][1], others, against_base.comparisons, judge)
    text = f"{last}; what brought it: {', '.join(map(str, steps))}"
    return StepsVerdict(CONFIRMED, text, chosen, compared, failed, steps=steps, simpler=why)


def _gains(
    study: Study, blocks: Sequence[Block], way: Sequence[tuple[str, Point]], judge: Judge
) -> tuple[StepGain, ...]:
    """Each step against the one before, with intervals that hold for all of them together."""
    found = []
    before: Point = study.baseline
    level = 1 - (1 - study.confirm.level) / max(1, len(way))
    for name, point in way:
        pair = judge(_beside(study, blocks, before, [point]), level)
        judged = pair.comparisons[point_key(point)]
        ratio = judged.ratio is not None
        ends = (judged.estimate, judged.low, judged.high) if ratio else (None, None, None)
        found.append(StepGain(name, changes(before, point), *ends, judged.verdict.value))
        before = point
    return tuple(found)


def _beside(study: Study, blocks: Sequence[Block], reference: Point, others: Sequence[Point]) -> list[Block]:
    """The same blocks with another setting as the one that others are held against."""
    base, key = point_key(study.baseline), point_key(reference)
    keys = [point_key(point) for point in others]
    return [
        Block(
            block.number,
            block.nodes,
            block.baseline if key == base else block.candidates.get(key, ()),
            {other: block.candidates.get(other, ()) for other in keys},
        )
        for block in blocks
    ]


def _simplest(
    study: Study,
    blocks: Sequence[Block],
    setting: Point,
    others: Sequence[Point],
    against_base: Mapping[str, Comparison],
    judge: Judge,
) -> tuple[Point, str]:
    """The setting to use, and why it is not the one at the end of the way."""
    own = _changed(study, setting)
    fewer = [point for point in others if _changed(study, point) < own]
    if not fewer:
        return setting, ""
    beside = judge(_beside(study, blocks, setting, fewer), study.confirm.level).comparisons
    as_good = [
        (_changed(study, point), point)
        for point in fewer
        if (low := beside[point_key(point)].low) is not None
        and beside[point_key(point)].scale == "ratio"
        and low >= 1 - SIMPLER_WITHIN
        and against_base[point_key(point)].verdict is Verdict.BETTER
    ]
    if not as_good:
        return setting, ""
    number, point = min(as_good, key=lambda found: found[0])
    judged = beside[point_key(point)]
    assert judged.low is not None and judged.high is not None
    interval = percent_range(judged.low - 1, judged.high - 1)
    why = f"a simpler setting is preferred: {count(number, 'change')} instead of {own}, within {SIMPLER_WITHIN:.0%}"
    return point, f"{why} of the other ({interval}); without {changes(point, setting)}"


def _changed(study: Study, point: Point) -> int:
    names = {*study.baseline, *point}
    return sum(study.baseline.get(name) != point.get(name) for name in names)


def steps_table(verdict: StepsVerdict, metric: str) -> TextTable:
    rows = tuple(
        (
            step.name,
            step.change,
            "" if step.ratio is None else percent(step.ratio - 1),
            "" if step.low is None or step.high is None else percent_range(step.low - 1, step.high - 1),
            step.verdict,
        )
        for step in verdict.steps
    )
    changed = frozenset(at for at, step in enumerate(verdict.steps) if step.verdict == Verdict.BETTER)
    head = ("step", "change", f"brought ({metric})", "interval", "verdict")
    return TextTable("Gain of each change", head, rows, changed=changed)
