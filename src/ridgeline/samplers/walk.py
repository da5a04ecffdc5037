"""A fixed sequence of legal points from which each ask takes the first that is free."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from ridgeline.records.expression import Value
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Refusal


class SequenceSampler:
    """The answer depends only on the sequence and on what is observed and pending, not on what was asked before."""

    def __init__(self, sequence: Iterator[dict[str, Value]]) -> None:
        self._sequence = sequence
        self._ahead: dict[str, dict[str, Value]] = {}  # taken from the sequence, not observed yet; in its order

    def first_free(self, observed: Collection[str], pending: Collection[str]) -> dict[str, Value] | None:
        """`observed` and `pending` are point keys; `observed` never shrinks."""
        done = []
        found = None
        for key, point in self._ahead.items():
            if key in observed:
                done.append(key)
            elif key not in pending:
                found = point
                break
        for key in done:
            del self._ahead[key]
        return found if found is not None else self._further(observed, pending)

    def free(self, observed: Collection[str], pending: Collection[str], count: int) -> list[dict[str, Value]]:
        """The first so many that are free, fewer at the end of the sequence."""
        found: list[dict[str, Value]] = []
        passed = set(pending)
        while len(found) < count and (point := self.first_free(observed, passed)) is not None:
            found.append(point)
            passed.add(point_key(point))
        return found

    def _further(self, observed: Collection[str], pending: Collection[str]) -> dict[str, Value] | None:
        for point in self._sequence:
            key = point_key(point)
            if key in observed:
                continue
            self._ahead[key] = point
            if key not in pending:
                return point
        return None


def legality(space: Space, refusal: Refusal) -> Callable[[Point], bool]:
    """Whether neither the study's rules nor the campaign refuse a point."""
    return lambda point: space.refusal(point) is None and refusal(point) is None


def keys(points: Iterable[Point]) -> set[str]:
    return {point_key(point) for point in points}
