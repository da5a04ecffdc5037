"""A real vLLM and its API key, which no process list shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import SiteError
from ridgeline.serving.service import probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.operate import Operator
from tests.free_ports import free_row
from tests.journeys.vllm_engine import ENGINE, ENV, READY_LIMIT_S, missing, write_model
from tests.service.test_keys import cmdlines

pytestmark = [
    pytest.mark.engine,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing()), reason=missing() or "present"),
]


def test_a_real_vllm_takes_its_key_from_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "vllm-key-90b7"
    monkeypatch.setenv("SERVICE_KEY", key)
    variables = ", ".join(f'{name}: "{value}"' for name, value in ENV.items())
    settings = "max_model_len: 512, max_num_seqs: 4, load_format: dummy, dtype: float32, enforce_eager: true"
    file = tmp_path / "service.yaml"
    file.write_text(
        f"version: 1\nmodel: {write_model(tmp_path / 'tiny')}\nserved_name: tiny\napi_key_env: SERVICE_KEY\n"
        f"engine: {{kind: vllm, python: {ENGINE / 'bin' / 'python'}}}\nfirst_port: {free_row(4)}\n"
        f"units:\n  - {{settings: {{{settings}}}, env: {{{variables}}}}}\n"
    )
    operator = Operator(load_service(file), tmp_path / "service")
    try:
        url = operator.up(READY_LIMIT_S)
        probe.first_answer(url, "tiny", key)  # raises what was said instead
        with pytest.raises(SiteError, match="refuses our API key"):
            probe.first_answer(url, "tiny", "wrong")
        assert not [line for line in cmdlines().values() if key.encode() in line]
    finally:
        operator.down()
