"""What fits: against pools read in real logs, verdicts of real runs, and properties that hold for any machine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import describe
from ridgeline.serving.engines.fitting import answer_memory, list_layouts, with_room
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.memory import (
    FITS,
    RUNTIME_OOM,
    STARTUP_OOM,
    _triton_bytes_per_request,
    decode_graph_sizes,
    plan_memory,
    prefill_graph_sizes,
    roomiest_plan,
)
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.hardware.cluster import GIB, gpu_names, load_gpu
from ridgeline.serving.model.config import load_model
from ridgeline.serving.verbs.memory import _memory_text, layouts_text

ONE = Layout(gpus_per_node=1)
TP16 = Layout(tp=16, nodes=2)


def plan(model: str, gpu: str, layout: Layout, **settings):
    return plan_memory(load_model(model), load_gpu(gpu), layout, EngineSettings(**settings))


@pytest.mark.parametrize(
    ("model", "gpu", "layout", "settings", "tokens"),
    [
        # pool and weights over what was free give 0.88 for both, with and without attention DP: no release derives that
        ("deepseek-r1", "h100", TP16, {"mem_fraction": 0.88}, 424_274),
        ("deepseek-r1", "h100", TP16, {"mem_fraction": 0.88, "max_running_requests": 1024}, 424_274),
        ("deepseek-r1", "h100", Layout(tp=16, attn_dp=16, nodes=2), {"mem_fraction": 0.88}, 214_770),
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


TP16_DP = Layout(tp=16, attn_dp=16, nodes=2)


@pytest.mark.parametrize(
    ("release", "gpu", "layout", "fraction"),
    [
        # worked out by hand from each release's server_args.py; an H100 has 81,562 MiB here, an H200 143,770
        ((0, 4, 3), "h100", TP16, 0.79),
        ((0, 4, 3), "h200", Layout(tp=8), 0.81),
        ((0, 4, 6), "h200", Layout(tp=8), 0.907),  # all but 13 GiB
        ((0, 4, 7), "h200", Layout(tp=8), 0.872),  # all but 18 GiB
        ((0, 4, 7), "h100", Layout(tp=8), 0.81),
        ((0, 4, 8), "h100", TP16, 0.78),  # all but 9.5 + 16 / 2 GiB
        ((0, 4, 10), "h100", TP16_DP, 0.73),  # 4 GiB more
        ((0, 5, 2), "h200", Layout(tp=8), 0.886),  # all but 12 + 8 / 2
        ((0, 5, 2), "b200", Layout(tp=8), None),  # all but 32
        ((0, 5, 3), "h100", TP16, 0.805),  # 512 + 1.5 x 8192 + 2 x 512 + 128 x 16
        ((0, 5, 3), "h100", ONE, 0.835),  # 512 + 1.5 x 8192 + 2 x 256 + 128
        ((0, 5, 10), "h100", ONE, 0.835),
        ((0, 5), "h100", TP16_DP, 0.353),  # + 4.5 x 512 x 16: attention DP's padding
    ],
)
def test_each_release_has_its_own_fraction(release, gpu, layout, fraction) -> None:
    found = plan("deepseek-r1", gpu, layout, version=release)
    if fraction is None:
        fraction = round(1 - 32 * GIB / load_gpu(gpu).memory_bytes, 3)
    assert found.engine_fraction == pytest.approx(fraction, abs=0.0011)
    assert found.mem_fraction == found.engine_fraction


def test_a_line_of_releases_means_its_newest() -> None:
    newest = plan("llama-8b", "h100", ONE, version=(0, 5, 23))
    assert plan("llama-8b", "h100", ONE, version=(0, 5)).engine_fraction == newest.engine_fraction
    assert plan("llama-8b", "h100", ONE, version=(0, 5, 2)).engine_fraction != newest.engine_fraction


def test_drafting_and_deepep_are_reserved_for_by_the_releases_that_do() -> None:
    def own(layout, **settings):
        return plan("deepseek-r1", "h200", layout, **settings).engine_fraction

    deepep = Layout(tp=8, attn_dp=8, ep=8)
    for release, gib in (((0, 5, 3), 2), ((0, 5, 10), 4), ((0, 5, 14), 0)):
        plain = own(Layout(tp=8), version=release)
        less = plain - own(Layout(tp=8), version=release, draft_tokens=4, accept_length=2)
        assert less == pytest.approx(gib / 140.4, abs=0.0015)
    for release, gib in (((0, 5, 14), 0), ((0, 5, 15), 2)):
        less = own(replace(deepep, ep=1), version=release) - own(deepep, version=release)
        assert less == pytest.approx(gib / 140.4, abs=0.0015)


def test_nobody_is_given_a_larger_pool_than_the_engine_would_take() -> None:
    # weights fill most of the GPU, so the fraction decides: at 0.88 it would be twice the pool
    own = plan("qwen3-32b", "h100", ONE)
    assert own.mem_fraction == own.engine_fraction < 0.84
    assert own.kv_tokens_per_rank == pytest.approx(16_571, rel=0.01)
    model, gpu = load_model("qwen3-32b"), load_gpu("h100")
    roomy = roomiest_plan(model, gpu, ONE)
    assert roomy.kv_tokens_per_rank > 1.5 * own.kv_tokens_per_rank
    assert roomy.mem_fraction > own.mem_fraction
    assert roomy.fits
    assert roomiest_plan(model, gpu, ONE, EngineSettings(mem_fraction=0.84)).mem_fraction == 0.84


def test_a_fraction_that_starves_the_pool_is_named_with_its_remedy() -> None:
    answer = answer_memory("deepseek-r1", "h100", TP16_DP, EngineSettings())
    assert plan("deepseek-r1", "h100", TP16_DP).verdict == STARTUP_OOM
    assert answer.plan.fits
    said = "only with --mem-fraction-static 0.88: SGLang's own fraction, 0.353, leaves no KV pool"
    assert said in _memory_text(answer)
    low = answer_memory("deepseek-r1", "h100", TP16_DP, EngineSettings(mem_fraction=0.4))
    assert low.plan.verdict == STARTUP_OOM
    assert low.nearest[0].startswith("--mem-fraction 0.8")
    assert plan("deepseek-r1", "h100", TP16_DP, mem_fraction=float(low.nearest[0].split()[1])).fits
    tight = answer_memory("deepseek-r1", "h100", TP16, EngineSettings())
    assert tight.plan.fits
    assert "more room        --mem-fraction 0.88 fits too: a KV pool of 424,992 tokens" in _memory_text(tight)
    assert tight.as_json()["roomier"] == {"mem_fraction": 0.88, "kv_tokens_per_rank": 424_992}
    assert answer_memory("deepseek-r1", "h100", TP16, EngineSettings(mem_fraction=0.8)).roomier is None


def test_a_listed_layout_that_needs_a_fraction_says_so() -> None:
    text = layouts_text(list_layouts("deepseek-r1", "h100", 16))
    line = next(n for n in text.splitlines() if n.strip().startswith("tp 16 attn-dp 16 "))
    assert "fits" in line
    assert "with --mem-fraction-static 0.8" in line
    plain = next(n for n in text.splitlines() if n.strip().startswith("tp 16 ") and "dp" not in n)
    assert "--mem-fraction" not in plain


def test_captured_sizes_read_in_logs() -> None:
    assert decode_graph_sizes(256) == 36
    assert decode_graph_sizes(512) == 52
    assert prefill_graph_sizes(8192) == 58


def test_the_buffer_that_broke_the_run() -> None:
    # 7.81 GiB for a batch of 1000, as the log says
    model = replace(load_model("deepseek-v2-lite"), context_tokens=16_384)
    assert 1000 * _triton_bytes_per_request(model, load_gpu("h200"), ONE) == pytest.approx(7.81 * GIB, rel=0.001)


def test_the_answer_names_what_would_fit() -> None:
    answer = answer_memory("deepseek-r1", "h100", Layout(tp=8), EngineSettings())
    text = _memory_text(answer)
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
    assert shown.backend in _memory_text(answer)
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


def test_a_deployment_that_would_not_start_is_given_room_and_it_is_said() -> None:
    starved = describe("deepseek-r1", "h100", TP16_DP)
    roomy, changes = with_room(starved)
    assert 0.8 < roomy.settings.mem_fraction <= 0.88
    assert changes == [
        "SGLang's own memory fraction (0.353) leaves no KV pool; taken as if started with --mem-fraction-static 0.88"
    ]
    for enough in (describe("deepseek-r1", "h100", TP16), describe("llama-8b", "h200", ONE), roomy):
        assert with_room(enough) == (enough, [])
    hopeless = describe("deepseek-r1", "h100", Layout(tp=8))
    assert with_room(hopeless) == (hopeless, [])
    asked = describe("deepseek-r1", "h100", TP16_DP, EngineSettings(mem_fraction=0.4))
    assert with_room(asked) == (asked, [])


def test_each_role_is_given_room_of_its_own() -> None:
    apart = describe("deepseek-v3", "h800", Layout(), prefill_groups="3x3", decode_groups="1x4")
    roomy, changes = with_room(apart)
    assert roomy.prefill_settings is None
    assert roomy.decode_settings is not None
    assert roomy.decode_settings.mem_fraction == 0.88
    assert [c for c in changes if "in the decode role" in c] == changes


def test_vllm_takes_more_of_the_memory_since_0_20() -> None:
    """As vllm/config/cache.py of either release has it."""

    def share(version: tuple[int, ...]) -> float:
        settings = EngineSettings(engine="vllm", version=version)
        return plan_memory(load_model("llama-8b"), load_gpu("h100"), Layout(), settings).engine_fraction

    assert [share(version) for version in ((0, 12), (0, 19, 1), (0, 20), (0, 32))] == [0.9, 0.9, 0.92, 0.92]


def test_the_nearest_thing_is_a_wider_layout_in_the_same_node_before_other_nodes() -> None:
    answer = answer_memory("qwen3-32b", "l40s", ONE, EngineSettings())
    assert answer.nearest[0].startswith("2 GPUs in one node (tp 2, ")
    wide = answer_memory("deepseek-r1", "h100", Layout(tp=8), EngineSettings())
    assert wide.nearest[0].startswith("2 nodes "), "all eight of the node are taken already"


def test_aiter_gives_up_a_part_of_any_fraction() -> None:
    """mem_fraction_static * 0.85 where the context is above 8,192, whoever set it; Triton keeps all of it."""
    model, gpu = load_model("qwen3-30b-a3b"), load_gpu("mi355x")
    settings = EngineSettings(mem_fraction=0.8)
    own, triton = (plan_memory(model, gpu, ONE, replace(settings, attention_backend=b)) for b in (None, "triton"))
    assert own.reserve_bytes == pytest.approx((1 - 0.8 * 0.85) * own.free_bytes)
    assert triton.reserve_bytes == pytest.approx((1 - 0.8) * triton.free_bytes)
    assert own.kv_tokens_per_rank < triton.kv_tokens_per_rank


def test_memory_that_the_host_shares_is_said_and_not_guessed() -> None:
    assert [name for name in gpu_names() if load_gpu(name).unified] == ["gb10"]
    shared, own = (_memory_text(answer_memory("llama-8b", gpu, ONE, EngineSettings())) for gpu in ("dgx-spark", "h100"))
    assert "GPU and host share this memory" in shared
    assert "GPU and host share" not in own
