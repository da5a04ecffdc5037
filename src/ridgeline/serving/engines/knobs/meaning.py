"""What settings mean to us: the Layout, EngineSettings and Model that memory rules and twin work with, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.knobs.table import Part, modelled, wrong_value
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import BACKENDS, DEFAULTS, EngineSettings
from ridgeline.serving.model.model import Model

# With these an engine spreads experts over all ranks, whatever else is said; any all-to-all back end does so too.
_WHOLE_EP_SWITCHES = ("enable_ep_moe", "enable_expert_parallel")
# what an engine calls weights and KV caches -> what we call them
_WEIGHTS = {"fp8": "fp8", "awq": "int4", "gptq": "int4", "w8a8_int8": "int8"}


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
    if found.get("prefill_graph"):
        del found["prefill_graph"]  # a switch that is not thrown: whether there are graphs is the engine's choice
    if found.get("cuda_graph_max_bs") == 0:
        found["prefill_graph"] = False
    if found.get("attention_backend", BACKENDS[0]) not in BACKENDS:
        del found["attention_backend"]  # not modelled; the engine's own choice is nearest
    if found.get("chunked_prefill_size") == -1:
        # without chunks a round still ends at this many tokens
        found["chunked_prefill_size"] = found.get("max_prefill_tokens", base.max_prefill_tokens)
    return replace(base, **found)  # type: ignore[arg-type]


def model_of(model: Model, values: Mapping[str, Value]) -> Model:
    """The model with weights and KV cache as the engine's arguments have them."""
    weights = _WEIGHTS.get(str(values.get("quantization", "")))
    cache = "fp8" if str(values.get("kv_cache_dtype", "")).startswith("fp8") else None
    return model.with_dtype(weights, cache)


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
    return values


def _require_possible(values: Mapping[str, Value], part: Part) -> None:
    for knob in modelled(part):
        if wrong := wrong_value(knob.name, values.get(knob.name)):
            raise InputError(wrong)
