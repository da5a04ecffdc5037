"""What short runs say of whole ones."""

from __future__ import annotations

import math

import pytest

from ridgeline.stats.short_runs import LEAST_VALUES, PRIOR_SPREAD, same_stretch_ratio, short_run_ratio, times_worse


def test_one_setting_gives_the_ratio_and_the_prior_spread() -> None:
    found = short_run_ratio([(50.0, 100.0)])
    assert found is not None and found.whole(60.0) == pytest.approx(120.0)
    assert found.spread == pytest.approx(PRIOR_SPREAD)


def test_settings_that_disagree_widen_the_spread_and_agreement_narrows_it() -> None:
    apart = short_run_ratio([(1.0, 1.0), (1.0, 1.5), (1.0, 0.7)])
    alike = short_run_ratio([(1.0, 2.0)] * 10)
    assert apart is not None and alike is not None
    assert apart.spread > 3 * PRIOR_SPREAD and alike.spread < PRIOR_SPREAD
    assert alike.log_ratio == pytest.approx(math.log(2))


def test_the_prior_counts_as_much_as_two_settings() -> None:
    found = short_run_ratio([(1.0, math.exp(0.1)), (1.0, math.exp(-0.1))])
    assert found is not None
    assert found.log_ratio == pytest.approx(0.0)
    assert found.spread == pytest.approx(math.sqrt((2 * 0.1**2 + 2 * PRIOR_SPREAD**2) / 3))
    assert found.settings == 2


def test_nothing_can_be_said_without_settings_or_ratios() -> None:
    assert short_run_ratio([]) is None
    assert short_run_ratio([(0.0, 1.0)]) is None
    assert short_run_ratio([(1.0, 2.0), (-1.0, 2.0)]) is None


# When a run under way is clearly worse, and when that cannot be told.


GOOD = [10.0, 50.0, 100.0, 101.0, 99.0, 100.0, 102.0, 98.0]


def test_the_same_stretch_is_compared_so_that_warming_up_is_not_held_against_anyone() -> None:
    early = [5.0, 25.0, 50.0, 50.0, 50.0]
    assert same_stretch_ratio(early, GOOD, minimize=False) == pytest.approx(0.5)
    assert same_stretch_ratio(GOOD[:5], GOOD, minimize=False) is None, "as good as the best was then"


def test_a_run_that_outlasts_the_best_is_held_against_its_end() -> None:
    assert same_stretch_ratio([20.0] * 40, GOOD, minimize=False) == pytest.approx(0.2, rel=0.01)


def test_a_good_beginning_does_not_save_a_run() -> None:
    """Only the later half of what it has shown counts: caches are warm at first, and full then."""
    assert same_stretch_ratio([150.0] * 5 + [20.0] * 5, [100.0] * 10, minimize=False) == pytest.approx(0.2)
    assert same_stretch_ratio([50.0] * 5 + [300.0] * 5, [100.0] * 10, minimize=True) == pytest.approx(3.0)


def test_what_the_best_did_later_is_not_held_against_it() -> None:
    """The best one sped up after its tenth value; at the fifth it was no better."""
    best = [40.0] * 10 + [100.0] * 10
    assert same_stretch_ratio([40.0] * 6, best, minimize=False) is None
    assert same_stretch_ratio([10.0] * 6, best, minimize=False) == pytest.approx(0.25)


def test_one_value_as_good_as_the_best_leaves_it_open() -> None:
    assert same_stretch_ratio([20.0] * 9 + [150.0], GOOD, minimize=False) is None


def test_times_are_worse_when_they_are_larger() -> None:
    ratio = same_stretch_ratio([300.0] * 6, [100.0] * 6, minimize=True)
    assert ratio == pytest.approx(3.0) and times_worse(3.0, minimize=True) == 3.0
    assert same_stretch_ratio([30.0] * 6, [100.0] * 6, minimize=True) is None
    assert times_worse(0.25, minimize=False) == 4.0
    assert same_stretch_ratio([300.0] * 9 + [90.0], [100.0] * 6, minimize=True) is None, "one of them was as quick"


def test_few_values_or_values_without_a_ratio_tell_nothing() -> None:
    assert same_stretch_ratio([1.0] * (LEAST_VALUES - 1), GOOD, minimize=False) is None
    assert same_stretch_ratio([1.0] * 9, GOOD[: LEAST_VALUES - 1], minimize=False) is None
    assert same_stretch_ratio([0.0] * 9, GOOD, minimize=False) is None
    assert same_stretch_ratio([-1.0] * 9, [-5.0] * 9, minimize=False) is None
    assert same_stretch_ratio([1.0] * 8 + [0.0], GOOD, minimize=False) is None, "one of them is enough"
