"""/metrics as SGLang and vLLM name them: what an operator's dashboards and `keep` read."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

# upper edges of both engines' histograms of times, thinned out
EDGES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass
class Histogram:
    """Times by upper edge, as Prometheus counts them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(EDGES_S, seconds)] += 1
        self.total_s += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        lines, so_far = [f"# TYPE {name} histogram"], 0
        for edge, count in zip((*map(str, EDGES_S), "+Inf"), self.counts, strict=True):
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
    e2e: Histogram = field(default_factory=Histogram)


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

    @property
    def kv_share(self) -> float:
        return self.used_tokens / self.pool_tokens if self.pool_tokens else 0.0


# our figure -> the name each engine gives it
_GAUGES = {
    "sglang": {
        "sglang:num_running_reqs": "running",
        "sglang:num_queue_reqs": "waiting",
        "sglang:num_used_tokens": "used_tokens",
        "sglang:max_total_num_tokens": "pool_tokens",
        "sglang:token_usage": "kv_share",
        "sglang:gen_throughput": "output_tok_s",
        "sglang:num_retracted_reqs": "retractions",
    },
    "vllm": {
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:kv_cache_usage_perc": "kv_share",
    },
}
# counted as tokens are made, where other counters wait for the end of an answer
_LIVE = {
    "sglang": {"sglang:inter_token_latency_seconds_count": "made"},
    "vllm": {"vllm:generation_tokens_total": "made"},
}
_COUNTERS = {
    "sglang": {
        "sglang:prompt_tokens_total": "prompt_tokens",
        "sglang:generation_tokens_total": "output_tokens",
        "sglang:cached_tokens_total": "cached_tokens",
        "sglang:num_requests_total": "requests",
        "sglang:num_aborted_requests_total": "aborted",
    },
    "vllm": {
        "vllm:prompt_tokens_total": "prompt_tokens",
        "vllm:prefix_cache_hits_total": "cached_tokens",
        "vllm:prefix_cache_queries_total": "prompt_tokens",
        "vllm:request_success_total": "requests",
    },
}
_TIMES = {
    "sglang": {"sglang:time_to_first_token_seconds": "ttft", "sglang:e2e_request_latency_seconds": "e2e"},
    "vllm": {"vllm:time_to_first_token_seconds": "ttft", "vllm:e2e_request_latency_seconds": "e2e"},
}


def metrics_text(engine: str, model: str, counters: Counters, gauges: Gauges) -> str:
    labels = f'model_name="{model}"'
    lines: list[str] = []
    for name, attribute in _GAUGES[engine].items():
        lines += [f"# TYPE {name} gauge", f"{name}{{{labels}}} {getattr(gauges, attribute):.10g}"]
    for name, attribute in _LIVE[engine].items():
        lines += [f"# TYPE {name} counter", f"{name}{{{labels}}} {getattr(gauges, attribute)}"]
    for name, attribute in _COUNTERS[engine].items():
        lines += [f"# TYPE {name} counter", f"{name}{{{labels}}} {getattr(counters, attribute)}"]
    for name, attribute in _TIMES[engine].items():
        lines += getattr(counters, attribute).lines(name, labels)
    lines += ["# TYPE ridgeline:twin_behind_seconds gauge", f"ridgeline:twin_behind_seconds {gauges.behind_s:.6f}"]
    return "\n".join(lines) + "\n"
