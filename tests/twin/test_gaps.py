"""Times between tokens: none is zero, none is lost, and what an engine sums up is what its requests saw."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.serving.traffic.traffic import Fixed, Traffic
from ridgeline.serving.twin.gaps import TokenPace
from ridgeline.serving.twin.simulate import simulate
from tests.twin import deployments as make

means = st.floats(1, 8) | st.integers(10, 80).map(lambda tenths: tenths / 10)


@given(means, st.integers(0, 10**7), st.integers(1, 500))
@example(1.9, 0, 19)
@example(1.0, 5, 3)
def test_every_step_brings_a_token_and_on_average_what_was_said(mean: float, first: int, steps: int):
    pace = TokenPace(mean)
    each = [pace.tokens(first + n, 1) for n in range(steps)]
    assert all(int(mean) <= tokens <= mean + 1 for tokens in each)
    assert sum(each) == pace.tokens(first, steps)
    assert sum(each) == pytest.approx(steps * mean, abs=1.1)


@given(means, st.integers(0, 10**7), st.integers(1, 5000))
@example(1.9, 0, 19)
@example(3.8, 0, 95)
def test_it_takes_as_many_steps_as_needed_and_no_more(mean: float, first: int, tokens: int):
    pace = TokenPace(mean)
    steps = pace.steps(first, tokens)
    assert pace.tokens(first, steps) >= tokens
    assert pace.tokens(first, steps - 1) < tokens


@given(means, st.integers(0, 10**6), st.integers(0, 500), st.floats(1e-4, 1))
def test_the_time_of_a_step_is_spread_over_its_tokens(mean: float, first: int, steps: int, gap_s: float):
    pace = TokenPace(mean)
    spread = list(pace.spread(gap_s, first, steps))
    assert sum(count for _, count in spread) == pace.tokens(first, steps)
    assert sum(gap * count for gap, count in spread) == pytest.approx(gap_s * steps)
    assert all(gap > 0 and count > 0 for gap, count in spread)


def test_tokens_that_come_together_share_the_time_of_their_step():
    """Two tokens a step: bench_serving halves the time between chunks, and so do we; the last step is cut to one."""
    sent = Traffic(Fixed(100, 21), 1)
    plain = simulate(make.llama(draft_tokens=2, accept_length=1.0), sent).records[0]
    paired = simulate(make.llama(draft_tokens=2, accept_length=2.0), sent).records[0]
    assert len([gap for gap, count in plain.gaps_s for _ in range(count)]) == 20
    step_s = next(iter(plain.gaps_s))[0]
    assert [gap for gap, count in paired.gaps_s for _ in range(count)] == pytest.approx([step_s / 2] * 20, rel=0.01)
    cut = simulate(make.llama(draft_tokens=2, accept_length=2.0), Traffic(Fixed(100, 20), 1)).records[0]
    assert [gap for gap, count in cut.gaps_s for _ in range(count)] == pytest.approx(
        [step_s / 2] * 18 + [step_s], rel=0.01
    )


def test_a_request_that_was_sent_back_saw_one_long_gap_and_the_summary_knows_it():
    sent = Traffic(Fixed(200, 400), 40)
    tight = simulate(make.llama(schedule_conservativeness=0.05), sent, kv_tokens_per_rank=9000)
    assert tight.retractions > 0
    gaps = [gap for r in tight.records for gap, _ in r.gaps_s]
    assert max(gaps) > 20 * min(gaps)
    spoken_s = sum(gap * count for r in tight.records for gap, count in r.gaps_s)
    assert tight.summary.itl_ms.mean == pytest.approx(1000 * spoken_s / (40 * 399), rel=1e-9)
