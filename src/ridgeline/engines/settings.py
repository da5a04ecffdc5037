"""How an engine is started: the settings that change speed, and the defaults SGLang puts in for those left out."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from ridgeline.engines.acceptance import usual_accept_length
from ridgeline.engines.deepep import uses_deepep
from ridgeline.engines.knobs.releases import release_meant
from ridgeline.engines.layout import Layout, state_slots
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import GIB, Gpu
from ridgeline.model.model import Model

BACKENDS = ("fa3", "flashinfer", "flashmla", "cutlass_mla", "trtllm_mla", "triton")
CURRENT_VERSION = (0, 5)
# vLLM's V1 scheduler came on by default with 0.8; its graphs reach 512 sequences.
CURRENT_VLLM, OLDEST_VLLM, VLLM_GRAPHS = (0, 32), (0, 8), 512
# Asynchronous scheduling is on by default since 0.14; before, every step waited for the host.
VLLM_OVERLAP_SINCE = (0, 14)
# gpu_memory_utilization where nobody names it, by release; activations are taken out of it (vllm/config/cache.py)
VLLM_FRACTIONS = {(0, 20): 0.92, (0, 0): 0.9}
# Tokens a rank computes in one prefill round under DeepEP where nobody sets the chunk. Published recipes set it about
# so: SGLang's own default, divided among 16 or 32 attention ranks, would leave every round to the host.
PREFILL_RANK_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """None means: what the engine would choose itself (see `resolve`)."""

    engine: str = "sglang"
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
    accept_length: float | None = None  # speculative decoding: tokens kept per verified step; None: as others measured
    draft_tokens: int = 1  # tokens verified per step and request; 1 is no speculation
    mixed_chunk: bool = False  # prompts and decode tokens share a step (SGLang's --enable-mixed-chunk; vLLM always)
    recv_interval: int = 1  # decode steps between two looks for new requests (SGLang's --scheduler-recv-interval)
    tokenizer_workers: int = 1  # processes that tokenise prompts (--tokenizer-worker-num; vLLM's --api-server-count)
    detokenizer_workers: int = 1  # processes that detokenise and send answers (--detokenizer-worker-num)

    def __post_init__(self) -> None:
        if self.attention_backend is not None and self.attention_backend not in BACKENDS:
            raise InputError(
                f"attention backend {self.attention_backend!r} is not known; use one of {', '.join(BACKENDS)}"
            )
        for name in ("max_running_requests", "chunked_prefill_size", "max_prefill_tokens", "page_size", "draft_tokens",
                     "recv_interval", "tokenizer_workers", "detokenizer_workers"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        for name, most in (("page_size", 1024), ("draft_tokens", 1024)):
            if getattr(self, name) > most:
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
    draft_tokens: int
    page_size: int
    engine: str = "sglang"
    mixed: bool = False  # prompts and decode tokens share a step: always with vLLM, with SGLang's mixed chunk
    recv_interval: int = 1
    overlap: bool = True  # the host prepares a step while the GPU computes the one before
    kernel_set: str = ""  # whose kernels run: another engine's or an older release's than the newest SGLang's


def resolve(settings: EngineSettings, model: Model, gpu: Gpu, layout: Layout, pool_tokens: int) -> Applied:
    """What the engine would apply for this layout. `pool_tokens` is one attention-DP rank's KV pool."""
    vllm = settings.engine == "vllm"
    chunk = settings.chunked_prefill_size or (_vllm_budget(gpu) if vllm else _default_chunk(settings, gpu, layout))
    running = settings.max_running_requests
    if running is None and vllm:
        running = _vllm_sequences(gpu) * layout.attn_dp
    if running is None:
        # model_runner: tokens / context * 512, held between 2048 and 4096, whole engine
        running = int(min(max(pool_tokens / model.context_tokens * 512, 2048), 4096))
    if model.state_bytes_per_request and pool_tokens > 1:
        running = min(running, state_slots(model, layout, pool_tokens) * layout.attn_dp)
    graph = settings.cuda_graph_max_bs
    return Applied(
        backend=settings.attention_backend or default_backend(model, gpu),
        # attention DP and pipeline stages each divide the limit; a rank keeps at least one
        running_limit=max(running, layout.attn_dp * layout.pp),
        graph_max_bs=(VLLM_GRAPHS if vllm else _default_graph(settings, gpu, layout)) if graph is None else graph,
        prefill_graph=_default_prefill_graph(settings, model),
        # attention DP divides the chunk among its ranks; every pipeline stage works on a chunk of its own
        chunk_tokens=max(chunk, layout.attn_dp) * layout.pp,
        max_prefill_tokens=max(settings.max_prefill_tokens, chunk) * layout.pp,
        conservativeness=settings.schedule_conservativeness,
        radix_cache=settings.radix_cache,
        accept_length=settings.accept_length or usual_accept_length(model, settings.draft_tokens),
        draft_tokens=settings.draft_tokens,
        page_size=settings.page_size,
        engine=settings.engine,
        mixed=vllm or (settings.mixed_chunk and layout.attn_dp == 1),
        recv_interval=settings.recv_interval,
        overlap=not vllm or settings.version >= VLLM_OVERLAP_SINCE,
        kernel_set=_kernel_set(settings),
    )


def vllm_fraction(settings: EngineSettings) -> float:
    return next(share for since, share in VLLM_FRACTIONS.items() if settings.version >= since)


def _kernel_set(settings: EngineSettings) -> str:
    """The measured kernels that this release's resemble most: SGLang's experts and all-reduce changed after 0.5.10."""
    if settings.engine == "vllm":
        return "vllm"
    return "" if _since(settings, 0, 5, 12) else "sglang-0.5.10"


def default_backend(model: Model, gpu: Gpu) -> str:
    if gpu.generation == "blackwell":
        return "trtllm_mla" if model.attention.mla else "flashinfer"
    if gpu.generation.startswith("cdna"):
        return "triton"  # AMD's own kernels (aiter) are faster; no measurement of them is at hand
    return "fa3" if gpu.generation == "hopper" else "flashinfer"


def engine_chunk(settings: EngineSettings, gpu: Gpu) -> int:
    """The prefill chunk SGLang itself takes, by the size of the GPU."""
    gib = gpu.memory_bytes / GIB
    if gib < 35:
        return 2048
    if gib < 60 and _since(settings, 0, 5, 3):
        return 4096
    return 8192 if gib < 160 else 16384


def _default_chunk(settings: EngineSettings, gpu: Gpu, layout: Layout) -> int:
    if uses_deepep(layout):
        return PREFILL_RANK_TOKENS * layout.attn_dp
    return engine_chunk(settings, gpu)


def _vllm_budget(gpu: Gpu) -> int:
    """max_num_batched_tokens of vLLM's server: 8,192 on GPUs of 70 GiB and more, 2,048 on others and on A100."""
    return 8192 if _vllm_large(gpu) else 2048


def _vllm_sequences(gpu: Gpu) -> int:
    return 1024 if _vllm_large(gpu) else 256


def _vllm_large(gpu: Gpu) -> bool:
    return gpu.memory_bytes >= 70 * GIB and gpu.generation != "ampere"


def _default_graph(settings: EngineSettings, gpu: Gpu, layout: Layout) -> int:
    gib = gpu.memory_bytes / GIB
    if gib < 20:
        return 8
    if not _since(settings, 0, 5, 3):
        small = 35 if _since(settings, 0, 4, 8) else 24.4
        if gib < small:
            return 8 if layout.tp < 4 else 80
        return 160 if gib <= 90 or not _since(settings, 0, 4, 6) else 256 if gib < 156 else 512
    if gib < 35:
        return 24 if layout.tp < 4 else 80
    if gib < 60:
        return 32 if layout.tp < 4 else 160
    return 256 if layout.tp < 4 and gib < 160 else 512


def _default_prefill_graph(settings: EngineSettings, model: Model) -> bool:
    if settings.prefill_graph is not None:
        return settings.prefill_graph
    if settings.engine == "vllm":
        return True  # compiled as a whole, launched in a few pieces
    # piecewise prefill graphs are on by default since 0.5.10, and exclude MLA and layers that keep a state
    return _since(settings, 0, 5, 10) and not model.attention.mla and not model.state_bytes_per_request


def _since(settings: EngineSettings, *release: int) -> bool:
    return release_meant(settings.version) >= release


_ENGINE = re.compile(r"(sglang|vllm)(?:[:=@ ]*v?(\d+(?:\.\d+)*)(?:\.?(?:post|rc|dev)\d*)*)?")


def parse_engine(text: str, settings: EngineSettings) -> EngineSettings:
    """`sglang` or `vllm`, each with a release after a colon: `sglang:0.4.10` for the defaults of an older version."""
    match = _ENGINE.fullmatch(text.strip())
    if not match:
        raise InputError(
            f"engine {text!r} is not simulated; use sglang or vllm, or sglang:0.4.10 for an older one's defaults"
        )
    current = CURRENT_VLLM if match[1] == "vllm" else CURRENT_VERSION
    version = tuple(int(p) for p in match[2].split(".")) if match[2] else current
    if match[1] == "vllm" and version < OLDEST_VLLM:
        raise InputError(
            f"engine {text!r} is not simulated: vLLM before 0.8 has another scheduler; use vllm:0.8 or newer"
        )
    return replace(settings, engine=match[1], version=version)
