"""Which experts a pass touches: fewer than even routing would, and unequally over expert ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.model.layer_parts import Experts
from ridgeline.twin.kernels.routing import fullest_share, touched
from ridgeline.twin.priors import EXPERT_IMBALANCE

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
    assert fullest_share(EXPERTS, 255.0, 8) == pytest.approx(min(EXPERT_IMBALANCE, 256 / 255))
    assert fullest_share(EXPERTS, 32.0, 1) == 1.0
