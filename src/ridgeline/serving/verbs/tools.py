"""What coding agents may ask of serving (`ridgeline mcp`): each tool gives the command line that answers it."""

from __future__ import annotations

from ridgeline.serving.engines.releases import USUAL_ENGINE


def simulate(
    model: str,
    gpu: str,
    traffic: str = "sharegpt",
    tp: int = 1,
    engine: str = USUAL_ENGINE,
    concurrency: int | None = None,
    rate: float | None = None,
    slos: list[str] | None = None,
) -> list[str]:
    """Predict throughput and latency of one server before any GPU is used. Modelled, never measured: use it to choose
    what to measure. `traffic` as fixed:IN:OUT or sharegpt; a limit as ttft_p95_ms=2000."""
    arguments = ["twin", "simulate", "--model", model, "--gpu", gpu, "--traffic", traffic, "--tp", str(tp)]
    return [*arguments, "--engine", engine, *_load(concurrency, rate, slos)]


def plan(
    model: str,
    gpu: str,
    nodes: int = 1,
    traffic: str = "sharegpt",
    rate: float | None = None,
    slos: list[str] | None = None,
    engine: str = USUAL_ENGINE,
) -> list[str]:
    """Rank ways to serve a model on these GPUs within latency limits, with their commands. Modelled, never measured:
    the study that `ridgeline plan --out` writes is what confirms a choice."""
    arguments = ["plan", "--model", model, "--gpu", gpu, "--nodes", str(nodes), "--traffic", traffic]
    return [*arguments, "--engine", engine, *_load(None, rate, slos)]


def bench(
    url: str,
    concurrency: int | None = None,
    rate: float | None = None,
    requests: int = 100,
    traffic: str | None = None,
    slos: list[str] | None = None,
) -> list[str]:
    """Load a server and measure TTFT, ITL, throughput and goodput. A run whose load generator fell behind says so and
    does not count. One run of each of two servers is no comparison: use `compare` on a study."""
    arguments = ["bench", url, "--requests", str(requests), *(["--traffic", traffic] if traffic else [])]
    return [*arguments, *_load(concurrency, rate, slos)]


def _load(concurrency: int | None, rate: float | None, slos: list[str] | None) -> list[str]:
    given = {"--concurrency": concurrency, "--rate": rate}
    numbers = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    return [*numbers, *(text for slo in slos or () for text in ("--slo", slo))]
