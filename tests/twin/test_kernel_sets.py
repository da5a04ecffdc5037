"""Which measured kernels an engine's release runs, and what a layer launches besides them."""

from dataclasses import replace

import pytest

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import DEFAULTS, Applied, EngineSettings, parse_engine, resolve
from ridgeline.serving.hardware.cluster import load_gpu, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.twin.calibration import PRIORS
from ridgeline.serving.twin.operators import Term, decode_attention, expert_rate, kernels, reduction_set
from ridgeline.serving.twin.priors import SMALL_TILE, STATE_OPS
from ridgeline.serving.twin.rates import kernels_of
from ridgeline.serving.twin.steptime import StepTime

LAUNCH_S = engine_named("vllm").costs.launch_s
NODE = {"nodes": 1, "gpus_per_node": 8}


def applied_by(engine: str, model: str, gpu: str) -> Applied:
    settings = parse_engine(engine, DEFAULTS)
    return resolve(settings, load_model(model), load_gpu(gpu), Layout(8, **NODE), 10**6)


def times_of(
    engine: str, model: str, gpu: str = "h200", tp: int = 8, ep: int = 1, asked: EngineSettings = DEFAULTS
) -> StepTime:
    layout, cluster = Layout(tp, ep=ep, **NODE), make_cluster(gpu, 1, 8)
    settings = resolve(parse_engine(engine, asked), load_model(model), cluster.gpu, layout, 10**6)
    return StepTime(load_model(model), cluster, layout, settings, PRIORS)


def decode_terms(engine: str, model: str, gpu: str = "h200", tp: int = 8, batch: int = 8, ep: int = 1) -> list[Term]:
    return times_of(engine, model, gpu, tp, ep).explain_decode(batch, 1000.0 * batch)


def seconds(terms: list[Term], name: str = "") -> float:
    return sum(t.seconds for t in terms if t.name.startswith(name))


def test_older_releases_have_slower_experts_and_reductions():
    old, new = (decode_terms(engine, "qwen3-235b-a22b") for engine in ("sglang:0.5.9", "sglang:0.5.14"))
    assert seconds(old, "kernels' smallest") > 1.1 * seconds(new, "kernels' smallest")
    assert seconds(old, "all-reduce") > 1.1 * seconds(new, "all-reduce")


def test_vllm_runs_its_own_experts_and_shares_what_nobody_measured_apart():
    h200 = load_gpu("h200")
    assert kernels_of(h200, "vllm").experts("fp8") != kernels_of(h200).experts("fp8")
    assert kernels_of(h200, "vllm").gemm("fp8") == kernels_of(h200).gemm("fp8")
    assert kernels_of(h200, "vllm").decode("fa3", mla=False) == kernels_of(h200).decode("fa3", mla=False)


@pytest.mark.parametrize(
    ("gpu", "backend", "least", "most"),
    [("h200", "fa3", 0.75, 0.95), ("b200", "flashinfer", 0.55, 0.65), ("b200", "trtllm_mla", 0.49, 0.51)],
)
def test_a_cache_in_8_bits_is_read_as_fast_as_its_kernel_was_measured(
    gpu: str, backend: str, least: float, most: float
):
    """Half the bytes never take half the time on Hopper: its tables have 0.79 to 0.94."""
    model = load_model("deepseek-r1" if backend.endswith("mla") else "llama-8b")
    layout, card = Layout(8, **NODE), load_gpu(gpu)
    took = []
    for kv in ("bf16", "fp8"):
        chosen = model.with_dtype(kv_dtype=kv)
        applied = resolve(
            parse_engine("sglang", replace(DEFAULTS, attention_backend=backend)), chosen, card, layout, 10**6
        )
        ((_, each_s),), _ = decode_attention(chosen, layout, card, applied, PRIORS)
        took.append(each_s)
    assert least < took[1] / took[0] < most


@pytest.mark.parametrize("kernel_set", ["", "vllm"])
def test_ranks_behind_one_switch_reduce_as_fast_whatever_node_they_are_in(kernel_set: str):
    """Tables of GB300 have ranks of several nodes as well, where NCCL took 28 to 52 us: no engine's kernel."""
    for ranks in (2, 4, 8):
        gb300, gb200 = (kernels_of(load_gpu(gpu), kernel_set).reduction.delay(ranks) for gpu in ("gb300", "gb200"))
        assert gb300 == pytest.approx(gb200, rel=0.75)
        assert gb300 < 10e-6


@pytest.mark.parametrize(
    ("engine", "kernel_set"),
    [("vllm", "vllm"), ("vllm:0.12.0", "vllm"), ("sglang:0.5.10", "sglang-0.5.10"), ("sglang:0.5.12", "")],
)
def test_a_release_names_its_kernels(engine: str, kernel_set: str):
    assert applied_by(engine, "llama-8b", "h100").kernel_set == kernel_set


def test_ranks_that_share_a_norm_over_all_heads_add_up_their_squares():
    assert seconds(decode_terms("vllm", "minimax-m2.5", tp=4), "norm over all") > 62 * 3e-6
    assert not seconds(decode_terms("vllm", "minimax-m2.5", gpu="b300", tp=1), "norm over all")
    assert not seconds(decode_terms("vllm", "qwen3-235b-a22b", tp=4), "norm over all")


def test_vllms_host_works_through_its_requests_one_by_one():
    few, many = (seconds(decode_terms("vllm:0.12.0", "qwen3-32b", batch=n), "host") for n in (8, 108))
    assert many - few == pytest.approx(100 * 40e-6)


def prefill_times(engine: str, model: str, base: EngineSettings = DEFAULTS, **shape: int) -> StepTime:
    layout, cluster = Layout(8, **NODE, **shape), make_cluster("h200", 1, 8)
    found = load_model(model)
    return StepTime(
        found, cluster, layout, resolve(parse_engine(engine, base), found, cluster.gpu, layout, 10**6), PRIORS
    )


@pytest.mark.parametrize("engine", ["vllm:0.12.0", "vllm"])
def test_prompts_that_no_graph_of_vllm_holds_are_launched_kernel_by_kernel(engine: str):
    """Its graphs are for so many tokens, up to 512 where nobody asks for more."""
    usual, larger = (
        prefill_times(engine, "minimax-m2.5", replace(DEFAULTS, cuda_graph_max_bs=graph)) for graph in (None, 1024)
    )

    def pass_s(times: StepTime, tokens: int, decoding: int) -> float:
        return times.mixed_s(tokens, tokens * tokens / 2, 1, tokens, decoding, 1000.0 * decoding)

    for few, many, decoding in ((500, 600, 0), (400, 500, 100)):
        assert pass_s(usual, many, decoding) > 2 * pass_s(usual, few, decoding)
        assert pass_s(larger, many, decoding) < 1.3 * pass_s(larger, few, decoding)
    long = (8192, 8192 * 4096.0, 1, 8192)  # more for the GPU than for the host
    assert usual.prefill_s(*long) < 1.05 * larger.prefill_s(*long)


def test_copies_of_other_expert_ranks_cross_the_memory_unless_each_rank_gets_its_own():
    rate = kernels_of(load_gpu("h200"), "vllm").experts("fp8")
    assert rate.crossings(8, 8) == 8 * rate.moved
    assert rate.crossings(1, 8) > 2 * rate.crossings(1, 1)
    wide = (2 * 4096 + 4 * 1536) * 2 * len(load_model("qwen3-235b-a22b").moe_layers)
    by_all_to_all, by_all_reduce = (
        prefill_times("sglang", "qwen3-235b-a22b", ep=8, attn_dp=groups)._elementwise[1] for groups in (8, 1)
    )
    rate = kernels_of(load_gpu("h200")).experts("bf16")
    assert by_all_to_all == pytest.approx(rate.moved * wide)
    assert by_all_reduce == pytest.approx((rate.moved + 7 * rate.passed) * wide)


def test_sglang_ships_tiles_for_small_batches_of_deepseek_on_hopper():
    def tile(engine: str, gpu: str, model: str = "deepseek-r1") -> float:
        return expert_rate(load_model(model), load_gpu(gpu), applied_by(engine, model, gpu)).tile

    assert tile("sglang", "h200") == SMALL_TILE
    for other in (("vllm", "h200"), ("sglang", "b200"), ("sglang", "h200", "qwen3-235b-a22b")):
        assert tile(*other) > SMALL_TILE


def test_deepseek_on_blackwell_joins_its_all_reduce_with_the_norm():
    old = [applied_by("sglang:0.5.9", "deepseek-r1", gpu) for gpu in ("b200", "h200")]
    model = load_model("deepseek-r1")
    assert reduction_set(model, load_gpu("b200"), old[0]) == ""
    assert reduction_set(model, load_gpu("h200"), old[1]) == "sglang-0.5.10"


def test_experts_of_one_call_are_fewer_launches():
    model, layout = load_model("deepseek-r1"), Layout(8, **NODE)
    assert kernels(model, layout, load_gpu("h200")) - kernels(model, layout, load_gpu("b200")) == 7 * 58


def test_a_rank_of_experts_computes_all_copies_before_vllm_0_13():
    """Its buffer has room for each of them, wherever they go."""
    model = "Qwen/Qwen3-235B-A22B-FP8"
    few, many = (seconds(decode_terms("vllm:0.12", model, batch=n, ep=8), "experts") for n in (1, 256))
    assert many / few == pytest.approx((256 * 8 + 127 * 16) / (1 * 8 + 127 * 16), rel=0.15)
    assert few > 1.5 * seconds(decode_terms("vllm:0.13", model, batch=1, ep=8), "experts")


def test_larger_messages_are_reduced_in_two_stages():
    kib = 1024
    on_b200 = kernels_of(load_gpu("b200"), "vllm").reduction
    for ranks, least in ((4, 512 * kib), (8, 256 * kib)):
        assert on_b200.delay(ranks, least) > on_b200.delay(ranks, least - 1) + 5e-6
    assert on_b200.delay(2, 10**6 * kib) == on_b200.delay(2)


@pytest.mark.parametrize("what", ["decode", "mixed"])
def test_several_ranks_of_vllm_launch_while_it_schedules(what: str):
    def step_s(tp: int, engine: str = "vllm:0.20") -> float:
        times = times_of(engine, "llama-8b", tp=tp, asked=replace(DEFAULTS, cuda_graph_max_bs=16))
        return times.decode_s(900, 900.0) if what == "decode" else times.mixed_s(20, 210.0, 1, 20, 899, 900.0)

    scheduled_s, launched_s = 2e-3 + 900 * 40e-6, 32 * 11 * LAUNCH_S
    assert step_s(2) == pytest.approx(scheduled_s)
    assert step_s(1) == pytest.approx(scheduled_s + launched_s)
    # before 0.14 the GPU waits while it schedules, and then works on what was launched while the rest is launched
    for tp in (1, 2):
        assert scheduled_s + launched_s <= step_s(tp, "vllm:0.12") < scheduled_s + 2 * launched_s


def test_layers_that_keep_a_state_are_launched_one_by_one_with_prompts():
    times = times_of("vllm", "qwen3-next-80b-a3b")
    apart_s = sum(n for _, n in times.model.states) * STATE_OPS * LAUNCH_S
    assert times.applied.prefill_graph and times.prefill_s(64, 64 * 65 / 2, 1, 64) >= apart_s


def test_old_releases_of_vllm_compute_every_expert_in_fp8_blocks():
    model = "Qwen/Qwen3-235B-A22B-FP8"
    filled, asked = (
        [seconds(decode_terms(engine, model, batch=users), "experts") for users in (1, 64)]
        for engine in ("vllm:0.12", "vllm:0.14")
    )
    assert filled[0] > 3 * asked[0], "one user asks for a twelfth of the experts"
    assert filled[1] < 1.1 * filled[0]
    assert seconds(decode_terms("vllm:0.12", "qwen3-235b-a22b"), "experts") == pytest.approx(
        seconds(decode_terms("vllm:0.14", "qwen3-235b-a22b"), "experts")
    ), "in 16 bits other kernels run"


@pytest.mark.parametrize(
    ("engine", "sorts"), [("vllm:0.10", False), ("vllm:0.11", True), ("vllm:0.16", False), ("sglang", False)]
)
def test_top_p_sorts_all_logits_in_some_releases_of_vllm(engine: str, sorts: bool):
    model, gpu, layout = load_model("llama-8b"), load_gpu("h100"), Layout(1, nodes=1, gpus_per_node=8)
    for top_p in (False, True):
        settings = parse_engine(engine, EngineSettings(top_p=top_p))
        applied = resolve(settings, model, gpu, layout, 10**6)
        times = StepTime(model, make_cluster("h100", 1, 8), layout, applied, PRIORS)
        assert bool(seconds(times.explain_decode(192, 10**5), "logits sorted")) == (sorts and top_p)
    assert not sorts or times.decode_s(192, 10**5) > 8e-3 + times.decode_s(1, 10**3)
