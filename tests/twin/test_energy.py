"""What GPUs draw by the twin's word: between idle and their limit, more for more work, and joules that add up."""

from dataclasses import replace

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.api import plan
from ridgeline.serving.api import simulate as asked
from ridgeline.serving.hardware.cluster import gpu_names, load_gpu, make_cluster
from ridgeline.serving.traffic.traffic import ClosedLoop, Fixed, OpenLoop, Traffic
from ridgeline.serving.twin.energy import ENERGY_FIGURES, draw_of
from ridgeline.serving.twin.simulate import SimulationResult, simulate
from tests.twin.deployments import llama, split

BURST = Traffic(Fixed(1000, 100), 200)


def at(rate_s: float) -> SimulationResult:
    return simulate(llama(), Traffic(Fixed(500, 100), 100, OpenLoop(rate_s)))


@pytest.mark.parametrize("gpu", [name for name in gpu_names() if load_gpu(name).power_w])
def test_no_gpu_draws_more_than_its_limit_or_less_than_idle(gpu: str):
    row = load_gpu(gpu)
    assert row.power_w is not None
    for traffic in (BURST, Traffic(Fixed(500, 100), 20, OpenLoop(0.2))):
        result = simulate(replace(llama(), cluster=make_cluster(gpu, 1, 1)), traffic)
        low, high = result.interval["gpu_power_w"]
        assert result.gpu_power_w is not None
        assert draw_of(row).idle * row.power_w * 0.999 <= result.gpu_power_w <= row.power_w
        assert low < result.gpu_power_w <= high <= row.power_w * 1.0001


def test_joules_of_a_token_are_all_watts_over_the_tokens_made():
    for deployment in (llama(), llama(2), split("P2D2")):
        result = simulate(deployment, BURST)
        assert result.gpu_power_w is not None
        all_w = result.gpu_power_w * deployment.layout.gpus
        assert result.joules_per_output_token == pytest.approx(all_w / result.summary.output_tok_s)


def test_an_idle_server_draws_idle_watts_and_wastes_them_on_few_tokens():
    quiet, busy = at(0.05), at(20.0)
    idle_w = draw_of(load_gpu("h200")).idle * 700
    assert quiet.gpu_power_w == pytest.approx(idle_w, rel=0.1)
    assert busy.gpu_power_w is not None
    assert busy.gpu_power_w > 2 * idle_w
    assert quiet.joules_per_output_token > 20 * busy.joules_per_output_token  # type: ignore[operator]


def test_more_users_take_less_energy_for_each_token():
    joules = [
        simulate(llama(), Traffic(Fixed(200, 200), 4 * users, ClosedLoop(users))).joules_per_output_token
        for users in (1, 8, 64)
    ]
    assert joules[0] > 4 * joules[1] > 8 * joules[2]  # type: ignore[operator]


def test_prompts_draw_more_than_answers_of_a_few_users():
    prompts, answers = (
        simulate(llama(), Traffic(Fixed(*lengths), 16)).gpu_power_w for lengths in ((8000, 2), (20, 500))
    )
    assert prompts > answers  # type: ignore[operator]


def test_bounds_are_wider_where_the_gpu_was_never_seen():
    widths = [draw_of(load_gpu(gpu)).spread for gpu in ("h100", "h200", "a100")]
    assert widths == sorted(set(widths))


def test_fewer_tensor_cores_for_its_watts_draw_a_smaller_part_of_them():
    h100, h20 = (draw_of(load_gpu(gpu)) for gpu in ("h100", "h20"))
    few = 148 / 400 / (989.4 / 700)  # TFLOP/s in bf16 for a watt of the limit
    assert (h20.tensor, h20.prompts) == pytest.approx((few * h100.tensor, few * h100.prompts))
    assert (h20.idle, h20.memory) == (h100.idle, h100.memory)


def test_joules_are_less_sure_than_watts_and_hold_what_is_predicted():
    result = at(20.0)
    watts, joules = (result.interval[name] for name in ENERGY_FIGURES)
    assert joules[0] < result.joules_per_output_token < joules[1]  # type: ignore[operator]
    assert joules[1] / joules[0] >= watts[1] / watts[0] * 0.999


def test_a_gpu_without_a_limit_of_power_has_no_energy():
    deployment = llama()
    node = replace(deployment.cluster.node, gpu=replace(deployment.cluster.gpu, power_w=None))
    result = simulate(replace(deployment, cluster=replace(deployment.cluster, node=node)), BURST)
    assert result.gpu_power_w is None
    assert result.joules_per_output_token is None
    assert "gpu_power_w" not in result.interval
    assert result.as_json()["joules_per_output_token"] is None


def test_faces_say_watts_and_joules():
    result = asked(model="llama-8b", gpu="h100", traffic="fixed:200:50", requests=50)
    assert set(ENERGY_FIGURES) <= result.as_json().keys()
    assert set(ENERGY_FIGURES) <= {row[0] for row in result.shown().rows}


def test_a_plan_for_energy_ranks_by_joules_within_the_limits():
    options = {"model": "llama-8b", "gpu": "h100", "gpus_per_node": 2, "traffic": "fixed:500:100",
               "slos": ("ttft_p95_ms=2000", "itl_p95_ms=40"), "requests": 100}  # fmt: skip
    choices = [c.option for c in plan(**options, goal="energy").choices]
    kept = [o.joules_per_output_token for o in choices if o.meets]
    assert kept == sorted(kept)
    fastest = plan(**options).choices[0].option
    assert kept[0] <= fastest.joules_per_output_token
    with pytest.raises(InputError, match="goal 'watts' is not known"):
        plan(**options, goal="watts")
