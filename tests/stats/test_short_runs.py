"""What short runs say of whole ones."""

from __future__ import annotations

import math

import pytest

from ridgeline.stats.short_runs import PRIOR_SPREAD, short_run_ratio


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
