"""THE table of an engine's knobs: each once, with its names, its flags by engine and release, and what it means to us.

A knob's value becomes fields: names and values as the engine's own parser holds them. The flags of a command line are
these fields, and so is what an engine's log repeats of them. Flags that have no row here are written as they stand.

Read in the source of SGLang 0.4.8 to 0.5.23 (`server_args.py`, later `arg_groups/`), and of vLLM 0.32 (`EngineArgs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ridgeline.records.expression import Value, is_number
from ridgeline.serving.engines.releases import OWN_CHOICE, Version, release_meant

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
    BACKEND = "one of"
    TEXT = "text"


class Part(Enum):
    """Where the twin keeps a knob's value."""

    LAYOUT = "Layout"
    SETTINGS = "EngineSettings"
    MODEL = "Model"
    NOWHERE = ""  # known, not modelled


@dataclass(frozen=True, slots=True)
class Spelling:
    """How releases from `since` on take a knob: one field, switches that go `along`, or `fixed` fields for a value."""

    flag: str = ""
    since: Version = ()
    along: tuple[str, ...] = ()
    fixed: Mapping[Value, Mapping[str, Value]] = field(default_factory=dict)

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
        own = [s.flag for s in self.spelled.get(engine, ()) if s.flag and not s.along]
        return tuple(dict.fromkeys((self.name, *self.aliases, *own)))

    def wrong_value(self, called: str, value: object) -> str:
        """Why it cannot have this value, under the name it was called by; empty when it can."""
        if value is None or value == OWN_CHOICE or _fits(self.takes, value):
            return ""
        wanted = f"one of {', '.join(ATTENTION_BACKENDS)}" if self.takes is Domain.BACKEND else self.takes.value
        return f"{value!r} is not possible; {called} takes {wanted}, or {OWN_CHOICE}"


def _same(flag: str, *engines: str) -> dict[str, tuple[Spelling, ...]]:
    return {engine: (Spelling(flag),) for engine in engines}


def _each(sglang: str, vllm: str) -> dict[str, tuple[Spelling, ...]]:
    return {"sglang": (Spelling(sglang),), "vllm": (Spelling(vllm),)}


# Attention kernels that any release of SGLang takes, those that are modelled in front.
ATTENTION_BACKENDS = (
    "fa3", "flashinfer", "flashmla", "cutlass_mla", "trtllm_mla", "triton", "aiter", "fa4", "trtllm_mha",
    "torch_native", "flex_attention", "nsa", "dsa", "qsa", "dsv4", "compressed", "dual_chunk_flash_attn", "cutedsl_mla",
    "tokenspeed_mla", "hpc_ops", "llada2_cfg_flashinfer", "minicpm_flashattn", "minicpm_flashinfer", "wave",
    "intel_amx", "intel_xpu", "ascend",
)  # fmt: skip
# --ep-size alone and --moe-a2a-backend, also in 0.4.10.post2; the flags before them raise an error from 0.5.3 on
_EXPERTS: Version = (0, 5, 1)
# --cuda-graph-max-bs-decode and --cuda-graph-backend-decode; --cuda-graph-max-bs went with 0.5.20
_GRAPHS: Version = (0, 5, 14)
_ATTENTION_DP: Version = (0, 5, 22)
_SPEC_FLAGS: Version = (0, 22)  # of vLLM: --spec-method, --spec-model, --spec-tokens
_NO_GRAPHS: Mapping[str, Value] = {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"}
_LAYOUT, _SETTINGS = Part.LAYOUT, Part.SETTINGS

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
    KnobRow("attention_backend", _same("attention_backend", "sglang"), Domain.BACKEND, "by GPU and model", (),
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
    KnobRow("disable_radix_cache", _same("disable_radix_cache", "sglang"), Domain.SWITCH, "false", (), _SETTINGS,
         "radix_cache", inverted=True),
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
    # Known and written by release, not modelled.
    KnobRow("moe_a2a_backend", {"sglang": (Spelling(fixed={"deepep": {"enable_deepep_moe": True}}),
                                        Spelling("moe_a2a_backend", _EXPERTS))}, Domain.TEXT, "none", omit_when="none"),
    KnobRow("cuda_graph_bs", {"sglang": (Spelling("cuda_graph_bs"), Spelling("cuda_graph_bs_decode", _GRAPHS)),
                           "vllm": (Spelling("cudagraph_capture_sizes"),)}, Domain.TEXT, "by the largest graph"),
    KnobRow("context_length", _each("context_length", "max_model_len"), Domain.WHOLE, "the model's own",
         ("context_len",), unit="tokens", lever="length"),
    KnobRow("gpu_memory_utilization", _same("gpu_memory_utilization", "vllm"), Domain.SHARE,
         "0.92; 0.9 before 0.20", lever="memory"),
    KnobRow("max_num_batched_tokens", _same("max_num_batched_tokens", "vllm"), Domain.WHOLE, "by use and GPU",
         unit="tokens", lever="chunk"),
    KnobRow("VLLM_CPU_KVCACHE_SPACE", {"vllm": ()}, Domain.COUNT, "by the memory of the machine", unit="GiB",
         lever="memory"),
    # Other ways to say one of the above; the engine's parser takes them, and `EngineFlags.canonical` reads them so.
    KnobRow("disable_cuda_graph", _same("disable_cuda_graph", "sglang"), Domain.SWITCH, "false"),
    KnobRow("enable_dp_attention", _same("enable_dp_attention", "sglang"), Domain.SWITCH, "false: dp counts copies"),
    KnobRow("enable_ep_moe", _same("enable_ep_moe", "sglang"), Domain.SWITCH, "false"),
    KnobRow("enable_deepep_moe", _same("enable_deepep_moe", "sglang"), Domain.SWITCH, "false"),
    KnobRow("enable_expert_parallel", _same("enable_expert_parallel", "vllm"), Domain.SWITCH, "false"),
    KnobRow("enforce_eager", _same("enforce_eager", "vllm"), Domain.SWITCH, "false"),
)  # fmt: skip

# By every name there is: ours, the short ones, and the engines' own.
KNOBS: Mapping[str, KnobRow] = {
    name: knob for knob in reversed(_ROWS) for name in (*knob.names("vllm"), *knob.names("sglang"), knob.name)
}
ROWS: Mapping[str, KnobRow] = {knob.name: knob for knob in _ROWS}


def modelled(part: Part | None = None) -> list[KnobRow]:
    """The knobs that change what the twin computes; those of one part of it."""
    return [k for k in _ROWS if (k.part is part if part else k.part is not Part.NOWHERE)]


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
        case Domain.BACKEND:
            return value in ATTENTION_BACKENDS
        case Domain.TEXT:
            return isinstance(value, str | int | float)
