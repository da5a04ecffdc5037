"""Which experts a pass asks for: some more often than others, and ranks that hold them never equally.

A router that was trained prefers some experts. Popularity is taken to be log-normal; then a small batch touches fewer
of them than even routing would, and the growth of a step with its batch is as flat as measured.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from ridgeline.serving.model.layer_parts import Experts
from ridgeline.serving.twin.priors import POPULARITY_SPREAD

_STEPS = 16


@lru_cache(maxsize=8192)  # a simulation asks for the same few batch sizes a hundred thousand times
def touched(experts: Experts, rows: float) -> float:
    """Experts of one layer that at least one of `rows` tokens is sent to."""
    each = -math.log1p(-experts.per_token / experts.count) * rows if experts.per_token < experts.count else math.inf
    share = sum(1.0 - math.exp(-each * liked) for liked in _popularity()) / _STEPS
    # one token alone asks for as many as it is sent to, whoever they are
    return max(experts.count * share, min(1.0, rows) * experts.per_token)


@lru_cache(maxsize=1)
def _popularity() -> tuple[float, ...]:
    """How often experts are asked for, over the mean: the middles of so many equal parts."""
    normal = NormalDist()
    raw = [math.exp(POPULARITY_SPREAD * normal.inv_cdf((k + 0.5) / _STEPS)) for k in range(_STEPS)]
    return tuple(r * _STEPS / sum(raw) for r in raw)


def fullest_share(experts: Experts, asked: float, ranks: int) -> float:
    """Experts touched on the fullest of `ranks` expert ranks, over their mean.

    Few tokens fall on few experts, and some rank gets most of them; Blom's formula gives the largest of so many draws.
    """
    if ranks <= 1:
        return 1.0
    mean, most = asked / ranks, experts.count / ranks
    spread = math.sqrt(mean * max(0.0, 1.0 - mean / most))
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return min(1.0 + largest * spread / mean, most / mean)


def fullest_load(experts: Experts, rows: float, ranks: int) -> float:
    """Copies of tokens that the fullest of `ranks` expert ranks computes, over their mean.

    Some ranks hold more of the popular experts than others, and few tokens fall unevenly besides.
    """
    if ranks <= 1:
        return 1.0
    liked = (math.exp(POPULARITY_SPREAD**2) - 1.0) * ranks / experts.count
    drawn = ranks / (rows * experts.per_token)
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return min(1.0 + largest * math.sqrt((liked + drawn) * (1.0 - 1.0 / ranks)), float(ranks))
