"""Answers about what fits: one layout, all legal ones, and when something does not fit the nearest thing that would."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.layout_rules import (
    LayoutProblem,
    disaggregated_layouts,
    layout_problems,
    require_legal,
    sort_layouts,
)
from ridgeline.serving.engines.memory import FITS, RUNTIME_OOM, STARTUP_OOM, MemoryPlan, plan_memory, roomiest_plan
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import GIB, Cluster, Gpu, gpu_names, load_gpu, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model

# Common GPUs of the last generations, smallest step first; others of the user's own file come after.
_LARGER = ("a100", "h100", "h800", "h20", "h200", "b200")
_NODE_GPUS = 8  # most have
# a remedy that leaves room for fewer requests than this is none
_USEFUL_BATCH = 64
# a pool larger by this much is worth a flag
_ROOMIER = 1.05


def nearest_fits(
    model: Model, cluster: Cluster, layout: Layout, settings: EngineSettings, plan: MemoryPlan
) -> list[str]:
    """Small changes after which this model fits, nearest first; empty when none of those tried does."""
    if plan.verdict == RUNTIME_OOM:
        return _less_at_once(model, cluster, layout, settings, plan)
    return [
        *_higher_fraction(model, cluster, layout, settings),
        *_more_gpus(model, cluster, layout, settings),
        *_larger_gpus(model, cluster, layout, settings),
        *_smaller_weights(model, cluster, layout, settings),
    ]


def _higher_fraction(model: Model, cluster: Cluster, layout: Layout, settings: EngineSettings) -> list[str]:
    plan = roomiest_plan(model, cluster.gpu, layout, replace(settings, mem_fraction=None))
    return [_fraction_text(plan)] if _useful(plan) else []


def _fraction_text(plan: MemoryPlan) -> str:
    shown = f"{plan.mem_fraction:.3f}".removesuffix("0")
    return f"--mem-fraction {shown} ({plan.kv_tokens_per_rank:,} KV tokens a rank)"


def _less_at_once(
    model: Model, cluster: Cluster, layout: Layout, settings: EngineSettings, plan: MemoryPlan
) -> list[str]:
    found = []
    for percent in range(math.floor(plan.mem_fraction * 100), 49, -1):
        trial = replace(settings, mem_fraction=percent / 100)
        smaller = plan_memory(model, cluster.gpu, layout, trial)
        if smaller.fits:
            found.append(_fraction_text(smaller))
            break
    limit = plan.running_limit * plan.groups
    while limit > layout.attn_dp:
        limit //= 2
        if plan_memory(model, cluster.gpu, layout, replace(settings, max_running_requests=limit)).fits:
            found.append(f"--max-running-requests {limit}")
            break
    if settings.attention_backend in (None, "triton") and not cluster.gpu.is_amd:
        other = replace(settings, attention_backend="fa3" if cluster.gpu.generation == "hopper" else "flashinfer")
        if plan_memory(model, cluster.gpu, layout, other).fits:
            found.append(f"--attention-backend {other.attention_backend}")
    return found


def _more_gpus(model: Model, cluster: Cluster, layout: Layout, settings: EngineSettings) -> list[str]:
    """The fewest GPUs of a node, then the fewest nodes."""
    size = cluster.node.gpus
    if cluster.nodes == 1:
        most = max(size, _NODE_GPUS)
        for wider in (Layout(tp=tp, gpus_per_node=tp) for tp in range(2 * layout.tp, most + 1, layout.tp)):
            plan = plan_memory(model, cluster.gpu, wider, settings)
            if plan.fits and not layout_problems(model, wider, cluster.gpu, settings):
                return [f"{wider.tp} GPUs in one node ({wider}, {plan.largest_batch():,} requests at once)"]
    for nodes in range(cluster.nodes, 17):
        shapes = [
            Layout(tp=size * nodes, nodes=nodes, gpus_per_node=size),
            Layout(tp=size, pp=nodes, nodes=nodes, gpus_per_node=size),
        ]
        good = [
            shape
            for shape in dict.fromkeys(shapes)
            if not layout_problems(model, shape, cluster.gpu, settings)
            and _useful(plan_memory(model, cluster.gpu, shape, settings))
        ]
        if good:
            return [f"{nodes} node{'s' if nodes > 1 else ''} ({', or '.join(map(str, good))})"]
    return []


def _larger_gpus(model: Model, cluster: Cluster, layout: Layout, settings: EngineSettings) -> list[str]:
    names = [n for n in _LARGER if n in gpu_names()] + [n for n in gpu_names() if n not in _LARGER]
    for name in names:
        gpu = load_gpu(name)
        if gpu.memory_bytes <= cluster.gpu.memory_bytes:
            continue
        if _useful(plan_memory(model, gpu, layout, settings)):
            where = f"{cluster.nodes} node{'s' if cluster.nodes > 1 else ''}"
            return [f"{where} of {name.upper()} ({layout})"]
    return []


def _smaller_weights(model: Model, cluster: Cluster, layout: Layout, settings: EngineSettings) -> list[str]:
    for dtype in ("fp8", "int4"):
        smaller = model.with_dtype(dtype)
        light = smaller.weight_bytes < 0.9 * model.weight_bytes
        if light and plan_memory(smaller, cluster.gpu, layout, settings).fits:
            return [f"--dtype {dtype} weights ({layout})"]
    return []


def _useful(plan: MemoryPlan) -> bool:
    return plan.fits and plan.largest_batch() >= _USEFUL_BATCH


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """`ridgeline plan memory`'s answer: the plan, and where it does not fit what would."""

    model: Model
    cluster: Cluster
    layout: Layout
    plan: MemoryPlan
    nearest: tuple[str, ...]
    settings: EngineSettings
    roomier: MemoryPlan | None = None  # where a fraction written out leaves a clearly larger pool than the engine's own

    def as_json(self) -> dict[str, object]:
        roomier = self.roomier
        return {
            "model": self.model.name,
            "cluster": str(self.cluster),
            "layout": str(self.layout),
            "gpus": self.layout.gpus,
            **self.plan.as_json(),
            "nearest": list(self.nearest),
            "roomier": roomier
            and {"mem_fraction": roomier.mem_fraction, "kv_tokens_per_rank": roomier.kv_tokens_per_rank},
        }


def answer_memory(
    model_name: str,
    gpu_name: str,
    layout: Layout,
    settings: EngineSettings,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> MemoryAnswer:
    """Whether a model fits; an impossible layout is refused with its reasons.

    With the engine's own fraction; where that would start nothing, with the one to start it with.
    """
    model = load_model(model_name).with_dtype(dtype, kv_dtype)
    require_legal(model, layout, load_gpu(gpu_name), settings)
    cluster = make_cluster(gpu_name, layout.nodes, layout.gpus_per_node)
    plan = _startable(model, cluster.gpu, layout, settings)
    nearest = () if plan.fits else tuple(nearest_fits(model, cluster, layout, settings, plan))
    other = roomiest_plan(model, cluster.gpu, layout, settings)
    roomier = plan.fits and other.fits and other.kv_tokens > _ROOMIER * plan.kv_tokens
    return MemoryAnswer(model, cluster, layout, plan, nearest, settings, other if roomier else None)


@dataclass(frozen=True, slots=True)
class LegalLayouts:
    """`ridgeline plan layouts`: what an engine accepts, what of that fits, and why the rest is out."""

    model: Model
    cluster: Cluster
    rows: tuple[tuple[Layout, MemoryPlan], ...]
    refused: tuple[tuple[Layout, LayoutProblem], ...]

    def as_json(self) -> dict[str, object]:
        return {
            "model": self.model.name,
            "cluster": str(self.cluster),
            "layouts": [
                {
                    "layout": str(layout),
                    **{k: getattr(layout, k) for k in ("tp", "pp", "dp", "ep", "attn_dp", "nodes", "gpus_per_node")},
                    "gpus": layout.gpus,
                    "verdict": plan.verdict,
                    "margin_gib": round(plan.margin_bytes / GIB, 2),
                    "mem_fraction": plan.mem_fraction,
                    "kv_tokens": kv_tokens(layout, plan),
                }
                for layout, plan in self.rows
            ],
            "refused": [{"layout": str(layout), "rule": p.rule, "reason": str(p)} for layout, p in self.refused],
        }


def _tightest(model: Model, gpu: Gpu, layout: Layout, settings: EngineSettings) -> MemoryPlan:
    """Memory of one engine; of the role that has least to spare where prefill and decode are apart."""
    if layout.prefill is None or layout.decode is None:
        return _startable(model, gpu, layout, settings)
    prefill = _startable(model, gpu, layout.prefill, replace(settings, cuda_graph_max_bs=0), "prefill")
    decode = _startable(model, gpu, layout.decode, settings, "decode")
    severity = (STARTUP_OOM, RUNTIME_OOM, FITS)
    return min(prefill, decode, key=lambda p: (severity.index(p.verdict), p.margin_bytes))


def _startable(model: Model, gpu: Gpu, layout: Layout, settings: EngineSettings, role: str = "both") -> MemoryPlan:
    """With the engine's own fraction; with a roomier one where nothing would start without it."""
    plan = plan_memory(model, gpu, layout, settings, role)
    roomier = roomiest_plan(model, gpu, layout, settings, role)
    return roomier if plan.verdict == STARTUP_OOM and roomier.fits else plan


def with_room(deployment: Deployment) -> tuple[Deployment, list[str]]:
    """The same, with a fraction for each role in which SGLang's own would not start; and what was changed, in words."""
    found, changes = deployment, []
    for role, layout in deployment.layout.roles.items():
        settings = deployment.role_settings(role)
        own = plan_memory(deployment.model, deployment.cluster.gpu, layout, settings, role)
        taken = _startable(deployment.model, deployment.cluster.gpu, layout, settings, role)
        if taken.mem_fraction == own.mem_fraction:
            continue
        lowered = replace(settings, mem_fraction=taken.mem_fraction)
        own_field = "settings" if role == "both" else f"{role}_settings"
        found = replace(found, **{own_field: lowered})  # type: ignore[arg-type]
        where = "" if role == "both" else f" in the {role} role"
        changes.append(
            f"SGLang's own memory fraction ({own.mem_fraction:g}) leaves no KV pool{where}; taken as if started with "
            f"--mem-fraction-static {taken.mem_fraction:g}"
        )
    return found, changes


def kv_tokens(layout: Layout, plan: MemoryPlan) -> int:
    """Tokens of KV cache in all copies, or in all decode groups."""
    return plan.kv_tokens * (layout.decode or layout).dp


def list_layouts(
    model_name: str,
    gpu_name: str,
    gpus: int,
    gpus_per_node: int = 8,
    engine: str = USUAL_ENGINE,
    dtype: str | None = None,
) -> LegalLayouts:
    """Every layout that uses all `gpus`, those that fit first, most KV tokens first among them."""
    model = load_model(model_name).with_dtype(dtype)
    if gpus < 1 or gpus_per_node < 1:
        raise InputError(f"--gpus {gpus} with --gpus-per-node {gpus_per_node}: both must be at least 1")
    size = min(gpus, gpus_per_node)
    if gpus % size:
        raise InputError(
            f"{gpus} GPUs do not fill nodes of {size}; use {gpus // size * size} or {-(-gpus // size) * size}"
        )
    cluster = make_cluster(gpu_name, gpus // size, size)
    settings = parse_engine(engine, EngineSettings())
    legal, refused = sort_layouts(model, cluster.gpu, cluster.nodes, size, settings)
    legal += disaggregated_layouts(model, cluster.gpu, cluster.nodes, size, settings)
    rows = [(layout, _tightest(model, cluster.gpu, layout, settings)) for layout in legal]
    rows.sort(key=lambda row: (not row[1].fits, row[0].disaggregated, -kv_tokens(*row)))
    return LegalLayouts(model, cluster, tuple(rows), tuple(refused))
