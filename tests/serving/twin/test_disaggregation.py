"""Waves of admission, bootstrapping that times out, and KV that leaves no faster than it is made."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.prefill import room
from ridgeline.serving.twin.simulate import simulate
from tests.serving.twin import deployments as make


def colocated():
    base = make.r1("h800", tp=16, attn_dp=16, ep=16)
    chosen = replace(base.settings, max_running_requests=128, cuda_graph_max_bs=0, mem_fraction=0.81, radix_cache=False)
    return replace(base, settings=chosen)


def test_ttft_takes_off_where_a_burst_exceeds_the_running_limit():
    last = {n: simulate(colocated(), parse_traffic("fixed:128:128", requests=n)).last_ttft_s for n in (64, 128, 256)}
    whole = simulate(colocated(), parse_traffic("fixed:128:128", requests=128)).summary.duration_s
    assert last[128] < 3 * last[64]
    assert last[256] == pytest.approx(whole + last[128], rel=0.1)  # the second wave waits for the whole first


def test_eight_waves_take_eight_times_as_long():
    one, eight = (simulate(colocated(), parse_traffic("fixed:128:64", requests=n)).summary for n in (128, 1024))
    assert eight.duration_s == pytest.approx(8 * one.duration_s, rel=0.05)


def test_a_request_without_a_decode_slot_fails_in_bootstrapping():
    sent = parse_traffic("fixed:1024:400", requests=400)
    result = simulate(make.split("P2D2", rank_limit=1), sent)
    assert result.summary.errors.get("kv-transfer", 0) > 0
    failed = next(r for r in result.records if not r.ok)
    assert "Bootstrapping" in failed.error
    assert failed.end_s == pytest.approx(120)
    assert result.summary.ok + result.summary.errors["kv-transfer"] == 400


def test_ports_carry_what_prefill_makes_and_no_more():
    result = simulate(make.split("P4D6"), parse_traffic("fixed:1024:32", requests=1024))
    assert result.kv_transfer_bytes_s is not None
    assert result.kv_transfer_bytes_s < 356e6  # what the published study saw at most, on ports of 50 GB/s


def test_two_prefill_groups_are_faster_than_one():
    sent = parse_traffic("fixed:2000:8", requests=512)
    one, two = (simulate(make.split(words), sent).last_ttft_s for words in ("P2D4", "P2x2D4"))
    assert one > 1.6 * two


def test_ranks_of_a_prefill_group_get_unequal_shares_and_a_burst_waits_for_the_fullest():
    counts = Counter(room(n) % 16 for n in range(1024))
    assert len(counts) == 16
    assert 70 < max(counts.values()) < 95  # 64 on average; an even deal would give exactly that
    sent = parse_traffic("fixed:1024:1", requests=64)
    fullest = max(Counter(room(n) % 16 for n in range(64)).values())
    result = simulate(make.split("P2D2", chunked_prefill_size=1024 * 16), sent)
    lone = simulate(make.split("P2D2", chunked_prefill_size=1024 * 16), parse_traffic("fixed:1024:1", requests=1))
    rounds = result.last_ttft_s / lone.last_ttft_s
    assert fullest * 0.6 < rounds < fullest * 1.6


def test_a_prefix_that_a_prefill_rank_has_seen_is_not_computed_again(tmp_path: Path):
    ranks = [room(n) % 16 for n in range(64)]
    again = next(n for n in range(1, 64) if ranks[n] == ranks[0])
    other = next(n for n in range(1, again + 1) if ranks[n] != ranks[0])
    lines = [
        {"timestamp": 5000 * n, "input_length": 4096, "output_length": 2, "hash_ids": list(range(8))}
        for n in range(again + 1)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)) + "\n")
    records = simulate(make.split("P2D2"), parse_traffic(str(trace))).records
    assert (records[0].cached_tokens, records[other].cached_tokens) == (0, 0)  # each rank has a cache of its own
    assert records[again].cached_tokens == 4095
    assert records[again].ttft_s < records[0].ttft_s


def test_a_decode_engine_that_looks_seldom_finds_its_requests_late():
    sent = parse_traffic("lognormal:512:200", requests=60, concurrency=12)
    often, seldom = (simulate(make.split("P2D2", recv_interval=n), sent).summary for n in (1, 30))
    waited_s = (seldom.ttft_ms.p50 - often.ttft_ms.p50) / 1000
    step_s = often.itl_ms.p50 / 1000
    assert 5 * step_s < waited_s < 31 * step_s
    assert seldom.requests == often.requests == 60
