"""What an engine needs beside weights and KV pool, added up by hand; and what is exactly enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.engines.layout import Layout, rank_kv_bytes_per_token
from ridgeline.engines.memory import (
    FITS,
    RUNTIME_OOM,
    STARTUP_OOM,
    _judge,
    _mostly_eager_in_triton,
    _pool,
    _power_of_two,
    _reserve_needs,
    _running_limit,
    _stage_weight_bytes,
    _triton_bytes_per_request,
    decode_graph_sizes,
    free_bytes,
    plan_memory,
    prefill_graph_sizes,
    roomiest_plan,
)
from ridgeline.engines.settings import EngineSettings, resolve
from ridgeline.hardware.cluster import GIB, load_gpu
from ridgeline.model.config import load_model

H200 = load_gpu("h200")
LLAMA, R1, LITE = load_model("llama-8b"), load_model("deepseek-r1"), load_model("deepseek-v2-lite")
ONE = Layout(gpus_per_node=1)


def test_captured_sizes_are_counted_one_by_one() -> None:
    decode = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 2000, 32)]
    prefill = [
        *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
        *range(4608, 20000, 512),
    ]  # fmt: skip
    for most in (1, 2, 3, 4, 12, 15, 16, 24, 160, 256, 257, 272, 500, 511, 512, 543, 544, 1024):
        assert decode_graph_sizes(most) == sum(size <= most for size in decode), most
    for chunk in (4, 31, 32, 48, 256, 288, 512, 575, 576, 1024, 1280, 2048, 4096, 4608, 8192):
        assert prefill_graph_sizes(chunk) == sum(size <= chunk for size in prefill), chunk
    assert [_power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 132)] == [1, 1, 2, 4, 4, 8, 256]


def test_what_tritons_attention_keeps_for_a_request() -> None:
    assert _triton_bytes_per_request(LLAMA, H200, ONE) == 32 * 8 * 128 * 4
    assert _triton_bytes_per_request(LLAMA, H200, Layout(tp=4, gpus_per_node=4)) == 8 * 8 * 128 * 4
    assert _triton_bytes_per_request(LITE, H200, ONE) == 16 * 256 * LITE.attention.latent * 4
    short = replace(LITE, context_tokens=32 * 20)
    assert _triton_bytes_per_request(short, H200, ONE) == 16 * 32 * LITE.attention.latent * 4, (
        "as many splits as blocks"
    )


def needs(model: Any, layout: Layout, role: str = "both", limit: int = 64, batch: int = 32, **settings: Any) -> Any:
    applied = resolve(EngineSettings(**settings), model, H200, layout, 10**6)
    return applied, _reserve_needs(model, H200, layout, applied, limit, batch, role)


@pytest.mark.parametrize("role", ["both", "prefill", "decode"])
def test_needs_of_a_dense_model_on_one_gpu(role: str) -> None:
    applied, found = needs(LLAMA, ONE, role, attention_backend="fa3")
    decode = decode_graph_sizes(applied.graph_max_bs) if role != "prefill" else 0
    prefill = prefill_graph_sizes(applied.chunk_tokens) if role != "decode" and applied.prefill_graph else 0
    tokens = 32 if role == "decode" else applied.chunk_tokens
    a, h = LLAMA.attention, LLAMA.hidden
    widest = max(tokens * (a.heads * a.head_dim + a.kv_values) * 2.0, tokens * 3.0 * LLAMA.ffn_width * 2)
    assert found == pytest.approx({
        "request table": 64 * LLAMA.context_tokens * 4.0,
        "cuda graphs": (decode + prefill) * LLAMA.layers * 0.2e6,
        "attention workspace": 0.5 * GIB,
        "activations": 4.0 * h * 2 * tokens + widest,
        "logits": 32 * LLAMA.vocab * 10.0,
        "libraries and fragments": 1.0 * GIB + 0.02 * H200.memory_bytes,
    })  # fmt: skip


def test_several_gpus_need_buffers_to_talk_and_more_of_them_between_nodes() -> None:
    def communication(layout: Layout) -> float:
        return float(needs(R1, layout)[1].get("communication", 0.0)) / GIB

    assert communication(Layout(tp=8)) == 0.5 and communication(Layout(tp=16, nodes=2)) == 2.0
    assert communication(Layout(tp=8, pp=2, nodes=2)) == 0.5, "only pipeline stages are on different nodes"
    assert communication(Layout(tp=16, ep=16, attn_dp=16, nodes=2)) == 3.0, "DeepEP has buffers of its own"
    assert "communication" not in needs(LLAMA, ONE)[1]


def test_an_eager_step_of_triton_holds_its_buffer_twice() -> None:
    applied, within = needs(LITE, ONE, batch=8, attention_backend="triton")
    each = _triton_bytes_per_request(LITE, H200, ONE)
    captured = applied.graph_max_bs
    assert within["attention workspace"] == min(captured, 64) * each
    assert "attention buffers beyond the graphs" not in within
    _, at = needs(LITE, ONE, batch=captured, limit=4096, attention_backend="triton")
    assert "attention buffers beyond the graphs" not in at and at["attention workspace"] == captured * each
    _, beyond = needs(LITE, ONE, batch=captured + 1, limit=4096, attention_backend="triton")
    assert beyond["attention buffers beyond the graphs"] == 2 * (captured + 1) * each
    assert beyond["activations"] == max(0.0, at["activations"] - beyond["attention buffers beyond the graphs"])
    _, prefill = needs(LITE, ONE, "prefill", batch=captured + 1, attention_backend="triton")
    assert "attention buffers beyond the graphs" not in prefill


def test_what_is_free_before_the_weights() -> None:
    free = H200.memory_bytes - 1.25 * GIB
    assert free_bytes(H200, ONE) == free
    assert free_bytes(H200, Layout(tp=8)) == free_bytes(H200, Layout(pp=2, tp=4)) == free - GIB
    assert free_bytes(H200, Layout(tp=8, attn_dp=8)) == free - 2 * GIB


def test_the_pool_is_that_of_the_tightest_stage() -> None:
    layout = Layout(tp=8, pp=3, nodes=3)  # 61 layers: stages of unequal length
    free = 100.0 * GIB
    weights = [_stage_weight_bytes(R1, layout, stage) for stage in range(3)]
    each = [rank_kv_bytes_per_token(R1, layout, stage) for stage in range(3)]
    assert len(set(weights)) > 1
    heaviest, tokens, left = _pool(R1, layout, free, 0.9)
    assert heaviest == max(weights) and left == pytest.approx(0.9 * free - max(weights))
    assert tokens == min(int((0.9 * free - w) // k) for w, k in zip(weights, each, strict=True))
    drafted, fewer, _ = _pool(R1, layout, free, 0.9, drafting=True)
    layers = [len(stage) for stage in layout.stage_layers(R1.layers)]
    assert (
        drafted == pytest.approx(max(w * (1 + 1 / n) for w, n in zip(weights, layers, strict=True))) and fewer < tokens
    )
    assert _pool(R1, layout, 1.0 * GIB, 0.9)[1] == 0, "never below nothing"


@pytest.mark.parametrize(
    ("asked", "groups", "tokens", "limit"),
    [
        (64, 1, 10**6, 64),
        (64, 8, 10**6, 8),
        (4, 8, 10**6, 1),
        (64, 1, 100, 50),
        (None, 1, 10**6, 4096),
        (None, 1, 3, 1),
    ],
)
def test_the_running_limit(asked: int | None, groups: int, tokens: int, limit: int) -> None:
    settings = EngineSettings(max_running_requests=asked)
    assert _running_limit(settings, LLAMA, Layout(tp=8, attn_dp=groups), tokens) == limit or asked is None
    if asked is None:
        own = int(min(max(tokens / LLAMA.context_tokens * 512, 2048), 4096))
        assert _running_limit(settings, LLAMA, ONE, tokens) == max(1, min(own, tokens // 2))


@pytest.mark.parametrize(
    ("weights", "free", "room", "reserve", "need", "verdict", "margin"),
    [
        (10, 10, 5, 5, 1, STARTUP_OOM, 0),
        (11, 10, 5, 5, 1, STARTUP_OOM, -1),
        (9, 10, 0, 5, 1, STARTUP_OOM, 0),
        (9, 10, -2, 5, 1, STARTUP_OOM, -2),
        (9, 10, 1, 5, 6, RUNTIME_OOM, -1),
        (9, 10, 1, 5, 5, FITS, 0),
        (9, 10, 1, 5, 3, FITS, 2),
    ],
)
def test_the_verdict_where_it_is_exactly_enough(
    weights: float, free: float, room: float, reserve: float, need: float, verdict: str, margin: float
) -> None:
    found, left, reason = _judge(H200, *(value * GIB for value in (weights, free, room, reserve, need)))
    assert (found, left) == (verdict, margin * GIB) and reason


def test_a_plan_says_what_adds_up() -> None:
    plan = plan_memory(LLAMA, H200, ONE, EngineSettings(mem_fraction=0.85))
    assert plan.reserve_bytes == pytest.approx(0.15 * plan.free_bytes) and plan.groups == 1 and plan.fits
    assert plan.margin_bytes == pytest.approx(plan.reserve_bytes - sum(plan.needs.values()))
    assert plan.kv_bytes == plan.kv_tokens_per_rank * plan.kv_bytes_per_token
    assert plan.largest_batch(1024) == min(plan.running_limit, plan.kv_tokens_per_rank // 1024)
    assert plan.largest_batch(10**9) == 0
    told = plan.as_json()
    assert told["weights_gib_per_rank"] == round(plan.weight_bytes / GIB, 3)
    assert told["reserve_gib"] == round(plan.reserve_bytes / GIB, 3) and told["kv_gib_per_rank"] == round(
        plan.kv_bytes / GIB, 3
    )
    groups = plan_memory(R1, H200, Layout(tp=16, attn_dp=16, nodes=2), EngineSettings(mem_fraction=0.88))
    assert groups.groups == 16 and groups.kv_tokens == 16 * groups.kv_tokens_per_rank
    assert groups.as_json()["max_running_requests"] == 16 * groups.running_limit
    assert groups.largest_batch(10_000) == 16 * min(groups.running_limit, groups.kv_tokens_per_rank // 10_000)


def test_the_roomiest_plan_takes_the_usual_fraction_or_what_running_leaves() -> None:
    named = roomiest_plan(LLAMA, H200, ONE, EngineSettings(mem_fraction=0.5))
    assert named.mem_fraction == 0.5
    usual = roomiest_plan(R1, H200, Layout(tp=16, nodes=2))
    own = plan_memory(R1, H200, Layout(tp=16, nodes=2)).engine_fraction
    assert usual.mem_fraction == pytest.approx(max(own, 0.88) if usual.verdict != RUNTIME_OOM else usual.mem_fraction)
    assert usual.fits and usual.mem_fraction >= own


def test_triton_is_held_against_a_plan_only_far_beyond_the_graphs() -> None:
    applied = resolve(EngineSettings(), LITE, H200, ONE, 10**6)
    captured = applied.graph_max_bs
    room = captured * _triton_bytes_per_request(LITE, H200, ONE)
    for factor, batch, reserve, far in (
        (1, 4 * captured, 2 * room, True),
        (1, 4 * captured - 1, 2 * room, False),
        (1, 4 * captured, room, False),
        (1, 4 * captured, room + 1, True),
    ):
        assert _mostly_eager_in_triton(LITE, H200, ONE, applied, factor * batch, reserve) is far
    two = Layout(tp=2, gpus_per_node=2)
    assert not _mostly_eager_in_triton(LITE, H200, two, applied, 8 * captured - 1, 9 * room)
    assert _mostly_eager_in_triton(LITE, H200, two, applied, 8 * captured, 9 * room)
    assert not _mostly_eager_in_triton(LITE, H200, ONE, replace(applied, graph_max_bs=0), 10**6, room)
