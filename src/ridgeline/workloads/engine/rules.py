"""Settings an engine certainly refuses, found before anything starts. A risk is not refused: it may be the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.records.run import Resources
from ridgeline.records.site import Site
from ridgeline.serving.engine.layout import Layout
from ridgeline.serving.engine.layout_rules import layout_problems
from ridgeline.serving.engine.memory import STARTUP_OOM, plan_memory
from ridgeline.serving.engine.settings import BACKENDS, EngineSettings
from ridgeline.serving.hardware.cluster import Gpu, load_gpu, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.workloads.engine.cpu_rules import cpu_refusal
from ridgeline.workloads.engine.flags import NEWEST, Version
from ridgeline.workloads.engine.options import EngineOptions

_LAYOUT_NAMES = {
    "tp": ("tp", "tp_size", "tensor_parallel_size"),
    "pp": ("pp", "pp_size", "pipeline_parallel_size"),
    "dp": ("dp", "dp_size", "data_parallel_size"),
    "ep": ("ep", "ep_size", "expert_parallel_size"),
    "attn_dp": ("attn_dp", "attn_dp_size"),
}


def refusal(
    engine: str,
    options: EngineOptions,
    values: Mapping[str, Value],
    version: Version,
    asked: Resources,
    site: Site,
    *,
    on_cpu: bool = False,
) -> str | None:
    """Why this setting cannot start, or None. `on_cpu`: the engine is a build for processors."""
    if reason := _by_role(values):
        return reason
    if (reason := _by_page(values)) is not None:
        return reason
    model = _model(options.shape or options.model)
    if on_cpu and (reason := cpu_refusal(model, values, version)) is not None:
        return reason
    if model is None:
        return None
    gpu = _gpu(options.gpu)
    try:
        layout = _layout(values, asked, site)
        settings = _settings(values, version) if engine == "sglang" else EngineSettings()
    except InputError as error:
        return str(error)
    problems = layout_problems(model, layout, gpu, settings)
    if problems:
        return str(problems[0])
    if gpu is None or engine != "sglang":
        return None
    plan = plan_memory(_quantised(model, values), gpu, layout, settings)
    return f"cannot start: {plan.reason}" if plan.verdict == STARTUP_OOM else None


def predicted_tok_s(
    options: EngineOptions, values: Mapping[str, Value], version: Version, asked: Resources, site: Site, *, paced: bool
) -> float | None:
    """What the twin expects of an SGLang engine, said before it runs; None where it cannot know model and GPU."""
    from ridgeline.serving.engine.deployment import Deployment
    from ridgeline.serving.twin.simulate import simulate

    model, gpu = _model(options.shape or options.model), _gpu(options.gpu)
    if model is None or gpu is None:
        return None
    try:
        layout = _layout(values, asked, site)
        cluster = make_cluster(gpu, layout.nodes, layout.gpus_per_node)
        deployment = Deployment(_quantised(model, values), cluster, layout, _settings(values, version))
        return simulate(deployment, options.load.recipe(paced=paced)).summary.total_tok_s
    except InputError:  # a memory plan that cannot start is one of these
        return None


def _by_role(values: Mapping[str, Value]) -> str | None:
    role, mode = values.get("disaggregation_mode"), values.get("deepep_mode")
    if role == "prefill" and mode == "low_latency":
        return "a prefill engine needs --deepep-mode normal: its batches exceed what low_latency dispatches"
    if role == "decode" and mode == "normal":
        return "a decode engine needs --deepep-mode low_latency: normal cannot be captured in CUDA graphs"
    return None


def _by_page(values: Mapping[str, Value]) -> str | None:
    page, chunk = values.get("page_size"), values.get("chunked_prefill_size")
    if isinstance(page, int) and isinstance(chunk, int) and page > 1 and chunk > 0 and chunk % page:
        return f"chunked_prefill_size {chunk} is not a multiple of page_size {page}"
    return None


@lru_cache(maxsize=16)
def _model(name: str) -> Model | None:
    """The model's shape where it can be read here; an engine may know names and paths that this machine does not."""
    try:
        return load_model(name)
    except InputError:
        return None


@lru_cache(maxsize=16)
def _gpu(name: str) -> Gpu | None:
    if not name:
        return None
    try:
        return load_gpu(name)
    except InputError:
        return None


def _layout(values: Mapping[str, Value], asked: Resources, site: Site) -> Layout:
    sizes = {axis: _first(values, names) for axis, names in _LAYOUT_NAMES.items()}
    if values.get("enable_dp_attention"):
        sizes |= {"attn_dp": sizes["dp"], "dp": 1}
    if values.get("enable_expert_parallel"):
        sizes["ep"] = sizes["tp"]
    needed = sizes["tp"] * sizes["pp"] * sizes["dp"]
    per_node = asked.gpus or site.gpus_per_node or max(1, -(-needed // asked.nodes))
    return Layout(sizes["tp"], sizes["pp"], sizes["dp"], sizes["ep"], sizes["attn_dp"], asked.nodes, per_node)


def _first(values: Mapping[str, Value], names: tuple[str, ...]) -> int:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 1


def _settings(values: Mapping[str, Value], version: Version) -> EngineSettings:
    backend = values.get("attention_backend")
    fraction = values.get("mem_fraction_static")
    return EngineSettings(
        version=(0, 5) if version == NEWEST else version,
        attention_backend=backend if isinstance(backend, str) and backend in BACKENDS else None,
        max_running_requests=_number(values, "max_running_requests"),
        cuda_graph_max_bs=_number(values, "cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
        chunked_prefill_size=_number(values, "chunked_prefill_size"),
        mem_fraction=float(fraction) if isinstance(fraction, int | float) else None,
        page_size=_number(values, "page_size") or 1,
        draft_tokens=_number(values, "speculative_num_draft_tokens") or 1,
    )


def _number(values: Mapping[str, Value], *names: str) -> int | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value or None
    return None


def _quantised(model: Model, values: Mapping[str, Value]) -> Model:
    kinds = {"fp8": "fp8", "awq": "int4", "gptq": "int4", "w8a8_int8": "int8"}
    dtype = kinds.get(str(values.get("quantization", "")))
    cache = "fp8" if str(values.get("kv_cache_dtype", "")).startswith("fp8") else None
    return model.with_dtype(dtype, cache)
