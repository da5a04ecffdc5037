"""Points as a density estimator sees them: near values near, unordered values apart, log knobs in logs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from ridgeline.records.expression import Value
from ridgeline.records.space import Discrete, Knob, Point, Space

Code = int | float
Shape = Literal["index", "choice", "share"]

_DENSE = 32  # a log knob with more values than this is taken as a line, since its index would not be in log scale


def shape(knob: Knob) -> Shape:
    """index: 0..n-1 in order; choice: 0..n-1 without order; share: a number in [0, 1] along the knob."""
    if not isinstance(knob, Discrete):
        return "share"
    if not knob.ordered:
        return "choice"
    return "share" if knob.log and len(knob.values) > _DENSE else "index"


def encode(space: Space, point: Point) -> dict[str, Code] | None:
    """Codes of the knobs that exist at the point; None for a point that is not of this space."""
    own = space.restrict(point)
    if own.keys() != point.keys() or space.missing(own):
        return None
    codes: dict[str, Code] = {}
    for name, value in own.items():
        knob = space.by_name[name]
        if not knob.contains(value):
            return None
        codes[name] = _code(knob, value)
    return codes


def decode(space: Space, codes: Mapping[str, Code]) -> dict[str, Value]:
    return {name: _value(space.by_name[name], codes[name]) for name in space.by_name if name in codes}


def _code(knob: Knob, value: Value) -> Code:
    if shape(knob) != "share":
        assert isinstance(knob, Discrete)
        same = (i for i, v in enumerate(knob.values) if v == value and isinstance(v, bool) == isinstance(value, bool))
        return next(same)
    return along(knob, value)


def along(knob: Knob, value: Value) -> float:
    """How far along a knob of numbers a value lies, in [0, 1]; in log scale for a log knob."""
    number = float(value)  # type: ignore[arg-type]  # only knobs of numbers have a share
    low, high = (knob.values[0], knob.values[-1]) if isinstance(knob, Discrete) else (knob.low, knob.high)
    start, end = float(low), float(high)  # type: ignore[arg-type]
    if knob.log:
        return math.log(number / start) / math.log(end / start)
    return (number - start) / (end - start)


def _value(knob: Knob, code: Code) -> Value:
    if shape(knob) != "share":
        assert isinstance(knob, Discrete)
        return knob.values[int(code)]
    return knob.at(float(code))
