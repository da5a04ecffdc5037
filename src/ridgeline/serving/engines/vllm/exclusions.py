"""What vLLM's own checks stop, read in `vllm/config/*.py` of 0.12 to 0.33."""

from __future__ import annotations

from ridgeline.records.expression import Value
from ridgeline.serving.engines.exclusions import Exclusion, Values, divides, number, on
from ridgeline.serving.engines.settings import speculative_config
from ridgeline.serving.model.model import Model

# vllm/config/vllm.py: "Microbatching currently only supports the ... all2all backends"; the last one on AMD's GPUs
_MICROBATCHING = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep", "allgather_reducescatter")


def _microbatches(v: Values) -> bool:
    return on(v, "enable_two_batch_overlap") or number(v, "ubatch_size", 0) > 1


def _too_few_tokens(v: Values) -> bool:
    tokens, least = number(v, "max_num_batched_tokens", 0), number(v, "context_length", 0)
    return v.get("enable_chunked_prefill") is False and 0 < tokens < least


# vllm/config/speculative.py: what its JSON of drafts calls our names
_DRAFT_KEYS = {
    "speculative_algorithm": "method",
    "speculative_num_steps": "num_speculative_tokens",
    "speculative_draft_model_path": "model",
}
_DRAFT_MODELS = (None, "draft_model", "eagle", "eagle3", "dflash", "medusa", "mlp_speculator")  # none: draft_model
_NOT_ASYNC = ("ngram", "[ngram]", "suffix", "medusa", "mlp_speculator")


def _drafts(v: Values) -> dict[str, Value]:
    """vLLM's JSON of drafts with its --spec flags, as it reads both; empty where nothing is drafted."""
    flags = {key: value for name, key in _DRAFT_KEYS.items() if (value := v.get(name)) is not None}
    return {name: value for name, value in (speculative_config(v) | flags).items() if value is not None}


def _lacks_tokens(drafts: Values) -> bool:
    counted = {"num_speculative_tokens", "model"} & drafts.keys()  # a draft model may say how many
    return bool(drafts) and not counted and drafts.get("method") != "suffix"


def _lacks_model(drafts: Values) -> bool:
    return "num_speculative_tokens" in drafts and "model" not in drafts and drafts.get("method") in _DRAFT_MODELS


def _lookup_turned_round(drafts: Values) -> bool:
    least = number(drafts, "prompt_lookup_min", 0)
    return str(drafts.get("method")).startswith("ngram") and least > number(drafts, "prompt_lookup_max", 1 << 62)


def lacks_layers(model: Model, v: Values) -> bool:
    """Whether these drafts are those of layers which the model has not: "Unsupported speculative method: 'mtp'".

    Of Nemotron-H, which keeps a state, it takes a layer for granted."""
    drafts = _drafts(v)
    own = str(drafts.get("method")).endswith("mtp") and "model" not in drafts
    return own and not model.draft_layers and not model.state_bytes_per_request


EXCLUSIONS = (
    # vllm/engine/arg_utils.py: "--spec-method and --speculative-config['method'] are mutually exclusive"
    Exclusion(
        "spec_method, spec_tokens or spec_model is said a second time in speculative_config",
        "say each in one place",
        lambda v: any(v.get(name) is not None and key in speculative_config(v) for name, key in _DRAFT_KEYS.items()),
        since=(0, 22),
    ),
    Exclusion(
        "nothing says how many tokens are drafted",
        "add num_speculative_tokens to speculative_config, or spec_tokens",
        lambda v: _lacks_tokens(_drafts(v)),
        since=(0, 12),
    ),
    Exclusion(
        "num_speculative_tokens is not above 0",
        "raise it, or leave drafts out",
        lambda v: number(_drafts(v), "num_speculative_tokens") < 1,
        since=(0, 12),
    ),
    # "num_speculative_tokens was provided but without speculative model."
    Exclusion(
        "these drafts are made by a model, and none is named",
        "name one (model of speculative_config, or spec_model), or draft by ngram or mtp",
        lambda v: _lacks_model(_drafts(v)),
        since=(0, 12),
    ),
    Exclusion(
        "prompt_lookup_min is more than prompt_lookup_max",
        "lower it",
        lambda v: _lookup_turned_round(_drafts(v)),
        since=(0, 12),
    ),
    Exclusion(
        "medusa and mlp_speculator draft no longer",
        "use another method, or a release before 0.33",
        lambda v: _drafts(v).get("method") in ("medusa", "mlp_speculator"),
        since=(0, 33),
    ),
    # vllm/config/vllm.py; from 0.33 on its second model runner takes some of them
    Exclusion(
        "async_scheduling excludes these drafts",
        "leave async_scheduling out (vLLM then switches it off), or draft by eagle, mtp or ngram_gpu",
        lambda v: v.get("disable_overlap_schedule") is False and _drafts(v).get("method") in _NOT_ASYNC,
        since=(0, 12),
        gone=(0, 33),
    ),
    Exclusion(
        "overlapped batches (enable_dbo) need DeepEP, and all2all_backend is not said or another",
        "set all2all_backend: deepep_low_latency or deepep_high_throughput (on AMD allgather_reducescatter)",
        lambda v: _microbatches(v) and v.get("all2all_backend") not in _MICROBATCHING,
        since=(0, 12),
    ),
    # gpu_model_runner.py asks the other copies, and does not split where there is none; 0.32 has a second model runner
    Exclusion(
        "batches are overlapped (enable_dbo) by data-parallel copies that agree on it, and dp is 1",
        "use dp 2 or more, or leave it out",
        lambda v: _microbatches(v) and number(v, "dp") == 1,
        since=(0, 12),
        gone=(0, 32),
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
