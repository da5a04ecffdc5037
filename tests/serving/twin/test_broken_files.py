"""Broken files end in a message that names the file, never in a traceback or a run without end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.model_config import model_from_config
from ridgeline.serving.models import load_model
from ridgeline.serving.traces import read_trace
from ridgeline.serving.twin.calibration import read_calibration

EXPERTS = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 100,
    "intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**18),
        ("n_shared_experts", [[1]]),
        ("first_k_dense_replace", "x"),
        ("mlp_only_layers", -1),
        ("moe_layer_freq", {"a": 1}),
        ("decoder_sparse_step", [1]),
    ],
)
def test_a_config_field_that_makes_no_sense_is_named(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        model_from_config({**EXPERTS, field: value}, name="m", source="config.json")


@pytest.mark.parametrize(("field", "value"), [("timestamp", 1e30), ("timestamp", "x"), ("hash_ids", 7), ("at_s", -1)])
def test_a_trace_line_that_makes_no_sense_is_named(tmp_path: Path, field: str, value: Any) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"input_length": 10, "output_length": 5, field: value}))
    with pytest.raises(InputError, match=r"trace\.jsonl:1"):
        read_trace(trace)


@pytest.mark.parametrize(("field", "value"), [("points", "x"), ("sources", 3), ("leave_one_out", [1])])
def test_a_site_file_that_makes_no_sense_is_named(tmp_path: Path, field: str, value: Any) -> None:
    site = tmp_path / "site.json"
    site.write_text(json.dumps({"factors": {"compute": 1.0}, field: value}))
    with pytest.raises(InputError, match=r"site\.json"):
        read_calibration(site)


def test_presets_still_count_their_dense_layers() -> None:
    assert load_model("deepseek-r1").dense_layers == (0, 1, 2)
