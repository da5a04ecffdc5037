from __future__ import annotations

import math
import random
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.stats.student import interval, t_quantile, two_sided_p


@given(p=st.floats(1e-6, 1 - 1e-6), df=st.floats(1, 500))
def test_quantile_is_that_of_scipy(p: float, df: float) -> None:
    import scipy.stats  # here: it takes a second, and every worker collects every file

    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-7, abs=1e-9)


@given(t=st.floats(-60, 60), df=st.floats(1, 500))
def test_probabilities_are_those_of_scipy(t: float, df: float) -> None:
    import scipy.stats

    assert two_sided_p(t, df) == pytest.approx(2 * scipy.stats.t.sf(abs(t), df), rel=1e-8, abs=1e-14)


def test_a_quantile_outside_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        t_quantile(1.0, 3)


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng = random.Random(5)
    held = 0
    for _ in range(2000):
        values = [rng.gauss(3.0, 1.0) for _ in range(5)]
        low, high = interval(fmean(values), stdev(values) / math.sqrt(5), 4, 0.9)
        held += low <= 3.0 <= high
    assert abs(held / 2000 - 0.9) < 0.02
    assert interval(0.0, 0.0, 4, 0.9, math.exp) == (1.0, 1.0)


def test_intervals_are_made_in_one_place() -> None:
    """Elsewhere nothing multiplies a quantile by an error but plans: the smallest effect to be shown, blocks needed."""
    source = Path(__file__).parents[2] / "src" / "ridgeline"
    users = {p.relative_to(source).as_posix() for p in source.rglob("*.py") if re.search("t_quantile", p.read_text())}
    assert users == {"stats/student.py", "stats/compare.py", "stats/equivalence.py"}
    assert not [p for p in source.rglob("*.py") if p.name != "student.py" and "half_width" in p.read_text()]
