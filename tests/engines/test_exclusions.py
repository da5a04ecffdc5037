"""What an engine's own checks stop is refused before it starts, in the releases that stop it and in no other."""

from __future__ import annotations

import pytest

from ridgeline.records.expression import Value
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.releases import Version


def refusal(engine: str, release: Version, **given: Value) -> str:
    home = engine_named(engine)
    return home.refusal(None, home.flags.canonical(given), Install(), release) or ""


@pytest.mark.parametrize(
    ("release", "given", "words"),
    [
        ((0, 5, 23), {"chunked_prefill_size": 1000, "page_size": 64}, "not a multiple of page_size 64"),
        ((0, 5, 23), {"chunked_prefill_size": 1024, "page_size": 64}, ""),
        ((0, 5, 23), {"chunked_prefill_size": -1, "page_size": 64}, ""),
        ((0, 5, 10), {"attention_backend": "flashmla", "page_size": 16}, "never applied"),
        ((0, 5, 10), {"attention_backend": "flashmla", "page_size": 64}, ""),
        ((0, 5, 10), {"attention_backend": "flashmla"}, ""),
        ((0, 5, 10), {"attention_backend": "fa3", "page_size": 16}, ""),
        ((0, 5, 10), {"enable_hierarchical_cache": True, "disable_radix_cache": True}, "drop one of them"),
        ((0, 5, 10), {"enable_hicache": True, "disable_radix_cache": True}, "drop one of them"),
        ((0, 5, 10), {"enable_hierarchical_cache": False, "disable_radix_cache": True}, ""),
        ((0, 5, 10), {"hicache_ratio": 4}, "set enable_hierarchical_cache"),
        ((0, 5, 10), {"enable_hierarchical_cache": False, "hicache_size": 40}, ""),
        ((0, 5, 10), {"enable_hierarchical_cache": True, "hicache_size": 40}, ""),
        ((0, 5, 10), {"disaggregation_decode_enable_offload_kvcache": True, "hicache_size": 40}, ""),
        ((0, 5, 14), {"enable_two_batch_overlap": True, "tp": 8, "attn_dp": 8}, "moe_a2a_backend: deepep"),
        ((0, 5, 15), {"enable_two_batch_overlap": True, "tp": 8, "attn_dp": 8}, ""),
        ((0, 5, 15), {"enable_two_batch_overlap": True, "tp": 8}, "or attention DP"),
        ((0, 5, 12), {"enable_two_batch_overlap": True, "moe_a2a_backend": "mooncake"}, ""),
        ((0, 5, 23), {"tp": 8, "enable_eplb": True}, "set ep"),
        ((0, 5, 23), {"tp": 8, "ep": 8, "enable_eplb": True}, ""),
        ((0, 5, 23), {"tp": 8, "moe_a2a_backend": "deepep", "enable_eplb": True}, ""),
        ((0, 5, 23), {"tp": 8, "ep": 8, "ep_dispatch_algorithm": "static"}, "use dynamic"),
        ((0, 5, 10), {"pp": 2, "enable_mixed_chunk": True}, "use pp 1"),
        ((0, 5, 12), {"pp": 2, "enable_mixed_chunk": True}, ""),
        ((0, 5, 12), {"tp": 8, "enable_dp_lm_head": True}, "needs attention DP"),
        ((0, 5, 12), {"tp": 8, "dp_size": 8, "enable_dp_attention": True, "enable_dp_lm_head": True}, ""),
        ((0, 5, 12), {"tp": 8, "moe_dense_tp_size": 8}, "before SGLang 0.5.13"),
        ((0, 5, 23), {"tp": 8, "moe_dense_tp_size": 8}, ""),
        ((0, 5, 23), {"tp": 8, "moe_dense_tp_size": 4}, "use 1"),
        ((0, 5, 23), {"tp": 8, "attn_cp_size": 4, "attn_dp": 4}, "does not divide tp"),
        ((0, 5, 23), {"tp": 8, "attn_cp_size": 2, "attn_dp": 4}, ""),
        ((0, 5, 23), {"tp": 8, "enable_prefill_cp": True}, "cp_strategy"),
        ((0, 5, 23), {"enable_priority_scheduling": True, "schedule_policy": "lpm"}, "use fcfs or lof"),
        ((0, 5, 23), {"enable_priority_scheduling": True}, ""),
        ((0, 5, 23), {"enable_prefill_delayer": True, "disable_overlap_schedule": True}, "drop one of them"),
    ],
)
def test_sglang(release: Version, given: dict[str, Value], words: str) -> None:
    said = refusal("sglang", release, **given)
    assert words in said and bool(said) == bool(words)


@pytest.mark.parametrize(
    ("release", "given", "words"),
    [
        ((0, 32, 0), {"enable_dbo": True}, "all2all_backend: deepep_low_latency"),
        ((0, 32, 0), {"enable_dbo": True, "all2all_backend": "deepep_low_latency"}, ""),
        ((0, 20, 0), {"enable_dbo": True, "all2all_backend": "deepep_low_latency"}, "use dp 2 or more"),
        ((0, 20, 0), {"enable_dbo": True, "all2all_backend": "deepep_low_latency", "data_parallel_size": 2}, ""),
        ((0, 33, 0), {"enable_dbo": True, "all2all_backend": "nixl_ep", "dbo_decode_token_threshold": 1}, "at least 2"),
        ((0, 33, 0), {"enable_eplb": True, "tp": 8}, "enable_expert_parallel"),
        ((0, 33, 0), {"enable_eplb": True, "enable_expert_parallel": True}, "larger tp"),
        ((0, 33, 0), {"enable_eplb": True, "enable_expert_parallel": True, "tp": 8}, ""),
        ((0, 33, 0), {"tp": 8, "decode_context_parallel_size": 3}, "does not divide tp"),
        ((0, 33, 0), {"tp": 8, "decode_context_parallel_size": 4}, ""),
        ((0, 33, 0), {"max_num_batched_tokens": 256, "max_num_seqs": 512}, "fewer than max_num_seqs 512"),
        ((0, 33, 0), {"max_num_batched_tokens": 4096, "max_model_len": 8192}, ""),
        (
            (0, 33, 0),
            {"max_num_batched_tokens": 4096, "max_model_len": 8192, "enable_chunked_prefill": False},
            "fewer than max_model_len 8192",
        ),
        ((0, 33, 0), {"speculative_config": "mtp"}, "is no JSON"),
        ((0, 33, 0), {"speculative_config": "[1]"}, "no JSON object"),
        ((0, 33, 0), {"speculative_config": '{"method": "mtp", "num_speculative_tokens": "3"}'}, ""),  # taken as 3
        ((0, 33, 0), {"long_prefill_token_threshold": 9000, "max_model_len": 8192}, "more than max_model_len"),
        ((0, 32, 0), {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'}, ""),
        ((0, 32, 0), {"spec_method": "ngram", "spec_tokens": 3}, ""),
        ((0, 32, 0), {"spec_method": "ngram", "speculative_config": '{"num-speculative-tokens": 3}'}, ""),
        ((0, 32, 0), {"spec_tokens": 3, "speculative_config": '{"num_speculative_tokens": 3}'}, "in one place"),
        ((0, 32, 0), {"spec_method": "ngram"}, "add num_speculative_tokens"),
        ((0, 32, 0), {"speculative_config": '{"model": "/drafts"}'}, ""),
        ((0, 32, 0), {"speculative_config": '{"method": "suffix"}'}, ""),
        ((0, 20, 0), {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 0}'}, "not above 0"),
        ((0, 32, 0), {"spec_method": "eagle3", "spec_tokens": 3}, "name one"),
        ((0, 32, 0), {"spec_tokens": 3}, "name one"),
        ((0, 32, 0), {"spec_method": "eagle3", "spec_tokens": 3, "spec_model": "/drafts"}, ""),
        ((0, 32, 0), {"spec_method": "mtp", "spec_tokens": 1, "async_scheduling": True}, ""),
        ((0, 32, 0), {"spec_method": "ngram", "spec_tokens": 3, "async_scheduling": True}, "async_scheduling out"),
        ((0, 32, 0), {"spec_method": "ngram", "spec_tokens": 3, "async_scheduling": False}, ""),
        ((0, 33, 0), {"spec_method": "ngram", "spec_tokens": 3, "async_scheduling": True}, ""),
        ((0, 33, 0), {"spec_method": "medusa", "spec_tokens": 3, "spec_model": "/drafts"}, "before 0.33"),
        (
            (0, 32, 0),
            {
                "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 5, '
                '"prompt_lookup_max": 2}'
            },
            "prompt_lookup_max",
        ),
    ],
)
def test_vllm(release: Version, given: dict[str, Value], words: str) -> None:
    said = refusal("vllm", release, **given)
    assert words in said and bool(said) == bool(words)
