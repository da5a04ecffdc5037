"""/metrics as the engine names things that the twin stands in for: what an operator's dashboards and `keep` read."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from ridgeline.serving.engines.base import engine_named

# tokens of a twin, and those that came later than it should have sent them
MADE_TOKENS, LATE_TOKENS = "ridgeline:twin_tokens_total", "ridgeline:twin_late_tokens_total"
# upper edges of both engines' histograms of times, thinned out
_EDGES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass
class Histogram:
    """Times by upper edge, as Prometheus counts them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_EDGES_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(_EDGES_S, seconds)] += times
        self.total_s += seconds * times

    def lines(self, name: str, labels: str) -> list[str]:
        lines, so_far = [f"# TYPE {name} histogram"], 0
        for edge, count in zip((*map(str, _EDGES_S), "+Inf"), self.counts, strict=True):
            so_far += count
            lines.append(f'{name}_bucket{{{labels},le="{edge}"}} {so_far}')
        return [*lines, f"{name}_sum{{{labels}}} {self.total_s:.6f}", f"{name}_count{{{labels}}} {so_far}"]


@dataclass
class Counters:
    """What the server counts of its requests."""

    requests: int = 0
    failed: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)

    @property
    def cache_queries(self) -> int:
        """Prompt tokens that were looked up: all of them."""
        return self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Gauges:
    """The state of all engines of the server at one moment."""

    running: int
    waiting: int
    used_tokens: int
    pool_tokens: int
    output_tok_s: float
    retractions: int
    behind_s: float
    made: int = 0  # tokens so far, of answers that are under way too
    late: int = 0  # those of them that came late, as this machine was too slow

    @property
    def kv_share(self) -> float:
        return self.used_tokens / self.pool_tokens if self.pool_tokens else 0.0


# figures of `Gauges` and of `Counters`, in the order of the page, by their names in `MetricNames`
_GAUGES = ("running", "waiting", "used_tokens", "pool_tokens", "kv_share", "output_tok_s", "retractions")
_COUNTERS = ("prompt_tokens", "output_tokens", "cached_tokens", "cache_queries", "requests", "aborted")


def metrics_text(engine: str, model: str, counters: Counters, gauges: Gauges) -> str:
    names, labels = engine_named(engine).metrics, f'model_name="{model}"'
    lines: list[str] = []
    for figure in _GAUGES:
        if name := getattr(names, figure):
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name} {kind}", f"{name}{{{labels}}} {getattr(gauges, figure):.10g}"]
    for figure in _COUNTERS:
        name = getattr(names, figure)
        # counted as tokens are made, where others wait for the end of an answer
        value = gauges.made if name == names.made else getattr(counters, figure)
        lines += [f"# TYPE {name} counter", f"{name}{{{labels}}} {value}"] if name else []
    for figure in ("ttft", "itl", "e2e"):
        lines += getattr(counters, figure).lines(getattr(names, figure), labels)
    lines += ["# TYPE ridgeline:twin_behind_seconds gauge", f"ridgeline:twin_behind_seconds {gauges.behind_s:.6f}"]
    for name, value in ((MADE_TOKENS, gauges.made), (LATE_TOKENS, gauges.late)):
        lines += [f"# TYPE {name} counter", f"{name} {value}"]
    return "\n".join(lines) + "\n"
