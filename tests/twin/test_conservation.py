"""What no simulated run may break: tokens, time and memory are conserved, whatever the traffic and settings."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from ridgeline.serving.traffic.requests import Slo, Spread
from ridgeline.serving.traffic.traffic import ClosedLoop, Fixed, Traffic, parse_traffic
from ridgeline.serving.twin.simulate import SimulationResult, simulate
from tests.twin import deployments as make

slow = example_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check(result: SimulationResult, sent: Traffic) -> None:
    arrivals = sent.arrivals()
    assert [r.number for r in result.records] == [a.number for a in arrivals]
    for record, arrival in zip(result.records, arrivals, strict=True):
        assert record.ok
        assert (record.input_tokens, record.output_tokens) == (arrival.input_tokens, arrival.output_tokens)
        assert record.first_token_s is not None
        assert record.end_s is not None
        assert arrival.at_s <= record.sent_s < record.first_token_s <= record.end_s
        assert sum(n for _, n in record.gaps_s) == record.output_tokens - 1
        assert all(gap > 0 for gap, _ in record.gaps_s)
        spoken_s = sum(gap * n for gap, n in record.gaps_s)
        assert spoken_s == pytest.approx(record.end_s - record.first_token_s, rel=1e-6, abs=1e-9)
    gaps = [run for record in result.records for run in record.gaps_s]
    seen = Spread.of([gap for gap, _ in gaps], [count for _, count in gaps])
    told = result.summary.itl_ms
    assert (seen is None) == (told is None)
    if seen and told:  # the engines' own sums are those of the requests
        assert [told.mean, told.p50, told.p99] == pytest.approx([seen.mean, seen.p50, seen.p99], rel=1e-6)
    times = [at for at, _ in result.kv_usage]
    assert all(b >= a for a, b in pairwise(times))
    assert all(-1e-9 <= used <= 1 + 1e-9 for _, used in result.kv_usage)
    assert result.kv_usage[-1][1] == pytest.approx(0, abs=1e-6)


@slow
@given(make.traffic(), make.settings)
def test_tokens_time_and_memory_are_conserved(sent: Traffic, chosen: dict):
    check(simulate(make.llama(**chosen), sent), sent)


@slow
@given(make.traffic(60), st.integers(4000, 9000))
def test_a_tight_pool_retracts_but_never_overflows(sent: Traffic, pool: int):
    longest = sent.longest_tokens()
    deployment = make.llama(schedule_conservativeness=0.05)
    check(simulate(deployment, sent, kv_tokens_per_rank=max(pool, longest + 1)), sent)


@slow
@given(make.traffic(60), st.sampled_from(["P2D2", "P2x2D2"]), st.sampled_from([None, 1, 4]))
def test_disaggregated_runs_conserve_too(sent: Traffic, words: str, limit: int | None):
    result = simulate(make.split(words, rank_limit=limit), sent)
    if not result.summary.errors:
        check(result, sent)


@slow
@given(make.traffic(60), st.sampled_from(["round-robin", "least-load", "cache-aware"]))
def test_replicas_share_the_work(sent: Traffic, routing: str):
    one = make.llama()
    layout = replace(one.layout, dp=3, nodes=1, gpus_per_node=3)
    three = replace(one, layout=layout, cluster=replace(one.cluster, node=replace(one.cluster.node, gpus=3)))
    result = simulate(replace(three, routing=routing), sent)
    check(result, sent)
    if routing == "round-robin" and sent.requests >= 3:
        shares = Counter(r.worker for r in result.records).values()
        assert max(shares) - min(shares) <= 1


@slow
@given(make.traffic())
def test_same_seed_same_result(sent: Traffic):
    first, second = (simulate(make.llama(), sent, slos=[Slo.parse("ttft_p95_ms=100")]) for _ in range(2))
    assert first.summary == second.summary
    assert [r.end_s for r in first.records] == [r.end_s for r in second.records]


@slow
@given(st.integers(1, 20), st.integers(1, 60))
def test_a_closed_loop_never_exceeds_its_concurrency(concurrency: int, count: int):
    sent = Traffic(Fixed(100, 20), count, ClosedLoop(concurrency))
    records = simulate(make.llama(), sent).records
    # at one instant an ending comes before the request it makes room for
    moments = sorted([(r.sent_s, 1) for r in records] + [(r.end_s or 0.0, -1) for r in records])
    under_way = 0
    for _, change in moments:
        under_way += change
        assert under_way <= concurrency


def test_retraction_happens_and_costs_time():
    sent = parse_traffic("fixed:200:400", requests=40)
    roomy = simulate(make.llama(schedule_conservativeness=0.05), sent)
    tight = simulate(make.llama(schedule_conservativeness=0.05), sent, kv_tokens_per_rank=9000)
    assert roomy.retractions == 0
    assert tight.retractions > 0
    assert tight.summary.duration_s > roomy.summary.duration_s


def test_speculative_decoding_keeps_the_tokens_and_saves_time():
    sent = parse_traffic("fixed:100:200", requests=4)
    plain = simulate(make.llama(), sent)
    drafted = simulate(make.llama(accept_length=2.5, draft_tokens=4), sent)
    check(drafted, sent)
    assert drafted.summary.duration_s < plain.summary.duration_s


def test_shared_beginnings_are_computed_once(tmp_path):
    trace = tmp_path / "trace.jsonl"
    line = '{"timestamp": %d, "input_length": 2048, "output_length": 4, "hash_ids": [1, 2, 3, %d]}'
    trace.write_text("\n".join(line % (n * 1000, 10 + n) for n in range(5)))
    sent = parse_traffic(str(trace))
    cached = [r.cached_tokens for r in simulate(make.llama(), sent).records]
    assert cached == [0, 1536, 1536, 1536, 1536]
    assert not any(r.cached_tokens for r in simulate(make.llama(radix_cache=False), sent).records)
