"""Sequences of legal points, and how each ask takes the first of one that is free."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator

from ridgeline.records.expression import Value
from ridgeline.records.space import Discrete, Point, Space, point_key
from ridgeline.samplers.base import Refusal


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
        rest = number
        digits: dict[str, int] = {}
        for knob in reversed(self._knobs):
            rest, digits[knob.name] = divmod(rest, len(knob.values))
        point = self._space.restrict({knob.name: knob.values[digits[knob.name]] for knob in self._knobs})
        # where a conditional knob does not exist, its digits all mean the same point: only digit 0 stands for it
        return None if any(digits[name] for name in digits if name not in point) else point


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


# misses in a row after which we stop: about a second of guessing, some seconds of listing
_GUESSES_FINITE = 1_000  # then the space is listed instead
_GUESSES_CONTINUOUS = 20_000
_LISTED = 200_000


def filling(space: Space, seed: int, legal: Callable[[Point], bool]) -> Iterator[dict[str, Value]]:
    """Legal points, none twice: low-discrepancy first, then, in a finite space, all others in shuffled order.

    It ends when the space has no further legal point. That is certain for a finite space of up to 200,000 points;
    beyond, it means 200,000 misses in a row, and with continuous knobs 20,000.
    """
    given: set[str] = set()
    finite = math.isfinite(space.raw_size())
    yield from _until_missing(
        _low_discrepancy(space, seed), given, legal, _GUESSES_FINITE if finite else _GUESSES_CONTINUOUS
    )
    if finite:
        listing = Listing(space)
        listed = (listing.at(number) for number in shuffled(listing.size, seed))
        yield from _until_missing(listed, given, legal, _LISTED)


def _until_missing(
    points: Iterator[dict[str, Value] | None], given: set[str], legal: Callable[[Point], bool], patience: int
) -> Iterator[dict[str, Value]]:
    missed = 0
    for point in points:
        key = point_key(point) if point is not None else ""
        if point is None or key in given or not legal(point):
            missed += 1
            if missed > patience:
                return
            continue
        missed = 0
        given.add(key)
        yield point


def _low_discrepancy(space: Space, seed: int) -> Iterator[dict[str, Value]]:
    for shares in halton(len(space.order), seed):
        yield space.restrict({knob.name: knob.at(share) for knob, share in zip(space.order, shares, strict=True)})


def halton(dimensions: int, seed: int) -> Iterator[list[float]]:
    """Halton's sequence in [0, 1), digits permuted and the whole shifted by the seed.

    Without the permutation, dimensions of large bases run in parallel for the first few hundred points.
    """
    rng = random.Random(f"halton {seed}")
    bases = _primes(dimensions)
    digits = [[0, *rng.sample(range(1, base), base - 1)] for base in bases]
    shifts = [rng.random() for _ in bases]
    number = 0
    while True:
        number += 1
        yield [
            (_radical_inverse(number, base, permuted) + shift) % 1.0
            for base, permuted, shift in zip(bases, digits, shifts, strict=True)
        ]


def _radical_inverse(number: int, base: int, permuted: list[int]) -> float:
    value, weight = 0.0, 1.0
    while number:
        number, digit = divmod(number, base)
        weight /= base
        value += permuted[digit] * weight
    return value


def _primes(count: int) -> list[int]:
    primes: list[int] = []
    number = 2
    while len(primes) < count:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    return primes


class SequenceSampler:
    """The answer depends only on the sequence and on what is observed and pending, not on what was asked before."""

    def __init__(self, sequence: Iterator[dict[str, Value]]) -> None:
        self._sequence = sequence
        self._ahead: dict[str, dict[str, Value]] = {}  # taken from the sequence, not observed yet; in its order

    def first_free(self, observed: Collection[str], pending: Collection[str]) -> dict[str, Value] | None:
        """`observed` and `pending` are point keys; `observed` never shrinks."""
        return next(iter(self.free(observed, pending, 1)), None)

    def free(self, observed: Collection[str], pending: Collection[str], count: int) -> list[dict[str, Value]]:
        """The first so many that are free, fewer at the end of the sequence."""
        self._ahead = {key: point for key, point in self._ahead.items() if key not in observed}
        found = [point for key, point in self._ahead.items() if key not in pending][:count]
        while len(found) < count and (point := next(self._sequence, None)) is not None:
            key = point_key(point)
            if key in observed:
                continue
            self._ahead[key] = point
            if key not in pending:
                found.append(point)
        return found


def legality(space: Space, refusal: Refusal) -> Callable[[Point], bool]:
    """Whether neither the study's rules nor the campaign refuse a point."""
    return lambda point: space.refusal(point) is None and refusal(point) is None


def is_of_space(space: Space, point: Point) -> bool:
    """Whether it has a value that the space knows for every knob that exists there, and nothing else."""
    own = space.restrict(point)
    return (
        own.keys() == point.keys()
        and not space.missing(own)
        and all(space.by_name[name].contains(value) for name, value in own.items())
    )


def keys(points: Iterable[Point]) -> set[str]:
    return {point_key(point) for point in points}
