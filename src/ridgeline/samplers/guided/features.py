"""Points as a Gaussian process sees them: each knob in [0, 1], unordered values all equally far apart.

Texts that are a word and a number (`static`, `dynamic-1` to `dynamic-512`) are seen as both: what holds for a schedule
with chunks of 64 mostly holds for it with chunks of 128, and for chunks of 64 mostly under another schedule too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from ridgeline.records.expression import Value, is_number
from ridgeline.records.space import Discrete, Knob, Point, Space
from ridgeline.samplers.guided.gaussian import Array, Columns

APART = 0.5**0.5  # two one-hot rows are then 1 apart
ABSENT = 0.5  # where a knob does not exist it is in the middle, and a column of its own says so
_STUDIES_APART = 0.5  # what holds in an earlier study mostly holds in this one, until the observations say otherwise

_FEWEST_NUMBERS = 3  # different numbers after one word, without which a text is only a text
_WORD_AND_NUMBER = re.compile(r"(.*?)[-_:,= ]?(\d+(?:\.\d+)?)")

_DENSE = 32  # a log knob with more values than this is taken as a line, since its index would not be in log scale


def shape(knob: Knob) -> Literal["index", "choice", "share"]:
    """index: 0..n-1 in order; choice: 0..n-1 without order; share: a number in [0, 1] along the knob."""
    if not isinstance(knob, Discrete):
        return "share"
    if not knob.ordered:
        return "choice"
    return "share" if knob.log and len(knob.values) > _DENSE else "index"


def along(knob: Knob, value: Value) -> float:
    """How far along a knob of numbers a value lies, in [0, 1]; in log scale for a log knob."""
    number = float(value)  # type: ignore[arg-type]  # only knobs of numbers have a share
    low, high = (knob.values[0], knob.values[-1]) if isinstance(knob, Discrete) else (knob.low, knob.high)
    start, end = float(low), float(high)  # type: ignore[arg-type]
    if knob.log:
        return math.log(number / start) / math.log(end / start)
    return (number - start) / (end - start)


class Features:
    """`columns` says which part of which knob each feature belongs to, so that they share one length scale. Beside
    earlier studies (`after_others`) the study is one more knob: how much alike the studies are is then learned."""

    def __init__(self, space: Space, after_others: bool = False) -> None:
        self._space, self._after_others = space, after_others
        self._parts: list[_Part] = []
        self._first: list[int] = []  # by knob, its first part
        for knob in space.knobs:
            self._first.append(len(self._parts))
            self._parts += _parts(knob)
        widths = [part.width for part in self._parts] + [1] * after_others
        self.columns: Columns = np.repeat(np.arange(len(widths)), widths)

    def column(self, knob: int) -> int:
        """The first feature of this knob."""
        return int(np.flatnonzero(self.columns == self._first[knob])[0])

    def of(self, points: Sequence[Point], earlier: bool = False) -> Array:
        """A row for each point of the space, as a setting of this study or of an earlier one."""
        if not points:
            return np.zeros((0, self.columns.size), np.float32)
        blocks = [part.of([point.get(part.name) for point in points]) for part in self._parts]
        if self._after_others:
            blocks.append(np.full((len(points), 1), 0.0 if earlier else _STUDIES_APART))
        return np.concatenate(blocks, axis=1).astype(np.float32)

    def as_earlier(self, rows: Array) -> Array:
        """The same settings as rows of an earlier study."""
        found = rows.copy()
        found[:, -1] = 0.0
        return found


def _parts(knob: Knob) -> Sequence[_Part]:
    if not isinstance(knob, Discrete) or shape(knob) == "share":
        return [_Part(knob, lambda value: along(knob, value))]
    most = max(1, len(knob.values) - 1)
    if isinstance(knob.values, range):
        return [_Part(knob, lambda value: knob.values.index(value) / most)]
    index = {_same(value): i for i, value in reversed([*enumerate(knob.values)])}
    if knob.ordered:
        return [_Part(knob, lambda value: index[_same(value)] / most)]
    whole = [_Part(knob, lambda value: index[_same(value)], len(knob.values))]
    split = {value: _split(value) for value in knob.values if not isinstance(value, bool)}
    by_word: dict[str, set[float]] = {}
    for word, number in split.values():
        if number is not None:
            by_word.setdefault(word, set()).add(number)
    if len(split) < len(knob.values) or max(map(len, by_word.values()), default=0) < _FEWEST_NUMBERS:
        return whole
    words = sorted({word for word, _ in split.values()})
    numbers = sorted(set().union(*by_word.values()))
    last, lacking = max(1, len(numbers) - 1), any(number is None for _, number in split.values())

    def place(value: Value) -> float | None:
        number = split[value][1]
        return None if number is None else numbers.index(number) / last

    of_word = _Part(knob, lambda value: words.index(split[value][0]), len(words))
    return [*([of_word] if len(words) > 1 else []), _Part(knob, place, lacking=lacking)]


def _same(value: Value) -> tuple[bool, Value]:
    """1 == True in Python, but not in a study."""
    return isinstance(value, bool), value


def _split(value: Value) -> tuple[str, float | None]:
    """A word and the number behind it: 'dynamic-64' is dynamic and 64."""
    if is_number(value):
        return "", float(value)
    found = _WORD_AND_NUMBER.fullmatch(str(value))
    return (str(value), None) if found is None else (found[1], float(found[2]))


class _Part:
    """A knob, or the word or the number of its texts. `place` is where a value lies in [0, 1], or which of so many
    `choices` it is; None where it has none."""

    def __init__(
        self, knob: Knob, place: Callable[[Value], float | None], choices: int = 0, lacking: bool = False
    ) -> None:
        self.name, self._place, self._choices = knob.name, place, choices
        self._lacking = lacking or knob.when is not None
        self.width = (choices or 1) + self._lacking
        self._known: dict[tuple[bool, Value], float | None] = {}  # observations are many, values few

    def of(self, values: Sequence[Value | None]) -> Array:
        found = np.zeros((len(values), self.width))
        places = [None if value is None else self._at(value) for value in values]
        if self._choices:
            for row, place in enumerate(places):
                if place is not None:
                    found[row, int(place)] = APART
        else:
            found[:, 0] = [ABSENT if place is None else place for place in places]
        if self._lacking:
            found[:, -1] = [place is None for place in places]
        return found

    def _at(self, value: Value) -> float | None:
        key = _same(value)
        if key not in self._known:
            self._known[key] = self._place(value)
        return self._known[key]


# What limits are limits of: threads are a product of two knobs, tiles divide into blocks, buffers fill one memory.
#
# A tree cuts one column at a time, so an edge along a product is a staircase to it. Beside the knobs themselves it is
# therefore shown the product and the ratio of every two knobs, in logs.

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
