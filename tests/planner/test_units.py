"""Limits are given in milliseconds and counted in seconds: each place where a planner changes from one to the other."""

import pytest

from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner import planner
from ridgeline.serving.planner.candidates import PlanQuestion
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.request import TooLate
from ridgeline.serving.twin.simulate import run_to_end, simulate
from tests.twin import deployments as make

LIMITS = ("ttft_p95_ms=2000", "itl_p95_ms=50", "tpot_mean_ms=40")


def test_limits_become_seconds_and_the_strictest_counts():
    slos = tuple(map(Slo.parse, (*LIMITS, "ttft_p50_ms=1500")))
    settings = EngineSettings()
    asked = PlanQuestion(load_model("llama-8b"), make_cluster("h200", 1, 1), 300, 100, slos, settings, Calibration())
    assert asked.limit_s("ttft") == 1.5
    assert asked.limit_s("e2e") is None
    assert asked.itl_limit_s == 0.04


def test_what_a_plan_says_of_its_load_follows_from_its_latencies():
    """Requests under way by Little's law, and how near the limits they come."""
    plan = planner.answer_plan("llama-8b", "h200", 1, 1, "fixed:200:100", rate_s=20, slos=LIMITS[:2])
    assert plan.choices
    for choice in plan.choices:
        point = choice.point
        summary = choice.option.summary
        assert summary.e2e_ms and summary.ttft_ms and summary.itl_ms
        decoding_s = (summary.e2e_ms.mean - summary.ttft_ms.mean) / 1000
        assert 0.05 < decoding_s < 10
        assert point.running == round((choice.option.rate_s or 0) * decoding_s)
        nearest = max(summary.ttft_ms.p95 / 2000, summary.itl_ms.p95 / 50)
        assert choice.option.summary.overshoot == pytest.approx(nearest)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("rate_s", [2, 2000])
def test_a_run_ends_early_only_where_its_limit_is_lost(rate_s: float, split: bool):
    """`TooLate` says no more than the whole run would have: that too many first tokens were late."""
    deployment = make.split("P2D2", 128) if split else make.llama()
    traffic, limit = parse_traffic("fixed:500:20", requests=300, rate_s=rate_s), Slo.parse("ttft_p95_ms=1200")
    whole = simulate(deployment, traffic, slos=[limit])
    late = sum(not limit.met_by(record) for record in whole.records)
    assert (late > 20) == (rate_s > 2)
    if late > 20:
        with pytest.raises(TooLate):
            run_to_end(deployment, traffic, Calibration(), [limit], most_late=0.05)
    assert run_to_end(deployment, traffic, Calibration(), [limit], most_late=late / 300).summary == whole.summary
