"""The options that several serving verbs take, each declared once, and what they mean together."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.options import takes as takes  # for the verbs beside this file
from ridgeline.errors import InputError
from ridgeline.serving.engines import behaviour, fitting, flags, releases
from ridgeline.serving.engines import deployment as engines_deployment
from ridgeline.serving.engines import layout as engines_layout
from ridgeline.serving.engines import settings as engines_settings
from ridgeline.serving.twin import calibration

if TYPE_CHECKING:
    from ridgeline.serving.engines.deployment import Deployment
    from ridgeline.serving.twin.calibration import Calibration

ModelName = Annotated[str, typer.Option(help="A preset such as deepseek-r1, or the path of a config.json.")]
GpuName = Annotated[
    str, typer.Option(help="h100, b200, ... (`ridgeline plan hardware`); with limits: h200@500W@1500MHz.")
]
_Nodes = Annotated[int | None, typer.Option(help="Nodes; default: as many as needed.")]
GpusPerNode = Annotated[int, typer.Option(help="GPUs per node.")]
Fabric = Annotated[str | None, typer.Option(help="ib-ndr, roce-400, ...; default: what these GPUs usually come with.")]
EngineName = Annotated[
    str, typer.Option(help="sglang or vllm; sglang:0.4.10, vllm:0.12.0 for another release's defaults.")
]
Dtype = Annotated[str | None, typer.Option(help="Weights: bf16, fp8, int4, ...; default: the config's.")]
KvDtype = Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8.")]
AttentionBackend = Annotated[str | None, typer.Option(help="fa3, flashinfer, triton, ...; default: the engine's.")]
TrafficText = Annotated[
    str,
    typer.Option(
        help="sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, uniform:800-1000:100-200, "
        "lognormal:IN:OUT[:SIGMA], sessions:agent, sessions:chat, sessions:FILE, or a trace file of any known format."
    ),
]
Slos = Annotated[
    list[str] | None,
    typer.Option("--slo", help="A limit such as ttft_p95_ms=2000; ttft, itl, tpot or e2e; may be repeated."),
]
CalibrationFile = Annotated[Path | None, typer.Option(help="A calibration file made by `ridgeline twin calibrate`.")]
Concurrency = Annotated[int | None, typer.Option(help="Closed loop: this many requests at once.")]
Rate = Annotated[float | None, typer.Option("--rate", help="Open loop: this many requests a second.")]
Burstiness = Annotated[float, typer.Option(help="Open loop: 0 constant, 1 Poisson, above 1 burstier.")]
Sessions = Annotated[
    int | None, typer.Option(help="Closed loop: this many sessions at once; their turns wait for answers.")
]
Closed = Annotated[
    bool, typer.Option("--closed", help="Sessions begin at their recorded times; their turns wait for answers.")
]
IdleCap = Annotated[
    float | None, typer.Option("--idle-cap", help="Longest time to think between two turns, in seconds.")
]
StartWithin = Annotated[
    float, typer.Option(help="--sessions: begin the first ones in their middle, up to this share of them.")
]
Duration = Annotated[float | None, typer.Option("--duration", help="Stop sending after this many seconds.")]
HostTier = Annotated[
    str | None,
    typer.Option(
        help="KV kept in host memory: 600 is GiB of all ranks for vLLM (--kv-offloading-size) and GB of each rank for "
        "SGLang (--hicache-size); 2x is twice the KV pool (SGLang's --hicache-ratio)."
    ),
]
Routing = Annotated[str, typer.Option(help="round-robin, least-load or cache-aware.")]
PageSize = Annotated[int, typer.Option(help="Tokens of one KV page.")]
Eviction = Annotated[str, typer.Option(help="What the prefix cache forgets first: lru, or SGLang's lfu or slru.")]
Html = Annotated[Path | None, typer.Option(help="File for a page with figures and the same numbers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@contextmanager
def writing(name: str, path: Path) -> Iterator[None]:
    """InputError where the file that an option names can't be written."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{name} {path}: cannot be written ({error.strerror}); name a place that you may write"
        ) from None


def fitted(file: Path | None) -> Calibration | None:
    return None if file is None else calibration.read_calibration(file)


def host_tier(text: str | None) -> dict[str, float]:
    """The setting that --host-tier stands for."""
    if text is None:
        return {}
    try:
        size = float(text.removesuffix("x"))
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise InputError(f"--host-tier {text!r} is no size; write 600, or 2x for twice the KV pool")
    return {"host_tier_ratio" if text.endswith("x") else "host_tier_size": size}


def _refuse_caches(settings: engines_settings.EngineSettings) -> None:
    """Raises where this release cannot keep KV as it is asked to."""
    values, engine = engines_settings.host_tier_values(settings), settings.engine
    if values and not settings.radix_cache:
        # vLLM's native one would run so, and is not modelled
        raise InputError("the twin has no --host-tier without a prefix cache, and --no-radix-cache is set; drop one")
    if settings.eviction != engines_settings.EVICTIONS[0]:
        values["radix_eviction_policy"] = settings.eviction
    known = flags.engine_flags(engine)
    for name in values:
        if not known.knows(name):
            raise InputError(f"{releases.title_of(engine)} has no {name}; leave --eviction out")
        if gap := known.missing(name, settings.version):
            raise InputError(f"{releases.release_text(engine, settings.version)} {gap}")


# settings of the processes around a served engine's scheduler
_SERVED = ("recv_interval", "tokenizer_workers", "detokenizer_workers", "stream_interval")


@dataclass(frozen=True)
class EngineArguments:
    """A model on GPUs, spread in one way, in an engine started with these settings."""

    model: ModelName
    gpu: GpuName
    nodes: _Nodes = None
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per node; default: 8.")] = None
    tp: Annotated[int, typer.Option(help="Tensor parallel ranks.")] = 1
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1
    dp: Annotated[int, typer.Option(help="Replicas of the engine behind a router.")] = 1
    ep: Annotated[int, typer.Option(help="Expert-parallel ranks.")] = 1
    attn_dp: Annotated[
        int, typer.Option(help="Attention data-parallel groups within tp, each with its own requests and KV.")
    ] = 1
    engine: EngineName = releases.USUAL_ENGINE
    dtype: Dtype = None
    kv_dtype: KvDtype = None
    mem_fraction: Annotated[float | None, typer.Option(help="GPU memory share, --mem-fraction-static.")] = None
    max_running_requests: Annotated[int | None, typer.Option(help="Requests decoded at once by the whole engine.")] = (
        None
    )
    cuda_graph_max_bs: Annotated[int | None, typer.Option(help="Largest captured decode batch; 0: no graphs.")] = None
    chunked_prefill_size: Annotated[int | None, typer.Option(help="Tokens of one prefill round.")] = None
    attention_backend: AttentionBackend = None
    experts: Annotated[
        str | None,
        typer.Option(
            help="How tokens find their experts: uniform, zipf:1.2, normal; default: as a trained router sends them.",
        ),
    ] = None
    draft_tokens: Annotated[int, typer.Option(help="Speculative decoding: tokens verified a step.")] = 1
    accept_length: Annotated[
        str | None,
        typer.Option(help="Speculative decoding: tokens kept a step, or the name of a curve; default: as measured."),
    ] = None

    def settings(self, **own: Any) -> engines_settings.EngineSettings:
        """`own` are settings that only one verb takes."""
        names = ("max_running_requests", "cuda_graph_max_bs", "chunked_prefill_size")
        given = {"mem_fraction_static": self.mem_fraction, **{name: getattr(self, name) for name in names}}
        said = {name: value for name, value in given.items() if value is not None}
        kept = None if self.accept_length is None else behaviour.parse_acceptance(self.accept_length)
        own |= {
            "experts": behaviour.parse_routing(self.experts) if self.experts else "",
            "draft_tokens": self.draft_tokens,
            "accept_length": None if kept is None else kept.length(max(0, self.draft_tokens - 1)),
        }
        found = engines_settings.settings_of(
            said,
            engines_settings.parse_engine(
                self.engine, engines_settings.EngineSettings(attention_backend=self.attention_backend, **own)
            ),
        )
        _refuse_caches(found)
        return found

    def layout(self, *, whole_nodes: bool = True) -> engines_layout.Layout:
        """Nodes that were left out follow from the ranks; without `whole_nodes` a node is no larger than they need."""
        need = self.tp * self.pp * self.dp
        size = self.gpus_per_node
        if size is None:
            size = 8 if whole_nodes else max(1, min(8, need) if self.nodes is None else -(-need // max(1, self.nodes)))
        nodes = max(1, -(-need // max(1, size))) if self.nodes is None else self.nodes
        return engines_layout.Layout(self.tp, self.pp, self.dp, self.ep, self.attn_dp, nodes=nodes, gpus_per_node=size)


@dataclass(frozen=True)
class DeploymentArguments(EngineArguments):
    """The same, or prefill and decode apart."""

    prefill_groups: Annotated[
        str | None,
        typer.Option(help="3x3: three prefill groups of three nodes; 4: one of four; 2x4gpu: two of four GPUs."),
    ] = None
    decode_groups: Annotated[
        str | None,
        typer.Option(
            help="Likewise for decode, such as 1x4, or 1x4:attn-dp=8,ep=1 with its own shape; running=, chunk=, "
            "graph= and fraction= after the colon apply to that role only (running= counts the whole engine)."
        ),
    ] = None
    fabric: Fabric = None
    recv_interval: Annotated[
        int, typer.Option(help="--scheduler-recv-interval: decode steps between polls for new requests.")
    ] = 1
    tokenizer_workers: Annotated[int, typer.Option(help="--tokenizer-worker-num; vLLM's --api-server-count.")] = 1
    detokenizer_workers: Annotated[int, typer.Option(help="--detokenizer-worker-num.")] = 1
    stream_interval: Annotated[int, typer.Option(help="--stream-interval: tokens sent to a user together.")] = 1

    def deployment(self, routing: str = "round-robin", **own: Any) -> Deployment:
        ranks = {name: getattr(self, name) for name in ("tp", "pp", "dp", "ep", "attn_dp")}
        if self.prefill_groups and (unused := [f"--{n.replace('_', '-')} {v}" for n, v in ranks.items() if v != 1]):
            shape = "a group is one engine over all its GPUs, and its shape is written as in 3x3:attn-dp=1,ep=24"
            print(f"note: {' '.join(unused)} not used with groups: {shape}", file=sys.stderr)
        found = engines_deployment.describe(
            self.model,
            self.gpu,
            self.layout(),
            self.settings(**own, **{name: getattr(self, name) for name in _SERVED}),
            prefill_groups=self.prefill_groups,
            decode_groups=self.decode_groups,
            fabric=self.fabric,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            routing=routing,
        )
        if self.nodes is not None and found.layout.nodes > self.nodes:
            raise InputError(
                f"{found.layout} takes {found.layout.nodes} nodes, {self.nodes} are given; use --nodes "
                f"{found.layout.nodes}, or fewer or smaller groups"
            )
        found, changes = fitting.with_room(found)
        for change in changes:
            print(f"note: {change}", file=sys.stderr)
        return found
