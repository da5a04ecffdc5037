"""Write a model folder with no download: config.json and a tokenizer of a given shape, for engines with dummy weights.

The tokenizer is a byte-level BPE: 256 bytes, one token for each word of the load generator's prompts, and filler up to
the model's vocabulary. So a prompt of n words is n tokens, as it nearly is with the vocabularies of real models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, StoreError
from ridgeline.records.json_form import JsonForm, in_json
from ridgeline.serving.model.config import PRESETS, model_from_config, preset_names, read_config
from ridgeline.serving.model.fields import in_usual_names, nested_half
from ridgeline.serving.model.vocabulary import WORDS

BEGIN, END = "<|begin|>", "<|end|>"

# What engines read besides the shape. Values are the families' usual ones; none of them changes speed or size.
_USUAL: Mapping[str, object] = {
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "use_cache": True,
    "rms_norm_eps": 1e-6,
    # transformers suspects large vocabularies written by older versions of a broken pattern, and says so at length
    "transformers_version": "5.0.0",
}
_BY_TYPE: Mapping[str, Mapping[str, object]] = {
    "llama": {"rope_theta": 500000.0, "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5},
    "deepseek_v2": {
        "attention_bias": False, "rope_theta": 10000, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
        "routed_scaling_factor": 1.0, "scoring_func": "softmax", "norm_topk_prob": False, "aux_loss_alpha": 0.001,
        "seq_aux": True, "ep_size": 1, "pretraining_tp": 1,
    },
    "deepseek_v3": {
        "attention_bias": False, "rope_theta": 10000, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc",
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "norm_topk_prob": True, "ep_size": 1,
        "num_nextn_predict_layers": 1, "pretraining_tp": 1,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MadeModel(JsonForm):
    """What was written, for a person to read."""

    folder: Path
    params: int
    weight_bytes: float = field(metadata=in_json(to=round))
    vocab: int
    context_tokens: int


def write_model_folder(
    shape: str, folder: Path, *, layers: int | None = None, context_tokens: int | None = None
) -> MadeModel:
    """Fill `folder` with config.json and a tokenizer. `shape` is a preset or the path of a config.json.

    `layers` makes a shallower model of the same width; `context_tokens` sets the context window. Files that are there
    already are replaced, others are left alone.
    """
    config = _config(shape, layers, context_tokens)
    model = model_from_config(config, name=folder.name, source=shape)
    smallest = 256 + len(_merged_words()) + 2
    if model.vocab < smallest:
        raise InputError(
            f"{shape}: a vocabulary of {model.vocab} is too small for a tokenizer; it needs {smallest} or more"
        )
    texts = {
        "config.json": json.dumps(config, indent=1),
        "generation_config.json": json.dumps({"bos_token_id": model.vocab - 2, "eos_token_id": model.vocab - 1}),
        "tokenizer.json": json.dumps(_tokenizer(model.vocab)),
        "tokenizer_config.json": json.dumps(_tokenizer_config(model.context_tokens), indent=1),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text + "\n")
    except OSError as error:
        raise StoreError(f"{folder}: cannot write the model ({error.strerror}); name another folder") from None
    return MadeModel(folder, model.params, model.weight_bytes, model.vocab, model.context_tokens)


def _config(shape: str, layers: int | None, context_tokens: int | None) -> dict[str, Any]:
    config = _shape(shape)
    kind = str(config.get("model_type", ""))
    config = {**_USUAL, **_BY_TYPE.get(kind, {}), **config}
    nested = nested_half(config)
    half = config[nested] if nested else config
    for name, value in (("num_hidden_layers", layers), ("max_position_embeddings", context_tokens)):
        if value is not None:
            if value < 1:
                raise InputError(f"{name.replace('num_hidden_', '')} {value}: use 1 or more")
            half[name] = value
    vocab = in_usual_names(config).get("vocab_size")
    if isinstance(vocab, int):
        config |= {"bos_token_id": vocab - 2, "eos_token_id": vocab - 1}
    return config


def _shape(shape: str) -> dict[str, Any]:
    path = Path(shape).expanduser()
    path = path / "config.json" if path.is_dir() else path
    preset = PRESETS / f"{shape.lower()}.json"
    if "/" not in shape and preset.is_file():
        return dict(json.loads(preset.read_text()))
    if not path.is_file():
        raise InputError(f"{shape!r} is neither a preset nor a config.json; presets: {', '.join(preset_names())}")
    return dict(read_config(path))


def _byte_letters() -> list[str]:
    """The letter that stands for each byte: itself where it prints, otherwise one from U+0100 on.

    Every byte-level BPE since GPT-2 uses this mapping; a space becomes U+0120.
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]


def _merged_words() -> dict[str, tuple[str, str]]:
    """Every token longer than a byte, with the two it is merged from: a word grows letter by letter from its space."""
    space = _byte_letters()[ord(" ")]
    merged: dict[str, tuple[str, str]] = {}
    for word in WORDS:
        start = space
        for letter in word:
            merged.setdefault(start + letter, (start, letter))
            start += letter
    # all of one length before any longer one, so that no merge is asked for before its parts exist
    return dict(sorted(merged.items(), key=lambda item: len(item[0])))


def _tokenizer(vocab: int) -> dict[str, object]:
    merged = _merged_words()
    tokens = [*_byte_letters(), *merged]
    tokens += [f"<{number:x}>" for number in range(len(tokens), vocab - 2)]
    ids = {token: number for number, token in enumerate([*tokens, BEGIN, END])}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[name], "content": name, **special} for name in (BEGIN, END)],
        "normalizer": None,
        "pre_tokenizer": by_bytes,
        "post_processor": None,
        "decoder": by_bytes,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": ids,
            "merges": [f"{left} {right}" for left, right in merged.values()],
        },
    }


def _tokenizer_config(context_tokens: int) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
