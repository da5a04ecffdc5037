"""A config.json with a memory: of where it came from, and of which fields somebody has asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from ridgeline.errors import InputError

# The models that come with the package, each a config.json of public shape.

PRESETS = resources.files("ridgeline.serving.model") / "presets"


def preset_names() -> list[str]:
    return sorted(f.name.removesuffix(".json") for f in PRESETS.iterdir() if f.name.endswith(".json"))


# no published model comes near; past them a config is broken, and counting would never end
_MOST_LAYERS, _MOST_OF_ANYTHING = 10_000, 10**9


# what a user can do with a model whose config is not understood
MEASURE_IT = "measure a server that runs it instead (`ridgeline bench --help`)"


class Fields:
    """Every refusal names the file and the field; `unread` tells what nobody has looked at."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source
        self._asked: set[str] = set()

    def value(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        found = self.config.get(name)
        return default if found is None else found

    def text(self, name: str) -> str:
        return str(self.value(name, ""))

    def first(self, *names: str) -> str | None:
        """The first of these fields that says something; the others are taken to say the same."""
        return next((name for name in [n for n in names if self.value(n)]), None)

    def unread(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if name not in self._asked}

    def refuse(self, name: str, why: str) -> InputError:
        return InputError(f"{self.source}: {name} {why}")

    def not_understood(self, name: str, what: str) -> InputError:
        return self.refuse(name, f"{what} is not understood; {MEASURE_IT}")

    def need(self, *names: str) -> None:
        missing = [n for n in names if self.value(n) is None]
        if missing:
            raise InputError(
                f"{self.source}: {', '.join(missing)} missing; a config.json of the Llama, Qwen or DeepSeek kind "
                f"has {'it' if len(missing) == 1 else 'them'}: write what the model's card says into a copy of the "
                "file, or give a preset (`ridgeline model list` has them)"
            )

    def positive(self, name: str, default: int | None = None) -> int:
        value = self.value(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.refuse(name, f"is {value!r}; it must be a whole number above zero{_unquoted(value)}")
        return self._bounded(name, value)

    def count(self, name: str, default: int = 0) -> int:
        """A whole number that may be zero; left out, null or false, it is the default."""
        value = self.value(name) or default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refuse(name, f"is {value!r}; it must be a whole number, zero or above{_unquoted(value)}")
        return self._bounded(name, value)

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with an entry for each layer; longer ones speak of draft layers at their end."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers:
            raise self.refuse(name, f"is not a list with an entry for each of the {layers} layers")
        return value[:layers]

    def _bounded(self, name: str, value: int) -> int:
        limit = _MOST_LAYERS if name == "num_hidden_layers" else _MOST_OF_ANYTHING
        if value > limit:
            raise self.refuse(name, f"is {value:,}, more than any model has ({limit:,}); check the file")
        return value


def _unquoted(value: object) -> str:
    return f": write {value} without quotes" if isinstance(value, str) and value.isdecimal() else ""


def where(pattern: list[Any], *values: Any) -> tuple[int, ...]:
    """Layers whose entry is one of these."""
    return tuple(n for n, value in enumerate(pattern) if value in values)


# Config files of families that say in other words what Llama's says, or leave out what their code presumes.

_OTHER_NAMES = {
    # GPT-2, Falcon's first release, OPT
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "ffn_dim": "intermediate_size",
    # ChatGLM and GLM-4
    "num_layers": "num_hidden_layers", "padded_vocab_size": "vocab_size", "ffn_hidden_size": "intermediate_size",
    "multi_query_group_num": "num_key_value_heads", "kv_channels": "head_dim", "seq_length": "max_position_embeddings",
    "add_qkv_bias": "attention_bias",
    # compressed-tensors before 0.5
    "compression_config": "quantization_config",
    # Falcon
    "num_kv_heads": "num_key_value_heads",
    # ERNIE
    "moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok", "moe_num_shared_experts": "n_shared_experts",
    "moe_layer_start_index": "first_k_dense_replace", "moe_layer_interval": "decoder_sparse_step",
    # Step
    "num_attention_groups": "num_key_value_heads", "moe_top_k": "num_experts_per_tok", "moe_layers_enum": "moe_layers",
    "max_position_embedding": "max_position_embeddings", "max_seq_len": "max_position_embeddings",
    # Hunyuan
    "moe_topk": "num_experts_per_tok", "num_shared_expert": "n_shared_experts",
}  # fmt: skip
# Hunyuan writes them for each layer, all the same
_ONE_FOR_ALL = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")
# transformers leaves out of a nested config what its class has by default
_NESTED_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma3_text": {
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    "llama": {
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
    },
}  # fmt: skip
# feed-forward parts of two matrices, which no field says
UNGATED_KINDS = ("falcon", "refinedweb", "refinedwebmodel", "gpt2", "gpt_neox", "opt", "starcoder2", "phi")
# the embedding table is the LM head as well unless the config denies it
_TIED = ("gemma", "cohere", "falcon", "refinedweb", "gpt2", "opt", "ernie4_5", "minicpm")


def tied_unless_said(kind: str) -> bool:
    return kind.lower().startswith(_TIED)


def in_usual_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language half of a config, with the names and the defaults of Llama's."""
    found = dict(_language_half(config))
    for other, usual in _OTHER_NAMES.items():
        if found.get(other) is not None and found.get(usual) is None:
            found[usual] = found.pop(other)
    if isinstance(listed := found.get("moe_layers"), str):
        found["moe_layers"] = [int(number) for number in listed.split(",") if number.strip().isdecimal()]
    for name in _ONE_FOR_ALL:
        values = found.get(name)
        if isinstance(values, list) and values and values.count(values[0]) == len(values):
            found[name] = values[0]
    kind = str(found.get("model_type", "")).lower()
    if found.get("multi_query") and not found.get("new_decoder_architecture"):
        found["num_key_value_heads"] = 1
    if kind in UNGATED_KINDS and found.get("intermediate_size") is None and isinstance(found.get("hidden_size"), int):
        found["intermediate_size"] = 4 * found["hidden_size"]
    if kind == "qwen" and isinstance(found.get("intermediate_size"), int):
        found["intermediate_size"] //= 2  # the first Qwen counts gate and up projection together
    if kind.startswith(("falcon", "refinedweb")):
        found.setdefault("max_position_embeddings", 2048)
    if kind.startswith("cohere") and found.get("model_max_length"):
        # what engines serve; max_position_embeddings is what rotary tables were made for in advance
        found["max_position_embeddings"] = found["model_max_length"]
    return found


def nested_half(config: Mapping[str, Any]) -> str | None:
    """Under which name a multimodal model keeps its language half; nothing where the config is one itself."""
    if "num_hidden_layers" in config or "layers_block_type" in config:
        return None
    names = ("text_config", "llm_config", "language_config", "thinker_config")
    return next((name for name in names if isinstance(config.get(name), dict)), None)


def _language_half(config: Mapping[str, Any]) -> Mapping[str, Any]:
    name = nested_half(config)
    if name is None:
        return config
    half = _language_half(config[name])  # Qwen's omni models have it two levels down
    return {**config, **_NESTED_DEFAULTS.get(str(half.get("model_type")), {}), **half}
