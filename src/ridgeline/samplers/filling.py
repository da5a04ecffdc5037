"""A sequence of legal points that fills the space evenly from its first point on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from ridgeline.records.expression import Value
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.listing import Listing, shuffled

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


def _low_discrepancy(space: Space, seed: int) -> Iterator[dict[str, Value] | None]:
    knobs = space.order
    for shares in halton(len(knobs), seed):
        point: dict[str, Value] = {}
        for knob, share in zip(knobs, shares, strict=True):
            names: dict[str, Value] = dict.fromkeys(space.by_name)
            if knob.when is None or knob.when.holds(names | point):
                point[knob.name] = knob.at(share)
        yield {name: point[name] for name in space.by_name if name in point}


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
