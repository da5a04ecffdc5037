"""How knobs enter a linear model of speed: value by value, or as a curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.records.expression import Value

_MANY_VALUES = 6  # a numeric knob with more different values than this enters as a curve, not value by value


@dataclass(frozen=True, slots=True)
class KnobCoding:
    """How a knob enters the model: one indicator per value, or a line and a bow for a numeric knob of many values."""

    values: tuple[Value, ...]
    numeric: bool
    centre: float = 0.0
    width: float = 1.0
    log: bool = False

    @classmethod
    def of(cls, seen: Sequence[Value]) -> KnobCoding:
        different = tuple(dict.fromkeys(seen))
        numbers = [float(v) for v in different if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) < len(different) or len(different) <= _MANY_VALUES:
            return cls(different, False)
        log = min(numbers) > 0 and max(numbers) / min(numbers) > 8
        scaled = [math.log(v) for v in numbers] if log else numbers
        low, high = min(scaled), max(scaled)
        return cls(different, True, (low + high) / 2, (high - low) / 2, log)

    def code(self, value: Value) -> Sequence[float]:
        if not self.numeric:
            return [float(value == v and type(value) is type(v)) for v in self.values]
        number = float(value)  # type: ignore[arg-type]  # `of` saw only numbers
        place = ((math.log(number) if self.log else number) - self.centre) / self.width
        return [place, place * place]

    def pattern(self, values: Sequence[Value]) -> tuple[float, ...]:
        """The same for two knobs exactly where they enter the model alike."""
        if not self.numeric:
            return tuple(float(self.values.index(value)) for value in values)
        places = [round(self.code(value)[0], 9) for value in values]
        turned = math.copysign(1.0, next((place for place in places if place), 1.0))
        return tuple(place * turned for place in places)
