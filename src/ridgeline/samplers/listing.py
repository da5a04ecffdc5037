"""The points of a finite space by number: a space of a billion points is walked in any order in no memory."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from ridgeline.records.expression import Value
from ridgeline.records.space import Discrete, Space


class Listing:
    """Numbers 0 to `size` - 1, each either one point or none; every point of the space has exactly one number."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._knobs = [knob for knob in space.order if isinstance(knob, Discrete)]
        if len(self._knobs) != len(space.knobs):
            raise ValueError("a continuous knob cannot be listed")
        self.size = math.prod(len(knob.values) for knob in self._knobs)

    def at(self, number: int) -> dict[str, Value] | None:
        """The point with this number; the last knob varies fastest."""
        point: dict[str, Value] = {}
        spare: list[str] = []
        rest = number
        digits: dict[str, int] = {}
        for knob in reversed(self._knobs):
            rest, digits[knob.name] = divmod(rest, len(knob.values))
        for knob in self._knobs:
            names: dict[str, Value] = dict.fromkeys(self._space.by_name)
            if knob.when is None or knob.when.holds(names | point):
                point[knob.name] = knob.values[digits[knob.name]]
            elif digits[knob.name]:
                spare.append(knob.name)
        # where a conditional knob does not exist, its digits all mean the same point: only digit 0 stands for it
        return None if spare else {name: point[name] for name in self._space.by_name if name in point}


def shuffled(size: int, seed: int) -> Iterator[int]:
    """Every number below `size` once, in an order that only the seed decides, without holding them in memory."""
    bits = max(2, (size - 1).bit_length())
    mask, half = (1 << bits) - 1, bits // 2 + 1
    rng = random.Random(f"shuffled {seed}")
    rounds = [(rng.getrandbits(bits) | 1, rng.getrandbits(bits)) for _ in range(4)]
    for number in range(mask + 1):
        mixed = number
        for odd, offset in rounds:
            # each step can be undone (odd factor modulo a power of two, xor with own high bits): no number twice
            mixed = (mixed * odd + offset) & mask
            mixed ^= mixed >> half
        if mixed < size:
            yield mixed
