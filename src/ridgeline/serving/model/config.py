"""Read a Hugging Face config.json into a `Model`: Llama, Mistral, Qwen, Mixtral, DeepSeek and what looks like them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, did_you_mean
from ridgeline.serving.model.model import Attention, Experts, Model

PRESETS = resources.files("ridgeline.serving.model") / "presets"
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16"}
# what `quantization_config.quant_method` means for the bytes of a weight
QUANT_METHODS = {"fp8": "fp8", "awq": "int4", "gptq": "int4", "bitsandbytes": "int8", "modelopt": "fp8"}
# no published model comes near; past them a config is broken, and counting would never end
MOST_LAYERS, MOST_OF_ANYTHING = 10_000, 10**9
# families whose feed-forward or attention is none of the kinds below; counting them as dense would be a quiet lie
UNKNOWN_KINDS = {"mamba", "mamba2", "jamba", "rwkv", "bert", "t5", "falcon_mamba", "qwen3_next", "whisper"}


def preset_names() -> list[str]:
    return sorted(f.name.removesuffix(".json") for f in PRESETS.iterdir() if f.name.endswith(".json"))


# Other names that tables of measurements use for a preset.
ALSO = {
    "deepseek-v2-lite-16b": "deepseek-v2-lite",
    "deepseek-r1-671b": "deepseek-r1",
    "deepseek-v3-671b": "deepseek-v3",
    "llama-3.1-8b": "llama-8b",
    "llama-3.1-70b": "llama-70b",
}


def load_model(name_or_path: str) -> Model:
    """A preset by name, or any local config.json, or a folder that holds one.

    A preset's name is the preset, whatever lies in the working folder; a file of that name is ./NAME.
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
        return model_from_config(_read_json(path), name=_name_of(path), source=str(path))
    hint = did_you_mean(name.rpartition("/")[2], known, likeness=0.5)
    raise InputError(
        f"model {name_or_path!r} is neither a preset nor a config.json on this machine; {hint}{' ' if hint else ''}"
        f"presets: {', '.join(known)}"
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
    # multimodal models keep the language half one level down
    if "num_hidden_layers" not in config and isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    if str(config.get("model_type")) in UNKNOWN_KINDS:
        raise InputError(
            f"{source}: {config['model_type']} is not a decoder-only transformer that we can count; "
            "we know the shapes of Llama, Qwen, Mixtral and DeepSeek"
        )
    fields = _Fields(config, source)
    fields.need("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    layers = fields.positive("num_hidden_layers")
    experts = _experts(fields)
    dense = _dense_layers(fields, experts, layers)
    if dense:
        fields.need("intermediate_size")
    base = DTYPES.get(
        str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch."), "bf16"
    )
    # weights published in float32 are served in 16 bits by every engine we know
    base = "bf16" if base == "fp32" else base
    return Model(
        name=name,
        layers=layers,
        hidden=fields.positive("hidden_size"),
        vocab=fields.positive("vocab_size"),
        attention=_attention(fields),
        ffn_width=fields.positive("intermediate_size") if dense else 0,
        experts=experts,
        dense_layers=dense,
        context_tokens=fields.positive("max_position_embeddings", default=4096),
        dtype=_weight_dtype(config, base, source),
        base_dtype=base,
        kv_dtype=base,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=str(config.get("model_type", "")).startswith("qwen3"),
    )


class _Fields:
    """The config with a memory of where it came from, so that every refusal can name the file and the field."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source

    def need(self, *names: str) -> None:
        missing = [n for n in names if self.config.get(n) is None]
        if missing:
            raise InputError(
                f"{self.source}: {', '.join(missing)} missing; a config.json of the Llama, Qwen or DeepSeek kind "
                f"has {'it' if len(missing) == 1 else 'them'} (presets: {', '.join(preset_names())})"
            )

    def positive(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise InputError(f"{self.source}: {name} is {value!r}; it must be a whole number above zero")
        return self._bounded(name, value)

    def count(self, name: str, default: int = 0) -> int:
        """A whole number that may be zero; left out, null or false, it is the default."""
        value = self.config.get(name) or default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{self.source}: {name} is {value!r}; it must be a whole number, zero or above")
        return self._bounded(name, value)

    def _bounded(self, name: str, value: int) -> int:
        limit = MOST_LAYERS if name == "num_hidden_layers" else MOST_OF_ANYTHING
        if value > limit:
            raise InputError(f"{self.source}: {name} is {value:,}, more than any model has ({limit:,}); check the file")
        return value


def _attention(fields: _Fields) -> Attention:
    config = fields.config
    heads = fields.positive("num_attention_heads")
    if config.get("kv_lora_rank"):
        fields.need("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        nope, rope = fields.positive("qk_nope_head_dim"), fields.positive("qk_rope_head_dim")
        return Attention(
            heads=heads,
            kv_heads=1,
            head_dim=nope + rope,
            latent=fields.positive("kv_lora_rank"),
            q_latent=fields.positive("q_lora_rank") if config.get("q_lora_rank") else 0,
            rope_dim=rope,
            nope_dim=nope,
            v_dim=fields.positive("v_head_dim"),
        )
    kv_heads = fields.positive("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise InputError(f"{fields.source}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    head_dim = fields.positive("head_dim", default=max(1, fields.positive("hidden_size") // heads))
    # Qwen2 always has a bias on q, k and v and says so nowhere in its config
    bias = bool(config.get("attention_bias", str(config.get("model_type", "")).startswith("qwen2")))
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, bias=bias)


def _experts(fields: _Fields) -> Experts | None:
    config = fields.config
    key = next((k for k in ("n_routed_experts", "num_local_experts", "num_experts") if config.get(k)), None)
    if key is None:
        return None
    fields.need("num_experts_per_tok")
    # Mixtral's experts are as wide as its intermediate_size; the others name their own width
    width_key = "moe_intermediate_size" if config.get("moe_intermediate_size") else "intermediate_size"
    fields.need(width_key)
    count, per_token = fields.positive(key), fields.positive("num_experts_per_tok")
    if per_token > count:
        raise InputError(f"{fields.source}: num_experts_per_tok {per_token} is more than {key} {count}")
    width = fields.positive(width_key)
    shared = fields.count("n_shared_experts")
    shared_width = fields.count("shared_expert_intermediate_size", shared * width)
    return Experts(count, per_token, width, shared or (1 if shared_width else 0), shared_width)


def _dense_layers(fields: _Fields, experts: Experts | None, layers: int) -> tuple[int, ...]:
    """Layers whose feed-forward part is not a mixture, by whichever of four fields the family says it with."""
    if experts is None:
        return tuple(range(layers))
    first, step = fields.count("first_k_dense_replace"), fields.count("decoder_sparse_step")
    every = fields.count("moe_layer_freq", 1)
    named = fields.config.get("mlp_only_layers") or []
    if not isinstance(named, list):
        raise InputError(f"{fields.source}: mlp_only_layers is {named!r}; it must be a list of layer numbers")

    def is_dense(n: int) -> bool:
        if n < first or n in named:
            return True
        return (n + 1) % step != 0 if step else n % every != 0

    return tuple(n for n in range(layers) if is_dense(n))


def _weight_dtype(config: Mapping[str, Any], base: str, source: str) -> str:
    quant = config.get("quantization_config")
    if not isinstance(quant, dict):
        return base
    method = str(quant.get("quant_method", ""))
    if method in ("gptq", "awq", "bitsandbytes") and 8 in (quant.get("bits"), quant.get("w_bit")):
        return "int8"
    if method not in QUANT_METHODS:
        raise InputError(
            f"{source}: quantization_config.quant_method {method!r} is not known ({', '.join(QUANT_METHODS)}); "
            "remove it and give the weight dtype with --dtype"
        )
    return QUANT_METHODS[method]
