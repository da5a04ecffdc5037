"""Step times: physics that must hold for every model and layout, and the logs they were derived from."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serving.engines.behaviour import drafting
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import DEFAULTS, Applied, resolve
from ridgeline.serving.hardware.cluster import load_gpu, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.twin.calibration import NAMES as FACTORS
from ridgeline.serving.twin.calibration import PRIORS, Calibration, Factors
from ridgeline.serving.twin.collectives import Network
from ridgeline.serving.twin.explain import explain
from ridgeline.serving.twin.priors import HOST_STEP_S
from ridgeline.serving.twin.rates import _tables, kernels_of
from ridgeline.serving.twin.simulate import step_time
from ridgeline.serving.twin.steptime import StepTime, _known_sums
from tests.twin import deployments as make

layouts = st.sampled_from(
    [
        make.llama(),
        make.llama(cuda_graph_max_bs=0),
        make.llama(draft_tokens=3, accept_length=2.0, draft_overlap=False),
        make.r1(tp=16),
        make.r1(tp=8, pp=2),
        make.r1(tp=8, pp=2, attn_dp=2),
        make.r1(tp=16, attn_dp=16, ep=16),
    ]
)


def times_of(deployment: Deployment, **factors: float) -> StepTime:
    return step_time(deployment, deployment.layout, "both", Calibration(factors=Factors(**factors)))[0]


@given(layouts, st.integers(1, 3000), st.integers(1, 2_000_000))
def test_terms_add_up_to_the_step(deployment: Deployment, batch: int, context: int):
    times = times_of(deployment)
    terms = times.explain_decode(batch, context)
    assert all(t.seconds >= 0 for t in terms)
    assert sum(t.seconds for t in terms) == pytest.approx(times.decode_s(batch, context))


@given(layouts, st.integers(1, 20_000), st.integers(1, 64))
def test_terms_add_up_to_the_round(deployment: Deployment, tokens: int, sequences: int):
    times = times_of(deployment)
    each = max(1, tokens // sequences)
    pairs = tokens * each / 2
    terms = times.explain_prefill(tokens, pairs, sequences, each)
    assert sum(t.seconds for t in terms) == pytest.approx(times.prefill_s(tokens, pairs, sequences, each))


def test_without_the_overlapped_scheduler_kernels_are_still_launched_while_others_run():
    """Only scheduling is in the way of a round then: its launches run beside the GPU, and the longer of both counts."""
    ahead, behind = (
        times_of(make.llama(draft_tokens=3, accept_length=2.0, draft_overlap=overlap, prefill_graph=False))
        for overlap in (True, False)
    )
    round_ = (16_384, 16_384 * 8_192.0, 1, 16_384)  # far more for the GPU than for the host
    assert behind.prefill_s(*round_) - ahead.prefill_s(*round_) == pytest.approx(HOST_STEP_S, rel=0.05)
    small = (16, 128.0, 1, 16)  # and the other way round
    assert behind.prefill_s(*small) == pytest.approx(ahead.prefill_s(*small))


@given(layouts, st.integers(1, 2000), st.integers(1, 1_000_000), st.integers(0, 100_000))
def test_more_context_is_never_faster(deployment: Deployment, batch: int, context: int, more: int):
    times = times_of(deployment)
    assert times.decode_s(batch, context + more) >= times.decode_s(batch, context)


@given(
    layouts,
    st.integers(1, 1500),
    st.integers(1, 500_000),
    st.sampled_from(["compute", "memory", "attention", "network"]),
    st.floats(1, 10),
)
def test_a_better_machine_is_never_slower(deployment: Deployment, batch: int, context: int, name: str, by: float):
    before, after = times_of(deployment), times_of(deployment, **{name: by})
    assert after.decode_s(batch, context) <= before.decode_s(batch, context) * (1 + 1e-12)
    pairs = batch * 50.0
    assert after.prefill_s(batch, pairs, 1, batch) <= before.prefill_s(batch, pairs, 1, batch) * (1 + 1e-12)


@given(layouts, st.integers(1, 1500), st.integers(1, 500_000), st.floats(1, 10))
def test_more_bandwidth_is_never_slower(deployment: Deployment, batch: int, context: int, by: float):
    gpu = deployment.cluster.gpu
    faster = replace(gpu, bandwidth_bytes_s=gpu.bandwidth_bytes_s * by)
    cluster = replace(deployment.cluster, node=replace(deployment.cluster.node, gpu=faster))
    after = times_of(replace(deployment, cluster=cluster))
    assert after.decode_s(batch, context) <= times_of(deployment).decode_s(batch, context) * (1 + 1e-12)


# (batch, cached tokens, milliseconds) read in a log of Llama-8B on one H200 with Triton attention and graphs
LOGGED = [(24, 28_420, 6.31), (50, 42_663, 7.03), (99, 67_643, 8.37), (147, 92_062, 9.84), (208, 114_863, 11.92)]


@pytest.mark.parametrize(("batch", "context", "ms"), LOGGED)
def test_priors_are_near_the_logged_steps(batch: int, context: int, ms: float):
    times = times_of(make.llama(attention_backend="triton"))
    assert times.decode_s(batch, context) * 1000 == pytest.approx(ms, rel=0.1)


def test_past_the_largest_graph_the_host_is_the_limit():
    times = times_of(make.llama(attention_backend="triton", cuda_graph_max_bs=256))
    assert times.decode_s(257, 120_000) > 1.5 * times.decode_s(256, 120_000)
    assert max(times.explain_decode(257, 120_000), key=lambda t: t.seconds).bound == "host"


def test_crossing_nodes_makes_the_network_the_largest_part_of_prefill():
    (prefill, _) = explain(make.r1(tp=16), batch=128, context_tokens=500, prompt_tokens=300)
    assert prefill.bound == "network"
    assert prefill.seconds == pytest.approx(sum(prefill.by_bound.values()))


def test_attention_dp_reads_each_token_of_context_once():
    whole, split = times_of(make.r1(tp=16)), times_of(make.r1(tp=16, attn_dp=16))
    grown = [t.decode_s(64, 400_000) - t.decode_s(64, 100_000) for t in (whole, split)]
    assert grown[0] > 3 * grown[1]


def test_an_engine_of_one_gpu_talks_to_nobody():
    names = [t.name for t in times_of(make.llama()).explain_decode(8, 1000)]
    assert not any("all-reduce" in n or "all-gather" in n for n in names)
    assert Layout().tp == 1


def test_wider_experts_compute_nearer_to_the_peak():
    rate = kernels_of(load_gpu("h200")).experts("fp8")
    shares = [rate.widened(columns) for columns in (128, 256, 512, 2048)]
    assert shares == sorted(shares)
    assert shares[-1] < 1


def test_experts_without_tuned_tiles_are_slower():
    """DeepSeek-V2-Lite's 64 experts have no tuned tiles in any engine; 128 of them would."""
    lite = load_model("deepseek-v2-lite")
    assert lite.experts is not None
    tuned = replace(lite, experts=replace(lite.experts, count=128, per_token=12))
    cluster = make_cluster("h200", 1, 1)
    applied = resolve(DEFAULTS, lite, cluster.gpu, Layout(gpus_per_node=1), 10**6)
    both = [StepTime(m, cluster, Layout(gpus_per_node=1), applied, PRIORS) for m in (lite, tuned)]
    slow, fast = (next(t for t in s.explain_prefill(8192, 8192.0, 8, 1024) if "experts (" in t.name) for s in both)
    assert slow.bound == fast.bound == "compute"
    # twice the routed rows on twice the experts, and still not twice the time
    assert fast.seconds < 1.5 * slow.seconds


def test_a_window_ends_what_a_request_costs():
    model = load_model("gpt-oss-20b")
    cluster = make_cluster("h200", 1, 1)
    applied = resolve(DEFAULTS, model, cluster.gpu, Layout(gpus_per_node=1), 10**6)
    windowed = StepTime(model, cluster, Layout(gpus_per_node=1), applied, PRIORS)
    everything = StepTime(replace(model, mixers=()), cluster, Layout(gpus_per_node=1), applied, PRIORS)
    short = [t.decode_s(256, 256 * 100) - t.decode_s(256, 256 * 50) for t in (windowed, everything)]
    far = [t.decode_s(256, 256 * 8000) - t.decode_s(256, 256 * 4000) for t in (windowed, everything)]
    assert short[0] == pytest.approx(short[1])
    assert far[0] == pytest.approx(far[1] / 2)  # half of the layers have stopped growing
    pairs = [t.prefill_s(8192, 8192 * 4096.0, 1, 8192) for t in (windowed, everything)]
    assert pairs[0] < pairs[1]
    terms = windowed.explain_decode(256, 256 * 4000)
    assert sum(t.seconds for t in terms) == pytest.approx(windowed.decode_s(256, 256 * 4000))


def test_states_cost_the_same_however_long_a_request_is():
    model = load_model("qwen3-next-80b-a3b").with_dtype("fp8")
    cluster = make_cluster("h200", 1, 2)
    lay = Layout(tp=2, gpus_per_node=2)
    times = StepTime(model, cluster, lay, resolve(DEFAULTS, model, cluster.gpu, lay, 10**6), PRIORS)
    term = {n: next(t for t in times.explain_decode(64, n) if t.name.startswith("states")) for n in (10**4, 10**6)}
    assert term[10**4] == term[10**6]
    assert term[10**4].seconds > 0


def test_seventy_two_gpus_of_one_switch_are_one_node_to_their_network():
    one, many = (Network(make_cluster(gpu, 18, 4)) for gpu in ("gb200", "b200"))
    assert one.nodes_of(72) == 1
    assert many.nodes_of(72) == 18
    assert one.all_reduce_s(1e5, 72) < many.all_reduce_s(1e5, 72) / 2


def test_a_gpu_without_tables_borrows_from_its_kin():
    assert kernels_of(load_gpu("h800")).gemm("bf16") == kernels_of(load_gpu("h100")).gemm("bf16")
    assert kernels_of(load_gpu("mi300x")).gemm("bf16") == kernels_of(load_gpu("h100")).gemm("bf16")
    assert kernels_of(load_gpu("b200")).gemm("bf16") != kernels_of(load_gpu("h100")).gemm("bf16")
    # weights without tensor cores are multiplied in 16 bits
    assert kernels_of(load_gpu("h100")).gemm("int4") == kernels_of(load_gpu("h100")).gemm("bf16")


def test_every_constant_of_the_kernels_says_where_it_is_from():
    for gpu in _tables().values():
        for families in (gpu, *gpu.get("others", {}).values()):
            rows = [
                row for name, rows in families.items() if name not in ("all_reduce", "others") for row in rows.values()
            ]
            rows += [families["all_reduce"]] if "all_reduce" in families else []
            assert all(row.get("source") for row in rows if isinstance(row, dict))


def test_attention_dp_ranks_of_one_switch_need_not_agree_through_their_hosts():
    model, lay = load_model("deepseek-r1"), Layout(tp=16, attn_dp=16, ep=16, nodes=4, gpus_per_node=4)
    named = []
    for gpu in ("gb200", "b200"):
        cluster = make_cluster(gpu, 4, 4)
        times = StepTime(model, cluster, lay, resolve(DEFAULTS, model, cluster.gpu, lay, 10**6), PRIORS)
        named.append({term.name for term in times.explain_decode(64, 10**5)})
    assert not any("agree" in name for name in named[0])
    assert any("agree" in name for name in named[1])


@pytest.mark.parametrize("deployment", [make.llama(), make.r1(), make.r1("b200")])
def test_a_mixed_chunk_does_not_make_sglang_another_engine(deployment: Deployment) -> None:
    """It says when prompts are computed, and nothing of how long the same decode step takes."""
    settings = [replace(deployment.settings, mixed_chunk=chosen) for chosen in (False, True)]
    plain, mixed = (times_of(replace(deployment, settings=each)) for each in settings)
    assert mixed.applied.mixed and not plain.applied.mixed
    assert mixed.decode_s(512, 512 * 1000) == plain.decode_s(512, 512 * 1000)
    assert mixed.prefill_s(4096, 4096**2 / 2, 1, 4096) == plain.prefill_s(4096, 4096**2 / 2, 1, 4096)


@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize("name", [field.name for field in fields(Applied)])
def test_times_kept_from_another_setting_are_those_worked_out_anew(name: str, drafts: int):
    """Settings of one layout share what was worked out; whatever a step's time depends on must tell them apart."""
    model = load_model("deepseek-r1")
    cluster, lay = make_cluster("h200", 2, 8), Layout(tp=16, attn_dp=2, gpus_per_node=8)
    applied = resolve(replace(DEFAULTS, draft_tokens=drafts), model, cluster.gpu, lay, 10**6)
    before = getattr(applied, name)
    others = {
        "backend": "flashinfer",
        "engine": "vllm",
        "kernel_set": "sglang-0.5.10",
        "graph_max_bs": 0,
        "prefill_graph_tokens": 0.0,
        "drafting": drafting("EAGLE", 6, 5, 1),
        "experts": "uniform",
        "eviction": "lfu",
        "host_policy": "write_back",
    }
    other = others[name] if name in others else not before if isinstance(before, bool) else before + 3
    assert other != before

    def steps(applied: Applied) -> list[float]:
        times = StepTime(model, cluster, lay, applied, PRIORS)
        return [times.decode_s(n, 450.0 * n) for n in (1, 7, 300)] + [times.prefill_s(8192, 4e6, 9, 2000)]

    _known_sums.cache_clear()
    steps(applied)
    shared = steps(replace(applied, **{name: other}))
    _known_sums.cache_clear()
    assert shared == steps(replace(applied, **{name: other}))


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("drafts", [1, 4])
def test_times_kept_from_another_machine_are_those_worked_out_anew(name: str, drafts: int) -> None:
    model = load_model("deepseek-r1")
    cluster, lay = make_cluster("h200", 2, 8), Layout(tp=16, attn_dp=2, gpus_per_node=8)
    applied = resolve(replace(DEFAULTS, draft_tokens=drafts), model, cluster.gpu, lay, 10**6)

    def steps(factors: Factors) -> list[float]:
        times = StepTime(model, cluster, lay, applied, factors)
        return [times.decode_s(n, 450.0 * n) for n in (1, 7, 300)] + [times.prefill_s(8192, 4e6, 9, 2000)]

    other = replace(PRIORS, **{name: 1.3})
    _known_sums.cache_clear()
    steps(PRIORS)
    shared = steps(other)
    _known_sums.cache_clear()
    assert shared == steps(other)
