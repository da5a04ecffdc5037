"""GPUs held to less: decode steps hardly notice, prompts do, watts stay below, and answers say how sure they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.hardware.cluster import held_to, load_gpu, make_cluster
from ridgeline.serving.hardware.gpu_limits import GpuLimits
from ridgeline.serving.traffic.traffic import ClosedLoop, Fixed, OpenLoop, Traffic
from ridgeline.serving.twin.calibration import Calibration, ValidatedSetting
from ridgeline.serving.twin.reach import intervals
from ridgeline.serving.twin.simulate import SimulationResult, simulate, step_time
from ridgeline.serving.twin.steptime import StepTime
from tests.twin.deployments import llama, r1, split

CHATS = Traffic(Fixed(500, 100), 200, ClosedLoop(64))
LIMITS = (
    GpuLimits(600),
    GpuLimits(450),
    GpuLimits(300),
    GpuLimits(None, 1500),
    GpuLimits(None, 1100),
    GpuLimits(500, 990),
)


def held(deployment: Deployment, limits: GpuLimits) -> Deployment:
    cluster = deployment.cluster
    gpu = held_to(load_gpu("h200"), limits)
    return replace(deployment, cluster=replace(cluster, node=replace(cluster.node, gpu=gpu)))


def times_of(deployment: Deployment) -> StepTime:
    return step_time(deployment, deployment.layout, "both", Calibration())[0]


def run(limits: GpuLimits, traffic: Traffic = CHATS) -> SimulationResult:
    return simulate(held(llama(), limits), traffic)


def test_a_few_users_notice_no_limit_that_a_long_prompt_does() -> None:
    free, capped = times_of(held(llama(), GpuLimits())), times_of(held(llama(), GpuLimits(500)))
    assert capped.decode_s(4, 4000) == free.decode_s(4, 4000)
    assert capped.prefill_s(8192, 8192 * 4096, 1, 8192) > 1.1 * free.prefill_s(8192, 8192 * 4096, 1, 8192)


def test_a_lower_clock_slows_prompts_more_than_answers_and_neither_more_than_itself() -> None:
    free, slow = times_of(held(llama(), GpuLimits())), times_of(held(llama(), GpuLimits(None, 1500)))
    decode = slow.decode_s(16, 32_000) / free.decode_s(16, 32_000)
    prefill = slow.prefill_s(8192, 8192 * 4096, 1, 8192) / free.prefill_s(8192, 8192 * 4096, 1, 8192)
    assert 1.0 < decode < prefill < 1980 / 1500


def test_prompts_do_not_notice_a_lock_above_the_clock_that_the_gpus_own_limit_leaves_them() -> None:
    free, locked = times_of(held(llama(), GpuLimits())), times_of(held(llama(), GpuLimits(None, 1900)))
    assert locked.prefill_s(8192, 8192 * 4096, 1, 8192) == free.prefill_s(8192, 8192 * 4096, 1, 8192)
    assert locked.decode_s(16, 32_000) > free.decode_s(16, 32_000)


def test_less_power_is_never_faster_and_never_drawn_beyond() -> None:
    results = [run(GpuLimits(watts)) for watts in (700, 600, 500, 400, 300, 200)]
    speeds = [result.summary.output_tok_s for result in results]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] == run(GpuLimits()).summary.output_tok_s
    for watts, result in zip((700, 600, 500, 400, 300, 200), results, strict=True):
        low, high = result.interval["gpu_power_w"]
        assert low < result.gpu_power_w <= high <= watts * 1.0001  # type: ignore[operator]


def test_a_limit_just_below_the_gpus_own_changes_next_to_nothing() -> None:
    traffic = Traffic(Fixed(4000, 20), 32, ClosedLoop(16))
    free = run(GpuLimits(), traffic)
    for limits in (GpuLimits(699), GpuLimits(None, 1970)):
        held_back = run(limits, traffic)
        assert held_back.summary.output_tok_s == pytest.approx(free.summary.output_tok_s, rel=0.015)
        assert held_back.joules_per_output_token == pytest.approx(free.joules_per_output_token, rel=0.015)


def test_the_less_clock_is_left_the_wider_the_bounds() -> None:
    found = [run(GpuLimits(watts)) for watts in (650, 500, 400, 300, 250, 200)]
    lost = [result.energy.held_back for result in found]  # type: ignore[union-attr]
    assert lost == sorted(lost)
    widths = [high / low for low, high in (result.interval["speed"] for result in found)]
    assert widths == sorted(widths)


def test_watts_are_those_of_the_clock_that_a_step_runs_at() -> None:
    """At a limit that steps run into, a GPU draws it: no less, as an idle one would, and no more."""
    for watts in (400, 300, 200):
        busy = run(GpuLimits(watts), Traffic(Fixed(500, 200), 128, ClosedLoop(64)))
        assert 0.93 * watts < busy.gpu_power_w <= watts  # type: ignore[operator]


def test_a_gpu_that_waits_at_a_locked_clock_draws_less() -> None:
    """81 W at 345 MHz, 125 W at 1,980: idle GPUs of benchmarks/twin/README.md."""
    seldom = Traffic(Fixed(10, 2), 10, OpenLoop(0.1))
    free, locked = (run(limits, seldom).gpu_power_w for limits in (GpuLimits(), GpuLimits(None, 990)))
    assert 0.75 * free < locked < 0.85 * free  # type: ignore[operator]


def test_drafts_that_a_step_verifies_draw_too() -> None:
    times = times_of(held(llama(draft_tokens=4, accept_length=1.0), GpuLimits(400)))
    times.decode_s(256, 51_200)
    assert times.held is not None
    assert times.held.pace < 1.0


def test_a_clock_in_the_middle_makes_a_token_for_fewer_joules_than_either_end() -> None:
    free, middle, slow = (run(GpuLimits(None, mhz)).joules_per_output_token for mhz in (1980, 1100, 500))
    assert middle < 0.95 * free  # type: ignore[operator]
    assert middle < slow  # type: ignore[operator]


@pytest.mark.parametrize("limits", LIMITS)
def test_bounds_are_wider_and_it_is_said_that_nobody_measured_it(limits: GpuLimits) -> None:
    free, found = run(GpuLimits()), run(limits)
    for name in ("speed", "output_tok_s", "itl_p50_ms", "ttft_p50_ms"):
        (low, high), (free_low, free_high) = found.interval[name], free.interval[name]
        assert high / low > free_high / free_low
    assert found.energy.spread > free.energy.spread  # type: ignore[union-attr]
    assert f"GPUs held to {' and '.join(limits.words)}" in found.reach
    assert "held to" not in free.reach


def test_each_bound_owes_something_to_the_clock_that_is_lost() -> None:
    found = run(GpuLimits(400))
    as_usual = replace(found.doubts, held_back=0.0)
    wide, usual = (intervals(found.summary, None, Calibration(), doubts) for doubts in (found.doubts, as_usual))
    for name in ("speed", "ttft_p50_ms", "itl_p50_ms"):
        assert wide[name][0] < usual[name][0] and usual[name][1] < wide[name][1]


def test_a_calibration_says_that_it_was_measured_on_gpus_that_nothing_held() -> None:
    scope = (ValidatedSetting("h200", "sglang", "0.5.15", "llama-8b", "bf16", "tp 1"),)
    found = simulate(held(llama(), GpuLimits(500)), CHATS, Calibration(points=20, scope=scope))
    assert found.calibrated and "GPUs held to 500W" in found.reach


@given(
    st.sampled_from(LIMITS),
    st.sampled_from([llama(), llama(draft_tokens=3, accept_length=2.0), r1(tp=8, pp=2)]),
    st.integers(1, 1000),
    st.integers(1, 4000),
)
def test_terms_add_up_at_every_clock_and_no_step_is_faster(
    limits: GpuLimits, deployment: Deployment, batch: int, each: int
) -> None:
    free, times = times_of(held(deployment, GpuLimits())), times_of(held(deployment, limits))
    context = batch * each
    assert sum(t.seconds for t in times.explain_decode(batch, context)) == pytest.approx(times.decode_s(batch, context))
    assert times.decode_s(batch, context) >= free.decode_s(batch, context) * 0.9999
    tokens, pairs = batch * each, batch * each * each / 2
    terms = times.explain_prefill(tokens, pairs, batch, each)
    assert sum(t.seconds for t in terms) == pytest.approx(times.prefill_s(tokens, pairs, batch, each))
    assert times.prefill_s(tokens, pairs, batch, each) >= free.prefill_s(tokens, pairs, batch, each) * 0.9999


def test_split_roles_draw_for_the_prompts_that_they_compute() -> None:
    prompts, answers = (simulate(split("P2D2"), Traffic(Fixed(*lengths), 64)) for lengths in ((6000, 8), (60, 8)))
    assert prompts.energy is not None
    assert answers.energy is not None
    assert prompts.energy.prompts > 0.05 > answers.energy.prompts
    assert prompts.gpu_power_w > 1.1 * answers.gpu_power_w  # type: ignore[operator]


def test_a_gpu_is_spelled_with_what_it_is_held_to() -> None:
    assert load_gpu("h200@700W@1980MHz") == load_gpu("h200")
    gpu = load_gpu("H200-141GB@500w@1500 MHz")
    assert gpu.limits == GpuLimits(500, 1500)
    assert gpu.spelled == "h200@500W@1500MHz"
    assert load_gpu(gpu.spelled) == gpu
    assert str(make_cluster(gpu.spelled, 2)) == "2 x 8 H200 at 500W and 1500MHz"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h200@500", "cannot read @500; write one limit of power as @500W"),
        ("h200@500W@400W", "cannot read @400W; write one limit"),
        ("h200@0W", "cannot read @0W"),
        ("h200@900W", "900 W is more than the 700 W that H200 has at most"),
        ("h200@2500MHz", "2500 MHz is more than the 1980 MHz"),
        ("h200@100W", "100 W is too far from what was measured to predict H200; give 175 W or more"),
        ("b300@1500MHz", "the highest clock of B300 is not known here; give it as `clock_mhz`"),
        ("mi300x@500W", "limits of MI300X are neither set nor predicted"),
    ],
)
def test_a_limit_that_nothing_is_known_of_is_refused(name: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        load_gpu(name)
    assert words in str(refused.value)
