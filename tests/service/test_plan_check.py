"""When a plan is doubted: only over several windows, only with enough requests, and with commands that can be run."""

from __future__ import annotations

from pathlib import Path

from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep.plan_check import (
    LEAST_REQUESTS,
    WINDOW_S,
    WINDOWS,
    PlanCheck,
    PlanDoubt,
    _quantile_bounds_ms,
    commands_after,
)
from ridgeline.serving.twin.server.metrics import Counters, Gauges, metrics_text

EXPECTED = {"requests_s": 5.0, "interval": {"ttft_p50_ms": [50, 150], "ttft_p95_ms": [100, 400]}}
IDLE = Gauges(0, 0, 0, 1, 0.0, 0, 0.0)


def doubts(ttft_s: float, per_window: int, windows: int, expected: object = EXPECTED) -> list[list[PlanDoubt]]:
    """What a check says after each window in which that many requests had that TTFT."""
    check, counters = PlanCheck(expected, "sglang"), Counters()  # type: ignore[arg-type]
    assert check.take(0.0, [metrics_text("sglang", "m", counters, IDLE)]) == []
    found = []
    for n in range(1, windows + 1):
        for _ in range(per_window):
            counters.ttft.add(ttft_s)
        found.append(check.take(n * WINDOW_S, [metrics_text("sglang", "m", counters, IDLE)]))
    return found


def test_latencies_inside_the_interval_say_nothing() -> None:
    assert not any(doubts(0.12, 200, 6))


def test_it_is_said_when_several_windows_agree_and_not_before() -> None:
    found = doubts(0.9, 200, WINDOWS)
    assert [bool(each) for each in found] == [False] * (WINDOWS - 1) + [True]
    assert {doubt.figure for doubt in found[-1]} == {"ttft_p50_ms", "ttft_p95_ms"}
    assert "ttft_p50_ms is 500 ms, above the plan's 50 to 150 ms, at 1.67 requests/s" in found[-1][0].evidence
    assert not found[-1][0].overloaded


def test_it_is_not_said_again_before_as_many_windows_agree_again() -> None:
    found = doubts(0.9, 200, 2 * WINDOWS + 1)
    assert [n for n, each in enumerate(found, start=1) if each] == [WINDOWS, 2 * WINDOWS]


def test_latencies_below_the_interval_are_doubted_too() -> None:
    """A plan that was far too careful is wrong as well, and GPUs stand idle for it."""
    found = doubts(0.004, 200, WINDOWS)[-1]
    assert {doubt.figure for doubt in found} == {"ttft_p50_ms", "ttft_p95_ms"}
    assert "below the plan's 50 to 150 ms" in found[0].evidence


def test_few_requests_say_nothing() -> None:
    assert not any(doubts(0.9, LEAST_REQUESTS - 1, 6))


def test_more_load_than_planned_is_no_fault_of_the_plan() -> None:
    found = doubts(0.9, int(6 * WINDOW_S), WINDOWS)
    assert all(doubt.overloaded for doubt in found[-1])
    assert found[-1]


def test_counters_that_begin_anew_begin_a_window() -> None:
    check, many, few = PlanCheck(EXPECTED, "sglang"), Counters(), Counters()
    for _ in range(500):
        many.ttft.add(0.9)
    assert check.take(0.0, [metrics_text("sglang", "m", many, IDLE)]) == []
    assert check.take(WINDOW_S, [metrics_text("sglang", "m", few, IDLE)]) == [], "a server was started again"


def test_a_histogram_says_between_which_edges() -> None:
    assert _quantile_bounds_ms({0.1: 50.0, 0.5: 90.0, float("inf"): 100.0}, 0.5) == (0.0, 100.0)
    assert _quantile_bounds_ms({0.1: 50.0, 0.5: 90.0, float("inf"): 100.0}, 0.6) == (100.0, 500.0)
    assert _quantile_bounds_ms({0.1: 50.0, 0.5: 90.0, float("inf"): 100.0}, 0.95) == (500.0, float("inf"))


def test_the_commands_name_these_logs_and_this_service(tmp_path: Path) -> None:
    path = tmp_path / "r1.yaml"
    path.write_text(
        "version: 1\nmodel: /models/deepseek-r1\nengine: {kind: sglang, gpu: h100}\n"
        "units: [{nodes: 2, gpus: 8, replicas: 2, settings: {tp: 16}}]\nrouter: {}\nslo: {ttft_p95_ms: 2000}\n"
    )
    calibrate, plan = commands_after(load_service(path), "r1.yaml", ["a/stderr", "b/stderr"])
    assert calibrate == (
        "ridgeline twin calibrate --from a/stderr b/stderr --out r1.calibration.json --model /models/deepseek-r1 "
        "--gpu h100"
    )
    assert plan.startswith("ridgeline plan --model /models/deepseek-r1 --gpu h100 --nodes 4 --slo ttft_p95_ms=2000")
    assert plan.endswith("--calibration r1.calibration.json --deploy r1.yaml")
    path.write_text(
        "version: 1\nmodel: llama-8b\nengine: {kind: sglang}\n"
        "units: [{replicas: 2, settings: {tp: 1}}, {replicas: 1, settings: {tp: 2}}]\nrouter: {}\n"
    )
    _, whole = commands_after(load_service(path), "r1.yaml", ["a"])
    assert "--nodes 3 " in whole, "a node for each server where nobody says how many GPUs they take"
    assert "--gpu" not in whole
