"""How an engine is started: the settings that change speed, and what an engine puts in for those left out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.records.expression import Value, is_number
from ridgeline.serving.engines.behaviour import Drafting, drafting, usual_curve
from ridgeline.serving.engines.knobs import Part, modelled, wrong_value
from ridgeline.serving.engines.layout import Layout, rank_kv_bytes_per_token, state_slots
from ridgeline.serving.engines.releases import USUAL_ENGINE, title_of
from ridgeline.serving.hardware.cluster import GIB, Gpu
from ridgeline.serving.model.model import WHOLE_DTYPES, Model


def _usual_accept_length(model: Model, drafted: int) -> float:
    """Where nobody says how many of so many drafted tokens are kept; 1 where no curve is known."""
    curve = usual_curve(model.name)
    return 1.0 if curve is None else curve.length(drafted)


def acceptance_assumed(model: Model, settings: EngineSettings) -> str:
    """The sentence for an answer that rests on it."""
    curve, length = usual_curve(model.name), _usual_accept_length(model, settings.drafting.depth)
    if curve is None:
        return f"no draft of {model.name} is ever kept, since none was measured; an accept length says how many are"
    kept = f"{length:g} of {settings.draft_tokens} verified tokens are kept"
    return f"{kept}, as {curve.source} did on coding prompts; an accept length says otherwise"


BACKENDS = ("fa3", "flashinfer", "flashmla", "cutlass_mla", "trtllm_mla", "triton", "aiter")
EVICTIONS = ("lru", "lfu", "slru")  # what the prefix cache forgets first; vLLM knows the first alone
CURRENT_VERSION = (0, 5)
# Tokens a rank computes in one prefill round under DeepEP where nobody sets the chunk. Published recipes set it about
# so: SGLang's own default, divided among 16 or 32 attention ranks, would leave every round to the host.
PREFILL_RANK_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """None means: what the engine would choose itself (see `resolve`)."""

    engine: str = USUAL_ENGINE
    version: tuple[int, ...] = CURRENT_VERSION
    attention_backend: str | None = None
    max_running_requests: int | None = None
    cuda_graph_max_bs: int | None = None  # 0 switches decode graphs off
    prefill_graph: bool | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    mem_fraction: float | None = None
    schedule_conservativeness: float = 1.0
    page_size: int = 1
    radix_cache: bool = True
    eviction: str = "lru"  # what the prefix cache forgets first (--radix-eviction-policy)
    host_tier_ratio: float = 0.0  # KV kept in host memory, in KV pools of a GPU (--hicache-ratio)
    host_tier_size: float = 0.0  # or as the engine counts it (--hicache-size, vLLM's --kv-offloading-size)
    host_tier_policy: str = "write_through"  # when it is written (--hicache-write-policy)
    accept_length: float | None = None  # speculative decoding: tokens kept per verified step; None: as others measured
    draft_tokens: int = 1  # tokens verified per step and request; 1 is no speculation
    draft_method: str = ""  # --speculative-algorithm; "": a layer that drafts one token after the other
    draft_steps: int | None = None  # --speculative-num-steps; None: as many as make a chain of the verified tokens
    draft_branches: int = 1  # --speculative-eagle-topk: branches of the tree of drafts
    top_p: bool = False  # requests draw from their likeliest tokens alone (top-p, top-k)
    experts: str = ""  # how tokens find their experts, as `behaviour.parse_routing` has it; "": by a trained router
    draft_overlap: bool | None = None  # the host works ahead of drafts too (SGLANG_ENABLE_SPEC_V2); None: by release
    overlap: bool | None = None  # the host prepares a step while the GPU computes the one before; None: by release
    mixed_chunk: bool = False  # prompts and decode tokens share a step (SGLang's --enable-mixed-chunk; vLLM always)
    recv_interval: int = 1  # decode steps between two looks for new requests (SGLang's --scheduler-recv-interval)
    tokenizer_workers: int = 1  # processes that tokenise prompts (--tokenizer-worker-num; vLLM's --api-server-count)
    detokenizer_workers: int = 1  # processes that detokenise and send answers (--detokenizer-worker-num)
    stream_interval: int = 1  # tokens that are sent to a user together (--stream-interval)
    # a prefill engine deals prompts to its attention-DP ranks in turn (--load-balance-method round_robin), not by the
    # number that the router draws
    dealt_in_turn: bool = False

    def __post_init__(self) -> None:
        if self.attention_backend is not None and self.attention_backend not in BACKENDS:
            raise InputError(
                f"attention backend {self.attention_backend!r} is not known; use one of {', '.join(BACKENDS)}"
            )
        if self.eviction not in EVICTIONS:
            raise InputError(f"eviction {self.eviction!r} is not simulated; use one of {', '.join(EVICTIONS)}")
        if min(self.host_tier_ratio, self.host_tier_size) < 0:
            raise InputError("a host tier cannot be smaller than nothing; give its size, or leave it out")
        for name in ("max_running_requests", "chunked_prefill_size", "max_prefill_tokens", "page_size", "draft_tokens",
                     "draft_steps", "draft_branches", "recv_interval", "tokenizer_workers", "detokenizer_workers",
                     "stream_interval"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        for name, most in (("page_size", 1024), ("draft_tokens", 1024), ("draft_steps", 1024)):
            if (getattr(self, name) or 0) > most:
                raise InputError(f"{name} is {getattr(self, name):,}; engines take 1 to {most:,}")
        if self.cuda_graph_max_bs is not None and self.cuda_graph_max_bs < 0:
            raise InputError(f"cuda_graph_max_bs is {self.cuda_graph_max_bs}; use 0 to switch graphs off")
        if not 0.0 <= self.schedule_conservativeness <= 100.0:
            raise InputError(
                f"schedule_conservativeness is {self.schedule_conservativeness:g}; SGLang takes 0 and above, 1 is usual"
            )
        if self.accept_length is not None and not 1.0 <= self.accept_length <= self.draft_tokens:
            remedy = "give 1 or more tokens kept a step"
            if 1.0 < self.accept_length < 1e6:
                remedy = f"give at least {math.ceil(self.accept_length)} draft tokens"
            raise InputError(
                f"an accept length of {self.accept_length:g} is not between 1 and {self.draft_tokens} draft tokens; "
                f"{remedy}"
            )

    @property
    def drafting(self) -> Drafting:
        return drafting(self.draft_method, self.draft_tokens, self.draft_steps, self.draft_branches)


DEFAULTS = EngineSettings()


@dataclass(frozen=True, slots=True)
class Applied:
    """Settings as the engine applies them, each whole engine (all attention-DP ranks and pipeline stages together)."""

    backend: str
    running_limit: int
    graph_max_bs: int  # per attention-DP rank and micro-batch
    prefill_graph: bool
    chunk_tokens: int  # per round of the whole engine
    max_prefill_tokens: int
    conservativeness: float
    radix_cache: bool
    accept_length: float
    drafting: Drafting
    page_size: int
    engine: str = USUAL_ENGINE
    prefill_graph_tokens: float = math.inf  # of a rank and micro-batch, up to which graphs hold a pass with prompts
    mixed: bool = False  # prompts and decode tokens share a step: always with vLLM, with SGLang's mixed chunk
    recv_interval: int = 1
    dealt_in_turn: bool = False
    overlap: bool = True  # the host prepares a step while the GPU computes the one before
    whole_prompts: bool = False  # a mixed step takes a request on only when all of its prompt has room
    retract_steps: int = 1  # decode steps of those who stay for which a full pool is emptied
    finds_sent_back: bool = False  # who was sent back finds its KV, answer and all, in the prefix cache
    pulls_kv: bool = False  # a decode role asks for the KV of a prompt when it has been computed and has room
    kernel_set: str = ""  # whose kernels run: another engine's or an older release's than the newest SGLang's
    experts: str = ""  # how tokens find their experts
    sorts_logits: bool = False  # to draw from the likeliest tokens alone
    expert_rows: int = 0  # a rank computes all of a buffer that has room to fill its experts to tiles of so many rows
    eviction: str = "lru"
    host_tokens: int = 0  # that a tier in host memory holds
    host_token_s: float = 0.0  # to bring one of them back
    host_policy: str = "write_through"

    @property
    def draft_tokens(self) -> int:
        return self.drafting.tokens


class EngineDefaults:
    """What an engine that the twin knows chooses where nobody says, by release; each has its own in its home."""

    current: tuple[int, ...]  # the line of releases that is meant where none is named
    oldest: tuple[int, ...] = ()  # the first whose scheduler the twin knows
    # of DeepSeek's models: all-reduce joined with the norm after it on Blackwell, tiles for small batches on Hopper
    deepseek_kernels: bool = False
    # attention back ends that verify drafts with their kernel for prompts, each head of a request by itself
    verifies_by_head: frozenset[str] = frozenset()
    host_tier_by_ratio: bool = True  # a tier in host memory may be so many KV pools
    finds_sent_back: bool = False  # who is sent back out of a full pool leaves all its KV in the prefix cache
    pulls_kv: bool = False  # its decode role reads KV that was computed; others have room before it is
    graphs_by_tokens: bool = False  # a graph is for so many tokens, of prompts or not, and the largest is the decode's
    least_page: int = 1  # tokens of a page of KV, where nobody asks for a larger one
    workers_launch: bool = False  # several ranks are processes of their own, which launch while the scheduler goes on
    deepep: bool = False  # experts of attention-DP ranks get their tokens by DeepEP, unless it is told otherwise

    def backend(self, model: Model, gpu: Gpu, layout: Layout) -> str:
        """Its attention kernels; where no engine's own are known, those that are written in Triton."""
        if gpu.generation == "blackwell":
            return "trtllm_mla" if model.attention.mla else "flashinfer"
        if gpu.is_amd:
            return "triton"
        return "fa3" if gpu.generation == "hopper" else "flashinfer"

    def chunk(self, settings: EngineSettings, gpu: Gpu, layout: Layout) -> int:
        raise NotImplementedError

    def running(self, settings: EngineSettings, model: Model, gpu: Gpu, layout: Layout, pool_tokens: int) -> int:
        raise NotImplementedError

    def mixes(self, settings: EngineSettings, layout: Layout) -> bool:
        """Whether prompts and decode tokens share a step."""
        raise NotImplementedError

    def graph_max_bs(self, settings: EngineSettings, gpu: Gpu, layout: Layout) -> int:
        raise NotImplementedError

    def prefill_graph(self, settings: EngineSettings, model: Model) -> bool:
        raise NotImplementedError

    def overlaps(self, settings: EngineSettings) -> bool:
        """Whether the host prepares a step while the GPU computes the one before."""
        return settings.overlap is not False

    def admits_whole_prompts(self, settings: EngineSettings) -> bool:
        """Whether a mixed step takes a request on only when all of its prompt has room, not just the next piece."""
        return False

    def retract_steps(self, settings: EngineSettings) -> int:
        """For how many decode steps of those who stay a full pool is emptied."""
        return 1

    def merged_blocks_whole(self, settings: EngineSettings) -> bool:
        """Whether each part of a matrix made of several must be whole FP8 blocks."""
        return True

    def sorts_logits(self, settings: EngineSettings) -> bool:
        """Whether it sorts all logits of a step where requests want the likeliest tokens alone."""
        return False

    def expert_rows(self, settings: EngineSettings, model: Model) -> int:
        """Rows of the tiles that all of a buffer is computed in, filled or not; 0 where only what is filled is."""
        return 0

    def kernel_set(self, settings: EngineSettings) -> str:
        """The measured kernels that this release's resemble most; empty: those of the newest SGLang."""
        return ""

    def host_rank_bytes(self, settings: EngineSettings, layout: Layout) -> float:
        """What a tier in host memory of the size that was asked for has for each rank."""
        return settings.host_tier_size * 1e9

    def mem_fraction(self, model: Model, gpu: Gpu, layout: Layout, settings: EngineSettings, role: str) -> float:
        raise NotImplementedError

    def kept_share(self, model: Model, backend: str) -> float:
        """What the engine keeps of any fraction, its own or one that was asked for."""
        return 1.0


def defaults_of(engine: str) -> EngineDefaults:
    found: EngineDefaults | None = catalog.part("engines", engine).defaults
    if found is None:
        raise InputError(f"engine {engine!r} is not simulated; use one of {', '.join(_simulated())}")
    return found


def _simulated() -> list[str]:
    return [name for name in catalog.names("engines") if catalog.part("engines", name).defaults is not None]


def resolve(settings: EngineSettings, model: Model, gpu: Gpu, layout: Layout, pool_tokens: int) -> Applied:
    """What the engine would apply for this layout. `pool_tokens` is one attention-DP rank's KV pool."""
    own, token_bytes = defaults_of(settings.engine), rank_kv_bytes_per_token(model, layout)
    chunk = settings.chunked_prefill_size or own.chunk(settings, gpu, layout)
    running = settings.max_running_requests
    if running is None:
        running = own.running(settings, model, gpu, layout, pool_tokens)
    if model.state_bytes_per_request and pool_tokens > 1:
        running = min(running, state_slots(model, layout, pool_tokens) * layout.attn_dp)
    graph, prefill_graph = settings.cuda_graph_max_bs, settings.prefill_graph
    graph = own.graph_max_bs(settings, gpu, layout) if graph is None else graph
    return Applied(
        backend=settings.attention_backend or own.backend(model, gpu, layout),
        # attention DP and pipeline stages each divide the limit; a rank keeps at least one
        running_limit=max(running, layout.attn_dp * layout.pp),
        graph_max_bs=graph,
        prefill_graph=own.prefill_graph(settings, model) if prefill_graph is None else prefill_graph,
        prefill_graph_tokens=graph if own.graphs_by_tokens else math.inf,
        # attention DP divides the chunk among its ranks; every pipeline stage works on a chunk of its own
        chunk_tokens=max(chunk, layout.attn_dp) * layout.pp,
        max_prefill_tokens=max(settings.max_prefill_tokens, chunk) * layout.pp,
        conservativeness=settings.schedule_conservativeness,
        radix_cache=settings.radix_cache,
        accept_length=settings.accept_length or _usual_accept_length(model, settings.drafting.depth),
        drafting=settings.drafting,
        page_size=max(settings.page_size, own.least_page),
        engine=settings.engine,
        mixed=own.mixes(settings, layout),
        recv_interval=settings.recv_interval,
        dealt_in_turn=settings.dealt_in_turn,
        overlap=own.overlaps(settings),
        whole_prompts=own.admits_whole_prompts(settings),
        retract_steps=own.retract_steps(settings),
        finds_sent_back=own.finds_sent_back,
        pulls_kv=own.pulls_kv,
        kernel_set=own.kernel_set(settings),
        experts=settings.experts,
        sorts_logits=settings.top_p and own.sorts_logits(settings),
        expert_rows=own.expert_rows(settings, model),
        eviction=settings.eviction,
        host_tokens=_host_tokens(own, settings, layout, token_bytes, pool_tokens),
        host_token_s=token_bytes / gpu.host_bytes_s,
        host_policy=settings.host_tier_policy,
    )


def _host_tokens(
    own: EngineDefaults, settings: EngineSettings, layout: Layout, token_bytes: float, pool_tokens: int
) -> int:
    """What the whole engine's tier in host memory holds; each rank has its part of it, and so its own copy of a latent
    that all ranks keep."""
    if settings.host_tier_ratio and not own.host_tier_by_ratio:
        raise InputError(f"{settings.engine} takes no host tier in KV pools (2x); give its size, such as 600")
    size = own.host_rank_bytes(settings, layout) / token_bytes
    return int(size or settings.host_tier_ratio * pool_tokens) * layout.attn_dp


_ENGINE = re.compile(r"([a-z]\w*?)(?:[:=@ ]*v?(\d+(?:\.\d+)*)(?:\.?(?:post|rc|dev)\d*)*)?")


def parse_engine(text: str, settings: EngineSettings) -> EngineSettings:
    """`sglang` or `vllm`, each with a release after a colon: `sglang:0.4.10` for the defaults of an older version."""
    match = _ENGINE.fullmatch(text.strip())
    if not match or match[1] not in _simulated():
        raise InputError(
            f"engine {text!r} is not simulated; use {' or '.join(_simulated())}, or sglang:0.4.10 for an older one's "
            "defaults"
        )
    own = defaults_of(match[1])
    version = tuple(int(p) for p in match[2].split(".")) if match[2] else own.current
    if version < own.oldest:
        oldest = ".".join(map(str, own.oldest))
        raise InputError(
            f"engine {text!r} is not simulated: {title_of(match[1])} before {oldest} has another scheduler; use "
            f"{match[1]}:{oldest} or newer"
        )
    return replace(settings, engine=match[1], version=version)


# What settings mean to us: the Layout, EngineSettings and Model that memory rules and twin work with, and back.

# With these an engine spreads experts over all ranks, whatever else is said; any all-to-all back end does so too.
_WHOLE_EP_SWITCHES = ("enable_ep_moe", "enable_expert_parallel")
# what an engine calls weights and KV caches -> what we call them
_WEIGHT_NAMES = {
    "fp8": "fp8", "w8a8_fp8": "fp8", "fbgemm_fp8": "fp8", "modelopt_fp8": "fp8", "mxfp8": "fp8", "w8a8_int8": "int8",
    "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "moe_wna16": "int4", "w4afp8": "int4",
    "modelopt_fp4": "fp4", "petit_nvfp4": "fp4", "nvfp4_online": "fp4", "mxfp4": "mxfp4", "quark_mxfp4": "mxfp4",
}  # fmt: skip


def layout_of(values: Mapping[str, Value], nodes: int, gpus_per_node: int | None) -> Layout:
    """`values` under our names. Without `gpus_per_node` a node is as large as the ranks need.

    InputError says which value is none, or that one engine cannot have both kinds of DP.
    """
    _require_possible(values, Part.LAYOUT)
    sizes = {k.field: int(values[k.name]) for k in modelled(Part.LAYOUT) if k.name in values}  # type: ignore[arg-type]
    tp = sizes.get("tp", 1)
    if values.get("moe_a2a_backend", "none") != "none" or any(values.get(n) for n in _WHOLE_EP_SWITCHES):
        sizes["ep"] = tp
    needed = tp * sizes.get("pp", 1) * sizes.get("dp", 1)
    layout = Layout(nodes=nodes, gpus_per_node=gpus_per_node or max(1, -(-needed // nodes)), **sizes)  # type: ignore[arg-type]
    if layout.dp > 1 and layout.attn_dp > 1:
        raise InputError(
            f"dp {layout.dp} beside attn_dp {layout.attn_dp}: one SGLang server has either copies or attention DP; "
            "set one of them to 1"
        )
    return layout


def settings_of(values: Mapping[str, Value], base: EngineSettings = DEFAULTS) -> EngineSettings:
    """`values` under our names; what they do not say is `base`'s. InputError says which value is none."""
    _require_possible(values, Part.SETTINGS)
    found: dict[str, Value] = {}
    for knob in modelled(Part.SETTINGS):
        if knob.name in values:
            value = values[knob.name]
            found[knob.field] = not value if knob.inverted else value
    found |= _drafts_of(values) | _host_tier_of(values)
    if found.get("prefill_graph"):
        del found["prefill_graph"]  # a switch that is not thrown: whether there are graphs is the engine's choice
    if found.get("cuda_graph_max_bs") == 0:
        found["prefill_graph"] = False
    if found.get("attention_backend", BACKENDS[0]) not in BACKENDS:
        del found["attention_backend"]  # not modelled; the engine's own choice is nearest
    if found.get("eviction", EVICTIONS[0]) not in EVICTIONS:
        del found["eviction"]  # neither
    if found.get("chunked_prefill_size") == -1:
        # without chunks a round still ends at this many tokens
        found["chunked_prefill_size"] = found.get("max_prefill_tokens", base.max_prefill_tokens)
    return replace(base, **found)  # type: ignore[arg-type]


def _host_tier_of(values: Mapping[str, Value]) -> dict[str, Value]:
    """SGLang has none before it is switched on, vLLM none before it has a size."""
    size: Value | None = offloaded_gib(values)
    found: dict[str, Value] = {}
    if values.get("enable_hierarchical_cache") is True:
        size, ratio = values.get("hicache_size"), values.get("hicache_ratio", 2.0)
        found = {} if size or not is_number(ratio) else {"host_tier_ratio": float(ratio)}
        found["host_tier_policy"] = str(values.get("hicache_write_policy", "write_through"))
    return found | ({"host_tier_size": float(size)} if is_number(size) else {})


def offloaded_gib(values: Mapping[str, Value]) -> float | None:
    """Of all ranks of a vLLM together: as its flag says, or its JSON of connectors, where LMCache counts by rank.

    vllm/config/vllm.py makes the same of `kv_offloading_backend: lmcache`: "lmcache.max_local_cpu_size" is the share of
    a rank of the stages.
    """
    if is_number(size := values.get("kv_offloading_size")):
        return float(size)
    said = json_object(values, "kv_transfer_config")
    extra = said.get("kv_connector_extra_config")
    if not isinstance(extra, dict):
        return None
    if said.get("kv_connector") == "OffloadingConnector" and is_number(held := extra.get("cpu_bytes_to_use")):
        return float(held) / GIB
    each = extra.get("lmcache.max_local_cpu_size")
    if said.get("kv_connector") != "LMCacheConnectorV1" or extra.get("lmcache.local_cpu") is False:
        return None
    ranks = math.prod(n for name in ("tp", "pp") if is_number(n := values.get(name, 1)))
    return float(each) * ranks if is_number(each) else None


# What SGLang takes where an algorithm is named and no numbers are: drafting steps, of one branch. Llama and Grok get a
# tree of 5 steps, 4 branches and 8 tokens there, which their config alone does not tell us.
_USUAL_STEPS = 3
# Algorithms without steps, whatever is said of them: what they verify where nobody says, and the flag of their own that
# says it, with what comes on top (speculative_hook.py of 0.5.23: _handle_ngram, _handle_dflash, _handle_dspark).
_STEPLESS = {
    "NGRAM": (12, "", 0),
    "DFLASH": (16, "speculative_dflash_block_size", 0),
    "DSPARK": (8, "speculative_dspark_block_size", 1),
}
# What vLLM drafts where its JSON has no number: one for a layer of the draft model, and the depth of its suffix tree.
_VLLM_STEPS = {"suffix": 24}


def _drafts_of(values: Mapping[str, Value]) -> dict[str, Value]:
    """The fields of what an engine with these values drafts: nothing without an algorithm, a chain of one branch."""
    config = speculative_config(values)
    method = str(values.get("speculative_algorithm") or config.get("method") or "")
    names = ("speculative_num_steps", "speculative_num_draft_tokens", "speculative_eagle_topk")
    steps, tokens, branches = (values.get(name) for name in names)
    if not method and not config:
        return {"draft_tokens": 1, "draft_steps": None, "draft_branches": 1} if steps or tokens or branches else {}
    if config:
        steps = _count(config.get("num_speculative_tokens")) or _VLLM_STEPS.get(method, 1)
    elif (stepless := _STEPLESS.get(method.upper())) and (steps is None or tokens is not None or branches is not None):
        usual, own, more = stepless  # not of vLLM's short flags, which say steps alone
        block = values.get(own)
        tokens = block + more if isinstance(block, int) else tokens or usual
        return {"draft_method": method, "draft_steps": None, "draft_tokens": tokens, "draft_branches": 1}
    elif steps is None and tokens is None:
        steps = _USUAL_STEPS
    if isinstance(steps, int) and (tokens is None or branches in (None, 1)):
        tokens = steps + 1
    return {"draft_method": method, "draft_steps": steps, "draft_tokens": tokens}


def drafting_of(values: Mapping[str, Value]) -> Drafting:
    """What an engine with these values, under our names, drafts and verifies."""
    fields, branches = _drafts_of(values), values.get("speculative_eagle_topk", 1)
    tokens, steps = fields.get("draft_tokens", 1), fields.get("draft_steps")
    return drafting(
        str(fields.get("draft_method", "")),
        tokens if isinstance(tokens, int) else 1,
        steps if isinstance(steps, int) else None,
        branches if isinstance(branches, int) else 1,
    )


def json_object(values: Mapping[str, Value], name: str) -> dict[str, Any]:
    """A flag that takes JSON; empty where it is not said, or cannot be read."""
    try:
        said = json.loads(str(values.get(name) or "{}"))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def speculative_config(values: Mapping[str, Value]) -> dict[str, Value]:
    """vLLM's JSON of drafts, under names with underscores; empty where there is none, or where it cannot be read."""
    return {str(n).replace("-", "_"): v for n, v in json_object(values, "speculative_config").items()}


def _count(said: Value) -> int:
    """As vLLM's parser takes it, which makes 3 of "3"; 0 where it is none."""
    return int(str(said)) if str(said).isdecimal() else 0


def speculation_problem(values: Mapping[str, Value]) -> str:
    """Why vLLM's JSON of drafts cannot be read; empty where it can."""
    try:
        whole = json.loads(str(values.get("speculative_config") or "null"))
    except ValueError as error:
        return f"is no JSON ({error})"
    return "" if isinstance(whole, dict | None) else "is no JSON object"


def model_of(model: Model, values: Mapping[str, Value]) -> Model:
    """The model with weights and KV cache as the engine's arguments have them."""
    weights = _WEIGHT_NAMES.get(str(values.get("quantization", "")))
    cache = "fp8" if str(values.get("kv_cache_dtype", "")).startswith("fp8") else None
    return model.with_dtype(weights, cache)


def weights_known(model: Model, values: Mapping[str, Value]) -> bool:
    """Whether the size of a weight follows from these arguments: that of compressed-tensors, gguf or bitsandbytes is in
    the checkpoint, which a shape in 16 bits does not stand for."""
    name = values.get("quantization")
    return name in (None, "unquant", *_WEIGHT_NAMES) or model.weights_dtype not in WHOLE_DTYPES


def dtype_values(shipped: Model, chosen: Model) -> dict[str, Value]:
    """Arguments by which engines keep a model so that ships otherwise.

    They quantise to FP8 while they load; in other dtypes the weights must come.
    """
    values: dict[str, Value] = {}
    if chosen.weights_dtype != shipped.weights_dtype and chosen.weights_dtype == "fp8":
        values["quantization"] = "fp8"
    if chosen.kv_dtype != shipped.kv_dtype and chosen.kv_dtype == "fp8":
        values["kv_cache_dtype"] = "fp8_e4m3"
    return values


def role_of(values: Mapping[str, Value]) -> str:
    """both, prefill or decode."""
    role = values.get("disaggregation_mode")
    return str(role) if role in ("prefill", "decode") else "both"


def values_of(layout: Layout, settings: EngineSettings) -> dict[str, Value]:
    """The arguments of one engine of this layout, under our names; what is the engine's choice anyway is left out."""
    values: dict[str, Value] = {knob.name: getattr(layout, knob.field) for knob in modelled(Part.LAYOUT)}
    del values["dp"]  # copies are servers of their own
    for knob in modelled(Part.SETTINGS):
        value = getattr(settings, knob.field)
        if value is not None and value != getattr(DEFAULTS, knob.field):
            values[knob.name] = not value if knob.inverted else value
    if settings.cuda_graph_max_bs == 0 or settings.prefill_graph:
        values.pop("disable_prefill_cuda_graph", None)
    return values | host_tier_values(settings)


def host_tier_values(settings: EngineSettings) -> dict[str, Value]:
    """What asks for this tier in host memory."""
    size, ratio = settings.host_tier_size, settings.host_tier_ratio
    if not (size or ratio):
        return {}
    size = int(size) if size.is_integer() else size
    if settings.engine == "vllm":
        return {"kv_offloading_size": size}
    own: dict[str, Value] = {"hicache_size": size} if size else {"hicache_ratio": ratio}
    policy = settings.host_tier_policy
    written: dict[str, Value] = {} if policy == DEFAULTS.host_tier_policy else {"hicache_write_policy": policy}
    return {"enable_hierarchical_cache": True, **own, **written}


def _require_possible(values: Mapping[str, Value], part: Part) -> None:
    for knob in modelled(part):
        if wrong := wrong_value(knob.name, values.get(knob.name)):
            raise InputError(wrong)
