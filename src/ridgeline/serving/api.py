"""The Python API of serving: `ridgeline.simulate`, `plan`, `plan_sessions`, `bench` and `find_goodput`.

What each can be given is declared once, in the class that it takes: `SimulationRequest`, `PlanRequest`, `BenchOptions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ridgeline.records.request import takes
from ridgeline.serving.engines.deployment import describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.load.bench import BenchResult
from ridgeline.serving.load.edge import Edge, GoodputTerms
from ridgeline.serving.load.session import BenchOptions, plan_from, run_session
from ridgeline.serving.planner import sessions as planner_sessions
from ridgeline.serving.planner.planner import answer_plan as plan
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibration import read_calibration
from ridgeline.serving.twin.simulate import SimulationResult
from ridgeline.serving.twin.simulate import simulate as simulate_deployment

__all__ = ["EngineSettings", "Layout", "bench", "find_goodput", "plan", "plan_sessions", "simulate"]


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """A deployment and its traffic. `Layout` and `EngineSettings` are in `ridgeline.serving.api`."""

    model: str
    gpu: str
    traffic: str = "sharegpt"
    layout: Layout | None = None
    settings: EngineSettings | None = None
    engine: str = USUAL_ENGINE
    requests: int | None = None
    rate_s: float | None = None
    concurrency: int | None = None
    sessions: int | None = None
    closed: bool = False
    idle_cap_s: float | None = None
    start_within: float = 0.0
    duration_s: float | None = None
    slos: Sequence[str] = ()
    calibration: str | Path | None = None
    seed: int = 0
    fabric: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    routing: str = "round-robin"
    prefill_groups: str | None = None
    decode_groups: str | None = None


@takes(SimulationRequest)
def simulate(asked: SimulationRequest) -> SimulationResult:
    """Throughput and latency of a layout under some traffic, predicted."""
    deployment = describe(
        asked.model,
        asked.gpu,
        asked.layout or Layout(),
        parse_engine(asked.engine, asked.settings or EngineSettings()),
        prefill_groups=asked.prefill_groups,
        decode_groups=asked.decode_groups,
        fabric=asked.fabric,
        dtype=asked.dtype,
        kv_dtype=asked.kv_dtype,
        routing=asked.routing,
    )
    sent = parse_traffic(
        asked.traffic,
        requests=asked.requests,
        rate_s=asked.rate_s,
        concurrency=asked.concurrency,
        sessions=asked.sessions,
        closed=asked.closed,
        idle_cap_s=asked.idle_cap_s,
        start_within=asked.start_within,
        duration_s=asked.duration_s,
        seed=asked.seed,
    )
    fitted = read_calibration(Path(asked.calibration)) if asked.calibration else None
    return simulate_deployment(deployment, sent, fitted, [Slo.parse(text) for text in asked.slos])


@takes(planner_sessions.SessionsRequest)
def plan_sessions(asked: planner_sessions.SessionsRequest) -> planner_sessions.SessionsAnswer:
    """How many sessions a layout holds within limits, where its knee is and why, and whether a host tier pays."""
    return planner_sessions.plan_sessions(asked)


@takes(BenchOptions)
def bench(asked: BenchOptions) -> BenchResult:
    """Loads a server and measures it."""
    found = run_session(plan_from(asked), goodput=None, progress=lambda part: None).found
    assert isinstance(found, BenchResult), "no search was asked for"
    return found


@dataclass(frozen=True)
class GoodputRequest(BenchOptions):
    """Load as for `bench`, without a rate: how long the answer is held, and how long the search may take."""

    find_goodput: bool = True
    hold_s: float = 60.0
    within_s: float = 240.0
    start: float | None = None


@takes(GoodputRequest)
def find_goodput(asked: GoodputRequest) -> Edge:
    """The highest load under which a server keeps the limits in `slos`, held for as long as was asked."""
    options = BenchOptions(**{each.name: getattr(asked, each.name) for each in fields(BenchOptions)})
    terms = GoodputTerms(asked.hold_s, asked.within_s, asked.start)
    found = run_session(plan_from(options), goodput=terms, progress=lambda part: None).found
    assert isinstance(found, Edge), "a search was asked for"
    return found
