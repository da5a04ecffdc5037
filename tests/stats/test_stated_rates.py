"""Rates that are stated, by so many simulated cases, or all of them, that a rate twice as high would be seen."""

from __future__ import annotations

import itertools
import math
import random
from statistics import NormalDist

import pytest

from ridgeline.stats.accuracy import ERROR, _differing, _error, accuracy_change, looks
from ridgeline.stats.arrays import numpy as np
from ridgeline.stats.compare import Block, confirm
from ridgeline.stats.drift import _explained, drift
from ridgeline.stats.equivalence import looks as equivalence_looks
from ridgeline.stats.equivalence import share_left
from ridgeline.stats.gate import _boundaries

TIMES = tuple(round(k / 6, 2) for k in range(1, 7))


@pytest.mark.parametrize(("false_alarm", "power"), [(0.01, 0.9), (0.05, 0.8)])
def test_the_limits_of_a_gate_have_the_false_alarms_and_the_power_that_they_state(
    false_alarm: float, power: float
) -> None:
    """200,000 walks from another seed than the limits were found with: one in a hundred is 2,000 of them."""
    needed, alarm_at, pass_at = _boundaries(TIMES, false_alarm, power)
    steps = np.sqrt(np.diff(np.asarray((0.0, *TIMES))))
    walks = np.cumsum(np.random.default_rng(11).standard_normal((200_000, 6)) * steps, axis=1)

    def alarmed(drift: float) -> float:
        open_ = np.ones(len(walks), dtype=bool)
        found = 0
        for at, time in enumerate(TIMES):
            z = walks[:, at] / math.sqrt(time) + drift * math.sqrt(time)
            found += int(np.count_nonzero(open_ & (z >= alarm_at[at])))
            open_ &= (z < alarm_at[at]) & (z >= pass_at[at])
        assert not open_.any(), "the last look decides"
        return found / len(walks)

    assert alarmed(0.0) == pytest.approx(false_alarm, rel=0.1)
    assert alarmed(needed) == pytest.approx(power, abs=0.01)
    assert alarmed(0.5 * needed) < power


def test_the_error_of_all_looks_at_accuracy_is_what_is_stated() -> None:
    """What each look spends, by the interval it gives, is added up."""
    total, spent = 1000, 0.0
    assert looks(total) == [63, 125, 250, 500, 1000]
    for asked in looks(total):
        found = accuracy_change(asked, broken=asked // 50, fixed=asked // 50, total=total, allowed=0.02)
        error = _error(asked, _differing(asked, asked // 50, asked // 50, 0.02), 0.02)
        spent += 1 - NormalDist().cdf((found.change - found.low) / error)
        assert found.change - found.low == pytest.approx(found.high - found.change)
    assert spent == pytest.approx(ERROR)


@pytest.mark.parametrize("planned", [3, 4, 5, 6, 8, 12, 30])
def test_the_looks_of_an_equivalence_spend_the_error_once(planned: int) -> None:
    early = equivalence_looks(planned)
    assert sum(early.values()) + share_left(planned, planned) == pytest.approx(1.0)
    assert all(3 <= after < planned for after in early)


def test_the_p_value_of_a_drift_is_that_of_all_orders() -> None:
    """Six and seven repeats have few enough orders to try them all; each may explain as much by chance."""
    rng = random.Random(5)
    for n in (6, 7):
        for _ in range(3):
            logs = [rng.gauss(0, 1) for _ in range(n)]
            limit = max(_explained(logs)[:2]) - 1e-12
            orders = itertools.permutations(logs)
            exact = sum(max(_explained(order)[:2]) >= limit for order in orders) / math.factorial(n)
            found = drift([math.exp(0.01 * value) for value in logs], "maximize", random.Random(1), level=0.001)
            assert found.p_value >= exact - 0.06, "memory of runs makes it larger, nothing makes it smaller"


def test_equal_settings_are_called_different_once_in_twenty_and_no_more() -> None:
    """4,000 campaigns of four blocks: the p-values of a t-test are even, and so are these."""
    rng = np.random.default_rng(3)
    effects = rng.standard_normal((4000, 4)) * 0.01
    called = 0
    for row in effects:
        blocks = [Block(n, (f"n{n}",), [1.0], {"b": [math.exp(e)]}) for n, e in enumerate(row)]
        called += confirm(blocks, 0.95).comparisons["b"].verdict in ("better", "worse")
    assert called / len(effects) == pytest.approx(0.05, abs=0.01)
