"""The Python API of serving: `ridgeline.simulate`, `ridgeline.plan` and `ridgeline.bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.serving.engines.deployment import describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.names import USUAL_ENGINE
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.load.bench import BenchResult
from ridgeline.serving.load.session import BenchOptions, plan_from, run_session
from ridgeline.serving.planner.planner import Plan, answer_plan
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibration import read_calibration
from ridgeline.serving.twin.simulate import SimulationResult
from ridgeline.serving.twin.simulate import simulate as simulate_deployment


def simulate(
    model: str,
    gpu: str,
    traffic: str = "sharegpt",
    *,
    layout: Layout | None = None,
    settings: EngineSettings | None = None,
    engine: str = USUAL_ENGINE,
    requests: int | None = None,
    rate_s: float | None = None,
    concurrency: int | None = None,
    slos: Sequence[str] = (),
    calibration: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> SimulationResult:
    """Throughput and latency of a layout under some traffic, predicted.

    `Layout` and `EngineSettings` are in `ridgeline.serving.api`; `options` are those of a deployment: fabric, dtype,
    kv_dtype, routing, prefill_groups, decode_groups.
    """
    chosen = parse_engine(engine, settings or EngineSettings())
    deployment = describe(model, gpu, layout or Layout(), chosen, **options)
    sent = parse_traffic(traffic, requests=requests, rate_s=rate_s, concurrency=concurrency, seed=seed)
    fitted = read_calibration(Path(calibration)) if calibration else None
    return simulate_deployment(deployment, sent, fitted, [Slo.parse(text) for text in slos])


def plan(
    model: str,
    gpu: str,
    *,
    nodes: int = 1,
    gpus_per_node: int = 8,
    traffic: str = "sharegpt",
    rate_s: float | None = None,
    concurrency: int | None = None,
    slos: Sequence[str] = (),
    engine: str = USUAL_ENGINE,
    top: int = 8,
    **options: Any,
) -> Plan:
    """Ways to serve a model on given GPUs within latency limits, best first. `options` as of `ridgeline plan`: fabric,
    requests, attention_backend, dtype, kv_dtype, calibration, seed."""
    return answer_plan(
        model, gpu, nodes, gpus_per_node, traffic,
        rate_s=rate_s, concurrency=concurrency, slos=slos, engine=engine, top=top, **options,
    )  # fmt: skip


def bench(url: str, **options: Any) -> BenchResult:
    """Loads a server and measures it. `options` are those of `ridgeline bench`, as `BenchOptions` spells them:
    concurrency, rate_s, requests, duration_s, traffic, slos, model, ..."""
    options |= {name: tuple(options[name]) for name in ("slos", "headers") if name in options}
    asked = plan_from(BenchOptions(url, **options))
    found = run_session(asked, goodput=None, grid=None, progress=lambda part: None).found
    assert isinstance(found, BenchResult), "neither a sweep nor a search was asked for"
    return found
