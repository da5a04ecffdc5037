"""What limits are limits of: threads are a product of two knobs, tiles divide into blocks, buffers fill one memory.

A tree cuts one column at a time, so an edge along a product is a staircase to it. Beside the knobs themselves it is
therefore shown the product and the ratio of every two knobs, in logs.
"""

from __future__ import annotations

import numpy as np

from ridgeline.records.expression import is_number
from ridgeline.records.space import Discrete, Knob, Space
from ridgeline.samplers.encoding import along, shape
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.gaussian import Array

_FEWEST_VALUES = 3  # of a knob: two values are a switch, and no size
MOST_KNOBS = 12  # with more, the pairs outnumber any observations by far
_READ_AT = 129  # of a knob with very many values, so many are read, evenly


class Products:
    """Rows of features with the products and ratios of two knobs beside them; the same for the same rows."""

    def __init__(self, space: Space, features: Features) -> None:
        sizes = [(k, *read) for k, knob in enumerate(space.knobs) if (read := _sizes(knob)) is not None]
        self._sizes = sizes if len(sizes) <= MOST_KNOBS else []
        self._first = [features.column(k) for k, _, _ in self._sizes]

    def beside(self, rows: Array) -> Array:
        logs = [
            np.interp(rows[:, column], places, values)
            for column, (_, places, values) in zip(self._first, self._sizes, strict=True)
        ]
        pairs = [(one, other) for i, one in enumerate(logs) for other in logs[:i]]
        # rounded, so that equal products are equal and no cut falls between them
        both = [np.round(made, 5) for one, other in pairs for made in (one + other, one - other)]
        return np.column_stack([rows, *both]).astype(np.float32)


def _sizes(knob: Knob) -> tuple[Array, Array] | None:
    """Places along a knob and the logs of its numbers there, or the places again where it has none above 0; None for
    a knob without an order, and for a switch."""
    if shape(knob) == "choice" or (knob.count is not None and knob.count < _FEWEST_VALUES):
        return None
    if isinstance(knob, Discrete):
        index = np.linspace(0, len(knob.values) - 1, min(len(knob.values), _READ_AT)).round().astype(int)
        places, read = index / (len(knob.values) - 1), [knob.values[i] for i in index]
    else:
        places = np.linspace(0, 1, _READ_AT)
        read = [knob.at(float(place)) for place in places]
    if not all(is_number(value) and value > 0 for value in read):
        return places, places
    if shape(knob) == "share":
        places = np.array([along(knob, value) for value in read])
    return places, np.log(np.array(read, dtype=float))
