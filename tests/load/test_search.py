"""Sweeps, the knee, and the documents of the command."""

from __future__ import annotations

import json

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.load.bench import BenchPlan, BenchResult
from ridgeline.serving.load.edge import take_off
from ridgeline.serving.load.fidelity import Fidelity
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.load.sweep import parse_grid, sweep
from ridgeline.serving.traffic.requests import RequestRecord, summarise
from ridgeline.serving.traffic.traffic import ClosedLoop, Fixed, OpenLoop
from ridgeline.serving.verbs.bench import _sweep_text
from tests.command_line import ridgeline
from tests.load.scripted import Scripted, tokens


def load_of(plan: BenchPlan) -> float:
    pace = plan.traffic.pace
    assert isinstance(pace, ClosedLoop | OpenLoop)
    return pace.concurrency if isinstance(pace, ClosedLoop) else pace.rate_s


def window_of(plan: BenchPlan) -> float:
    pace = plan.traffic.pace
    return plan.traffic.requests / pace.rate_s if isinstance(pace, OpenLoop) else plan.duration_s or 10.0


class Pretend:
    """A server with a known capacity."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity

    def __call__(self, plan: BenchPlan) -> BenchResult:
        load = load_of(plan)
        lengths = plan.traffic.lengths
        scale = lengths.input_tokens / 128 if isinstance(lengths, Fixed) else 1.0
        slow = load * scale > self.capacity
        ttft_s = 0.02 * scale + (0.5 if slow else 0.0)
        at_s = [k * window_of(plan) / 40 for k in range(40)]
        rows = [
            RequestRecord(k, at, at, at + ttft_s, at + ttft_s + 0.1, 10, 5, gaps_s=((0.025, 4),))
            for k, at in enumerate(at_s)
        ]
        fidelity = Fidelity((), None, 0, 0, 0, 1, 0, 0.1, 0.1)
        return BenchResult(plan, "m", summarise(rows, plan.slos), fidelity, rows)


def plan(**wishes: object) -> BenchPlan:
    return plan_from(BenchOptions(**{"url": "http://h", "concurrency": 1, "slos": ("ttft_p95_ms=100",), **wishes}))


def test_the_knee_is_where_ttft_doubles():
    assert take_off([(1, 10.0), (2, 10.0), (4, 10.0), (8, 40.0)]) == pytest.approx(4 * 2**0.5)
    assert take_off([(1, 10.0), (64, 19.0)]) is None
    assert take_off([]) is None


def test_a_sweep_gives_rows_heat_maps_and_knees():
    grid = parse_grid("concurrency=1,4,16 input=128,512", plan(slos=()))
    done = sweep(plan(slos=()), grid, Pretend(8))
    answer = done.as_json()
    assert len(done.points) == 6 and len(answer["points"]) == 6
    first = answer["heatmaps"][0]
    assert first["metric"] == "ttft_p50_ms" and len(first["z"]) == 2 and len(first["z"][0]) == 3
    assert first["z"][0][2] > first["z"][0][0]
    knees = {k["input_tokens"]: k["concurrency"] for k in answer["knees"]}
    assert 4 < knees[128] < 16 and 1 < knees[512] < 4
    assert "knee" in _sweep_text(done)


@pytest.mark.parametrize("text", ["batch=1", "concurrency=a", "concurrency=0", "input="])
def test_a_bad_grid_is_named(text: str):
    with pytest.raises(InputError, match="--sweep"):
        parse_grid(text, plan())


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ([], {"requests_s", "ttft_ms", "itl_ms", "errors", "cpu_ms_per_request", "void", "why", "goodput"}),
        (["--sweep", "concurrency=1,2"], {"points", "heatmaps", "knees"}),
        (["--find-goodput", "--slo", "e2e_p95_ms=0.001", "--hold", "1", "--within", "30"], None),
    ],
)
def test_the_command_prints_one_document(more: list[str], keys: set[str] | None):
    with Scripted(tokens(4, first_s=0.005)) as server:
        words = ("bench", server.url, "--concurrency", "2", "--requests", "10", "--max-tokens", "4", "--json")
        done = ridgeline(*words, *more)
    assert "Traceback" not in done.stderr
    if keys is None:
        # on a busy machine every run may be void, which is no verdict
        assert done.returncode == 1 and ("does not hold" in done.stderr or "no verdict" in done.stderr)
    else:
        answer = json.loads(done.stdout)
        assert keys <= set(answer), done.stderr
        if "ttft_ms" in answer:
            assert set(answer["ttft_ms"]) == {"mean", "p50", "p90", "p95", "p99"}
