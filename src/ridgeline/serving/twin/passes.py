"""What an engine's passes over its model had to do, kept without the passes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

_FEW_ROWS, _GRAIN = 64, 4  # passes of more rows than these are counted together by sixteen


class Held(NamedTuple):
    """Of a pass on a GPU that is held to less: what it draws of the GPU's own limit of power, and the part of its usual
    clock that it has left."""

    share: float
    pace: float


class Paced(Protocol):
    """What tells how long passes take, and what held back the last one that it was asked for."""

    @property
    def held(self) -> Held | None: ...


class PassMeans(NamedTuple):
    """Passes of one engine that had about as many rows: how many, and the means of the others. `share` and `pace` are
    those of `Held`, 0 where nothing holds the GPUs."""

    times: float
    seconds: float
    rows: float
    logit_rows: float
    context: float
    pairs: float
    share: float
    pace: float


class PassLog:
    """The passes of one engine over its model, added up by how many rows they had."""

    def __init__(self, times: Paced) -> None:
        self._times = times
        self._sums: dict[int, list[float]] = {}

    def add(self, rows: int, logit_rows: int, context: float, pairs: float, step_s: float, steps: int = 1) -> None:
        """`steps` equal passes, of which the last one's time was asked for last; context and pairs are those of one."""
        held = self._times.held
        size = rows if rows < _FEW_ROWS else rows >> _GRAIN << _GRAIN
        sums = self._sums.get(size)
        if sums is None:
            sums = self._sums[size] = [0.0] * 8
        sums[0] += steps
        sums[1] += step_s * steps
        sums[2] += rows * steps
        sums[3] += logit_rows * steps
        sums[4] += context * steps
        sums[5] += pairs * steps
        if held is not None:
            sums[6] += held.share * steps
            sums[7] += held.pace * steps

    def __iter__(self) -> Iterator[PassMeans]:
        for count, *sums in self._sums.values():
            yield PassMeans(count, *(total / count for total in sums))
