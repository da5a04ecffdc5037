"""A model folder of a given shape: an engine reads its config, and n words of a prompt are n tokens."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model, preset_names
from ridgeline.serving.model.folder import _tokenizer, write_model_folder
from ridgeline.serving.model.vocabulary import WORDS
from ridgeline.serving.traffic.prompts import Prompts
from ridgeline.serving.traffic.traffic import Arrival


def encode(tokenizer: dict, text: str) -> list[int]:
    """Byte-level BPE in its plainest form: the lowest-ranked pair is merged until none is left."""
    model = tokenizer["model"]
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(model["merges"])}
    letters = list(model["vocab"])[:256]
    ids = []
    for piece in re.findall(r" ?\w+| ?[^\s\w]+|\s+", text):
        parts = [letters[byte] for byte in piece.encode()]
        while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]:
            _, at = min(pairs)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [model["vocab"][part] for part in parts]
    return ids


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_gives_a_folder_that_reads_back_as_the_same_model(preset: str, tmp_path: Path) -> None:
    made = write_model_folder(preset, tmp_path / preset)
    again = load_model(str(tmp_path / preset))
    assert again.params == load_model(preset).params == made.params
    vocab = json.loads((tmp_path / preset / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(again.vocab))


def test_layers_and_context_can_be_smaller(tmp_path: Path) -> None:
    write_model_folder("llama-8b", tmp_path, layers=2, context_tokens=512)
    model = load_model(str(tmp_path))
    assert (model.layers, model.context_tokens) == (2, 512)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 512


def test_a_nested_language_half_can_be_smaller(tmp_path: Path) -> None:
    shape = tmp_path / "shape.json"
    half = {
        "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
        "sliding_window": 64,
    }  # fmt: skip
    shape.write_text(json.dumps({"model_type": "gemma3", "text_config": half}))
    write_model_folder(str(shape), tmp_path / "made", layers=2, context_tokens=512)
    model = load_model(str(tmp_path / "made"))
    assert (model.layers, model.context_tokens) == (2, 512)


@given(st.integers(1, 400), st.integers(0, 2**31), st.integers(0, 5000))
def test_a_prompt_of_n_words_is_n_tokens(words: int, salt: int, number: int) -> None:
    tokenizer = _tokenizer(4096)
    text = Prompts(salt).text(Arrival(number, 0.0, words, 1)).decode()
    assert len(encode(tokenizer, text)) == words


@given(st.text(max_size=40))
def test_any_text_can_be_encoded(text: str) -> None:
    assert all(0 <= token < 1024 for token in encode(_tokenizer(1024), text))


def test_special_tokens_are_where_the_config_says(tmp_path: Path) -> None:
    write_model_folder("deepseek-v2-lite", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    assert [token["id"] for token in added] == [config["bos_token_id"], config["eos_token_id"]]


def test_a_vocabulary_too_small_for_bytes_and_words_is_refused(tmp_path: Path) -> None:
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    with pytest.raises(InputError, match="too small"):
        write_model_folder(str(tmp_path), tmp_path / "out")


def test_unknown_shapes_and_nonsense_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="presets"):
        write_model_folder("llama-9000b", tmp_path)
    with pytest.raises(InputError, match="1 or more"):
        write_model_folder("llama-8b", tmp_path, layers=0)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match="not readable as JSON"):
        write_model_folder(str(tmp_path / "broken.json"), tmp_path / "out")


def test_words_are_all_of_one_length() -> None:
    assert {len(word) for word in WORDS} == {4}
