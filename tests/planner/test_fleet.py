"""Fleet size: DeepSeek's published day, conservation of tokens, and refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.planner.fleet import size_fleet


def test_deepseeks_day() -> None:
    fleet = size_fleet(608e9, 168e9, 73.7e3, 14.8e3)
    assert round(fleet.prefill_nodes, 1) == 95.5
    assert round(fleet.decode_nodes, 1) == 131.4
    assert round(fleet.total_nodes, 1) == 226.9
    assert fleet.prefill_whole + fleet.decode_whole == 228


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0.05, 1))
def test_the_fleet_serves_exactly_the_day(tokens_in, tokens_out, prefill, decode, busy) -> None:
    fleet = size_fleet(tokens_in, tokens_out, prefill, decode, busy)
    assert fleet.prefill_nodes * prefill * 86_400 * busy == pytest.approx(tokens_in)
    assert fleet.decode_nodes * decode * 86_400 * busy == pytest.approx(tokens_out)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((1, 1, 0, 1), "--prefill-tok-s"),
        ((1, 1, 1, float("nan")), "--decode-tok-s"),
        ((-1, 1, 1, 1), "--input-tokens-per-day"),
        ((0, 0, 1, 1), "nothing to size"),
        ((1, 1, 1, 1, 0), "--utilisation"),
    ],
)
def test_nonsense_is_refused(arguments, word) -> None:
    with pytest.raises(InputError, match=word):
        size_fleet(*arguments)
