"""Waves of admission, bootstrapping that times out, and KV that leaves no faster than it is made."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin import disaggregation
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.disaggregation import HANDSHAKE_S, PIECES_S, PORT_SHARE, RUN_TOKENS, KvTransfer, room
from ridgeline.serving.twin.priors import TOKENISE_S
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.simulate import build, simulate, step_time
from tests.twin import deployments as make


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


def test_first_tokens_wait_for_what_is_scarce():
    sent = parse_traffic("fixed:1024:64", requests=64)
    slots = simulate(make.split("P2D2", rank_limit=1), sent).ttft_parts_ms
    on_the_way = ("decode slot", "handshake", "prefill queue", "prompt", "KV transfer")
    assert list(slots) == ["front end", *on_the_way, "first step"]
    assert slots["front end"] == 0, "of an offline run"
    assert max(slots, key=slots.__getitem__) == "decode slot"
    free = simulate(make.split("P2D2"), parse_traffic("fixed:1024:64", requests=512))
    parts, ttft_ms = free.ttft_parts_ms, free.summary.ttft_ms
    assert ttft_ms is not None
    assert max(parts, key=parts.__getitem__) == "prefill queue"
    assert parts["handshake"] == pytest.approx(HANDSHAKE_S * 1000)
    assert sum(parts.values()) == pytest.approx(ttft_ms.mean, abs=1)
    assert min(parts.values()) >= 0
    one = simulate(make.split("P2D2"), parse_traffic("fixed:1024:64", requests=1)).ttft_parts_ms
    assert one["decode slot"] == one["prefill queue"] == 0
    assert parts["KV transfer"] < parts["prompt"]
    assert simulate(colocated(), sent).ttft_parts_ms == {}


def test_what_stands_in_front_of_split_roles_is_no_part_of_the_first_step():
    """Packing and tokenising take longer with the prompt; the decode batch that it joins does not."""
    short, long = (
        simulate(make.split("P2D2"), parse_traffic(f"fixed:{tokens}:64", requests=1, rate_s=1.0)).ttft_parts_ms
        for tokens in (1000, 11_000)
    )
    costs = engine_named("sglang").costs
    assert long["front end"] - short["front end"] == pytest.approx(1e7 * (TOKENISE_S + costs.hand_over_s), abs=0.2)
    assert long["first step"] == pytest.approx(short["first step"], abs=5)


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


def test_a_prefill_group_that_deals_in_turn_is_done_with_a_burst_sooner():
    sent = parse_traffic("fixed:1024:1", requests=64)
    drawn, in_turn = (
        simulate(make.split("P2D2", chunked_prefill_size=1024 * 16, dealt_in_turn=flag), sent) for flag in (False, True)
    )
    fullest = max(Counter(room(n) % 16 for n in range(64)).values())
    assert in_turn.last_ttft_s < drawn.last_ttft_s * (64 / 16 / fullest) * 1.2


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


def test_a_pool_is_the_sum_of_its_attention_ranks():
    """Each attention-DP rank has KV of its own; tensor-parallel ranks hold parts of the same tokens."""
    wide = make.r1("h200", tp=16, attn_dp=16, ep=16, nodes=2)
    assert step_time(wide, wide.layout, "both", Calibration(), kv_tokens_per_rank=1000)[2] == 16_000
    whole = make.r1("h200", tp=16, ep=16, nodes=2)
    assert step_time(whole, whole.layout, "both", Calibration(), kv_tokens_per_rank=1000)[2] == 1000
    _, plan, pool = step_time(wide, wide.layout, "both", Calibration())
    assert pool == 16 * plan.kv_tokens_per_rank


def sent_by(layout: Layout, page_size: int) -> KvTransfer:
    return KvTransfer.between(load_model("llama-8b"), layout, make_cluster("h100", 2, 8).fabric, 8, page_size)


def test_a_rank_sends_its_own_part_of_the_kv():
    """Llama 3.1 8B keeps 8 heads of 128 twice, in 2 bytes, in each of 32 layers: 128 KiB a token."""
    assert sent_by(Layout(tp=1), 1).bytes_per_token == 131_072
    assert sent_by(Layout(tp=8), 1).bytes_per_token == 131_072 / 8
    assert sent_by(Layout(tp=8, attn_dp=4), 1).bytes_per_token == 131_072 / 2, "two ranks share a request"


def test_small_pieces_are_posted_one_by_one_and_large_ones_fill_the_port():
    port = make_cluster("h100", 2, 8).fabric.bytes_s_per_gpu(8) * PORT_SHARE
    piece = 2 * 128 * 2  # of one head, one layer, one token
    assert sent_by(Layout(tp=8), 1).bytes_s == pytest.approx(PIECES_S * RUN_TOKENS * piece)
    assert sent_by(Layout(tp=8), 32).bytes_s == pytest.approx(PIECES_S * 32 * piece)
    assert sent_by(Layout(tp=8), 256).bytes_s == pytest.approx(port)
    one = sent_by(Layout(tp=8), 256)
    assert one.seconds(3000) == pytest.approx(3000 * 16_384 / port)


def test_the_first_token_waits_for_the_handshake_and_for_the_kv(monkeypatch: pytest.MonkeyPatch):
    """With a port so slow that nothing else matters; a prompt behind another waits for both."""
    ranks = [room(n) % 16 for n in range(64)]
    again = next(n for n in range(1, 64) if ranks[n] == ranks[0])
    sent = parse_traffic("fixed:1024:2", requests=again + 1)
    quick = simulate(make.split("P2D2"), sent).records
    monkeypatch.setattr(disaggregation, "PORT_SHARE", 1e-4)
    slow = simulate(make.split("P2D2"), sent).records
    base = make.split("P2D2")
    fabric, gpus = base.cluster.fabric, base.cluster.node.gpus
    each_s = KvTransfer.between(base.model, base.layout.prefill, fabric, gpus, base.settings.page_size).seconds(1024)
    assert each_s > 5
    assert quick[0].ttft_s > HANDSHAKE_S
    assert slow[0].ttft_s - quick[0].ttft_s == pytest.approx(each_s, rel=0.05)
    assert slow[again].ttft_s - quick[again].ttft_s == pytest.approx(2 * each_s, rel=0.1), "of the same rank's port"
    other = next(n for n in range(1, again + 1) if ranks[n] != ranks[0] and ranks.index(ranks[n]) == n)
    assert slow[other].ttft_s - quick[other].ttft_s == pytest.approx(each_s, rel=0.1), "a port of its own"


def test_slots_and_room_are_set_aside_and_given_back():
    front, _, _ = build(make.split("P2D2", rank_limit=1), Calibration(), parse_traffic("fixed:1024:2", requests=1))
    (decode,) = front.decode
    requests = [Request(arrival, 0.0, 1024) for arrival in parse_traffic("fixed:1024:2", requests=40).arrivals()]
    decode.bootstrapping.extend((request, 0.0, None) for request in requests)
    taken = []
    while (found := decode.reserve()) is not None:
        taken.append(found[0])
    assert taken == requests[: decode.applied.running_limit], "in turn, and no more than may run"
    assert (decode.expected, decode.promised_tokens) == (len(taken), 1024 * len(taken))
    decode.receive(taken[0], 3.0)
    assert (decode.expected, decode.promised_tokens) == (len(taken) - 1, 1024 * (len(taken) - 1))
    assert decode.used_tokens == taken[0].held == 1024
    assert taken[0].first_s == 3.0
    assert decode.reserve() is None, "it runs now, in the same slot"


# Requests a second that decode takes at once, that fill its slots now and then, and that overfill them all the time.
@pytest.mark.parametrize(("rate_s", "rank_limit"), [(20, None), (4, 1), (6, 1)])
def test_decode_engines_that_are_left_alone_do_what_they_do_when_watched(
    monkeypatch: pytest.MonkeyPatch, rate_s: float, rank_limit: int | None
):
    asked = make.split("P2x2D3x2", rank_limit=rank_limit), parse_traffic("fixed:600:250", requests=600, rate_s=rate_s)
    alone = simulate(*asked)
    monkeypatch.setattr(disaggregation.Disaggregated, "_apart", False)
    watched = simulate(*asked)
    assert alone.summary.ok == watched.summary.ok == 600
    assert alone.summary.duration_s == pytest.approx(watched.summary.duration_s, rel=0.01)
    for latency in ("ttft_ms", "itl_ms", "e2e_ms"):
        mine, others = getattr(alone.summary, latency), getattr(watched.summary, latency)
        assert (mine.mean, mine.p95) == pytest.approx((others.mean, others.p95), rel=0.01), latency
    for part, waited_ms in watched.ttft_parts_ms.items():
        assert alone.ttft_parts_ms[part] == pytest.approx(waited_ms, rel=0.01, abs=2), part
