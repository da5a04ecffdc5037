from __future__ import annotations

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.stats.student import t_quantile, two_sided_p


@given(p=st.floats(1e-6, 1 - 1e-6), df=st.floats(1, 500))
def test_quantile_is_that_of_scipy(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-7, abs=1e-9)


@given(t=st.floats(-60, 60), df=st.floats(1, 500))
def test_probabilities_are_those_of_scipy(t: float, df: float) -> None:
    assert two_sided_p(t, df) == pytest.approx(2 * scipy.stats.t.sf(abs(t), df), rel=1e-8, abs=1e-14)


def test_a_quantile_outside_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        t_quantile(1.0, 3)
