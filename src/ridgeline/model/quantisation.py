"""Which weights of a checkpoint are in which dtype, from the quantization_config of its config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import InputError
from ridgeline.model.fields import Fields

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16"}
# what `quantization_config.quant_method` means for the bytes of a weight
_QUANT_METHODS = {
    "fp8": "fp8", "awq": "int4", "gptq": "int4", "bitsandbytes": "int8", "modelopt": "fp8", "modelopt_fp4": "fp4",
    "mxfp4": "mxfp4", "compressed-tensors": "int4",
}  # fmt: skip
_ALGORITHMS = {"FP8": "fp8", "MXFP8": "fp8", "NVFP4": "fp4", "W4A16_NVFP4": "fp4", "MXFP4": "mxfp4", "INT4_AWQ": "int4"}
# A pattern of modules left alone ends in the name of a part, whatever wild cards follow.
_ATTENTION = re.compile(r"attn[.*]*$")
_SHARED = re.compile(r"shared_experts?[.*]*$")
_DENSE = re.compile(r"(\.mlp[.*]*$|mlp\\?\..*_proj)")


@dataclass(frozen=True, slots=True)
class WeightDtypes:
    """Of embeddings and norms, of dense and shared feed-forward parts, of attention, of experts, and of the cache."""

    base: str
    dense: str
    attention: str
    experts: str
    kv: str


def read_dtypes(fields: Fields) -> WeightDtypes:
    said = str(fields.value("torch_dtype") or fields.value("dtype") or "bfloat16").removeprefix("torch.")
    base = _DTYPES.get(said, "bf16")
    # weights published in float32 are served in 16 bits by every engine we know
    base = "bf16" if base == "fp32" else base
    quant = fields.value("quantization_config")
    experts = {"fp4": "mxfp4", "fp8": "fp8"}.get(fields.text("expert_dtype"), "")
    if not isinstance(quant, dict):
        return WeightDtypes(base, base, base, experts or base, base)
    main = _main(quant, fields.source)
    apart = _layer_by_layer(quant)
    left_alone = quant.get("ignore") or quant.get("exclude_modules") or quant.get("modules_to_not_convert") or []
    kept = [str(pattern) for pattern in left_alone]
    # FP8 checkpoints that name what NVFP4 leaves alone keep it in FP8
    beside = "fp8" if quant.get("quant_method") == "fp8" and main == "fp4" else base

    def of(part: str, pattern: re.Pattern[str]) -> str:
        return apart.get(part) or (beside if any(map(pattern.search, kept)) else main)

    dense = of("dense", _SHARED)
    if dense == main and any(map(_DENSE.search, kept)):
        dense = beside
    kv = "fp8" if _kv_in_8_bits(quant) else base
    return WeightDtypes(base, dense, of("attention", _ATTENTION), apart.get("experts") or experts or main, kv)


def _main(quant: Mapping[str, Any], source: str) -> str:
    method = str(quant.get("quant_method") or ("modelopt" if quant.get("quant_algo") else ""))
    if method not in _QUANT_METHODS:
        raise InputError(
            f"{source}: quantization_config.quant_method {method!r} is not known ({', '.join(_QUANT_METHODS)}); "
            "remove it and give the weight dtype with --dtype"
        )
    if method in ("gptq", "awq", "bitsandbytes") and 8 in (quant.get("bits"), quant.get("w_bit")):
        return "int8"
    algorithm = str(quant.get("moe_quant_algo") or quant.get("quant_algo") or "")
    if algorithm in _ALGORITHMS:
        return _ALGORITHMS[algorithm]
    if algorithm and algorithm != "MIXED_PRECISION":
        raise InputError(
            f"{source}: quantization_config.quant_algo {algorithm!r} is not known ({', '.join(_ALGORITHMS)}); "
            "remove it and give the weight dtype with --dtype"
        )
    group = _first_group(quant)
    if group is None:
        return _QUANT_METHODS[method]
    bits, kind = group.get("num_bits"), group.get("type")
    dtype = {"8 float": "fp8", "8 int": "int8", "4 int": "int4", "4 float": "fp4"}.get(f"{bits} {kind}")
    if dtype is None:
        raise InputError(
            f"{source}: quantization_config says weights of {bits!r} bits, type {kind!r}; that is not understood: "
            "remove it and give the weight dtype with --dtype"
        )
    return "mxfp4" if dtype == "fp4" and group.get("group_size") == 32 else dtype


def _first_group(quant: Mapping[str, Any]) -> Mapping[str, Any] | None:
    groups = quant.get("config_groups")
    if not isinstance(groups, dict):
        return None
    found = [g["weights"] for g in groups.values() if isinstance(g, dict) and isinstance(g.get("weights"), dict)]
    return min(found, key=lambda w: w.get("num_bits") or 99) if found else None


def _layer_by_layer(quant: Mapping[str, Any]) -> dict[str, str]:
    """Mixed checkpoints name the algorithm of every module: the commonest one of each part."""
    modules = quant.get("quantized_layers")
    votes: dict[tuple[str, str], int] = {}
    for name, how in modules.items() if isinstance(modules, dict) else ():
        dtype = _ALGORITHMS.get(str(how.get("quant_algo")))
        if dtype:
            vote = (_part(name), dtype)
            votes[vote] = votes.get(vote, 0) + 1
    found: dict[str, str] = {}
    for part, dtype in sorted(votes, key=lambda vote: votes[vote]):
        found[part] = dtype
    return found


def _part(module: str) -> str:
    if "attn" in module:
        return "attention"
    return "experts" if "experts" in module and "shared" not in module else "dense"


def _kv_in_8_bits(quant: Mapping[str, Any]) -> bool:
    scheme = quant.get("kv_cache_scheme") or quant.get("kv_cache_quant_algo")
    return scheme.get("num_bits") == 8 if isinstance(scheme, dict) else str(scheme).upper() == "FP8"
