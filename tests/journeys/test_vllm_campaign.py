"""Campaigns on a real engine: ten trials, every failure it is known for, and the edge of its memory."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.records.outcome import Kind
from ridgeline.store.history import History
from ridgeline.store.journal import read_events
from tests.journeys.vllm_engine import ALONE, ENGINE, answered, missing, ridgeline, vllm_command, write_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(missing()), reason=missing() or "present"),
]


def write_study(folder: Path, name: str, **parts: Any) -> Path:
    """A study of the offline benchmark with the whole engine in one process."""
    flags = {"dtype": "float32", "enforce_eager": True, "distributed_executor_backend": "uni", **parts.pop("flags", {})}
    workload = {
        "kind": "vllm-offline",
        "model": str(parts.pop("model")),
        "load_format": "dummy",
        "engine": str(ENGINE),
        "flags": flags,
        "env": ALONE | parts.pop("env", {}),
        "traffic": parts.pop("traffic", {"input_tokens": 16, "output_tokens": 4, "requests": 4}),
    }
    study = {"version": 1, "name": name, "workload": workload, "goal": {"maximize": "total_tok_s"}, **parts}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"job": {"limit": 900}, **study}, sort_keys=False))
    return path


def replayed(folder: Path) -> History:
    return History.replay(folder, read_events(folder / "journal.jsonl"))


def test_ten_trials_find_the_batch_that_matters(tmp_path: Path) -> None:
    study = write_study(
        tmp_path,
        "batching",
        model=write_model(tmp_path / "tiny"),
        flags={"max_model_len": 512},
        traffic={"input_tokens": 24, "output_tokens": 24, "requests": 48},
        space={
            "max_num_seqs": [1, 8, 32],
            "max_num_batched_tokens": [512, 1024],
            "block_size": [32, 64],
            "enable_chunked_prefill": [True, False],
        },
        guards=["successful_requests == 48", "output_tokens == 48 * 24"],
        baseline={"max_num_seqs": 1, "max_num_batched_tokens": 512, "block_size": 32, "enable_chunked_prefill": True},
        budget={"trials": 10},
        stages={
            "baseline": {"repeats": 1},
            "search": {"sampler": "random", "seed": 3, "sentinel_every": 0},
            "confirm": {"top": 0},
        },
    )
    assert ridgeline("tune", str(study), "--out", "out", cwd=tmp_path, timeout_s=2000).returncode == 0
    history = replayed(tmp_path / "out")
    assert len(history.trials) == 11
    kinds = {run.outcome.kind for run in history.runs.values() if run.outcome}
    assert kinds == {Kind.OK}, [str(run.outcome) for run in history.runs.values()]
    best = answered("best", "out", cwd=tmp_path)
    assert best["settings"]["max_num_seqs"] > 1, "one request at a time is never the fastest"
    assert f"--max-num-seqs {best['settings']['max_num_seqs']}" in best["paste"]
    for run in history.runs.values():
        assert run.metrics["output_tokens"] == 48 * 24
        assert run.metrics["kv_tokens"] == 2**30 / 2048, "what was applied is read back from the engine's log"
        assert (run.folder / "samples.csv").is_file(), "the host was watched"
        assert "host_cpu_share" in run.metrics


def outcomes(history: History, knob: str) -> dict[Any, Any]:
    return {trial.point[knob]: run.outcome for trial in history.trials.values() if (run := history.final_run(trial))}


def test_a_window_larger_than_the_model_is_a_refusal_not_a_crash(tmp_path: Path) -> None:
    study = write_study(
        tmp_path,
        "windows",
        model=write_model(tmp_path / "tiny"),
        flags={"max_num_seqs": 4, "max_num_batched_tokens": 512, "enable_chunked_prefill": True},
        space={"max_model_len": [512, 4096]},
        baseline={"max_model_len": 512},
        presets=[{"max_model_len": 4096}],
        budget={"trials": 1},
        stages={"baseline": {"repeats": 1}, "confirm": {"top": 0}},
    )
    done = ridgeline("tune", str(study), "--out", "out", cwd=tmp_path, timeout_s=1500)
    assert done.returncode == 1, "nothing but the baseline passed"
    found = outcomes(replayed(tmp_path / "out"), "max_model_len")
    assert found[512].kind is Kind.OK
    assert found[4096].kind is Kind.REJECTED
    assert "max_model_len" in found[4096].evidence.text


def test_the_edge_of_the_window(tmp_path: Path) -> None:
    """1 GiB of KV at 2 KiB a token is 524,288 tokens, and vLLM keeps a block for itself: half of it is the edge."""
    study = write_study(
        tmp_path,
        "window",
        model=write_model(tmp_path / "wide", context_tokens=1 << 20),
        flags={"max_num_seqs": 4, "max_num_batched_tokens": 512, "enable_chunked_prefill": True},
        space={"max_model_len": {"from": 1 << 17, "to": 1 << 20, "times": 2}},
        baseline={"max_model_len": 1 << 17},
    )
    words = ("edge", str(study), "--knob", "max_model_len", "--repeats", "1", "--out", "out")
    verdict = answered(*words, cwd=tmp_path)["verdict"]
    assert verdict["kind"] == "edge"
    assert (verdict["edge"], verdict["first_failing"]) == (1 << 18, 1 << 19)
    assert verdict["failed_runs"] == 1
    assert verdict["production"] == 1 << 17
    assert "KV pool" in verdict["headline"]
    (why,) = next(row["why"] for row in verdict["tried"] if row["value"] == 1 << 19)
    assert why.startswith("oom-start")
    assert "To serve at least one request" in why


def test_flags_and_layouts_that_cannot_be(tmp_path: Path) -> None:
    """What is certainly wrong is refused before anything starts; the engine itself says the same when it is asked."""
    model = write_model(tmp_path / "tiny")
    common: Mapping[str, Any] = {"model": model, "baseline": {"max_num_seqs": 4}}
    unknown = write_study(tmp_path, "unknown", **common, space={"max_num_seqs": [4]}, flags={"no_such_flag": 1})
    done = ridgeline("check", str(unknown), cwd=tmp_path)
    assert done.returncode == 2
    assert "no_such_flag" in done.stderr
    layouts = {"max_num_seqs": [4], "tensor_parallel_size": [1, 3]}
    point = {"max_num_seqs": 4, "tensor_parallel_size": 3}
    study = write_study(tmp_path, "layout", model=model, space=layouts, baseline=point)
    done = ridgeline("check", str(study), cwd=tmp_path)
    assert done.returncode == 2
    assert "3" in done.stderr and "heads" in done.stderr


def test_an_unknown_flag_at_the_engine_itself(tmp_path: Path) -> None:
    from ridgeline.campaign.judge import find_signature
    from ridgeline.workloads.vllm import offline
    from tests.campaign.harness import study

    command = vllm_command(write_model(tmp_path / "tiny"), 1, "--no-such-flag", "1")
    done = subprocess.run(command, capture_output=True, text=True, env=ALONE, timeout=900, check=False)
    assert done.returncode == 2
    (tmp_path / "engine.log").write_text(done.stdout + done.stderr)
    outcome = find_signature(tmp_path, ["engine.log"], offline(study(tmp_path)).signatures)
    assert outcome is not None
    assert outcome.kind is Kind.REJECTED
    assert outcome.evidence is not None and "--no-such-flag" in outcome.evidence.text
