"""THE table of an engine's knobs: each once, with its names, its flags by engine and release, and what it means to us.

A knob's value becomes fields: names and values as the engine's own parser holds them. The flags of a command line are
these fields, and so is what an engine's log repeats of them. Flags that have no row here are written as they stand.

Read in the source of SGLang 0.4.8 to 0.5.23 (`server_args.py`, later `arg_groups/`), and of vLLM 0.8 to 0.33
(`EngineArgs`). Where a parser has a closed set of values, flags.txt has it, by release.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ridgeline import catalog
from ridgeline.records.expression import Value, is_number
from ridgeline.serving.engines.releases import OWN_CHOICE, Flag, Version, read_flags, release_meant

# Whose number it is: the whole engine's, or that of each attention-DP rank. The one place that converts.
#
# Inside, every number is the whole engine's. So are SGLang's arguments (`--max-running-requests`,
# `--chunked-prefill-size`), which it divides by its attention-DP size; what its log repeats is sometimes the share of
# one rank.


class Scope(Enum):
    ENGINE = "of the engine"
    RANK = "of each attention-DP rank"


def rank_share(total: int, groups: int) -> int:
    """What each of `groups` attention-DP ranks gets of an engine's number.

    At least 1, as SGLang 0.5.23 has it; releases before it refuse to start with a share of 0 (see `layout_rules`).
    """
    return max(1, total // groups)


def engine_total(share: int, groups: int) -> int:
    """An engine's number, from what one of its `groups` attention-DP ranks has of it."""
    return share * groups


class Domain(Enum):
    """What values a knob has, in the words of a complaint."""

    WHOLE = "a whole number of at least 1"
    COUNT = "a whole number, 0 for none"
    CHUNK = "a whole number of at least 1, or -1 for no chunks"
    SHARE = "a share between 0 and 1"
    NUMBER = "a number of 0 or more"
    SWITCH = "true or false"
    TEXT = "text"


class Part(Enum):
    """Where the twin keeps a knob's value."""

    LAYOUT = "Layout"
    SETTINGS = "EngineSettings"
    MODEL = "Model"
    TOGETHER = "another knob"  # what it means is read together with others
    NOWHERE = ""  # known, not modelled: the twin takes all its values for one


@dataclass(frozen=True, slots=True)
class Spelling:
    """How releases from `since` on take a knob: one field, switches that go `along`, or `fixed` fields for a value.

    `held` is what the parser calls the field, and the log, where that is not the flag.
    """

    flag: str = ""
    since: Version = ()
    along: tuple[str, ...] = ()
    fixed: Mapping[Value, Mapping[str, Value]] = field(default_factory=dict)
    held: str = ""

    def flags_for(self, value: Value) -> dict[str, Value]:
        if not isinstance(value, float) and value in self.fixed:
            return dict(self.fixed[value])
        return {**dict.fromkeys(self.along, True), self.flag: value} if self.flag else {}


@dataclass(frozen=True, slots=True)
class KnobRow:
    """`scope` says whose number it is, `printed` whose the engine's log repeats. `lever` is what failures call it.

    `default` is what leaving it out, or the value `default`, means. A value of `omit_when` is not written: it is what
    every release does anyway. `inverted`: the field holds the opposite of the switch. Under attention DP the engine
    multiplies the value by `attention_dp_factor` before it prints it.
    """

    name: str
    spelled: Mapping[str, tuple[Spelling, ...]]  # engine -> spellings, oldest first
    takes: Domain
    default: str
    aliases: tuple[str, ...] = ()
    part: Part = Part.NOWHERE
    field: str = ""
    unit: str = ""
    scope: Scope = Scope.ENGINE
    printed: Scope = Scope.ENGINE
    omit_when: Value = None
    inverted: bool = False
    lever: str = ""
    attention_dp_factor: float = 1.0

    def spelling(self, engine: str, release: Version) -> Spelling | None:
        """How this release spells it; None where it has no such flag."""
        version = release_meant(release)
        known = [s for s in self.spelled.get(engine, ()) if s.since <= version]
        return known[-1] if known else None

    def names(self, engine: str) -> tuple[str, ...]:
        """Every name by which a study may call it: ours, short ones, and the engine's own of all releases."""
        own = [name for s in self.spelled.get(engine, ()) if not s.along for name in (s.flag, s.held) if name]
        return tuple(dict.fromkeys((self.name, *self.aliases, *own)))

    def wrong_value(self, called: str, value: object) -> str:
        """Why it can have this value in no release, under the name it was called by; empty when it can."""
        if value is None or value == OWN_CHOICE:
            return ""
        if not _fits(self.takes, value):
            return not_taken(called, value, self.takes.value)
        closed = self._closed_flags()
        if not closed or any(flag.takes_value(value) for flag in closed):
            return ""
        return not_taken(called, value, one_of(choice for flag in closed for choice in flag.choices()))

    def _closed_flags(self) -> list[Flag]:
        """Its flags in our own engines, where all their parsers have a closed set of values."""
        if self.takes is not Domain.TEXT or not self.spelled.keys() <= catalog.shipped("engines").keys():
            return []
        said = [(engine, s.flag) for engine, spellings in self.spelled.items() for s in spellings if s.flag]
        flags = [read_flags(engine)[flag] for engine, flag in said]
        return flags if all(flag.takes for flag in flags) else []


def not_taken(called: str, value: object, wanted: str) -> str:
    return f"{value!r} is not possible; {called} takes {wanted}, or {OWN_CHOICE}"


def one_of(choices: Iterable[str]) -> str:
    return f"one of {', '.join(dict.fromkeys(choices))}"


def _same(flag: str, *engines: str) -> dict[str, tuple[Spelling, ...]]:
    return {engine: (Spelling(flag),) for engine in engines}


def _each(sglang: str, vllm: str) -> dict[str, tuple[Spelling, ...]]:
    return {"sglang": (Spelling(sglang),), "vllm": (Spelling(vllm),)}


# --ep-size alone and --moe-a2a-backend, also in 0.4.10.post2; the flags before them raise an error from 0.5.3 on
_EXPERTS: Version = (0, 5, 1)
# --cuda-graph-max-bs-decode and --cuda-graph-backend-decode; --cuda-graph-max-bs went with 0.5.20
_GRAPHS: Version = (0, 5, 14)
_ATTENTION_DP: Version = (0, 5, 22)
_SPEC_FLAGS: Version = (0, 22)  # of vLLM: --spec-method, --spec-model, --spec-tokens
_DSA: Version = (0, 5, 13)  # what was called NSA
_NO_GRAPHS: Mapping[str, Value] = {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"}
_LAYOUT, _SETTINGS, _TOGETHER = Part.LAYOUT, Part.SETTINGS, Part.TOGETHER
_WHOLE, _COUNT, _NUMBER = Domain.WHOLE, Domain.COUNT, Domain.NUMBER
_SWITCH, _TEXT = Domain.SWITCH, Domain.TEXT


def _off(flag: str) -> tuple[Spelling, ...]:
    """A switch that is another's opposite."""
    return (Spelling(fixed={True: {flag: False}, False: {flag: True}}),)


def _sglang(
    flag: str, takes: Domain, default: str, *aliases: str, unit: str = "", part: Part = Part.NOWHERE, field: str = ""
) -> KnobRow:
    return KnobRow(flag, _same(flag, "sglang"), takes, default, aliases, part, field, unit)


def _vllm(flag: str, takes: Domain, default: str, *aliases: str, unit: str = "", part: Part = Part.NOWHERE) -> KnobRow:
    return KnobRow(flag, _same(flag, "vllm"), takes, default, aliases, part, unit=unit)


_ROWS = (
    KnobRow("tp", _each("tp_size", "tensor_parallel_size"), Domain.WHOLE, "1", ("tp_size", "tensor_parallel_size"),
         _LAYOUT, "tp", "GPUs", lever="spread"),
    KnobRow("pp", _each("pp_size", "pipeline_parallel_size"), Domain.WHOLE, "1", ("pp_size", "pipeline_parallel_size"),
         _LAYOUT, "pp", "stages", omit_when=1, lever="spread"),
    # vLLM's copies are schedulers of one server, SGLang's are servers behind its own router
    KnobRow("dp", _each("dp_size", "data_parallel_size"), Domain.WHOLE, "1", ("dp_size", "data_parallel_size"),
         _LAYOUT, "dp", "copies", omit_when=1),
    KnobRow("ep", {"sglang": (Spelling("ep_size", along=("enable_ep_moe",)), Spelling("ep_size", _EXPERTS))},
         Domain.WHOLE, "1; as many as tp with an all-to-all back end", ("ep_size", "expert_parallel_size"),
         _LAYOUT, "ep", "GPUs", omit_when=1),
    KnobRow("attn_dp", {"sglang": (Spelling("dp_size", along=("enable_dp_attention",)),
                                Spelling("attn_dp_size", _ATTENTION_DP))},
         Domain.WHOLE, "1", ("attn_dp_size", "attention_data_parallel_size"), _LAYOUT, "attn_dp", "groups",
         omit_when=1),
    # of all attention-DP ranks together: SGLang divides it by their number, and a limit below that stops every release
    # before 0.5.23; vLLM's max_num_seqs is of each rank, so what it is given is a share (`planned_values`)
    KnobRow("max_running_requests", _each("max_running_requests", "max_num_seqs"), Domain.WHOLE,
         "tokens of the KV pool / context x 512, within 2048 and 4096", ("max_seqs",), _SETTINGS,
         "max_running_requests", "requests", lever="requests"),
    KnobRow("mem_fraction_static", _same("mem_fraction_static", "sglang"), Domain.SHARE,
         "computed from GPU memory, chunk and graphs", (), _SETTINGS, "mem_fraction", lever="memory"),
    KnobRow("attention_backend", _same("attention_backend", "sglang", "vllm"), Domain.TEXT, "by GPU and model", (),
         _SETTINGS, "attention_backend"),
    KnobRow("page_size", _each("page_size", "block_size"), Domain.WHOLE, "1, or what the attention back end needs", (),
         _SETTINGS, "page_size", "tokens"),
    KnobRow("cuda_graph_max_bs", {
         "sglang": (Spelling("cuda_graph_max_bs", fixed={0: {"disable_cuda_graph": True}}),
                    Spelling("cuda_graph_max_bs_decode", _GRAPHS, fixed={0: _NO_GRAPHS})),
         "vllm": (Spelling("max_cudagraph_capture_size", fixed={0: {"enforce_eager": True}}),)},
         Domain.COUNT, "by GPU memory and tp; 0 is no graphs at all, for prefill neither", (), _SETTINGS,
         "cuda_graph_max_bs", "requests", Scope.RANK, Scope.RANK, lever="graph"),
    KnobRow("disable_prefill_cuda_graph", {"sglang": (
         Spelling(since=(0, 5, 10), fixed={True: {"disable_piecewise_cuda_graph": True}}),
         Spelling(since=_GRAPHS, fixed={True: {"cuda_graph_backend_prefill": "disabled"}}))},
         Domain.SWITCH, "graphs where model and back end allow them", (), _SETTINGS, "prefill_graph", inverted=True),
    # before it prints it, SGLang divides it by the attention-DP size
    KnobRow("chunked_prefill_size", _same("chunked_prefill_size", "sglang"), Domain.CHUNK, "by GPU memory", (),
         _SETTINGS, "chunked_prefill_size", "tokens", printed=Scope.RANK, lever="chunk"),
    KnobRow("enable_mixed_chunk", _same("enable_mixed_chunk", "sglang"), Domain.SWITCH, "false", (), _SETTINGS,
         "mixed_chunk"),
    KnobRow("max_prefill_tokens", _same("max_prefill_tokens", "sglang"), Domain.WHOLE, "16384", (), _SETTINGS,
         "max_prefill_tokens", "tokens"),
    KnobRow("schedule_conservativeness", _same("schedule_conservativeness", "sglang"), Domain.NUMBER, "1", (),
         _SETTINGS, "schedule_conservativeness", attention_dp_factor=0.3),
    KnobRow("disable_radix_cache", {"sglang": (Spelling("disable_radix_cache"),),
                                 "vllm": _off("enable_prefix_caching")},
         Domain.SWITCH, "false", (), _SETTINGS, "radix_cache", inverted=True),
    KnobRow("disable_overlap_schedule", {"sglang": (Spelling("disable_overlap_schedule"),),
                                      "vllm": _off("async_scheduling")},
         Domain.SWITCH, "false; with vLLM by release", (), _SETTINGS, "overlap", inverted=True),
    # drafts: vLLM has one JSON of all of them, and short flags for three
    KnobRow("speculative_algorithm", {"sglang": (Spelling("speculative_algorithm"),),
                                      "vllm": (Spelling("spec_method", _SPEC_FLAGS),)},
         Domain.TEXT, "none: nothing is drafted", (), _SETTINGS, "draft_method"),
    KnobRow("speculative_num_steps", {"sglang": (Spelling("speculative_num_steps"),),
                                      "vllm": (Spelling("spec_tokens", _SPEC_FLAGS),)},
         Domain.WHOLE, "3; 5 for Llama and Grok", (), _SETTINGS, "draft_steps", "drafted tokens"),
    KnobRow("speculative_eagle_topk", _same("speculative_eagle_topk", "sglang"), Domain.WHOLE,
         "1; 4 for Llama and Grok", (), _SETTINGS, "draft_branches", "branches"),
    KnobRow("speculative_num_draft_tokens", _same("speculative_num_draft_tokens", "sglang"), Domain.WHOLE,
         "one more than the steps; 8 for Llama and Grok", (), _SETTINGS, "draft_tokens", "verified tokens"),
    KnobRow("speculative_draft_model_path", {"sglang": (Spelling("speculative_draft_model_path"),),
                                             "vllm": (Spelling("spec_model", _SPEC_FLAGS),)},
         Domain.TEXT, "the model's own drafting layers, where it has any", ("speculative_draft_model",)),
    KnobRow("speculative_config", _same("speculative_config", "vllm"), Domain.TEXT, "none: nothing is drafted"),
    _sglang("speculative_draft_attention_backend", _TEXT, "attention_backend"),
    _sglang("speculative_attention_mode", _TEXT, "prefill: drafts are verified as prompts are computed"),
    _sglang("speculative_draft_model_quantization", _TEXT, "quantization"),
    _sglang("speculative_moe_runner_backend", _TEXT, "moe_runner_backend"),
    _sglang("speculative_moe_a2a_backend", _TEXT, "moe_a2a_backend"),
    _sglang("speculative_token_map", _TEXT, "none: drafts of the whole vocabulary"),
    _sglang("speculative_adaptive", _SWITCH, "false: always as many steps"),
    _sglang("speculative_adaptive_config", _TEXT, "SGLang's own steps"),
    _sglang("enable_multi_layer_eagle", _SWITCH, "false; true for MiMo-V2 and Step-3.5"),
    _sglang("speculative_dflash_block_size", _WHOLE, "of the draft's config, else 16", unit="tokens"),
    _sglang("speculative_dflash_draft_window_size", _WHOLE, "none: drafts see everything", unit="tokens"),
    _sglang("speculative_dspark_block_size", _WHOLE, "of the draft's config", unit="tokens"),
    _sglang("speculative_ngram_min_bfs_breadth", _WHOLE, "1", unit="branches"),
    _sglang("speculative_ngram_max_bfs_breadth", _WHOLE, "10", unit="branches"),
    _sglang("speculative_ngram_match_type", _TEXT, "BFS"),
    _sglang("speculative_ngram_max_trie_depth", _WHOLE, "18", unit="tokens"),
    _sglang("speculative_ngram_capacity", _WHOLE, "10,000,000", unit="nodes"),
    KnobRow("scheduler_recv_interval", _same("scheduler_recv_interval", "sglang"), Domain.WHOLE, "1",
         ("recv_interval",), _SETTINGS, "recv_interval", "decode steps"),
    KnobRow("tokenizer_worker_num", _each("tokenizer_worker_num", "api_server_count"), Domain.WHOLE, "1", (), _SETTINGS,
         "tokenizer_workers", "processes"),
    KnobRow("detokenizer_worker_num", _same("detokenizer_worker_num", "sglang"), Domain.WHOLE, "1", (), _SETTINGS,
         "detokenizer_workers", "processes"),
    KnobRow("stream_interval", _same("stream_interval", "sglang", "vllm"), Domain.WHOLE, "1", (), _SETTINGS,
         "stream_interval", "tokens"),
    KnobRow("quantization", _same("quantization", "sglang", "vllm"), Domain.TEXT, "as the model's files say", (),
         Part.MODEL, "dtype"),
    KnobRow("kv_cache_dtype", _same("kv_cache_dtype", "sglang", "vllm"), Domain.TEXT, "as the model computes", (),
         Part.MODEL, "kv_dtype"),
    KnobRow("moe_a2a_backend", {"sglang": (Spelling(fixed={"deepep": {"enable_deepep_moe": True}}),
                                        Spelling("moe_a2a_backend", _EXPERTS))}, _TEXT, "none", (), _TOGETHER,
         omit_when="none"),
    KnobRow("gpu_memory_utilization", _same("gpu_memory_utilization", "vllm"), Domain.SHARE,
         "0.92; 0.9 before 0.20", ("device_memory_utilization",), _TOGETHER, lever="memory"),
    KnobRow("max_num_batched_tokens", _same("max_num_batched_tokens", "vllm"), Domain.WHOLE, "by use and GPU", (),
         _TOGETHER, unit="tokens", lever="chunk"),
    KnobRow("disaggregation_mode", _same("disaggregation_mode", "sglang"), _TEXT, "null: both phases", (), _TOGETHER),
    # Other ways to say one of the above; the engine's parser takes them, and `EngineFlags.canonical` reads them so.
    KnobRow("disable_cuda_graph", _same("disable_cuda_graph", "sglang"), _SWITCH, "false", (), _TOGETHER),
    KnobRow("enable_dp_attention", _same("enable_dp_attention", "sglang"), _SWITCH, "false: dp counts copies", (),
         _TOGETHER),
    KnobRow("enable_ep_moe", _same("enable_ep_moe", "sglang"), _SWITCH, "false", (), _TOGETHER),
    KnobRow("enable_deepep_moe", _same("enable_deepep_moe", "sglang"), _SWITCH, "false", (), _TOGETHER),
    KnobRow("enable_expert_parallel", _same("enable_expert_parallel", "vllm"), _SWITCH, "false", (), _TOGETHER),
    KnobRow("enforce_eager", _same("enforce_eager", "vllm"), _SWITCH, "false", (), _TOGETHER),
    KnobRow("disable_piecewise_cuda_graph", _same("disable_piecewise_cuda_graph", "sglang"), _SWITCH, "false", (),
         _TOGETHER),
    KnobRow("cuda_graph_backend_decode", _same("cuda_graph_backend_decode", "sglang"), _TEXT, "full", (), _TOGETHER),
    KnobRow("cuda_graph_backend_prefill", _same("cuda_graph_backend_prefill", "sglang"), _TEXT, "by model", (),
         _TOGETHER),
    KnobRow("enable_prefix_caching", _same("enable_prefix_caching", "vllm"), _SWITCH, "true", (), _TOGETHER),
    KnobRow("async_scheduling", _same("async_scheduling", "vllm"), _SWITCH, "true from 0.14 on", (), _TOGETHER),
    # Known and written by release, not modelled. A default that moved is the one of the newest release.
    KnobRow("cuda_graph_bs", {"sglang": (Spelling("cuda_graph_bs"), Spelling("cuda_graph_bs_decode", _GRAPHS)),
                           "vllm": (Spelling("cudagraph_capture_sizes"),)}, _TEXT, "by the largest graph"),
    KnobRow("context_length", _each("context_length", "max_model_len"), Domain.WHOLE, "the model's own",
         ("context_len",), unit="tokens", lever="length"),
    KnobRow("num_gpu_blocks_override", _same("num_gpu_blocks_override", "vllm"), _WHOLE, "by the memory", unit="blocks",
         lever="memory"),
    KnobRow("VLLM_CPU_KVCACHE_SPACE", {"vllm": ()}, Domain.COUNT, "by the memory of the machine", unit="GiB",
         lever="memory"),
    KnobRow("cuda_graph_max_bs_prefill", {"sglang": (Spelling("piecewise_cuda_graph_max_tokens", (0, 5, 4)),
                                                  Spelling("cuda_graph_max_bs_prefill", _GRAPHS))},
         _WHOLE, "by chunked_prefill_size", unit="tokens"),
    KnobRow("cuda_graph_bs_prefill", {"sglang": (Spelling("piecewise_cuda_graph_tokens", (0, 5, 4)),
                                              Spelling("cuda_graph_bs_prefill", _GRAPHS))},
         _TEXT, "by cuda_graph_max_bs_prefill", unit="tokens"),
    KnobRow("cuda_graph_tc_compiler", {"sglang": (Spelling("piecewise_cuda_graph_compiler", (0, 5, 4)),
                                               Spelling("cuda_graph_tc_compiler", _GRAPHS))}, _TEXT, "eager"),
    _sglang("enable_piecewise_cuda_graph", _SWITCH, "false"),
    _sglang("enforce_piecewise_cuda_graph", _SWITCH, "false"),
    KnobRow("dtype", _same("dtype", "sglang", "vllm"), _TEXT, "as the model's files say"),
    # whose turn it is
    KnobRow("schedule_policy", _each("schedule_policy", "scheduling_policy"), _TEXT, "fcfs"),
    _sglang("enable_priority_scheduling", _SWITCH, "false"),
    _sglang("retraction_policy", _TEXT, "length"),
    _sglang("max_queued_requests", _WHOLE, "no limit", unit="requests"),
    _sglang("max_total_tokens", _WHOLE, "by the memory", unit="tokens"),
    _sglang("prefill_max_requests", _WHOLE, "no limit", unit="requests"),
    _sglang("num_continuous_decode_steps", _WHOLE, "1", unit="steps"),
    _sglang("prefill_decode_interval", _COUNT, "none", unit="decode steps"),
    _sglang("prefill_decode_interval_min_bs", _COUNT, "0", unit="requests"),
    _sglang("enable_prefill_delayer", _SWITCH, "false"),
    _sglang("prefill_delayer_max_delay_passes", _WHOLE, "30", unit="steps"),
    _sglang("prefill_delayer_max_delay_ms", _NUMBER, "5000", unit="ms"),
    _sglang("prefill_delayer_queue_min_ratio", _NUMBER, "not used"),
    _sglang("prefill_delayer_token_usage_low_watermark", _NUMBER, "none"),
    _sglang("enable_dynamic_chunking", _SWITCH, "false"),
    _sglang("disable_chunked_prefix_cache", _SWITCH, "false"),
    _sglang("load_balance_method", _TEXT, "auto: by role"),
    _sglang("enable_pdmux", _SWITCH, "false"),
    _vllm("enable_chunked_prefill", _SWITCH, "true"),
    _vllm("long_prefill_token_threshold", _COUNT, "0", unit="tokens"),
    _vllm("long_prefill_token_threshold_adaptive", _SWITCH, "false"),
    _vllm("max_num_partial_prefills", _WHOLE, "1", unit="requests"),
    _vllm("max_long_partial_prefills", _WHOLE, "1", unit="requests"),
    _vllm("max_num_scheduled_tokens", _WHOLE, "max_num_batched_tokens", unit="tokens"),
    _vllm("scheduler_reserve_full_isl", _SWITCH, "true"),
    _vllm("disable_chunked_mm_input", _SWITCH, "false"),
    _vllm("performance_mode", _TEXT, "balanced"),
    # what is kept of a prompt, and where
    _sglang("radix_eviction_policy", _TEXT, "lru", part=_SETTINGS, field="eviction"),
    _sglang("enable_session_radix_cache", _SWITCH, "false"),
    _sglang("enable_hierarchical_cache", _SWITCH, "false", "enable_hicache", part=_TOGETHER),
    _sglang("hicache_ratio", _NUMBER, "2", unit="times the KV pool of a GPU", part=_TOGETHER),
    _sglang("hicache_size", _COUNT, "0: by hicache_ratio", unit="GB of each rank", part=_TOGETHER),
    _sglang("hicache_host_memory_fraction", Domain.SHARE, "0.8"),
    _sglang("hicache_host_memory_mode", _TEXT, "cache"),
    _sglang("hicache_write_policy", _TEXT, "write_through", part=_TOGETHER),
    _sglang("hicache_io_backend", _TEXT, "kernel"),
    _sglang("hicache_mem_layout", _TEXT, "page_first; layer_first in older releases"),
    _sglang("hicache_storage_backend", _TEXT, "none"),
    _sglang("hicache_storage_prefetch_policy", _TEXT, "timeout; best_effort in older releases"),
    _sglang("enable_lmcache", _SWITCH, "false"),
    _sglang("swa_full_tokens_ratio", _NUMBER, "0.8"),
    _sglang("mamba_full_memory_ratio", _NUMBER, "0.9"),
    _sglang("mamba_radix_cache_strategy", _TEXT, "auto"),
    _sglang("mamba_ssm_dtype", _TEXT, "as the model says"),
    _sglang("mamba_track_interval", _WHOLE, "256", unit="tokens"),
    _sglang("max_mamba_cache_size", _WHOLE, "by the memory", unit="requests"),
    _sglang("enable_hisparse", _SWITCH, "false"),
    _sglang("enable_linear_replayssm_spec", _SWITCH, "false"),
    KnobRow("cpu_offload_gb", _same("cpu_offload_gb", "sglang", "vllm"), _NUMBER, "0", unit="GiB of weights"),
    _vllm("kv_offloading_size", _NUMBER, "none", unit="GiB of all ranks", part=_TOGETHER),
    _vllm("kv_offloading_backend", _TEXT, "native"),
    # LMCacheConnectorV1 of a size is a host tier; one of the environment (LMCACHE_MAX_LOCAL_CPU_SIZE) is not modelled
    _vllm("kv_transfer_config", _TEXT, "none", part=_TOGETHER),
    _vllm("kv_cache_memory_bytes", _TEXT, "by gpu_memory_utilization", unit="bytes"),
    _vllm("kv_cache_dtype_skip_layers", _TEXT, "none"),
    _vllm("prefix_caching_hash_algo", _TEXT, "sha256"),
    _vllm("swap_space", _NUMBER, "4", unit="GiB"),
    # how work is spread and overlapped
    _sglang("attn_cp_size", _WHOLE, "1", "attention_context_parallel_size", unit="GPUs"),
    _sglang("enable_prefill_cp", _SWITCH, "false"),
    _sglang("cp_strategy", _TEXT, "by model"),
    _sglang("enable_cp_decode_attn_tp", _SWITCH, "false"),
    KnobRow("dcp_size", _each("dcp_size", "decode_context_parallel_size"), _WHOLE, "1",
         ("decode_context_parallel_size",), unit="GPUs"),
    KnobRow("dcp_comm_backend", _same("dcp_comm_backend", "sglang", "vllm"), _TEXT, "by model and GPU"),
    KnobRow("dcp_replicate_q_proj", _each("dcp_replicate_q_proj", "dcp_q_replicate"), _SWITCH, "by model"),
    _sglang("enable_prefill_context_parallel", _SWITCH, "false"),
    KnobRow("enable_dsa_prefill_context_parallel", {"sglang": (
         Spelling("enable_nsa_prefill_context_parallel"), Spelling("enable_dsa_prefill_context_parallel", _DSA))},
         _SWITCH, "false"),
    KnobRow("dsa_prefill_cp_mode", {"sglang": (Spelling("nsa_prefill_cp_mode"), Spelling("dsa_prefill_cp_mode", _DSA))},
         _TEXT, "in-seq-split"),
    _sglang("enable_dsa_cache_layer_split", _SWITCH, "false"),
    _vllm("prefill_context_parallel_size", _WHOLE, "1", unit="GPUs"),
    _vllm("cp_kv_cache_interleave_size", _WHOLE, "1", "dcp_kv_cache_interleave_size", unit="tokens"),
    KnobRow("enable_two_batch_overlap", _each("enable_two_batch_overlap", "enable_dbo"), _SWITCH, "false"),
    _sglang("tbo_token_distribution_threshold", _NUMBER, "0.48"),
    _sglang("enable_single_batch_overlap", _SWITCH, "false"),
    _vllm("dbo_decode_token_threshold", _COUNT, "32", unit="tokens"),
    _vllm("dbo_prefill_token_threshold", _COUNT, "512", unit="tokens"),
    _vllm("ubatch_size", _COUNT, "0: by enable_dbo", unit="batches"),
    _sglang("pp_async_batch_depth", _COUNT, "0", unit="batches"),
    _sglang("pp_max_micro_batch_size", _WHOLE, "by the running limit", unit="requests"),
    _sglang("moe_dense_tp_size", _WHOLE, "tp", unit="GPUs"),
    _sglang("moe_dp_size", _WHOLE, "1", "moe_data_parallel_size", unit="groups"),
    _sglang("enable_dp_lm_head", _SWITCH, "false"),
    _sglang("enable_tp_lm_head_all_to_all", _SWITCH, "false"),
    _sglang("enable_attn_tp_input_scattered", _SWITCH, "false"),
    _sglang("enable_layernorm_sp", _SWITCH, "false"),
    _vllm("data_parallel_size_local", _WHOLE, "all", unit="copies"),
    _vllm("data_parallel_hybrid_lb", _SWITCH, "false"),
    _vllm("numa_bind", _SWITCH, "false"),
    _vllm("numa_bind_nodes", _TEXT, "by GPU"),
    _vllm("numa_bind_cpus", _TEXT, "by GPU"),
    _vllm("distributed_executor_backend", _TEXT, "by number of nodes"),
    _vllm("data_parallel_backend", _TEXT, "mp"),
    # experts
    _sglang("deepep_mode", _TEXT, "auto"),
    _sglang("deepep_v2_mode", _TEXT, "direct"),
    KnobRow("enable_eplb", _same("enable_eplb", "sglang", "vllm"), _SWITCH, "false"),
    _sglang("eplb_algorithm", _TEXT, "auto"),
    _sglang("eplb_rebalance_num_iterations", _WHOLE, "1000", unit="steps"),
    _sglang("eplb_rebalance_layers_per_chunk", _WHOLE, "all at once", unit="layers"),
    _sglang("eplb_min_rebalancing_utilization_threshold", _NUMBER, "1"),
    _sglang("ep_num_redundant_experts", _COUNT, "0", unit="experts"),
    _sglang("ep_dispatch_algorithm", _TEXT, "none; static where experts are placed"),
    _sglang("init_expert_location", _TEXT, "trivial"),
    _sglang("enable_waterfill", _SWITCH, "false"),
    _sglang("disable_shared_experts_fusion", _SWITCH, "false"),
    _vllm("eplb_config", _TEXT, "window_size 1000, step_interval 3000, num_redundant_experts 0"),
    _vllm("num_redundant_experts", _COUNT, "0", unit="experts"),
    _vllm("all2all_backend", _TEXT, "allgather_reducescatter"),
    _vllm("expert_placement_strategy", _TEXT, "linear"),
    # kernels
    _sglang("prefill_attention_backend", _TEXT, "attention_backend"),
    _sglang("decode_attention_backend", _TEXT, "attention_backend"),
    KnobRow("dsa_prefill_backend", {"sglang": (Spelling("nsa_prefill_backend"), Spelling("dsa_prefill_backend", _DSA))},
         _TEXT, "by GPU and KV cache"),
    KnobRow("dsa_decode_backend", {"sglang": (Spelling("nsa_decode_backend"), Spelling("dsa_decode_backend", _DSA))},
         _TEXT, "by GPU and KV cache"),
    _sglang("dsa_topk_backend", _TEXT, "by GPU"),
    _sglang("linear_attn_backend", _TEXT, "triton"),
    _sglang("linear_attn_prefill_backend", _TEXT, "linear_attn_backend"),
    _sglang("linear_attn_decode_backend", _TEXT, "linear_attn_backend"),
    KnobRow("moe_runner_backend", _each("moe_runner_backend", "moe_backend"), _TEXT, "auto"),
    KnobRow("fp8_gemm_backend", {"sglang": (Spelling("fp8_gemm_backend", held="fp8_gemm_runner_backend"),)},
         _TEXT, "auto"),
    KnobRow("fp4_gemm_backend", {"sglang": (Spelling("fp4_gemm_backend", held="fp4_gemm_runner_backend"),)},
         _TEXT, "auto"),
    _sglang("bf16_gemm_backend", _TEXT, "auto"),
    _sglang("flashinfer_allreduce_fusion_backend", _TEXT, "by model and GPU"),
    _sglang("enable_flashinfer_allreduce_fusion", _SWITCH, "false"),
    _sglang("enable_aiter_allreduce_fusion", _SWITCH, "false"),
    _sglang("enable_symm_mem", _SWITCH, "false"),
    _sglang("enable_torch_compile", _SWITCH, "false"),
    _sglang("torch_compile_max_bs", _WHOLE, "32", unit="requests"),
    _sglang("enable_w4a4_mxfp4_megamoe", _SWITCH, "false"),
    _sglang("enable_deepseek_v4_fp4_indexer", _SWITCH, "false"),
    _sglang("grammar_backend", _TEXT, "xgrammar"),
    _sglang("enable_deterministic_inference", _SWITCH, "false"),
    KnobRow("disable_custom_all_reduce", _same("disable_custom_all_reduce", "sglang", "vllm"), _SWITCH, "false"),
    _vllm("linear_backend", _TEXT, "auto"),
    _vllm("compilation_config", _TEXT, "by optimization_level"),
    _vllm("kernel_config", _TEXT, "by optimization_level"),
    _vllm("optimization_level", _TEXT, "O2"),
    _vllm("enable_flashinfer_autotune", _SWITCH, "by optimization_level"),
    # split roles
    _sglang("disaggregation_ib_device", _TEXT, "all that are there"),
    _sglang("prefill_round_robin_balance", _SWITCH, "false"),
    _sglang("encoder_transfer_backend", _TEXT, "zmq_to_scheduler"),
    _sglang("disaggregation_transfer_backend", _TEXT, "mooncake"),
    _sglang("disaggregation_decode_enable_offload_kvcache", _SWITCH, "false"),
    _sglang("disaggregation_decode_enable_radix_cache", _SWITCH, "false"),
    _sglang("disaggregation_decode_extra_slots", _COUNT, "0; more for small batches", unit="requests"),
    _sglang("disaggregation_decode_allocation_policy", _TEXT, "early"),
    _sglang("disaggregation_decode_polling_interval", _WHOLE, "1", unit="steps"),
    # pictures and sound
    _sglang("mm_attention_backend", _TEXT, "by GPU"),
    _sglang("mm_enable_dp_encoder", _SWITCH, "false"),
    _sglang("mm_feature_transport", _TEXT, "by platform"),
    _sglang("keep_mm_feature_on_device", _SWITCH, "false"),
    _sglang("enable_mm_global_cache", _SWITCH, "false"),
    _vllm("mm_encoder_tp_mode", _TEXT, "weights"),
    _vllm("mm_encoder_attn_backend", _TEXT, "by GPU"),
    _vllm("mm_encoder_attn_dtype", _TEXT, "as the model computes"),
    _vllm("mm_processor_cache_gb", _NUMBER, "4", unit="GiB"),
    _vllm("mm_processor_cache_type", _TEXT, "lru"),
    _vllm("mm_ipc_gpu_memory_gb", _NUMBER, "0", unit="GiB"),
    _vllm("limit_mm_per_prompt", _TEXT, "by model"),
    _vllm("video_pruning_rate", _NUMBER, "none"),
    _vllm("video_pruning_method", _TEXT, "by model"),
)  # fmt: skip

# By every name there is: ours, the short ones, and the engines' own.
KNOBS: Mapping[str, KnobRow] = {
    name: knob for knob in reversed(_ROWS) for name in (*knob.names("vllm"), *knob.names("sglang"), knob.name)
}
ROWS: Mapping[str, KnobRow] = {knob.name: knob for knob in _ROWS}


def modelled(part: Part | None = None) -> list[KnobRow]:
    """The knobs whose value the twin keeps; those of one part of it."""
    return [k for k in _ROWS if k.field and part in (None, k.part)]


def wrong_value(name: str, value: object) -> str:
    """Why this knob cannot have this value; empty when it can, and for names that have no row."""
    return KNOBS[name].wrong_value(name, value) if name in KNOBS else ""


def _fits(takes: Domain, value: object) -> bool:
    number = float(value) if is_number(value) else math.nan
    match takes:
        case Domain.WHOLE:
            return number >= 1 and number.is_integer()
        case Domain.COUNT:
            return number >= 0 and number.is_integer()
        case Domain.CHUNK:
            return number == -1 or (number >= 1 and number.is_integer())
        case Domain.SHARE:
            return 0 < number < 1
        case Domain.NUMBER:
            return 0 <= number < math.inf
        case Domain.SWITCH:
            return isinstance(value, bool)
        case Domain.TEXT:
            return isinstance(value, str | int | float)
