"""What vLLM's own checks stop, read in `vllm/config/*.py` of 0.12 to 0.33."""

from __future__ import annotations

from ridgeline.serving.engines.exclusions import Exclusion, Values, divides, number, on

# vllm/config/vllm.py: "Microbatching currently only supports the ... all2all backends"; the last one on AMD's GPUs
_MICROBATCHING = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep", "allgather_reducescatter")


def _microbatches(v: Values) -> bool:
    return on(v, "enable_two_batch_overlap") or number(v, "ubatch_size", 0) > 1


def _too_few_tokens(v: Values) -> bool:
    tokens, least = number(v, "max_num_batched_tokens", 0), number(v, "context_length", 0)
    return v.get("enable_chunked_prefill") is False and 0 < tokens < least


EXCLUSIONS = (
    Exclusion(
        "overlapped batches (enable_dbo) need DeepEP, and all2all_backend is not said or another",
        "set all2all_backend: deepep_low_latency or deepep_high_throughput (on AMD allgather_reducescatter)",
        lambda v: _microbatches(v) and v.get("all2all_backend") not in _MICROBATCHING,
        since=(0, 12),
    ),
    # vllm/config/parallel.py: "must be at least the number of microbatches"
    Exclusion(
        "a batch of fewer tokens than it has parts cannot be split: dbo_decode_token_threshold and "
        "dbo_prefill_token_threshold are too small",
        "make both at least 2, or ubatch_size",
        lambda v: (
            _microbatches(v)
            and min(number(v, "dbo_decode_token_threshold", 32), number(v, "dbo_prefill_token_threshold", 512))
            < max(2, number(v, "ubatch_size", 0))
        ),
        since=(0, 33),
    ),
    Exclusion(
        "enable_eplb moves experts between ranks, and enable_expert_parallel is not set",
        "set it",
        lambda v: on(v, "enable_eplb") and not on(v, "enable_expert_parallel"),
        since=(0, 12),
    ),
    Exclusion(
        "enable_eplb moves experts between ranks, and there is one",
        "use a larger tp or dp, or leave it out",
        lambda v: (
            on(v, "enable_eplb") and number(v, "tp") * number(v, "dp") * number(v, "prefill_context_parallel_size") == 1
        ),
        since=(0, 12),
    ),
    Exclusion(
        "decode_context_parallel_size {dcp_size} does not divide tp: a context is split over its ranks",
        "make tp a multiple of it",
        lambda v: (
            number(v, "dcp_size") > 1
            and number(v, "prefill_context_parallel_size") == 1
            and not divides(v, "dcp_size", "tp")
        ),
        since=(0, 12),
    ),
    # vllm/config/scheduler.py
    Exclusion(
        "max_num_batched_tokens {max_num_batched_tokens} is fewer than max_num_seqs {max_running_requests}",
        "each running request takes a token of a step: raise the one or lower the other",
        lambda v: 0 < number(v, "max_num_batched_tokens", 0) < number(v, "max_running_requests", 0),
        since=(0, 8),
    ),
    Exclusion(
        "without chunks a prompt must fit a step: max_num_batched_tokens {max_num_batched_tokens} is fewer than "
        "max_model_len {context_length}",
        "raise it, or leave enable_chunked_prefill on",
        _too_few_tokens,
        since=(0, 8),
    ),
    Exclusion(
        "long_prefill_token_threshold {long_prefill_token_threshold} is more than max_model_len {context_length}",
        "lower it",
        lambda v: number(v, "long_prefill_token_threshold", 0) > number(v, "context_length", 1 << 62),
        since=(0, 12),
    ),
)
