"""The space of settings: knobs, values derived from them, and rules that refuse a point before anything runs."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
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

    def _same(self, value: Value) -> Iterator[Value]:
        """The knob's own spelling of a value. 1 == True and 1 == 1.0 in Python; one who lists true does not mean 1."""
        return (v for v in self._near(value) if v == value and isinstance(v, bool) == isinstance(value, bool))

    def contains(self, value: Value) -> bool:
        return any(True for _ in self._same(value))

    def meant(self, value: Value) -> Value:
        """The knob's own value that somebody means who writes this one; None where there is none."""
        for own in self._same(value):
            return plain_number(own)  # type: ignore[no-any-return]
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
        needs = {k.name: k.when.names & self.by_name.keys() if k.when else frozenset[str]() for k in self.knobs}
        return tuple(self.by_name[name] for name in _in_order(needs, "`when` of {} depends on itself"))

    @cached_property
    def _derived_order(self) -> tuple[str, ...]:
        needs = {name: expression.names & self.derived.keys() for name, expression in self.derived.items()}
        return _in_order(needs, "derived values {} depend on each other in a circle")

    def _existing(self, values: Point) -> Iterator[Knob]:
        """The knobs that exist at this point, with a value in it or without."""
        seen: dict[str, Value] = dict.fromkeys(self.by_name)
        for knob in self.order:
            if knob.when is None or knob.when.holds(seen):
                seen[knob.name] = values.get(knob.name)
                yield knob

    def restrict(self, values: Point) -> dict[str, Value]:
        """Only the knobs that exist at this point, in the study's order."""
        existing = {knob.name for knob in self._existing(values)}
        return {name: values[name] for name in self.by_name if name in existing and name in values}

    def missing(self, point: Point) -> list[str]:
        """Knobs that exist at this point but have no value in it."""
        return [knob.name for knob in self._existing(point) if knob.name not in point]

    def settings(self, point: Point) -> dict[str, Value]:
        """The point with its derived values; knobs that do not exist there are None."""
        values: dict[str, Value] = {name: point.get(name) for name in self.by_name}
        for name in self._derived_order:
            values[name] = self._derive(name, values)
        return values

    def _derive(self, name: str, values: Settings) -> Value:
        result = self.derived[name].evaluate(values)
        if not isinstance(result, bool | int | float | str | None):
            raise ExpressionError(f"derived {name} is {result!r}, not a single value")
        return str(result) if isinstance(result, WrittenNumber) else result

    def fault(self, point: Point) -> tuple[tuple[str | int, ...], str] | None:
        """The first derived value or rule that has no answer at this point: its place in a study, and why.

        A rule answers true or false; about an absent knob it may also say nothing.
        """
        values: dict[str, Value] = {name: point.get(name) for name in self.by_name}
        where: tuple[str | int, ...] = ()
        try:
            for name in self._derived_order:
                where = ("derived", name)
                values[name] = self._derive(name, values)
            for index, rule in enumerate(self.rules):
                where = ("rules", index, "refuse")
                refused = rule.refuse.evaluate(values)
                if not isinstance(refused, bool | None):
                    return where, f"{rule.refuse.text!r} is {refused!r}, neither true nor false"
                if refused:
                    return None
        except ExpressionError as error:
            return where, str(error)
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
        if knob.when is not None and not knob.when.holds({**dict.fromkeys(self.by_name), **seen}):
            yield from self._extend(seen, later)
            return
        assert isinstance(knob, Discrete)
        for value in knob.values:
            yield from self._extend({**seen, knob.name: value}, later)


def _in_order(needs: Mapping[str, Collection[str]], circle: str) -> tuple[str, ...]:
    """The names, each after those it needs; ExpressionError, in the words of `circle`, where that cannot be."""
    placed: dict[str, None] = {}
    while waiting := [name for name in needs if name not in placed]:
        ready = [name for name in waiting if placed.keys() >= set(needs[name])]
        if not ready:
            raise ExpressionError(circle.format(", ".join(waiting)))
        placed |= dict.fromkeys(ready)
    return tuple(placed)
