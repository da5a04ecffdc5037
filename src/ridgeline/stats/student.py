"""Student's t in pure Python: importing scipy.stats for one quantile would cost 97 MB of the controller's memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

_TINY = 1e-300


def two_sided_p(t: float, df: float) -> float:
    """P(|T| >= |t|) with `df` degrees of freedom (df >= 1)."""
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))


@lru_cache(maxsize=256)
def t_quantile(p: float, df: float) -> float:
    """The t below which Student's variable lies with probability p; for 0 < p < 1."""
    if not 0.0 < p < 1.0:
        raise ValueError(f"a quantile needs a probability between 0 and 1, not {p}")
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    if p == 0.5:
        return 0.0
    tail = 2.0 * (1.0 - p)
    high = 1.0
    while two_sided_p(high, df) > tail:
        high *= 2.0
    low = 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if two_sided_p(middle, df) > tail:
            low = middle
        else:
            high = middle
    return high


def interval(
    estimate: float, error: float, df: float, level: float, back: Callable[[float], float] = float
) -> tuple[float, float]:
    """Student's interval of this level around an estimate with this standard error; `back` is put to both ends, as
    `math.exp` where the estimate is a logarithm."""
    half = t_quantile(0.5 + level / 2, df) * error
    return back(estimate - half), back(estimate + half)


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function at x, by its continued fraction (Lentz's method).

    `rest` is 1 - x, given by the caller, who knows it without the digits that the subtraction would lose.
    """
    if x <= 0.0:
        return 0.0
    if rest <= 0.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    # the fraction converges fast only on this side of the mean; the other side is reached by symmetry
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, rest) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    c = 1.0
    d = 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + coefficient * d)
            c = _away_from_zero(1.0 + coefficient / c)
            value *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
