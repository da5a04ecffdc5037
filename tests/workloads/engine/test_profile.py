"""Runs under an engine's own profiler: a window of steps, bounded by time and size, in no measured run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.engines.vllm.engine import VLLM
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.study import ProfileStage, Study
from ridgeline.records.trial import Stage
from tests.workloads.engine.studies import (
    run_for_real,
    sglang_offline,
    sglang_serve,
    study,
    trial,
    vllm_offline,
    with_standin,
)

LOAD = {"input_tokens": 12, "output_tokens": 20, "requests": 12}
KNOBS = {"attention_backend": ["fa3", "endless-trace", "no-trace", "huge-trace"]}
STAGE = ProfileStage("torch", steps=8, after_s=0.2)


def asked(folder: Path, stage: ProfileStage, kind: str = "sglang-serve") -> Study:
    made = with_standin(study(folder, kind, KNOBS, goal="output_tok_s", traffic=LOAD, warmup=3))
    return replace(made, profile=stage)


def profiled(folder: Path, backend: str, stage: ProfileStage, kind: str = "sglang-serve") -> tuple[Outcome, Path]:
    of = asked(folder, stage, kind)
    make = sglang_serve if kind == "sglang-serve" else sglang_offline
    run = folder / "run"
    outcome, _ = run_for_real(make(of), of, run, stage=Stage.PROFILE, attention_backend=backend)
    return outcome, run


@pytest.mark.parametrize("kind", ["sglang-serve", "sglang-offline"])
def test_a_window_of_steps_is_recorded_beside_the_load(tmp_path: Path, kind: str) -> None:
    """An offline study is profiled as a server with the same flags: only a server can be told when to record."""
    outcome, run = profiled(tmp_path, "fa3", STAGE, kind)
    assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
    (trace,) = (run / "profile").glob("*.trace.json.gz")
    assert trace.stat().st_size > 0


def test_only_a_profile_trial_is_recorded(tmp_path: Path) -> None:
    of = asked(tmp_path, STAGE, "sglang-offline")
    plain = trial(of)
    for stage in (Stage.BASELINE, Stage.SEARCH, Stage.CONFIRM, Stage.SENTINEL):
        folder = tmp_path / stage
        sglang_offline(of).prepare(replace(plain, stage=stage), folder)
        assert "profile" not in json.loads((folder / "session.json").read_text())
        assert "offline_throughput" in (folder / "engine.sh").read_text()
    sglang_offline(of).prepare(replace(plain, stage=Stage.PROFILE), tmp_path / "profiled")
    assert "launch_server" in (tmp_path / "profiled" / "engine.sh").read_text()


def test_a_trace_that_never_ends_is_cut_off_and_kept(tmp_path: Path) -> None:
    outcome, run = profiled(tmp_path, "endless-trace", replace(STAGE, limit_s=1.0))
    assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
    assert len(list((run / "profile").glob("*.trace.json.gz"))) == 1


def test_a_profiler_that_leaves_nothing_says_so(tmp_path: Path) -> None:
    outcome, _ = profiled(tmp_path, "no-trace", replace(STAGE, limit_s=0.5))
    assert outcome.kind is Kind.CRASH
    assert "left no trace of 8 steps within 0.5 s; ask for fewer steps" in str(outcome)


def test_a_trace_that_grows_too_large_is_deleted_with_the_reason(tmp_path: Path) -> None:
    outcome, run = profiled(tmp_path, "huge-trace", replace(STAGE, size_bytes=1_000_000))
    assert outcome.kind is Kind.CRASH
    assert "larger than 1 MB and were deleted" in str(outcome)
    assert not (run / "profile").exists()


def test_vllm_counts_steps_by_its_profiler_config(tmp_path: Path) -> None:
    config = json.loads(VLLM.profiler_arguments(8)[1])
    assert config["max_iterations"] == 8
    assert config["torch_profiler_dir"] == "profile"


def test_a_vllm_that_cannot_count_steps_is_refused(tmp_path: Path) -> None:
    of = replace(study(tmp_path, "vllm-offline", {"max_num_seqs": [8]}, version="0.11.0"), profile=STAGE)
    (problem,) = (p for p in vllm_offline(of).problems() if p.where == ("stages", "profile"))
    assert "vLLM 0.11.0 does not stop after a number of steps; use vLLM 0.13" in problem.message
