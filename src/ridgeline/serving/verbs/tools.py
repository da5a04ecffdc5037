"""What coding agents may ask of serving (`ridgeline mcp`): each tool gives the command line that answers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.serving.engines.releases import USUAL_ENGINE


def simulate(
    model: str,
    gpu: str,
    traffic: str = "sharegpt",
    tp: int = 1,
    engine: str = USUAL_ENGINE,
    concurrency: int | None = None,
    slos: list[str] | None = None,
) -> list[str]:
    """Predict throughput and latency of one server before any GPU is used. Modelled, never measured: use it to choose
    what to measure. `traffic` as fixed:IN:OUT or sharegpt; a limit as ttft_p95_ms=2000."""
    return ["twin", "simulate", *_options(locals())]


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
    return ["plan", *_options(locals())]


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
    given = locals()
    return ["bench", given.pop("url"), *_options(given)]


def _options(given: Mapping[str, object]) -> Iterator[str]:
    """An option of the same name for each argument that is given; one for each limit."""
    for name, value in given.items():
        option, values = ("--slo", value) if isinstance(value, list) else (f"--{name}", [value])
        yield from (text for each in values if each is not None for text in (option, str(each)))
