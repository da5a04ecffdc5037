"""What the drawn order alone can show: Fisher's randomisation test over rounds, and the interval that belongs to it.

A round runs every setting once, in an order drawn for it alone. Whatever the machine does meanwhile (a wave of any
period, a jump, a cold start), the order decides by a fair coin which of two equal settings it favours, so the
difference of the two in a round is as likely to have the one sign as the other, rounds independently of each other. How
large their sum would have been under each row of coins is then known without any assumption about the noise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import fsum

_MOST = 16  # rounds that flip alone; of more, some flip together, which is a coarser test of the same level
_TINY = 1e-9  # sums that differ by less, relative to their terms, are the same sum
_HALVINGS = 25


def least_p(rounds: int) -> float:
    """The smallest p-value that so many rounds can give: each of them speaks for the same setting."""
    return min(1.0, float(2.0 ** (1 - min(rounds, _MOST))))


def sign_flip_p(differences: Sequence[float], shift: float = 0.0) -> float:
    """The share of all rows of coins under which the sum of `differences - shift` is at least as far from 0."""
    terms = _together([value - shift for value in differences])
    total = abs(fsum(terms)) - _TINY * fsum(map(abs, terms))
    if total <= 0:
        return 1.0
    half = len(terms) // 2
    left, right = _sums(terms[:half]), sorted(_sums(terms[half:]))
    # sums are symmetric about 0: those below -total are as many as those above total
    beyond = sum(len(right) - bisect_left(right, total - one) for one in left)
    return min(1.0, 2.0 * beyond / 2.0 ** len(terms))


def flip_interval(differences: Sequence[float], p_value: float, at_least: tuple[float, float]) -> tuple[float, float]:
    """`at_least`, widened to hold every shift of the differences that the test does not reject at this p-value."""
    low, high = at_least
    if sign_flip_p(differences, low) > p_value:
        low = _last_rejected(differences, p_value, min(low, *differences), low)
    if sign_flip_p(differences, high) > p_value:
        high = _last_rejected(differences, p_value, max(high, *differences), high)
    return low, high


def _last_rejected(differences: Sequence[float], p_value: float, outside: float, inside: float) -> float:
    for _ in range(_HALVINGS):
        middle = (outside + inside) / 2
        if sign_flip_p(differences, middle) > p_value:
            inside = middle
        else:
            outside = middle
    return outside


def _together(terms: Sequence[float]) -> list[float]:
    return [fsum(terms[at::_MOST]) for at in range(min(_MOST, len(terms)))]


def _sums(terms: Sequence[float]) -> list[float]:
    sums = [0.0]
    for term in terms:
        sums = [one + sign * term for one in sums for sign in (1, -1)]
    return sums
