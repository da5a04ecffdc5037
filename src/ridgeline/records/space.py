"""The space of settings: knobs, values derived from them, and rules that refuse a point before anything runs."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ridgeline.records.expression import Expression, ExpressionError, Value, WrittenNumber, is_number, plain_number

Point = Mapping[str, Value]  # values of the knobs that exist there: the identity of a setting
Settings = Mapping[str, Value]  # a point with its derived values: what a workload sees

_KEYS = json.JSONEncoder(sort_keys=True)  # made once: every trial of a long journal asks for its key


def point_key(point: Point) -> str:
    """The same text for the same point, however its knobs are ordered."""
    return _KEYS.encode(point if type(point) is dict else dict(point))


@dataclass(frozen=True, slots=True)
class Discrete:
    """A knob with a countable list of values; `ordered` when nearness of values means something.

    Numbers are in their own order, and `listed` as somebody wrote them down. `numbers` are what texts such as 0.80,
    kept as they were written, count as in expressions.
    """

    name: str
    values: Sequence[Value]
    ordered: bool
    log: bool = False
    when: Expression | None = None
    listed: Sequence[Value] = field(default=(), compare=False)
    numbers: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"knob {self.name} has no values")

    @property
    def count(self) -> int | None:
        return len(self.values)

    def contains(self, value: Value) -> bool:
        # 1 == True and 1 == 1.0 in Python; a study that lists true does not mean 1
        return any(v == value and isinstance(v, bool) == isinstance(value, bool) for v in self._near(value))

    def meant(self, value: Value) -> Value:
        """The knob's own value that somebody means who writes this one; None where there is none."""
        if self.contains(value):
            # 1 and 1.0 are the same setting but not the same text: take the knob's own spelling
            same = (v for v in self._near(value) if v == value and isinstance(v, bool) == isinstance(value, bool))
            own: Value = plain_number(next(same))
            return own
        if str(value) in self.values and is_number(value):
            return str(value)
        return next((text for text, number in self.numbers.items() if is_number(value) and number == value), None)

    def _near(self, value: Value) -> Sequence[Value]:
        if isinstance(self.values, range):
            whole = isinstance(value, int) and not isinstance(value, bool)
            return [value] if whole and value in self.values else []
        return self.values

    def at(self, share: float) -> Value:
        """The value at `share` in [0, 1) of the way through the knob; in log scale for a log knob."""
        if not self.log:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        low, high = float(self.values[0] or 1), float(self.values[-1] or 1)
        target = low * (high / low) ** share
        numbers: Sequence[float] = self.values  # type: ignore[assignment]  # a log knob holds numbers
        index = bisect.bisect_left(numbers, target)
        nearest = [i for i in (index - 1, index) if 0 <= i < len(numbers)]
        return self.values[min(nearest, key=lambda i: abs(numbers[i] - target))]


@dataclass(frozen=True, slots=True)
class Continuous:
    """A knob that may take any number from `low` to `high`."""

    name: str
    low: float
    high: float
    log: bool = False
    when: Expression | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"knob {self.name} runs from {self.low} to {self.high}: nothing lies between")
        if self.log and self.low <= 0:
            raise ValueError(f"knob {self.name} is logarithmic and starts at {self.low}, which is not above 0")

    @property
    def count(self) -> int | None:
        return None

    def contains(self, value: Value) -> bool:
        number = is_number(value)
        return number and self.low <= value <= self.high  # type: ignore[operator]

    def meant(self, value: Value) -> Value:
        """The knob's own value that somebody means who writes this one; None where it lies outside."""
        return float(value) if self.contains(value) else None  # type: ignore[arg-type]  # a number, as just seen

    def at(self, share: float) -> Value:
        if self.log:
            return self.rounded(float(self.low * (self.high / self.low) ** share))
        return self.rounded(self.low + (self.high - self.low) * share)

    def rounded(self, value: float) -> float:
        """Inside the knob, with six digits: what a person would paste, and no program cares beyond."""
        return min(max(float(f"{value:.6g}"), self.low), self.high)


Knob = Discrete | Continuous


@dataclass(frozen=True, slots=True)
class Rule:
    """Refuses every point for which `refuse` holds, and says why."""

    refuse: Expression
    because: str


@dataclass(frozen=True)
class Space:
    """All points a study may run. `when` conditions and derived values may name any knob, but not in a circle."""

    knobs: tuple[Knob, ...]
    derived: Mapping[str, Expression]
    rules: tuple[Rule, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Knob]:
        return {knob.name: knob for knob in self.knobs}

    @cached_property
    def varied(self) -> tuple[Knob, ...]:
        """Those with more than one value."""
        return tuple(knob for knob in self.knobs if not isinstance(knob, Discrete) or len(knob.values) > 1)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.by_name, *self.derived)

    @cached_property
    def numbers(self) -> dict[str, Mapping[str, float]]:
        """Of knobs whose numbers are kept as they were written: what each text counts as in expressions."""
        return {k.name: k.numbers for k in self.knobs if isinstance(k, Discrete) and k.numbers}

    @cached_property
    def optional(self) -> frozenset[str]:
        """Names that may have no value at a point: knobs with a `when`, and derived values that read one."""
        found = {knob.name for knob in self.knobs if knob.when is not None}
        for name in self._derived_order:
            if self.derived[name].names & found:
                found.add(name)
        return frozenset(found)

    @cached_property
    def order(self) -> tuple[Knob, ...]:
        """The knobs, each after those its `when` names."""
        placed: list[Knob] = []
        waiting = list(self.knobs)
        while waiting:
            known = {k.name for k in placed}
            ready = [k for k in waiting if k.when is None or k.when.names & self.by_name.keys() <= known]
            if not ready:
                raise ExpressionError(f"`when` of {', '.join(k.name for k in waiting)} depends on itself")
            placed += ready
            waiting = [k for k in waiting if k not in ready]
        return tuple(placed)

    @cached_property
    def _derived_order(self) -> tuple[str, ...]:
        placed: list[str] = []
        waiting = list(self.derived)
        while waiting:
            ready = [n for n in waiting if not self.derived[n].names & (set(waiting))]
            if not ready:
                raise ExpressionError(f"derived values {', '.join(waiting)} depend on each other in a circle")
            placed += ready
            waiting = [n for n in waiting if n not in ready]
        return tuple(placed)

    def restrict(self, values: Point) -> dict[str, Value]:
        """Only the knobs that exist at this point, in the study's order."""
        seen: dict[str, Value] = {}
        for knob in self.order:
            exists = knob.when is None or knob.when.holds(_with_absent(seen, self.by_name))
            if exists and knob.name in values:
                seen[knob.name] = values[knob.name]
        return {name: seen[name] for name in self.by_name if name in seen}

    def missing(self, point: Point) -> list[str]:
        """Knobs that exist at this point but have no value in it."""
        gaps: list[str] = []
        seen: dict[str, Value] = {}
        for knob in self.order:
            if knob.when is None or knob.when.holds(_with_absent(seen, self.by_name)):
                if knob.name in point:
                    seen[knob.name] = point[knob.name]
                else:
                    gaps.append(knob.name)
        return gaps

    def settings(self, point: Point) -> dict[str, Value]:
        """The point with its derived values; knobs that do not exist there are None."""
        values: dict[str, Value] = {name: point.get(name) for name in self.by_name}
        for name in self._derived_order:
            result = self.derived[name].evaluate(values)
            if not isinstance(result, bool | int | float | str | None):
                raise ExpressionError(f"derived {name} is {result!r}, not a single value")
            values[name] = str(result) if isinstance(result, WrittenNumber) else result
        return values

    def fault(self, point: Point) -> tuple[tuple[str | int, ...], str] | None:
        """The first derived value or rule that has no answer at this point: its place in a study, and why.

        A rule answers true or false; about an absent knob it may also say nothing.
        """
        values: dict[str, Value] = {name: point.get(name) for name in self.by_name}
        for name in self._derived_order:
            try:
                result = self.derived[name].evaluate(values)
            except ExpressionError as error:
                return ("derived", name), str(error)
            if not isinstance(result, bool | int | float | str | None):
                return ("derived", name), f"is {result!r}, not a single value"
            values[name] = result
        for index, rule in enumerate(self.rules):
            try:
                refused = rule.refuse.evaluate(values)
            except ExpressionError as error:
                return ("rules", index, "refuse"), str(error)
            if not isinstance(refused, bool | None):
                return ("rules", index, "refuse"), f"{rule.refuse.text!r} is {refused!r}, neither true nor false"
            if refused:
                return None
        return None

    def refusal(self, point: Point) -> str | None:
        """Why a rule refuses this point, or None."""
        try:
            values = self.settings(point)
            for rule in self.rules:
                if rule.refuse.holds(values):
                    return rule.because
        except ExpressionError as error:
            return str(error)
        return None

    def raw_size(self) -> float:
        """Points before rules, counting a conditional knob always; infinite with a continuous knob."""
        counts = [math.inf if k.count is None else k.count for k in self.knobs]
        return math.prod(counts)

    def points(self) -> Iterator[dict[str, Value]]:
        """Every point, legal or not, each once, the last knob fastest. Only for spaces without continuous knobs."""
        if any(knob.count is None for knob in self.knobs):
            raise ValueError("a continuous knob cannot be listed")
        for point in self._extend({}, self.order):
            yield {name: point[name] for name in self.by_name if name in point}

    def _extend(self, seen: dict[str, Value], rest: Sequence[Knob]) -> Iterator[dict[str, Value]]:
        if not rest:
            yield seen
            return
        knob, later = rest[0], rest[1:]
        if knob.when is not None and not knob.when.holds(_with_absent(seen, self.by_name)):
            yield from self._extend(seen, later)
            return
        assert isinstance(knob, Discrete)
        for value in knob.values:
            yield from self._extend({**seen, knob.name: value}, later)


def _with_absent(seen: Mapping[str, Value], names: Mapping[str, object]) -> dict[str, Value]:
    return {name: seen.get(name) for name in names}
