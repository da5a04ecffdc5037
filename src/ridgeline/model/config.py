"""Read a Hugging Face config.json into a `Model`: Llama, Qwen, Gemma, DeepSeek, GLM, gpt-oss, Nemotron and the like."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, did_you_mean
from ridgeline.model.feed_forward import read_feed_forward
from ridgeline.model.fields import Fields
from ridgeline.model.model import WHOLE_DTYPES, Model
from ridgeline.model.quantisation import read_dtypes
from ridgeline.model.shipped import PRESETS as PRESETS
from ridgeline.model.shipped import preset_names as preset_names
from ridgeline.model.token_mixing import read_mixers
from ridgeline.model.unmodelled import notes, vision_params

# families whose feed-forward or attention is none of the kinds below; counting them as dense would be a quiet lie
UNKNOWN_KINDS = {
    "mamba", "mamba2", "jamba", "rwkv", "bert", "t5", "falcon_mamba", "whisper", "bamba", "granitemoehybrid", "zamba2",
    "falcon_h1", "lfm2",
}  # fmt: skip
# families whose cards leave the embedding table out of the parameters that a token uses
UNUSED_EMBEDDING = {
    "gpt_oss", "glm4_moe", "qwen3_next", "deepseek_v32", "deepseek_v4", "deepseek_ref", "glm_moe_dsa", "minimax_m2",
    "minimax_m3", "minimax_m3_vl", "nemotron_h",
}  # fmt: skip
REFUSED_FIELDS = {
    "linear_attn_config": "Kimi's delta attention",
    "hidden_size_per_layer_input": "embeddings of each layer's own",
    "num_kv_shared_layers": "layers that use another layer's cache",
    "use_double_wide_mlp": "feed-forward parts of twice the width in some layers",
}


# Other names that tables of measurements use for a preset.
ALSO = {
    "deepseek-v2-lite-16b": "deepseek-v2-lite",
    "deepseek-r1-671b": "deepseek-r1",
    "deepseek-v3-671b": "deepseek-v3",
    "llama-3.1-8b": "llama-8b",
    "llama-3.1-70b": "llama-70b",
    "llama-3.1-405b": "llama-405b",
    "llama-3.3-70b": "llama-70b",
    "llama-4-scout-17b-16e": "llama-4-scout",
    "deepseek-v3.1": "deepseek-v3",
    "glm-4.6": "glm-4.5",
    "glm-5.1": "glm-5",
    "kimi-k2-instruct": "kimi-k2",
    "minimax-m2": "minimax-m2.5",
    "qwen3-next": "qwen3-next-80b-a3b",
    "qwen3-235b-a22b-fp8": "qwen3-235b-a22b",
}


# What hubs add to a model's name and what does not change its shape.
_SAME_SHAPE = re.compile(r"-(instruct|chat|it|base|hf|thinking|preview|bf16|\d{4})$|^meta-")
_DTYPE_NAMES = {"-fp8": "fp8", "-nvfp4": "fp4", "-fp4": "fp4"}


def _hub_model(name: str, known: Sequence[str]) -> Model | None:
    """The preset that a hub's ORG/NAME means: Llama-3.1-8B-Instruct is llama-8b, NAME-FP8 its weights in FP8."""
    shorter, dtype = name.rpartition("/")[2], None
    while shorter not in known and shorter not in ALSO:
        ending = next((e for e in _DTYPE_NAMES if shorter.endswith(e)), "")
        dtype, before = _DTYPE_NAMES.get(ending, dtype), shorter
        shorter = _SAME_SHAPE.sub("", shorter.removesuffix(ending))
        if shorter == before:
            return None
    model = load_model(shorter)
    return model.with_dtype(dtype) if dtype is not None and model.weights_dtype in WHOLE_DTYPES else model


def load_model(name_or_path: str) -> Model:
    """A preset by name, or any local config.json, or a folder that holds one.

    A preset's name is the preset, whatever lies in the working folder; a file of that name is ./NAME. Where no file is
    there, ORG/NAME of a hub is the preset of that name, with or without what hubs add to it (-Instruct, -FP8).
    """
    name = ALSO.get(name_or_path.lower(), name_or_path.lower())
    known = preset_names()
    if name in known:
        return model_from_config(json.loads((PRESETS / f"{name}.json").read_text()), name=name, source=f"preset {name}")
    path = Path(name_or_path).expanduser()
    # os.path, because pathlib raises for names no file can have
    if os.path.isdir(path):  # noqa: PTH112
        path = path / "config.json"
    if path.suffix == ".json" or os.path.exists(path):  # noqa: PTH110
        return model_from_config(_with_sidecar(path), name=_name_of(path), source=str(path))
    if (model := _hub_model(name, known)) is not None:
        return model
    hint = did_you_mean(name.rpartition("/")[2], known, likeness=0.5)
    raise InputError(
        f"model {name_or_path!r} is neither a preset nor a config.json on this machine; {hint}{' ' if hint else ''}"
        f"presets: {', '.join(known)}"
    )


def _with_sidecar(path: Path) -> Mapping[str, Any]:
    """A config, and what hf_quant_config.json beside it says: older ModelOpt checkpoints keep their dtypes there."""
    config = _read_json(path)
    beside = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))
    if config.get("quantization_config") or beside == path or not beside.is_file():
        return config
    quant = _read_json(beside).get("quantization")
    return (
        {**config, "quantization_config": {"quant_method": "modelopt", **quant}} if isinstance(quant, dict) else config
    )


def _name_of(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a preset name or the path of a config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not readable as JSON ({error}); give the model's own config.json") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: holds a {type(config).__name__}, not an object; give the model's own config.json")
    return config


def model_from_config(config: Mapping[str, Any], *, name: str, source: str) -> Model:
    """A model of this shape. What cannot be counted is refused by field; what is left out is in the model's notes."""
    fields = Fields(_language_half(config), source)
    _refuse_kinds(fields)
    listed = fields.value("layers_block_type")
    blocks = len(listed) if isinstance(listed, list) else None
    depth = () if blocks else ("num_hidden_layers",)
    fields.need("hidden_size", *depth, "num_attention_heads", "vocab_size")
    layers = fields.positive("num_hidden_layers", blocks)
    attention, mixers = read_mixers(fields, layers)
    ffn = read_feed_forward(fields, layers)
    dtypes = read_dtypes(fields)
    seen = vision_params(fields)
    model = Model(
        name=name,
        layers=layers,
        hidden=fields.positive("hidden_size"),
        vocab=fields.positive("vocab_size"),
        attention=attention,
        ffn_width=ffn.width,
        experts=ffn.experts,
        dense_layers=ffn.dense_layers,
        context_tokens=fields.positive("max_position_embeddings", default=4096),
        dtype=dtypes.dense,
        base_dtype=dtypes.base,
        kv_dtype=dtypes.kv,
        tied_embeddings=bool(fields.value("tie_word_embeddings", _tied(fields))),
        qk_norm=fields.text("model_type").startswith("qwen3") or bool(fields.value("use_qk_norm")),
        mixers=mixers,
        moe_layers_only=ffn.moe_layers,
        ffn_widths=ffn.widths,
        ffn_gated=ffn.gated,
        attention_dtype=dtypes.attention if dtypes.attention != dtypes.dense else "",
        expert_dtype=dtypes.experts if dtypes.experts != dtypes.dense and ffn.experts is not None else "",
        vision_params=seen,
        embedding_used=fields.text("model_type") not in UNUSED_EMBEDDING,
    )
    return replace(model, notes=notes(fields, seen))


def _language_half(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Multimodal models keep the language half one level down."""
    if "num_hidden_layers" in config or "layers_block_type" in config:
        return config
    half: Mapping[str, Any] = next(
        (config[k] for k in ("text_config", "llm_config") if isinstance(config.get(k), dict)), {}
    )
    return {**config, **half}


def _tied(fields: Fields) -> bool:
    return fields.text("model_type").startswith("gemma")


def _refuse_kinds(fields: Fields) -> None:
    kind = fields.text("model_type")
    if kind in UNKNOWN_KINDS:
        raise fields.refuse(
            "model_type",
            f"{kind} is not a decoder-only transformer that we can count; we know the shapes of Llama, Qwen, Gemma, "
            "Mixtral, DeepSeek, GLM, gpt-oss, MiniMax and Nemotron",
        )
    for name, why in REFUSED_FIELDS.items():
        if fields.value(name):
            raise fields.refuse(name, f"({why}) is not understood")
