"""What SGLang's own checks stop, read in `server_args.py`, and from 0.5.20 on in `arg_groups/*_hook.py`."""

from __future__ import annotations

from ridgeline.serving.engines.exclusions import Exclusion, Values, divides, number, on

# An attention back end's own page sizes, which the engine puts in the place of any other (0.5.10, server_args.py:
# "FlashMLA only supports a page_size of 64, change page_size to 64"; from 0.5.15 on in overrides.py). TensorRT-LLM's
# multi-head one takes 128 too from 0.5.20 on.
_PAGES = {
    "flashmla": (64,), "cutlass_mla": (128,), "trtllm_mla": (32, 64), "cutedsl_mla": (32, 64),
    "tokenspeed_mla": (32, 64), "trtllm_mha": (16, 32, 64, 128), "hpc_ops": (64,),
}  # fmt: skip


def _forced_page(v: Values) -> bool:
    taken = _PAGES.get(str(v.get("attention_backend")))
    return taken is not None and "page_size" in v and v["page_size"] not in taken


def _pages_cut_chunks(v: Values) -> bool:
    page, chunk = number(v, "page_size"), number(v, "chunked_prefill_size", -1)
    return page > 1 and chunk > 0 and chunk % page != 0 and v.get("disaggregation_mode") != "decode"


def _all_to_all(v: Values) -> bool:
    return v.get("moe_a2a_backend", "none") != "none" or on(v, "enable_ep_moe")


def _overlaps_nothing(v: Values) -> bool:
    return on(v, "enable_two_batch_overlap") and v.get("moe_a2a_backend", "none") == "none"


def _has_attention_dp(v: Values) -> bool:
    return number(v, "attn_dp") > 1 or on(v, "enable_dp_attention")


# a switch that is off where others have it on is not forgotten
_HOST_TIERS = {
    "enable_hierarchical_cache", "disaggregation_decode_enable_offload_kvcache", "enable_hisparse", "enable_lmcache",
}  # fmt: skip


EXCLUSIONS = (
    Exclusion(
        "chunked_prefill_size {chunked_prefill_size} is not a multiple of page_size {page_size}",
        "make it one",
        _pages_cut_chunks,
        since=(0, 4, 10),
    ),
    Exclusion(
        "page_size {page_size} is never applied: {attention_backend} has pages of its own",
        "leave page_size out, or take "
        + ", ".join(f"{name} {' or '.join(map(str, sizes))}" for name, sizes in _PAGES.items()),
        _forced_page,
    ),
    # kv_cache_hook.py of 0.5.23: "enable-hierarchical-cache and disable-radix-cache are mutually exclusive"
    Exclusion(
        "a host tier (enable_hierarchical_cache) keeps what the radix cache finds, and disable_radix_cache is set",
        "drop one of them",
        lambda v: on(v, "enable_hierarchical_cache", "disable_radix_cache"),
        since=(0, 5, 1),
    ),
    Exclusion(
        "hicache_size and hicache_ratio do nothing without a host tier",
        "set enable_hierarchical_cache, or leave them out",
        lambda v: bool({"hicache_size", "hicache_ratio"} & v.keys()) and not v.keys() & _HOST_TIERS,
    ),
    # hicache_hook.py, validate_hicache_host_memory_mode
    Exclusion(
        "hicache_host_memory_mode buffer_only keeps nothing on the host, and no hicache_storage_backend is there",
        "name one, or take cache",
        lambda v: (
            on(v, "enable_hierarchical_cache")
            and v.get("hicache_host_memory_mode") == "buffer_only"
            and not v.get("hicache_storage_backend")
        ),
        since=(0, 5, 20),
    ),
    Exclusion(
        "disaggregation_decode_enable_offload_kvcache needs a hicache_storage_backend",
        "name one",
        lambda v: (
            on(v, "disaggregation_decode_enable_offload_kvcache")
            and v.get("disaggregation_mode") == "decode"
            and not v.get("hicache_storage_backend")
        ),
        since=(0, 5, 10),
    ),
    # "When enabling two batch overlap, moe_a2a_backend cannot be 'none'", which from 0.5.15 on attention DP may replace
    Exclusion(
        "two batches are overlapped (enable_two_batch_overlap) while experts' tokens travel, and moe_a2a_backend is "
        "none",
        "set moe_a2a_backend: deepep",
        _overlaps_nothing,
        since=(0, 5, 7),
        gone=(0, 5, 15),
    ),
    Exclusion(
        "enable_two_batch_overlap needs an all-to-all back end or attention DP",
        "set moe_a2a_backend: deepep, or attn_dp",
        lambda v: _overlaps_nothing(v) and not _has_attention_dp(v),
        since=(0, 5, 15),
    ),
    # server_args.py, later parallel_hook.py: `assert self.ep_size > 1`; an all-to-all back end makes it tp
    Exclusion(
        "enable_eplb moves experts between ranks, and ep is 1",
        "set ep, or leave it out",
        lambda v: on(v, "enable_eplb") and number(v, "ep") == 1 and not _all_to_all(v),
        since=(0, 5, 2),
    ),
    # parallel_hook.py of 0.5.20: ranks that all run the same tokens must pick the same copy of an expert
    Exclusion(
        "ep_dispatch_algorithm {ep_dispatch_algorithm} picks another copy of an expert on each rank, and "
        "moe_a2a_backend is none",
        "use dynamic, or an all-to-all back end",
        lambda v: v.get("ep_dispatch_algorithm") in ("static", "lp") and not _all_to_all(v),
        since=(0, 5, 20),
    ),
    # moe_hook.py of 0.5.20: "DeepEP v2 MoE has not implemented the TBO/SBO overlap hooks yet"
    Exclusion(
        "moe_a2a_backend deepep_v2 knows neither two-batch nor single-batch overlap",
        "leave the overlap out, or take deepep",
        lambda v: (
            v.get("moe_a2a_backend") == "deepep_v2"
            and (on(v, "enable_two_batch_overlap") or on(v, "enable_single_batch_overlap"))
        ),
        since=(0, 5, 20),
    ),
    # "Pipeline parallelism is not compatible with overlap schedule, speculative decoding, mixed chunked prefill"
    Exclusion(
        "pipeline stages exclude enable_mixed_chunk before SGLang 0.5.11",
        "use pp 1, or leave it out",
        lambda v: number(v, "pp") > 1 and on(v, "enable_mixed_chunk"),
        gone=(0, 5, 11),
    ),
    Exclusion(
        "enable_dp_lm_head needs attention DP",
        "set attn_dp, or leave it out",
        lambda v: on(v, "enable_dp_lm_head") and not _has_attention_dp(v),
        since=(0, 4, 10),
    ),
    Exclusion(
        "moe_dense_tp_size {moe_dense_tp_size}: before SGLang 0.5.13 it may only be 1",
        "use 1, or leave it out",
        lambda v: number(v, "moe_dense_tp_size") != 1,
        gone=(0, 5, 13),
    ),
    Exclusion(
        "moe_dense_tp_size {moe_dense_tp_size}: SGLang knows dense layers whole on every rank, or over all of tp",
        "use 1, or leave it out",
        lambda v: number(v, "moe_dense_tp_size") not in (1, number(v, "tp")),
    ),
    # parallel_hook.py: the ranks of a stage are those of attention DP times those of a context
    Exclusion(
        "attn_cp_size {attn_cp_size} x attention DP does not divide tp: contexts are split over ranks of one stage",
        "make tp a multiple of their product",
        lambda v: number(v, "attn_cp_size") > 1 and not divides(v, "attn_cp_size", "tp", "attn_dp"),
        since=(0, 5, 9),
    ),
    Exclusion(
        "moe_dp_size excludes pipeline stages",
        "use pp 1",
        lambda v: number(v, "moe_dp_size") > 1 and number(v, "pp") > 1,
        since=(0, 5, 10),
    ),
    Exclusion(
        "enable_prefill_cp has no cp_strategy",
        "set cp_strategy: zigzag or interleave",
        lambda v: on(v, "enable_prefill_cp") and not v.get("cp_strategy"),
        since=(0, 5, 16),
    ),
    # validation_hook.py: "To use priority scheduling, schedule_policy must be 'fcfs' or 'lof'"
    Exclusion(
        "enable_priority_scheduling sorts by priority, and schedule_policy is {schedule_policy}",
        "use fcfs or lof",
        lambda v: on(v, "enable_priority_scheduling") and v.get("schedule_policy", "fcfs") not in ("fcfs", "lof"),
        since=(0, 5, 5),
    ),
    Exclusion(
        "enable_pdmux needs whole prompts, one stage and no overlap of host and GPU",
        "set chunked_prefill_size: -1, pp 1 and disable_overlap_schedule, or leave it out",
        lambda v: (
            on(v, "enable_pdmux")
            and (number(v, "pp") > 1 or v.get("chunked_prefill_size") != -1 or not on(v, "disable_overlap_schedule"))
        ),
        since=(0, 5, 5),
    ),
    # prefill_delayer.py asserts that the overlapped scheduler is on
    Exclusion(
        "enable_prefill_delayer needs the overlapped scheduler, and disable_overlap_schedule is set",
        "drop one of them",
        lambda v: on(v, "enable_prefill_delayer", "disable_overlap_schedule"),
        since=(0, 5, 10),
    ),
)
