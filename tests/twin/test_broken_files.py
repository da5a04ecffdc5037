"""Broken files end in a message that names the file, never in a traceback or a run without end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model, model_from_config
from ridgeline.serving.traffic.traces import read_trace
from ridgeline.serving.twin.calibrate import calibrate
from ridgeline.serving.twin.calibration import read_calibration
from ridgeline.serving.twin.log_steps import observations, read_run
from ridgeline.serving.twin.measured import read_rows

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


@pytest.mark.parametrize("raw", [bytes(range(256)), b'{"input_length": 5, "x": "\xe9"}', b"\x1f\x8b\x08cut short"])
def test_a_trace_that_is_no_text_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "trace.jsonl").write_bytes(raw)
    with pytest.raises(InputError, match=r"trace\.jsonl.*a trace is JSONL"):
        read_trace(tmp_path / "trace.jsonl")


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path)


def test_a_compressed_trace_is_read(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl.gz").write_bytes(gzip.compress(b'{"input_length": 10, "output_length": 5}\n'))
    assert read_trace(tmp_path / "trace.jsonl.gz").rows[0].input_tokens == 10


def test_a_compressed_log_gives_what_the_log_gives(tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "samples" / "sglang" / "offline-llama8b-h200-default.log"
    (tmp_path / "run.log.gz").write_bytes(gzip.compress(log.read_bytes()))
    assert len(observations(read_run(tmp_path / "run.log.gz"))) == len(observations(read_run(log)))


def test_a_compressed_result_gives_what_the_result_gives(tmp_path: Path) -> None:
    result = {
        "url": "http://127.0.0.1:1", "model": "llama-8b", "load": {"rate_s": 5}, "requests": 120, "failed_requests": 0,
        "traffic": {"dataset": "fixed:512:64", "requests": 120, "seed": 0}, "server": {"engine": "sglang", "tp": 1},
        "successful_requests": 120, "requests_s": 4.7, "ttft_ms": {"p50": 32.0}, "tpot_ms": {"mean": 6.4},
        "itl_ms": {"p50": 6.1}, "void": False, "client": {"workers": 1},
    }  # fmt: skip
    plain, zipped = tmp_path / "bench.json", tmp_path / "zipped.json.gz"
    plain.write_text(json.dumps(result))
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert calibrate([zipped], gpu="h200").calibration.factors == calibrate([plain], gpu="h200").calibration.factors


@pytest.mark.parametrize("row", ["llama-8b,h200,0,20000", "llama-8b,h200,-1,20000", "llama-8b,h200,1,nan"])
def test_a_measured_row_that_makes_no_sense_is_named(tmp_path: Path, row: str) -> None:
    (tmp_path / "rows.csv").write_text(f"model,gpu,tp,total_tok_s\n{row}\n")
    with pytest.raises(InputError, match=r"rows\.csv:2"):
        read_rows(tmp_path / "rows.csv")


def test_a_row_that_could_not_have_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "model,gpu,gpus,tp,total_tok_s\nllama-8b,h200,1,1,20000\ndeepseek-r1,h100,8,8,12520\n"
    )
    with pytest.raises(InputError, match=r"rows\.csv:3: .*does not fit"):
        calibrate([tmp_path / "rows.csv"])


def test_rows_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"rows\.csv: not UTF-8"):
        read_rows(tmp_path / "rows.csv")


def test_a_site_file_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text('{"version": 2, "factors": {"compute": 1.0}}')
    with pytest.raises(InputError, match=r"version 2.*ridgeline twin calibrate"):
        read_calibration(tmp_path / "site.json")


@pytest.mark.parametrize("value", [None, True, "1.0", [1], 0, -1, 1e9, float("nan")])
def test_a_factor_that_is_no_factor_is_named(tmp_path: Path, value: Any) -> None:
    (tmp_path / "site.json").write_text(json.dumps({"factors": {"compute": value}}))
    with pytest.raises(InputError, match="compute is"):
        read_calibration(tmp_path / "site.json")


@pytest.mark.parametrize(
    ("field", "value"), [("points", "x"), ("points", -4), ("spread", True), ("sources", 3), ("leave_one_out", [1])]
)
def test_a_site_file_that_makes_no_sense_is_named(tmp_path: Path, field: str, value: Any) -> None:
    site = tmp_path / "site.json"
    site.write_text(json.dumps({"factors": {"compute": 1.0}, field: value}))
    with pytest.raises(InputError, match=r"site\.json"):
        read_calibration(site)


def test_presets_still_count_their_dense_layers() -> None:
    assert load_model("deepseek-r1").dense_layers == (0, 1, 2)
