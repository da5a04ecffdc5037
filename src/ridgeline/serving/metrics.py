"""What serving measures: every metric with its unit, which way is better, what it means, and who makes it.

`offline` and `serve` are the two workloads of an engine, `twin` is the simulated one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.records.measurement import MODEL_HIGH, MODEL_LOW, MetricDefinition

LATENCIES = {
    "ttft": "Time from sending a request to its first token",
    "itl": "Time between two tokens of an answer",
    "tpot": "Time for each token after the first, averaged over an answer",
    "e2e": "Time from sending a request to its last token",
}
QUANTILES = {
    "mean": "mean",
    "p50": "median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}
TWIN_QUANTILES = ("p50", "p95", "p99")

_ENGINE, _LLM = ("offline", "serve"), ("offline", "serve", "twin")
_ONCE_BARE = ("",)


def _latencies() -> Iterator[tuple[object, ...]]:
    for latency, meaning in LATENCIES.items():
        for quantile, said in QUANTILES.items():
            makers = ("serve", "twin") if quantile in TWIN_QUANTILES else ("serve",)
            yield f"{latency}_{quantile}_ms", "ms", "lower", f"{meaning}, {said}.", makers


_ROWS: tuple[tuple[object, ...], ...] = (
    # throughput of an LLM
    ("total_tok_s", "tok/s", "higher", "Prompt and output tokens a second.", _LLM),
    ("output_tok_s", "tok/s", "higher", "Output tokens a second.", _LLM),
    ("input_tok_s", "tok/s", "higher", "Prompt tokens a second.", _LLM),
    ("requests_s", "requests/s", "higher", "Requests finished a second.", _LLM, ("s", "1/s")),
    ("duration_s", "s", "lower", "Time from the first request sent to the last one finished.", _LLM),
    ("successful_requests", "requests", "higher", "Requests that were answered in full.", _LLM, _ONCE_BARE),
    ("failed_requests", "requests", "lower", "Requests that failed or were cut off.", _LLM, _ONCE_BARE),
    ("input_tokens", "tokens", "", "Prompt tokens of all requests.", _LLM, _ONCE_BARE),
    ("output_tokens", "tokens", "", "Output tokens of all requests.", _LLM, _ONCE_BARE),
    # what the engine says of itself
    ("cached_token_share", "", "", "Share of the prompts' tokens that came from the prefix cache.", _LLM),
    ("kv_tokens", "tokens", "higher", "Tokens that all KV pools together can hold.", _LLM, _ONCE_BARE),
    ("kv_bytes", "bytes", "higher", "Memory of the KV pool on the GPU that has the largest.", _ENGINE),
    ("weights_bytes", "bytes", "lower", "Memory of the weights on the GPU that holds most.", _ENGINE),
    ("memory_after_load_bytes", "bytes", "higher", "GPU memory left after the weights, least of all GPUs.", _ENGINE),
    ("memory_to_spare_bytes", "bytes", "higher", "GPU memory left when ready, least of all GPUs.", _ENGINE),
    ("running_limit", "requests", "", "Most requests one attention group runs at once.", _ENGINE),
    ("graph_max_bs", "requests", "", "Largest decode batch that has a CUDA graph.", _ENGINE),
    ("graph_capture_s", "s", "lower", "Time spent on capturing CUDA graphs, longest of all GPUs.", _ENGINE),
    ("retractions", "requests", "lower", "Requests evicted from a full KV pool, to be redone.", _LLM, _ONCE_BARE),
    ("peak_running", "requests", "higher", "Most requests that were decoded at once.", _ENGINE),
    ("accept_length", "tokens", "higher", "Tokens that a verified step of speculative decoding kept, mean.", _ENGINE),
    ("eager_decode_share", "", "lower", "Share of decode batches that ran without a CUDA graph.", _ENGINE),
    ("ready_s", "s", "lower", "Time from the engine's start until it serves.", _ENGINE),
    ("start_saved_s", "s", "higher", "Time until it serves that baked caches saved.", _ENGINE),
    # what the node's monitor sees
    ("joules_per_token", "J/token", "lower", "GPU energy for each token, prompt and output.", _ENGINE),
    ("joules_per_output_token", "J/token", "lower", "GPU energy for each token of an answer.", _LLM),
    ("gpu_power_w", "W", "lower", "Power of one GPU, mean over GPUs and time.", ("twin",)),
    ("energy_j", "J", "lower", "Energy of all watched GPUs during the measured load.", _ENGINE),
    ("power_mean_w", "W", "lower", "Power of all watched GPUs together, mean.", _ENGINE),
    ("power_peak_w", "W", "lower", "Power of all watched GPUs together, highest sample.", _ENGINE),
    ("gpu_util_mean", "", "higher", "Share of time in which a kernel ran, mean over GPUs.", _ENGINE),
    ("gpu_memory_peak_bytes", "bytes", "lower", "Most memory in use on one GPU.", _ENGINE),
    ("gpu_sm_mean_mhz", "MHz", "higher", "SM clock, mean over GPUs and time.", _ENGINE),
    ("gpu_sm_lowest_mhz", "MHz", "higher", "Mean SM clock of the GPU that was clocked lowest.", _ENGINE),
    ("gpu_temperature_peak_c", "C", "lower", "Highest temperature of any GPU.", _ENGINE, _ONCE_BARE),
    ("host_cpu_share", "", "lower", "Share of the node's cores that were busy.", _ENGINE),
    ("host_memory_peak_bytes", "bytes", "lower", "Most memory in use on the node.", _ENGINE),
    ("monitored_s", "s", "", "Time that the node's monitor covered.", _ENGINE),
    ("predicted_tok_s", "tok/s", "", "Tokens a second that the twin predicted before the run.", _ENGINE),
    (MODEL_LOW, "", "", "The real engine's figure for the goal over the twin's prediction, 90%: at least.", ("twin",)),
    (MODEL_HIGH, "", "", "The real engine's figure for the goal over the twin's prediction, 90%: at most.", ("twin",)),
    # latencies of a served LLM
    *_latencies(),
    ("goodput", "requests/s", "higher", "Requests a second that met every limit of `slo`.", ("serve", "twin"),
     _ONCE_BARE, True),
    # questions of known answer, asked after the load
    ("accuracy", "", "higher", "Share of `questions` that were answered correctly.", ("serve",)),
    ("accuracy_change", "", "higher", "Accuracy gained against the baseline, on the same questions.", ("serve",)),
    ("answer_agreement", "", "higher", "Share of answers that are the baseline's, to the letter.", ("serve",)),
    ("questions_asked", "questions", "lower", "Questions that it took to decide.", ("serve",)),
    ("perplexity", "", "lower", "Perplexity of the study's text under the server's log probabilities.", ("serve",)),
)  # fmt: skip

METRICS = tuple(MetricDefinition(*row) for row in _ROWS)  # type: ignore[arg-type]
