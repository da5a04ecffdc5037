"""What fits: against pools read in real logs, verdicts of real runs, and properties that hold for any machine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ridgeline.cli.text.memory import layouts_text, memory_text
from ridgeline.errors import InputError
from ridgeline.serving.engine.fitting import answer_memory, list_layouts
from ridgeline.serving.engine.layout import Layout
from ridgeline.serving.engine.memory import FITS, RUNTIME_OOM, STARTUP_OOM, plan_memory
from ridgeline.serving.engine.reserve import decode_graph_sizes, prefill_graph_sizes, triton_bytes_per_request
from ridgeline.serving.engine.settings import EngineSettings
from ridgeline.serving.hardware.cluster import GIB, load_gpu
from ridgeline.serving.model.config import load_model

ONE = Layout(gpus_per_node=1)
TP16 = Layout(tp=16, nodes=2)


def plan(model: str, gpu: str, layout: Layout, **settings):
    return plan_memory(load_model(model), load_gpu(gpu), layout, EngineSettings(**settings))


@pytest.mark.parametrize(
    ("model", "gpu", "layout", "settings", "tokens"),
    [
        ("deepseek-r1", "h100", TP16, {}, 424_274),
        ("deepseek-r1", "h100", TP16, {"mem_fraction": 0.88, "max_running_requests": 1024}, 424_274),
        ("deepseek-r1", "h100", Layout(tp=16, attn_dp=16, nodes=2), {}, 214_770),
        ("llama-8b", "h200", ONE, {}, 918_451),
        ("deepseek-v2-lite", "h200", ONE, {}, 3_358_606),
        ("deepseek-v2-lite", "h200", ONE, {"mem_fraction": 0.8, "max_running_requests": 1024}, 2_844_459),
    ],
)
def test_reproduces_the_pools_of_real_logs(model, gpu, layout, settings, tokens) -> None:
    assert plan(model, gpu, layout, **settings).kv_tokens_per_rank == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize(
    ("model", "gpu", "layout", "settings", "verdict"),
    [
        ("deepseek-r1", "h100", Layout(tp=8), {}, STARTUP_OOM),
        ("deepseek-r1", "h800", Layout(tp=8, attn_dp=8), {}, STARTUP_OOM),
        ("deepseek-r1", "h200", Layout(tp=8), {}, FITS),
        ("deepseek-r1", "h200", Layout(tp=4, pp=2, attn_dp=4), {}, FITS),
        ("deepseek-r1", "h200", TP16, {}, FITS),
        ("deepseek-r1", "h200", Layout(tp=8, pp=2, attn_dp=2, nodes=2), {"attention_backend": "fa3"}, FITS),
        ("deepseek-r1", "h200", Layout(tp=8, pp=2, attn_dp=2, nodes=2), {}, FITS),
        ("deepseek-r1", "h100", TP16, {}, FITS),
        ("deepseek-r1", "h100", TP16, {"max_running_requests": 1024}, FITS),
        ("deepseek-r1", "h100", TP16, {"max_running_requests": 1024, "mem_fraction": 0.80}, FITS),
        ("deepseek-r1", "h100", TP16, {"max_running_requests": 1024, "mem_fraction": 0.89}, RUNTIME_OOM),
        ("deepseek-v2-lite", "h200", ONE, {"max_running_requests": 4096}, RUNTIME_OOM),
        ("deepseek-v2-lite", "h200", ONE, {"max_running_requests": 4096, "attention_backend": "triton"}, RUNTIME_OOM),
        ("deepseek-v2-lite", "h200", ONE, {}, RUNTIME_OOM),
        ("deepseek-v2-lite", "h200", ONE, {"attention_backend": "fa3"}, FITS),
        ("deepseek-v2-lite", "h200", ONE, {"max_running_requests": 1024, "mem_fraction": 0.8}, FITS),
        (
            "deepseek-v2-lite",
            "h200",
            ONE,
            {
                "max_running_requests": 1024,
                "mem_fraction": 0.8,
                "attention_backend": "triton",
                "cuda_graph_max_bs": 512,
            },
            FITS,
        ),
        ("llama-8b", "h200", ONE, {"attention_backend": "triton"}, FITS),
    ],
)
def test_verdicts_of_real_runs(model, gpu, layout, settings, verdict) -> None:
    answer = plan(model, gpu, layout, **settings)
    assert answer.verdict == verdict, answer.reason
    assert (answer.margin_bytes >= 0) == (verdict == FITS)


def test_sglang_fractions_read_in_logs() -> None:
    assert plan("llama-8b", "h200", ONE).engine_fraction == 0.903
    assert plan("deepseek-v2-lite", "h200", ONE).engine_fraction == 0.907


def test_captured_sizes_read_in_logs() -> None:
    assert decode_graph_sizes(256) == 36
    assert decode_graph_sizes(512) == 52
    assert prefill_graph_sizes(8192) == 58


def test_the_buffer_that_broke_the_run() -> None:
    # 7.81 GiB for a batch of 1000, as the log says
    model = replace(load_model("deepseek-v2-lite"), context_tokens=16_384)
    assert 1000 * triton_bytes_per_request(model, load_gpu("h200"), ONE) == pytest.approx(7.81 * GIB, rel=0.001)


def test_the_answer_names_what_would_fit() -> None:
    answer = answer_memory("deepseek-r1", "h100", Layout(tp=8), EngineSettings())
    text = memory_text(answer)
    assert text.startswith("does not fit: weights need")
    assert "2 nodes (tp 16, or tp 8 pp 2)" in text
    assert "1 node of H200 (tp 8)" in text
    risky = answer_memory("deepseek-v2-lite", "h200", ONE, EngineSettings(max_running_requests=4096))
    assert any("--attention-backend fa3" in n for n in risky.nearest)
    assert any("--max-running-requests 512" in n for n in risky.nearest)
    lower = answer_memory("deepseek-r1", "h100", TP16, EngineSettings(mem_fraction=0.89, max_running_requests=1024))
    assert any(n.startswith("--mem-fraction 0.88") for n in lower.nearest)


@pytest.mark.parametrize("backend", [None, "triton"])
def test_what_the_answer_calls_nearest_does_fit(backend) -> None:
    asked = EngineSettings(max_running_requests=4096, attention_backend=backend)
    answer = answer_memory("deepseek-v2-lite", "h200", ONE, asked)
    names = {"--mem-fraction": float, "--max-running-requests": int, "--attention-backend": str}
    assert len(answer.nearest) >= 2
    for words in answer.nearest:
        flag, value = words.split()[:2]
        change = {flag[2:].replace("-", "_"): names[flag](value)}
        assert plan_memory(answer.model, answer.cluster.gpu, ONE, replace(asked, **change)).verdict == FITS


@pytest.mark.parametrize("named", [None, "triton", "fa3"])
@pytest.mark.parametrize("limit", [512, 4096])
def test_verdict_and_needs_are_those_of_one_named_back_end(named, limit) -> None:
    asked = EngineSettings(max_running_requests=limit, attention_backend=named)
    answer = answer_memory("deepseek-v2-lite", "h200", ONE, asked)
    shown = answer.plan
    again = plan_memory(answer.model, answer.cluster.gpu, ONE, replace(asked, attention_backend=shown.backend))
    if again.mem_fraction == shown.mem_fraction:
        assert (again.needs, again.verdict, again.margin_bytes) == (shown.needs, shown.verdict, shown.margin_bytes)
    assert shown.margin_bytes == pytest.approx(shown.reserve_bytes - sum(shown.needs.values()))
    assert shown.backend in memory_text(answer)
    assert named in (None, shown.backend)


def test_an_impossible_layout_or_fraction_is_refused() -> None:
    with pytest.raises(InputError, match="2 nodes"):
        answer_memory("deepseek-r1", "h100", Layout(tp=16), EngineSettings())
    with pytest.raises(InputError, match="between 0 and 1"):
        answer_memory("llama-8b", "h100", ONE, EngineSettings(mem_fraction=1.5))


def test_listing_puts_what_fits_first() -> None:
    listing = list_layouts("deepseek-r1", "h200", 16)
    verdicts = [p.verdict for _, p in listing.rows]
    assert verdicts == sorted(verdicts, key=lambda v: v != FITS)
    assert listing.as_json()["layouts"]
    assert "legal layouts" in layouts_text(listing)
    with pytest.raises(InputError, match="8 or 16"):
        list_layouts("deepseek-r1", "h200", 12)


models = st.sampled_from(["deepseek-r1", "deepseek-v2-lite", "llama-8b", "llama-70b", "mixtral-8x7b"])
fractions = st.floats(0.3, 0.97)
shapes = st.sampled_from([ONE, Layout(tp=2), Layout(tp=8), Layout(tp=8, pp=2, nodes=2), TP16])


@given(models, shapes, fractions, st.integers(20, 200), st.integers(0, 100))
@hypothesis_settings(deadline=None)
def test_more_memory_never_holds_fewer_tokens(model, layout, fraction, gib, more) -> None:
    small = replace(load_gpu("h200"), memory_bytes=gib * GIB)
    large = replace(small, memory_bytes=(gib + more) * GIB)
    setting = EngineSettings(
        mem_fraction=fraction, max_running_requests=256, chunked_prefill_size=8192, cuda_graph_max_bs=256
    )
    loaded = load_model(model)
    few, many = plan_memory(loaded, small, layout, setting), plan_memory(loaded, large, layout, setting)
    assert many.kv_tokens_per_rank >= few.kv_tokens_per_rank
    assert not (few.fits and many.verdict == STARTUP_OOM)


@given(models, shapes, fractions, st.floats(0, 0.02))
@hypothesis_settings(deadline=None)
def test_a_larger_fraction_moves_memory_from_reserve_to_pool(model, layout, fraction, step) -> None:
    low = plan(model, "h200", layout, mem_fraction=fraction, max_running_requests=512)
    high = plan(model, "h200", layout, mem_fraction=fraction + step, max_running_requests=512)
    assert high.kv_tokens_per_rank >= low.kv_tokens_per_rank
    assert high.reserve_bytes <= low.reserve_bytes
    assert not (low.verdict == RUNTIME_OOM and high.verdict == FITS)


@given(models, shapes, fractions)
@hypothesis_settings(deadline=None)
def test_pool_weights_and_reserve_fill_what_is_free_and_no_more(model, layout, fraction) -> None:
    answer = plan(model, "h200", layout, mem_fraction=fraction)
    if answer.verdict == STARTUP_OOM:
        assert answer.kv_tokens_per_rank == 0
        return
    used = answer.weight_bytes + answer.kv_bytes + answer.reserve_bytes
    assert used <= answer.free_bytes * (1 + 1e-9) + answer.kv_bytes_per_token
    if layout.pp == 1:
        assert used >= answer.free_bytes - 2 * answer.kv_bytes_per_token


@given(models, shapes, st.integers(1, 2048), st.integers(1, 2048))
@hypothesis_settings(deadline=None)
def test_more_requests_never_need_less(model, layout, few, many) -> None:
    few, many = sorted((few, many))
    low = plan(model, "h200", layout, max_running_requests=few, mem_fraction=0.85)
    high = plan(model, "h200", layout, max_running_requests=many, mem_fraction=0.85)
    assert sum(high.needs.values()) >= sum(low.needs.values()) - 1


def test_a_longer_request_makes_a_smaller_batch() -> None:
    answer = plan("deepseek-r1", "h200", Layout(tp=8, attn_dp=8))
    assert answer.largest_batch(8000) < answer.largest_batch(500)
    assert answer.kv_tokens == 8 * answer.kv_tokens_per_rank


def test_quantising_weights_or_cache_makes_room() -> None:
    full = plan_memory(load_model("llama-70b"), load_gpu("h100"), Layout(tp=4), EngineSettings(mem_fraction=0.85))
    half = plan_memory(
        load_model("llama-70b").with_dtype("fp8", "fp8"),
        load_gpu("h100"),
        Layout(tp=4),
        EngineSettings(mem_fraction=0.85),
    )
    assert half.kv_tokens_per_rank > 2 * full.kv_tokens_per_rank


def test_a_draft_head_and_deepep_take_their_share() -> None:
    plain = plan("deepseek-r1", "h200", Layout(tp=8), mem_fraction=0.9)
    drafting = plan("deepseek-r1", "h200", Layout(tp=8), mem_fraction=0.9, accept_length=2, draft_tokens=4)
    assert drafting.kv_tokens_per_rank < plain.kv_tokens_per_rank
    gathered = plan("deepseek-r1", "h200", Layout(tp=8, attn_dp=8), mem_fraction=0.9)
    deepep = plan("deepseek-r1", "h200", Layout(tp=8, attn_dp=8, ep=8), mem_fraction=0.9)
    assert deepep.needs["communication"] > gathered.needs["communication"]
