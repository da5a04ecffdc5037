"""The space of a study file: knobs, derived values and rules, and points that must lie in it."""

from __future__ import annotations

import itertools
import keyword
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from ridgeline.errors import near, nearest_first
from ridgeline.records.expression import (
    FUNCTIONS,
    Expression,
    ExpressionError,
    Value,
    WrittenNumber,
    is_number,
    plain_number,
)
from ridgeline.records.space import Continuous, Discrete, Knob, Rule, Space
from ridgeline.study.forms import shown
from ridgeline.study.schema import RangeForm, StudyForm, ValuesForm
from ridgeline.study.yaml_tree import Where, dotted

Reporter = Callable[[Where, str], None]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_KNOBS = 1000
MOST_COMBINATIONS = 10_000
_MOST_VALUES = 100_000
_LARGEST_NUMBER = 1e15


def build_space(form: StudyForm, report: Reporter) -> Space | None:
    """The space, or None after its problems were reported."""
    if not form.space:
        report(("space",), "is empty; name at least one knob, such as block: [16, 32, 64]")
        return None
    if len(form.space) > _MOST_KNOBS:
        report(("space",), f"has {len(form.space)} knobs; at most {_MOST_KNOBS} are accepted")
        return None
    found = _SpaceFound(report)
    knobs = [k for name, value in form.space.items() if (k := _knob(name, value, form, found)) is not None]
    derived = {name: e for name, text in form.derived.items() if (e := _derived(name, text, form, found)) is not None}
    rules = []
    names = [*form.space, *form.derived]
    for index, rule in enumerate(form.rules):
        if (expression := parsed(rule.refuse, names, ("rules", index, "refuse"), found)) is not None:
            rules.append(Rule(expression, rule.because))
    if found.any:
        return None
    space = _with_numbers_read(Space(tuple(knobs), derived, tuple(rules)))
    for where, order in ((("space",), "order"), (("derived",), "_derived_order")):
        try:
            getattr(space, order)
        except ExpressionError as error:
            found(where, f"{error}; break the circle")
    if not found.any:
        _check_conditions(space, found)
    return None if found.any else space


def _with_numbers_read(space: Space) -> Space:
    numbers = space.numbers
    return Space(
        tuple(k if k.when is None else replace(k, when=k.when.reading(numbers)) for k in space.knobs),
        {name: expression.reading(numbers) for name, expression in space.derived.items()},
        tuple(replace(rule, refuse=rule.refuse.reading(numbers)) for rule in space.rules),
    )


def _check_conditions(space: Space, report: Reporter) -> None:
    """Every `when` must have an answer wherever the search may go, because without one a point has no meaning."""
    for each in space.knobs:
        if each.when is None:
            continue
        choices = [sampled_values(space.by_name[name]) for name in sorted(each.when.names)]
        for values in itertools.islice(itertools.product(*choices), MOST_COMBINATIONS):
            point = dict(zip(sorted(each.when.names), values, strict=True))
            try:
                each.when.holds(point)
            except ExpressionError as error:
                at = ", ".join(f"{name} = {value}" for name, value in point.items())
                report(
                    ("space", each.name, "when"),
                    f"{error} (at {at}); write it so that it is true or false at every point",
                )
                break


def sampled_values(knob: Knob) -> list[Value]:
    """Values of a knob that show whether an expression can be evaluated: all of a few, else ends and some between."""
    absent: list[Value] = [None] if knob.when is not None else []
    if isinstance(knob, Discrete) and len(knob.values) <= 32:
        return [*absent, *knob.values]
    return [*absent, *(knob.at(share / 16) for share in range(17))]


class _SpaceFound:
    """Reports on, and remembers whether anything was reported."""

    def __init__(self, report: Reporter) -> None:
        self.report, self.any = report, False

    def __call__(self, where: Where, what: str) -> None:
        self.any = True
        self.report(where, what)


def parsed(text: str, known: Collection[str], where: Where, report: Reporter) -> Expression | None:
    """The expression, which may name what is `known`."""
    try:
        expression = Expression.parse(text)
    except ExpressionError as error:
        remedy = "" if "; " in str(error) else '; write it like: block > 2 and flag == "fast"'
        report(where, f"{error}{remedy}")
        return None
    for name in sorted(expression.names - set(known)):
        listed = ", ".join(nearest_first(name, known))
        report(where, f"{name} is not a knob or a derived value; known: {listed}")
    return expression


def _knob(name: str, value: Any, form: StudyForm, report: Reporter) -> Knob | None:
    where = ("space", name)
    _check_name(name, where, report)
    text = getattr(value, "when", None)
    when = None if text is None else parsed(text, [*form.space, *form.derived], (*where, "when"), report)
    for other in sorted(when.names & form.derived.keys() - form.space.keys()) if when else ():
        report((*where, "when"), f"{other} is a derived value; `when` may name knobs only")
    try:
        if isinstance(value, RangeForm):
            return _range(name, value, when)
        values = value.values if isinstance(value, ValuesForm) else value if isinstance(value, list) else [value]
        return _listed(name, values, when, as_text=form.workload.kind == "command")
    except ValueError as error:
        report(where, str(error).removeprefix(f"knob {name} "))
        return None


def _listed(name: str, values: Sequence[Value], when: Expression | None, *, as_text: bool) -> Knob:
    """`as_text`: the program is given its values as text, so that one may be kept as it was written."""
    if not values:
        raise ValueError("no values; list at least one")
    written = [value for value in values if isinstance(value, WrittenNumber)]
    is_label = bool(written) and _are_labels([value for value in values if is_number(value)])
    if is_label and not as_text:
        number = plain_number(written[0])
        raise ValueError(f'{written[0]} would be passed on as {number}; write "{written[0]}" in quotes, or {number}')
    numbers = {str(value): value for value in values if is_number(value)} if written and as_text else {}
    values = [str(v) if str(v) in numbers else plain_number(v) for v in values]
    seen: set[tuple[bool, Value]] = set()
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a value a program can be given; write a finite number or quote it")
        if (isinstance(value, bool), value) in seen:
            raise ValueError(f"{value!r} is listed twice; list each value once")
        seen.add((isinstance(value, bool), value))
    ordered = all(is_number(value) or value in numbers for value in values)
    in_order = list(values)
    if ordered and not is_label:
        in_order.sort(key=lambda value: numbers.get(value, value))  # type: ignore[arg-type, return-value]
    return Discrete(
        name, tuple(in_order), ordered, when=when, listed=tuple(values), numbers={} if is_label else numbers
    )


_DECIMAL = re.compile(r"\d+(?:\.\d+)?")
_COMMIT = re.compile(r"(?=.{7,40}$)\d+e\d+")  # Git shortens to seven digits or more


def _are_labels(values: Sequence[float]) -> bool:
    """Whether these numbers are names, such as those of releases and commits.

    Read as releases they come in another order than as numbers (2.9, 2.10), or two are the same number (2.1, 2.10).
    """
    if len(set(values)) < len(values) or any(_COMMIT.fullmatch(str(value)) for value in values):
        return True
    if not all(_DECIMAL.fullmatch(str(value)) for value in values):
        return False
    by_release = sorted(values, key=lambda value: tuple(map(int, str(value).split("."))))
    return by_release != sorted(values)


def _range(name: str, form: RangeForm, when: Expression | None) -> Knob:
    low, high = form.from_, form.to
    if max(abs(low), abs(high)) > _LARGEST_NUMBER:
        raise ValueError(f"runs from {low} to {high}; numbers beyond {_LARGEST_NUMBER:g} are not accepted")
    if low > high:
        raise ValueError(f"runs from {low} to {high}, which is downwards; swap from and to")
    if form.step is not None and form.times is not None:
        raise ValueError("has both step and times; keep one")
    if (form.log or form.times is not None) and low <= 0:
        raise ValueError(f"starts at {low}; a logarithmic or geometric knob must start above 0")
    if form.times is not None:
        return Discrete(name, _geometric(low, high, form.times), ordered=True, log=True, when=when)
    whole = isinstance(low, int) and isinstance(high, int)
    if form.step is not None and not (whole and isinstance(form.step, int)):
        return Discrete(name, _stepped(low, high, form.step), ordered=True, log=form.log, when=when)
    if whole:
        step = form.step if isinstance(form.step, int) else 1
        if step < 1:
            raise ValueError(f"step {form.step} leads nowhere; it must be above 0")
        return Discrete(name, range(int(low), int(high) + 1, step), ordered=True, log=form.log, when=when)
    if low == high:
        return Discrete(name, (float(low),), ordered=True, when=when)
    return Continuous(name, float(low), float(high), form.log, when)


def _stepped(low: float, high: float, step: float) -> tuple[Value, ...]:
    if not step > 0:
        raise ValueError(f"step {step} leads nowhere; it must be above 0")
    if (high - low) / step > _MOST_VALUES:
        raise ValueError(f"step {step} makes more than {_MOST_VALUES} values; use a larger step or none")
    # decimal, so that 0.70 + 10 steps of 0.01 is the 0.8 that the study's author writes in the baseline
    start, width = Decimal(str(low)), Decimal(str(step))
    count = int((Decimal(str(high)) - start) / width) + 1
    return tuple(float(start + index * width) for index in range(count))


def _geometric(low: float, high: float, times: float) -> tuple[Value, ...]:
    if not times > 1:
        raise ValueError(f"times {times} leads nowhere; it must be above 1")
    if math.log(high / low) / math.log(times) > _MOST_VALUES:
        raise ValueError(f"times {times} makes more than {_MOST_VALUES} values; use a larger factor")
    whole = isinstance(low, int) and isinstance(times, int)
    values: list[Value] = []
    value, factor = Decimal(str(low)), Decimal(str(times))
    while value <= Decimal(str(high)):
        values.append(int(value) if whole else float(value))
        value *= factor
    return tuple(values)


def _derived(name: str, text: str, form: StudyForm, report: Reporter) -> Expression | None:
    where = ("derived", name)
    _check_name(name, where, report)
    if name in form.space:
        report(where, "is also a knob in space; rename one of them")
    return parsed(text, [*form.space, *form.derived], where, report)


def _check_name(name: str, where: Where, report: Reporter) -> None:
    if not _NAME.fullmatch(name):
        report(where, f"{name!r} cannot be named in expressions; use letters, digits and underscores")
    elif keyword.iskeyword(name) or name in FUNCTIONS:
        report(where, f"{name} is a word of the expression language; choose another name")


def checked_point(space: Space, values: Mapping[str, Value], where: Where, report: Reporter) -> dict[str, Value] | None:
    """The point in the space's own values; None after its problems were reported. A fixed knob may be left out."""
    found = _SpaceFound(report)
    point: dict[str, Value] = {k.name: k.values[0] for k in space.knobs if isinstance(k, Discrete) and k.count == 1}
    for name, value in values.items():
        if name in space.by_name:
            knob = space.by_name[name]
            if (own := knob.meant(value)) is None:
                what = f"{shown(value)} is not in the space ({_domain(knob)}); add it to space.{name} or change it"
                found((*where, name), what)
            point[name] = own
        elif name in space.derived:
            found((*where, name), "is a derived value and follows from the knobs; leave it out")
        else:
            found((*where, name), f"no such knob in space; {near(name, space.by_name)}")
    if found.any:
        return None
    _check_presence(space, point, values, where, found)
    if found.any:
        return None
    _check_rules(space, point := space.restrict(point), where, found)
    return None if found.any else point


def _domain(knob: Knob) -> str:
    if isinstance(knob, Continuous):
        return f"{knob.low:g} to {knob.high:g}"
    if len(knob.values) <= 12:
        return ", ".join(shown(v).strip("'") for v in knob.values)
    return f"{len(knob.values)} values from {knob.values[0]} to {knob.values[-1]}"


def _check_presence(
    space: Space, point: Mapping[str, Value], given: Mapping[str, Value], where: Where, report: Reporter
) -> None:
    try:
        missing, existing = space.missing(point), space.restrict(point)
    except ExpressionError as error:
        report(where, f"cannot tell whether a knob exists here: {error}; change one of the two")
        return
    if missing:
        report(where, f"has no value for {', '.join(missing)}; name every knob that exists there")
        return
    for name in given:
        if name not in existing:
            condition = space.by_name[name].when
            text = condition.text if condition else ""
            report((*where, name), f"does not exist here, because `{text}` does not hold; leave it out")


def _check_rules(space: Space, point: Mapping[str, Value], where: Where, report: Reporter) -> None:
    if fault := space.fault(point):
        place, why = fault
        report(place, f"at the {dotted(where)}: {why}; change one of the two")
        return
    settings = space.settings(point)
    for index, rule in enumerate(space.rules):
        if rule.refuse.holds(settings):
            report(where, f"is refused by rules[{index}] ({rule.refuse.text}): {rule.because}; change one of the two")
            return
