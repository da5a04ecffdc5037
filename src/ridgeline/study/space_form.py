"""Knobs as written in a study file, made into knobs of a space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from ridgeline.records.expression import Expression, Value, is_number
from ridgeline.records.space import Continuous, Discrete, Knob
from ridgeline.study.forms.form import Accepts, DefaultText, ExpressionText, Form, Number, Single

MOST_VALUES = 100_000
_LARGEST_NUMBER = 1e15

Condition = Annotated[ExpressionText | None, DefaultText("always")]


class ValuesForm(Form):
    """A knob with listed values."""

    values: Annotated[list[Single], Accepts("a list of values")] = Field(
        description="The values to choose from; ordered when all are numbers."
    )
    when: Condition = Field(default=None, description="The knob exists only where this expression holds.")


class RangeForm(Form):
    """A knob with a range: whole numbers, steps, a geometric row, or any number in between."""

    from_: Number = Field(alias="from", description="The first value.")
    to: Number = Field(description="The last value, included where a step reaches it.")
    step: Annotated[Number | None, DefaultText("1 for whole numbers, else any number")] = Field(
        default=None, description="The distance between two values."
    )
    times: Annotated[Number | None, DefaultText("none")] = Field(
        default=None, description="The factor between two values, such as 2 for 64, 128, 256."
    )
    log: bool = Field(default=False, description="Spread trials evenly over magnitudes instead of over values.")
    when: Condition = Field(default=None, description="The knob exists only where this expression holds.")


def _fixed(value: object) -> object:
    if value is None:
        raise ValueError("is empty; it must be a list of values, a range such as {from: 1, to: 8}, or one fixed value")
    if isinstance(value, dict):
        keys = ", ".join(map(str, value)) or "nothing in it"
        raise ValueError(  # noqa: TRY004  pydantic reports values, not types
            f"is a mapping with {keys}; write its values as a list such as [1, 2, 4], or as a range such as "
            "{from: 1, to: 64} or {from: 1, to: 64, times: 2}"
        )
    return value


Fixed = Annotated[Any, BeforeValidator(_fixed), WithJsonSchema({"type": ["string", "number", "boolean"]})]


def _knob_tag(value: object) -> str:
    if isinstance(value, list):
        return "<list>"
    if isinstance(value, dict) and "values" in value:
        return "<values>"
    if isinstance(value, dict) and {"from", "to", "step", "times"} & value.keys():
        return "<range>"
    return "<fixed>"


KnobForm = Annotated[
    Annotated[list[Single], Tag("<list>")]
    | Annotated[ValuesForm, Tag("<values>")]
    | Annotated[RangeForm, Tag("<range>")]
    | Annotated[Fixed, Tag("<fixed>")],
    Discriminator(_knob_tag),
    Accepts("a list of values, a mapping with `values` or a range, or one fixed value"),
]


def knob(name: str, form: Any, when: Expression | None) -> Knob:
    """The knob that a form of the study file describes. ValueError says what is wrong with it."""
    if isinstance(form, RangeForm):
        return _range(name, form, when)
    values = form.values if isinstance(form, ValuesForm) else form if isinstance(form, list) else [form]
    return _listed(name, values, when)


def _listed(name: str, values: Sequence[Value], when: Expression | None) -> Knob:
    if not values:
        raise ValueError("no values; list at least one")
    seen: set[tuple[bool, Value]] = set()
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a value a program can be given; write a finite number or quote it")
        if (isinstance(value, bool), value) in seen:
            raise ValueError(f"{value!r} is listed twice; list each value once")
        seen.add((isinstance(value, bool), value))
    numbers = all(is_number(v) for v in values)
    ordered = sorted(values) if numbers else values  # type: ignore[type-var]  # numbers, as just seen
    return Discrete(name, tuple(ordered), ordered=numbers, when=when)


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
    if (high - low) / step > MOST_VALUES:
        raise ValueError(f"step {step} makes more than {MOST_VALUES} values; use a larger step or none")
    # decimal, so that 0.70 + 10 steps of 0.01 is the 0.8 that the study's author writes in the baseline
    start, width = Decimal(str(low)), Decimal(str(step))
    count = int((Decimal(str(high)) - start) / width) + 1
    return tuple(float(start + index * width) for index in range(count))


def _geometric(low: float, high: float, times: float) -> tuple[Value, ...]:
    if not times > 1:
        raise ValueError(f"times {times} leads nowhere; it must be above 1")
    if math.log(high / low) / math.log(times) > MOST_VALUES:
        raise ValueError(f"times {times} makes more than {MOST_VALUES} values; use a larger factor")
    whole = isinstance(low, int) and isinstance(times, int)
    values: list[Value] = []
    value, factor = Decimal(str(low)), Decimal(str(times))
    while value <= Decimal(str(high)):
        values.append(int(value) if whole else float(value))
        value *= factor
    return tuple(values)
