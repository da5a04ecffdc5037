"""What an SGLang log can say. Each fact keeps the number of its line, so that a claim built on it can quote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where a fact was written. `ranks` is the prefix's text, such as ('DP0', 'TP3'); empty for a single process."""

    line: int
    time: datetime | None = None
    ranks: tuple[str, ...] = ()

    def rank(self, axis: str) -> int | None:
        """The number after DP, TP, EP or PP, or None when the prefix does not name that axis."""
        for name in self.ranks:
            digits = name.removeprefix(axis)
            if digits != name and digits.isdecimal():
                return int(digits)
        return None


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """`before_bytes` was free on the GPU when loading began, `avail_bytes` when it ended."""

    stamp: Stamp
    avail_bytes: int
    before_bytes: int | None
    used_bytes: int | None
    elapsed_s: float | None
    model_class: str | None


@dataclass(frozen=True, slots=True)
class KvPool:
    """`k_bytes` and `v_bytes` are None where the cache is one compressed piece (MLA)."""

    stamp: Stamp
    tokens: int
    total_bytes: int | None
    k_bytes: int | None = None
    v_bytes: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The max_total_num_tokens line: the scheduler's limits after everything was allocated."""

    stamp: Stamp
    max_total_tokens: int
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int | None = None
    max_running_requests: int | None = None
    context_len: int | None = None
    available_gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GraphCapture:
    """One capture of CUDA graphs. `phase` is decode, prefill or draft; `sizes` are batch sizes (tokens for prefill)."""

    stamp: Stamp
    phase: str
    sizes: tuple[int, ...]
    elapsed_s: float | None = None
    used_bytes: int | None = None
    avail_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    stamp: Stamp
    new_seqs: int
    new_tokens: int
    cached_tokens: int
    token_usage: float | None
    running: int | None
    queued: int | None
    cuda_graph: bool | None = None
    input_tok_s: float | None = None
    unsent: int | None = None  # of a prefill server: prompts whose KV has not reached its decode server yet


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One line for many steps (decode_log_interval): `running` and `tokens` are of its last step."""

    stamp: Stamp
    running: int
    tokens: int | None
    token_usage: float | None
    cuda_graph: bool | None
    gen_tok_s: float | None
    queued: int | None
    accept_len: float | None = None
    fetching: int | None = None  # of a decode server: requests whose KV has not arrived yet


@dataclass(frozen=True, slots=True)
class Retraction:
    stamp: Stamp
    requests: int


@dataclass(frozen=True, slots=True)
class Compile:
    """A line saying that kernels are being compiled or tuned at run time."""

    stamp: Stamp
    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A line in which the engine says that it is not at its best.

    `kind` is moe-untuned (no tuned kernel configuration for this GPU) or deprecated (a flag that will go).
    """

    stamp: Stamp
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class SglangFailure:
    """A line that tells of a failure.

    `kind` is one of cuda-oom, pool-too-small, graph-capture, host-oom, kv-transfer, rejected, watchdog, child-died,
    signal, port-taken, exception. `ready` says whether the server had reached its limits line before: an
    out-of-memory asks for opposite remedies before and after.
    """

    stamp: Stamp
    kind: str
    ready: bool
    text: str


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """The result block of offline_throughput, or one line of its JSONL."""

    backend: str
    successful_requests: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    request_s: float | None
    input_tok_s: float | None
    output_tok_s: float | None
    total_tok_s: float | None
    line: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A turning point: ready, warmup, benchmark or stop."""

    stamp: Stamp
    name: str


@dataclass(frozen=True, slots=True)
class ServerArgs:
    stamp: Stamp
    values: Mapping[str, object]
    complete: bool


Fact = (
    ServerArgs
    | WeightsLoaded
    | KvPool
    | Limits
    | GraphCapture
    | PrefillBatch
    | DecodeBatch
    | Retraction
    | Compile
    | Notice
    | SglangFailure
    | OfflineResult
    | Mark
)


@dataclass(frozen=True, slots=True)
class SglangLog:
    """Everything one log said, in its order."""

    server_args: Mapping[str, object] = field(default_factory=dict)
    weights: tuple[WeightsLoaded, ...] = ()
    kv_pools: tuple[KvPool, ...] = ()
    limits: tuple[Limits, ...] = ()
    graphs: tuple[GraphCapture, ...] = ()
    prefills: tuple[PrefillBatch, ...] = ()
    decodes: tuple[DecodeBatch, ...] = ()
    retractions: tuple[Retraction, ...] = ()
    compiles: tuple[Compile, ...] = ()
    notices: tuple[Notice, ...] = ()
    failures: tuple[SglangFailure, ...] = ()
    results: tuple[OfflineResult, ...] = ()
    ready_line: int | None = None
    benchmark_line: int | None = None

    @property
    def cached_token_share(self) -> float | None:
        """Of all prompt tokens after the benchmark mark (or of the whole log where there is none), those from cache."""
        measured = [p for p in self.prefills if p.stamp.line > (self.benchmark_line or 0)]
        cached = sum(p.cached_tokens for p in measured)
        prompt = cached + sum(p.new_tokens for p in measured)
        return cached / prompt if prompt else None

    @property
    def largest_decode_graph(self) -> int | None:
        sizes = [s for g in self.graphs if g.phase == "decode" for s in g.sizes]
        return max(sizes, default=None)
