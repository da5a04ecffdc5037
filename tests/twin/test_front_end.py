"""What stands between users and an engine: tokenizers, the scheduler's look, and streams."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.traffic.traffic import AllAtOnce, Arrival, ClosedLoop, Fixed, OpenLoop, Traffic
from ridgeline.serving.twin.calibration import Calibration, Factors
from ridgeline.serving.twin.front_end import FrontEnd, Tokenizers
from ridgeline.serving.twin.simulate import simulate
from tests.twin import deployments as make

SLOW = FrontEnd(accept_s=0.010, token_s=1e-3, hand_over_s=0.0, stream_s=1e-4)
PROMPTS = [Arrival(number, 0.0, 100, 10) for number in range(4)]


def test_prompts_sent_together_wait_for_one_tokenizer() -> None:
    ready = [at_s for at_s, _ in Tokenizers(SLOW).all_ready(PROMPTS)]
    assert ready == pytest.approx([0.110, 0.210, 0.310, 0.410])


def test_a_second_tokenizer_halves_the_queue() -> None:
    ready = [at_s for at_s, _ in Tokenizers(replace(SLOW, tokenizers=2)).all_ready(PROMPTS)]
    assert ready == pytest.approx([0.110, 0.110, 0.210, 0.210])


def test_a_long_prompt_is_overtaken_on_its_way_and_order_is_that_of_arrival_at_the_scheduler() -> None:
    ways = replace(SLOW, hand_over_s=1e-2)
    ready = Tokenizers(ways).all_ready([Arrival(0, 0.0, 100, 1), Arrival(1, 0.0, 1, 1)])
    assert [arrival.number for _, arrival in ready] == [1, 0]


def test_a_token_waits_for_the_streams_of_its_step_and_a_request_for_the_step_already_launched() -> None:
    assert SLOW.late_s(others=49, step_s=0.008) == pytest.approx(50 * 1e-4 + 0.008)
    assert SLOW.late_s(others=0, step_s=0.008) == pytest.approx(1e-4)
    assert replace(SLOW, detokenizers=2).late_s(49, 0.0) == pytest.approx(25 * 1e-4)
    assert replace(SLOW, overlap=False).late_s(49, 0.008) == pytest.approx(50 * 1e-4)


def served(pace: object, **settings: object):
    return simulate(make.llama(**settings), Traffic(Fixed(500, 50), 60, pace))  # type: ignore[arg-type]


@pytest.mark.parametrize("pace", [ClosedLoop(8), OpenLoop(10.0)])
def test_served_loads_pass_it_and_offline_runs_do_not(pace: object) -> None:
    of = make.llama()
    traffic = Traffic(Fixed(500, 50), 60, pace)  # type: ignore[arg-type]
    bare, whole = (simulate(of, traffic, front_end=on).summary for on in (False, True))
    assert bare.ttft_ms is not None
    assert whole.ttft_ms is not None
    assert whole.ttft_ms.p50 - bare.ttft_ms.p50 > 8.0
    burst = replace(traffic, pace=AllAtOnce())
    with_it, without = (simulate(of, burst, front_end=on).records for on in (True, False))
    assert [(r.first_token_s, r.end_s) for r in with_it] == [(r.first_token_s, r.end_s) for r in without]


def test_the_next_of_a_closed_loop_is_sent_when_the_user_has_seen_an_end() -> None:
    records = served(ClosedLoop(1)).records
    for one, following in itertools.pairwise(records):
        assert following.sent_s == pytest.approx(one.end_s)


def test_the_factor_of_a_calibration_makes_it_slower() -> None:
    traffic = Traffic(Fixed(500, 50), 40, OpenLoop(2.0, 0.0))
    plain, slow = (
        simulate(make.llama(), traffic, Calibration(factors=Factors(front_end=factor))).summary.ttft_ms
        for factor in (1.0, 3.0)
    )
    assert plain is not None
    assert slow is not None
    front_end = FrontEnd.of(EngineSettings(), make.llama().layout, overlap=True)
    alone_ms = 1000 * (front_end.accept_s + 500 * (front_end.token_s + front_end.hand_over_s) + front_end.stream_s)
    assert slow.p50 - plain.p50 == pytest.approx(2 * alone_ms, rel=0.05)


def test_more_tokenizers_help_a_burst_of_long_prompts() -> None:
    def first_s(workers: int) -> float:
        found = simulate(make.llama(tokenizer_workers=workers), Traffic(Fixed(8000, 20), 64, OpenLoop(400.0, 0.0)))
        return min(r.first_token_s - r.sent_s for r in found.records[-8:])  # type: ignore[operator]

    assert first_s(4) <= first_s(1)


def test_no_workers_are_refused() -> None:
    with pytest.raises(InputError, match="tokenizer_workers is 0"):
        EngineSettings(tokenizer_workers=0)


def small_on_many(**settings: object):
    """A small model on eight GPUs makes more tokens than one process can send."""
    return make.llama(tp=8, version=(0, 5, 9), **settings)


def test_no_more_tokens_reach_users_than_one_process_can_send() -> None:
    costs = engine_named("sglang").front_end_costs((0, 5, 9))
    load = Traffic(Fixed(200, 200), 1024, ClosedLoop(512))
    bare, served_ = (simulate(small_on_many(), load, front_end=on).summary for on in (False, True))
    assert bare.output_tok_s > 1.5 / costs.send_s
    assert served_.output_tok_s < 1.0 / costs.send_s
    assert served_.tpot_ms is not None
    assert served_.tpot_ms.p50 > 0.6 * 512 * costs.send_s * 1000


@pytest.mark.parametrize("settings", [{"stream_interval": 10}, {"tokenizer_workers": 4}])
def test_fewer_messages_or_more_processes_send_more_tokens(settings: dict[str, int]) -> None:
    load = Traffic(Fixed(200, 200), 1024, ClosedLoop(512))
    one, more = (simulate(small_on_many(**given), load).summary.output_tok_s for given in ({}, settings))
    assert more > 1.3 * one


def test_a_rate_beyond_what_is_sent_shows_in_first_tokens_and_gaps() -> None:
    limit_s = 1 / (3000 * engine_named("sglang").front_end_costs((0, 5, 9)).send_s)  # requests a second
    below, above = (
        simulate(small_on_many(), Traffic(Fixed(200, 3000), 150, OpenLoop(share * limit_s, 0.0))).summary
        for share in (0.6, 1.4)
    )
    assert below.ttft_ms is not None
    assert above.ttft_ms is not None
    assert above.ttft_ms.p95 > 3 * below.ttft_ms.p95
    assert above.output_tok_s < 1.05 / engine_named("sglang").front_end_costs((0, 5, 9)).send_s


@pytest.mark.parametrize("pace", [ClosedLoop(256), OpenLoop(180.0)])
def test_gaps_of_a_request_add_up_to_its_time_also_behind_a_backlog(pace: object) -> None:
    for record in simulate(small_on_many(), Traffic(Fixed(200, 150), 600, pace)).records:  # type: ignore[arg-type]
        assert record.first_token_s is not None
        assert record.end_s is not None
        spent_s = sum(gap * count for gap, count in record.gaps_s)
        assert spent_s == pytest.approx(record.end_s - record.first_token_s)
        assert min(gap for gap, _ in record.gaps_s) > 0
