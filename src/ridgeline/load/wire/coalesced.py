"""Tokens that were read together although they may have come apart.

A read bears the stamp of its last token. Of the others it is known only that they came after the moment at which the
socket was last seen empty. They are given the answer's usual pace, or are spread over that time where it is too short
for it; and the two extremes are kept, so that the error this can make in a figure is computed and not guessed.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from ridgeline.load.wire.loop import LATE_S


@dataclass(frozen=True, slots=True)
class CoalescedTokens:
    """Tokens of one answer that were read together: the earliest and latest they can have come, as TTFT and gaps."""

    number: int
    first_s: tuple[float, float]
    gaps_s: tuple[array[float], array[float]]


def spread_coalesced(
    number: int, times_s: Sequence[float], since_s: Mapping[float, float], sent_s: float
) -> tuple[list[float], CoalescedTokens | None]:
    """The tokens' most likely times, and how far they may be off (None: not at all).

    `since_s` holds, for times at which reads ran late, the moment before which nothing of that read can have come.
    Tokens that share a stamp without such a delay were sent together by the server.
    """
    likely: list[float] = []
    earliest: list[float] = []
    pace_s = _pace_s(times_s, since_s)
    before_s, coalesced = sent_s, False
    for at_s, same in groupby(times_s):
        count = sum(1 for _ in same)
        low_s = max(since_s.get(at_s, at_s), before_s)
        if count == 1 or low_s >= at_s:
            likely += [at_s] * count
            earliest += [at_s] * count
        else:
            coalesced = True
            step_s = min(pace_s, (at_s - low_s) / count) if at_s - low_s > LATE_S else 0.0
            likely += [at_s - step_s * k for k in range(count - 1, -1, -1)]
            earliest += [low_s] * (count - 1) + [at_s]
        before_s = at_s
    if not coalesced:
        return likely, None
    first_s = (earliest[0] - sent_s, times_s[0] - sent_s)
    return likely, CoalescedTokens(number, first_s, (gaps_between(earliest), gaps_between(times_s)))


def _pace_s(times_s: Sequence[float], since_s: Mapping[float, float]) -> float:
    """The usual time between two tokens of this answer that were both read on time; boundless where none were."""
    clear = sorted(b - a for a, b in pairwise(times_s) if b > a and a not in since_s and b not in since_s)
    return clear[len(clear) // 2] if clear else math.inf


def gaps_between(times_s: Sequence[float]) -> array[float]:
    return array("d", [b - a for a, b in pairwise(times_s)])
