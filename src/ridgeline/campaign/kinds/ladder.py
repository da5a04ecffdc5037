"""The largest safe value of a knob, decided from the runs so far alone, so that a resumed hunt decides the same.

Safe values of a knob lie between two cliffs: below, a pool that is too small to start; above, memory that runs out
under load. The hunt climbs from a value that works. It tries the lower third of what is left, not the half: a crash
costs a start and sometimes a node, a pass costs a run that also measures something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.errors import InputError
from ridgeline.records.expression import is_number
from ridgeline.records.outcome import Outcome
from ridgeline.records.space import Continuous, Knob
from ridgeline.stats.wording import count

STEPS_OF_A_RANGE = 100  # a continuous knob is looked at in hundredths of its range
LONGEST_LADDER = 512

Number = int | float


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """`repeats` runs must pass at the edge; `margin` is the share of the edge by which production stays below it."""

    knob: str
    repeats: int = 3
    margin: float = 0.03


@dataclass(frozen=True, slots=True)
class Ladder:
    """The legal values from low to high, and those that a rule or the memory model refused without a run."""

    values: tuple[Number, ...]
    refused: Mapping[Number, str] = field(default_factory=dict)
    predicted: int | None = None  # index of the largest value that is expected to work, where something can tell


@dataclass(slots=True)
class RungResult:
    """What the runs of one value showed."""

    passes: int = 0
    flying: int = 0
    failures: list[Outcome] = field(default_factory=list)

    @property
    def safe(self) -> bool:
        return self.passes > 0 and not self.failures


@dataclass(frozen=True, slots=True)
class Bracket:
    """`high`: the lowest value that failed for being too large, or past the end; `low`: the largest safe one below."""

    floor: int  # the largest value that failed for being too small; -1 for none
    low: int | None
    high: int

    @property
    def closed(self) -> bool:
        return self.low is not None and self.high - self.low == 1


def ladder_values(knob: Knob, start: Number) -> tuple[Number, ...]:
    """Values of a knob from low to high with `start` among them; long ones are thinned out evenly."""
    if isinstance(knob, Continuous):
        values = [knob.at(step / STEPS_OF_A_RANGE) for step in range(STEPS_OF_A_RANGE + 1)]
    elif not knob.ordered or not all(is_number(value) for value in (knob.values[0], knob.values[-1])):
        raise InputError(f"{knob.name} is not a knob of ordered numbers; an edge needs one that can be raised")
    else:
        stride = -(-len(knob.values) // LONGEST_LADDER)
        values = [*knob.values[::stride], knob.values[-1]]
    return tuple(sorted({value for value in (*values, start) if isinstance(value, int | float)}))


def bracket(ladder: Ladder, seen: Mapping[int, RungResult], knob: str) -> Bracket:
    safe = [index for index, what in seen.items() if what.safe]
    too_small: list[int] = []
    too_large: list[int] = []
    for index, what in seen.items():
        if what.failures:
            # 'too small' cannot be true above a value that works
            small = all(wants_more(failure, knob) for failure in what.failures) and not any(s < index for s in safe)
            (too_small if small else too_large).append(index)
    high = min(too_large, default=len(ladder.values))
    floor = max((index for index in too_small if index < high), default=-1)
    return Bracket(floor, max((index for index in safe if floor < index < high), default=None), high)


def wants_more(failure: Outcome, knob: str) -> bool:
    """Whether the workload's advice or the program's words ask to raise this knob, as for a pool that is too small."""
    for move in failure.advice:
        if move.knob == knob:
            return move.direction > 0
    text = f"{failure.reason}; {failure.evidence.text if failure.evidence else ''}".lower()
    name = re.escape(knob.lower()).replace("_", "[-_ ]")
    for place in re.finditer(rf"{name}\b", text):
        # "try increasing A or decreasing B": the verb that counts is the last one before the name
        sentence = re.split(r"[.;:]\s", text[: place.start()])[-1]
        if verbs := re.findall(r"\b(rais|increas|lower|decreas|reduc)", sentence):
            return verbs[-1] in ("rais", "increas")
    return False


def next_index(ladder: Ladder, seen: Mapping[int, RungResult], rules: EdgeRules) -> tuple[int, str] | None:
    """The value to run now and why; None: wait for what runs, or there is nothing left to ask."""
    now = bracket(ladder, seen, rules.knob)
    flying = any(what.flying for what in seen.values())
    if now.closed:
        assert now.low is not None
        edge = seen[now.low]
        if edge.passes + edge.flying < rules.repeats:
            return now.low, f"the edge, run {edge.passes + edge.flying + 1} of {rules.repeats}"
        chosen = production(ladder, now, rules)
        if not flying and not (chosen in seen and seen[chosen].passes):
            return chosen, f"the value for production, {rules.margin:.0%} below the edge"
        return None
    if flying:
        return None
    return _climb(ladder, now)


def _climb(ladder: Ladder, now: Bracket) -> tuple[int, str] | None:
    start = now.floor if now.low is None else now.low
    width = now.high - start
    if width <= 1:
        return None
    if ladder.predicted is not None:
        for index in (ladder.predicted, ladder.predicted + 1, ladder.predicted - 1):
            if start < index < now.high:
                return index, "beside the edge that the memory model foresees"
    step = max(1, width // 3)
    below = "nothing works so far" if now.low is None else f"{ladder.values[now.low]:g} works"
    above = f", {ladder.values[now.high]:g} does not" if now.high < len(ladder.values) else ""
    return start + step, below + above


def production(ladder: Ladder, now: Bracket, rules: EdgeRules) -> int:
    """The largest value at least the margin below the edge; the edge itself where nothing lies there."""
    assert now.low is not None
    edge = ladder.values[now.low]
    limit = edge - rules.margin * abs(edge)
    below = [index for index in range(now.floor + 1, now.low + 1) if ladder.values[index] <= limit]
    return max(below, default=now.low)


def oddities(ladder: Ladder, seen: Mapping[int, RungResult], knob: str) -> list[str]:
    """What speaks against one cliff with everything safe below it."""
    failed = [index for index, what in seen.items() if what.failures]
    lines = []
    for index in sorted(failed):
        what = seen[index]
        above = [i for i in seen if i > index and seen[i].passes]
        small = all(wants_more(failure, knob) for failure in what.failures)
        if above and not small:
            lines.append(
                f"{ladder.values[max(above)]:g} passed although {ladder.values[index]:g} failed: "
                f"{knob} is not the only thing that decides"
            )
        if what.passes:
            total = what.passes + len(what.failures)
            lines.append(f"{ladder.values[index]:g} passed {what.passes} of {count(total, 'run')}: not safe")
    return lines


def failing_text(seen: Sequence[Outcome]) -> str:
    first = seen[0]
    return first.reason or first.kind.value
