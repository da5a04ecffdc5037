"""Which experts a pass touches: fewer than even routing would, and unequally over expert ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serving.model.layer_parts import Experts
from ridgeline.serving.twin.operators import fullest_load, fullest_share, touched

EXPERTS = Experts(count=256, per_token=8, width=2048)


@given(st.integers(1, 4096), st.sampled_from([1, 2, 8, 256]))
def test_more_tokens_touch_more_experts_never_more_than_even_routing(tokens: int, per_token: int) -> None:
    experts = Experts(count=256, per_token=per_token, width=2048)
    found = touched(experts, tokens)
    assert per_token - 1e-9 <= found <= experts.touched(tokens) + 1e-6
    assert touched(experts, tokens + 1) >= found - 1e-9


def test_preferred_experts_leave_a_quarter_of_a_batch_of_64_untouched() -> None:
    assert touched(EXPERTS, 64) / 256 == pytest.approx(0.766, abs=0.005)
    assert EXPERTS.touched(64) / 256 == pytest.approx(0.87, abs=0.01)


def test_few_tokens_fall_on_few_ranks() -> None:
    """32 routed copies over eight ranks: the fullest gets six or seven where the mean is four."""
    few = fullest_share(EXPERTS, touched(EXPERTS, 4), 8)
    assert few == pytest.approx(1.7, abs=0.1)
    assert fullest_share(EXPERTS, 255.0, 8) == pytest.approx(256 / 255)  # no rank holds more than all of its experts
    assert fullest_share(EXPERTS, 32.0, 1) == 1.0


def test_the_fullest_rank_computes_a_fifth_more_however_many_tokens_come() -> None:
    """A sum of 32 of 256 log-normal popularities has a variation of 0.13; the largest of eight lies 1.42 of them up."""
    assert fullest_load(EXPERTS, 1e9, 8) == pytest.approx(1.19, abs=0.01)
    assert fullest_load(EXPERTS, 1e9, 1) == 1.0


@given(st.floats(0.1, 1e5), st.sampled_from([2, 4, 8, 16, 32, 64]))
def test_loads_are_less_even_with_fewer_tokens_and_with_more_ranks(tokens: float, ranks: int) -> None:
    found = fullest_load(EXPERTS, tokens, ranks)
    assert 1.0 < found <= ranks
    assert fullest_load(EXPERTS, 2 * tokens, ranks) <= found <= fullest_load(EXPERTS, tokens, 2 * ranks)
