"""One-time steps: reached from a study, shown before anything runs, done once for what decides, given to the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.records.expression import Expression
from ridgeline.records.outcome import Kind
from ridgeline.records.site import Site
from ridgeline.records.study import JobLimits, Study
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.workloads.engine.scripts import REHEARSE
from ridgeline.serving.workloads.engine.session.prepare import Manifest
from tests.command_line import ridgeline
from tests.workloads.engine.studies import (
    STANDIN,
    run_for_real,
    sglang_offline,
    sglang_serve,
    study,
    trial,
    vllm_offline,
    with_standin,
)

LOAD = {"input_tokens": 12, "output_tokens": 4, "requests": 8}
# scripts of SGLang's repository, as far as their arguments and results go
FUSED_MOE = """
import argparse, json, pathlib
flags = argparse.ArgumentParser()
flags.add_argument("--model", required=True); flags.add_argument("--tp-size", type=int, required=True)
flags.add_argument("--tune", action="store_true", required=True); flags.add_argument("--dtype")
args = flags.parse_args()
pathlib.Path(f"E=64,N={1024 // args.tp_size},device_name=GPU.json").write_text("{}")
print("tuned for tp", args.tp_size)
"""
DEEPEP = """
import argparse, pathlib
flags = argparse.ArgumentParser()
flags.add_argument("--nnodes", type=int, required=True); flags.add_argument("--node-rank", type=int, required=True)
flags.add_argument("--master-addr", required=True)
args = flags.parse_args()
pathlib.Path(f"rank{args.node_rank}").write_text("")
if not args.node_rank:
    pathlib.Path("deepep_tuned.json").write_text("{}")
"""


def checkout(folder: Path) -> Path:
    for name, text in (("fused_moe_triton/tuning_fused_moe_triton", FUSED_MOE), ("deepep/tuning_deepep", DEEPEP)):
        script = folder / "benchmark" / "kernels" / f"{name}.py"
        script.parent.mkdir(parents=True)
        script.write_text(text)
    return folder


def prepared(folder: Path, kind: str = "sglang-offline", **options: Any) -> Study:
    knobs = {"tp": [1, 2], "max_running_requests": [64, 128]}
    asked = with_standin(study(folder, kind, knobs, traffic=LOAD, **options))
    return replace(asked, job=JobLimits(gpus=Expression.parse("tp")))


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "ridgeline" / "prepared").iterdir())


def test_deepgemm_is_compiled_once_for_a_layout_and_again_for_another(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["deepgemm"])
    workload = sglang_offline(asked)
    for name, changes in (("one", {}), ("two", {"max_running_requests": 128}), ("three", {"tp": 2})):
        outcome, _ = run_for_real(workload, asked, tmp_path / name, **changes)
        assert outcome.kind is Kind.OK, outcome
    assert "compiling for tp 1" in (tmp_path / "one" / "prepare.log").read_text()
    assert not (tmp_path / "two" / "prepare.log").exists(), "the batch does not decide which kernels there are"
    assert "compiling for tp 2" in (tmp_path / "three" / "prepare.log").read_text()
    assert len(kept(tmp_path)) == 2


def test_fused_moe_is_tuned_once_and_found_by_the_engine(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["fused-moe"], sources=str(checkout(tmp_path / "src")))
    workload = sglang_offline(asked)
    for name in ("one", "two"):
        outcome, _ = run_for_real(workload, asked, tmp_path / name)
        assert outcome.kind is Kind.OK, outcome
    (folder,) = kept(tmp_path)
    assert f"fused-MoE configs from {folder}\n" in (tmp_path / "two" / "engine.log").read_text()
    # fused_moe_triton_config.py looks there, and nowhere else below that folder
    assert (folder / "configs" / "triton_3_7_1" / "E=64,N=1024,device_name=GPU.json").is_file()
    assert not (tmp_path / "two" / "prepare.log").exists()


@pytest.mark.parametrize("kind", ["sglang-offline", "sglang-serve"])
def test_experts_are_counted_once_under_traffic_of_the_study(tmp_path: Path, kind: str) -> None:
    asked = prepared(tmp_path, kind, prepare=["eplb"], warmup=0)
    workload = sglang_serve(asked) if kind.endswith("serve") else sglang_offline(asked)
    for name in ("one", "two"):
        run_for_real(workload, asked, tmp_path / name)
    (folder,) = kept(tmp_path)
    assert (folder / "experts.pt").read_text() == str(LOAD["requests"])
    assert f"init_expert_location='{folder / 'experts.pt'}'" in (tmp_path / "two" / "engine.log").read_text()
    assert not (tmp_path / "two" / "prepare.log").exists()


def test_deepep_is_tuned_on_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = 'while case "$1" in --*) true;; *) false;; esac; do shift; done\nSLURM_PROCID=1 "$@" &\n'
    tool = tmp_path / "bin" / "srun"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\n{starts}SLURM_PROCID=0 "$@"\nwait %1 2>/dev/null\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    one = prepared(tmp_path, prepare=["deepep"], sources=str(checkout(tmp_path / "src")))
    assert "2 nodes or more" in (sglang_offline(one).refusal(trial(one).settings) or "")
    two = replace(one, job=JobLimits(nodes=Expression.parse("2")), site=Site(launcher="srun", gpus_per_node=1))
    workload = sglang_offline(two)
    assert workload.refusal(trial(two, tp=2).settings) is None
    run_for_real(workload, two, tmp_path / "run", tp=2)
    (folder,) = kept(tmp_path)
    assert {path.name for path in folder.iterdir()} >= {"rank0", "rank1", "deepep_tuned.json"}
    assert f"deepep_config='{folder / 'deepep_tuned.json'}'" in (tmp_path / "run" / "engine.log").read_text()


def test_what_is_set_in_the_study_goes_before_what_a_step_would_give(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["eplb"], flags={"init_expert_location": "mine.pt"})
    sglang_offline(asked).prepare(trial(asked), tmp_path / "run")
    script = (tmp_path / "run" / "engine.sh").read_text()
    assert "--init-expert-location mine.pt" in script
    assert "RIDGELINE_EXPERTS" not in script


def test_a_step_that_fails_ends_the_run_with_its_name_and_is_tried_again(tmp_path: Path) -> None:
    sources = checkout(tmp_path / "src")
    script = sources / "benchmark" / "kernels" / "fused_moe_triton" / "tuning_fused_moe_triton.py"
    script.write_text("raise SystemExit('no Ray here')")
    asked = prepared(tmp_path, prepare=["fused-moe"], sources=str(sources))
    workload = sglang_offline(asked)
    outcome, _ = run_for_real(workload, asked, tmp_path / "one")
    assert outcome.kind is Kind.CRASH
    assert "preparation fused-moe" in str(outcome)
    assert "no Ray here" in (tmp_path / "one" / "prepare.log").read_text()
    assert kept(tmp_path) == []
    script.write_text(FUSED_MOE)
    assert run_for_real(workload, asked, tmp_path / "two")[0].kind is Kind.OK


def keys(folder: Path, of: Study, **changes: Any) -> list[str]:
    sglang_offline(of).prepare(trial(of, **changes), folder)
    return [step["key"] for step in json.loads((folder / "session.json").read_text())["prepare"]]


def test_the_key_is_model_layout_and_release(tmp_path: Path) -> None:
    """The GPU's name is the node's to add."""
    steps = {"prepare": ["deepgemm"]}
    base = keys(tmp_path / "a", prepared(tmp_path, version="0.5.23", **steps))
    assert base == keys(tmp_path / "b", prepared(tmp_path, version="0.5.23", **steps), max_running_requests=128)
    for number, (other, changes) in enumerate(
        [
            (prepared(tmp_path, version="0.5.22", **steps), {}),
            (prepared(tmp_path, version="0.5.23", model="qwen2.5-7b", **steps), {}),
            (prepared(tmp_path, version="0.5.23", flags={"quantization": "fp8"}, **steps), {}),
            (prepared(tmp_path, version="0.5.23", **steps), {"tp": 2}),
        ]
    ):
        assert keys(tmp_path / f"c{number}", other, **changes) != base


def test_the_gpu_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    asked = prepared(tmp_path, prepare=["deepgemm"])
    for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
        tool.write_text(f'#!/bin/sh\ncase "$1" in *name*) echo "{gpu}";; *) echo "500, 143771";; esac\n')
        tool.chmod(0o755)
        run_for_real(sglang_offline(asked), asked, tmp_path / gpu.replace(" ", "-"))
    assert ["-NVIDIA-H100-80GB-HBM3-" in p.name or "-NVIDIA-H200-" in p.name for p in kept(tmp_path)] == [True, True]


def test_steps_and_sources_are_checked_before_anything_runs(tmp_path: Path) -> None:
    (problem,) = sglang_offline(prepared(tmp_path, prepare=["fused-moe"])).problems()
    assert problem.where == ("workload", "prepare", 0)
    assert "sources" in problem.message
    asked = study(tmp_path, "vllm-offline", {"tp": [1]}, prepare=["deepgemm"])
    assert "no such step for vllm" in vllm_offline(asked).problems()[0].message


def test_a_dry_run_prints_the_exact_command_of_every_step(tmp_path: Path) -> None:
    sources = checkout(tmp_path / "src")
    workload = {
        "kind": "sglang-offline", "model": "deepseek-r1", "version": "0.5.23", "sources": str(sources),
        "prepare": [REHEARSE, *SGLANG.steps], "env": {"PYTHONPATH": str(STANDIN)},
    }  # fmt: skip
    text = {
        "version": 1, "name": "steps", "workload": workload, "space": {"tp": [16], "attn_dp": [16]},
        "goal": {"maximize": "total_tok_s"}, "baseline": {"tp": 16, "attn_dp": 16},
        "job": {"nodes": 2, "gpus": 8}, "site": {"batch": "slurm", "nodes": 2, "gpus_per_node": 8, "launcher": "srun"},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(text))
    command = [sys.executable, "-m", "ridgeline", "tune", "study.yaml", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in (
        "-m sglang.compile_deep_gemm --model-path",
        f"{sources}/benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py --model",
        f'{sources}/benchmark/kernels/deepep/tuning_deepep.py --nnodes 2 --node-rank "$rank"',
        "--expert-distribution-recorder-mode stat",
        '--deepep-config "$RIDGELINE_DEEPEP"',
        '--init-expert-location "$RIDGELINE_EXPERTS"',
        "-m sglang.benchmark.offline_throughput",
        "--attn-dp-size 16",
    ):
        assert words in done.stdout, words


def test_a_study_on_amd_gpus_renders_and_keeps_nvidias_kernels_out(tmp_path: Path) -> None:
    workload = {
        "kind": "sglang-serve", "model": "qwen3-30b-a3b", "gpu": "mi355x", "version": "0.5.23", "rate": 4,
        "load_format": "dummy", "env": {"SGLANG_USE_AITER": "1", "PYTHONPATH": str(STANDIN)},
        "traffic": {"dataset": "fixed:1024:256", "requests": 100},
    }  # fmt: skip
    text = {
        "version": 1, "name": "amd", "workload": workload,
        "space": {"attention_backend": ["aiter", "triton", "fa3", "trtllm_mha"]},
        "goal": {"maximize": "output_tok_s"}, "baseline": {"attention_backend": "aiter"},
        "job": {"gpus": 8}, "site": {"batch": "slurm", "nodes": 1, "gpus_per_node": 8},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(text))
    said = ridgeline("check", "study.yaml", cwd=tmp_path)
    for backend in ("fa3", "trtllm_mha"):
        assert f"{backend} is written for NVIDIA GPUs, mi355x is cdna4; use aiter or triton" in said.stdout
    shown = ridgeline("tune", "study.yaml", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for words in ("sglang.launch_server", "--attention-backend aiter", "export SGLANG_USE_AITER=1", "--gres=gpu:8"):
        assert words in shown.stdout, words


@pytest.mark.parametrize("kind", ["sglang-offline", "sglang-serve"])
def test_baked_caches_are_filled_once_and_every_run_starts_from_them(tmp_path: Path, kind: str) -> None:
    asked = prepared(tmp_path, kind, goal="output_tok_s", prepare=["bake"])
    workload = sglang_offline(asked) if kind == "sglang-offline" else sglang_serve(asked)
    for name in ("one", "two"):
        outcome, reading = run_for_real(workload, asked, tmp_path / name)
        assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
        assert "kernels from" in (tmp_path / name / "engine.log").read_text()
        assert "starts from caches baked in" in (tmp_path / name / "stderr").read_text()
        assert "start_saved_s" in reading.metrics or kind == "sglang-offline", "it ends before it is seen to begin"
    assert "compiling kernels" in (tmp_path / "one" / "prepare.log").read_text()
    assert not (tmp_path / "two" / "prepare.log").exists()


def test_a_baked_cache_of_another_release_is_baked_anew_and_says_so(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["bake"])
    workload = sglang_offline(asked)
    run_for_real(workload, asked, tmp_path / "one")
    (baked,) = kept(tmp_path)
    said = (baked / "done").read_text()
    (baked / "done").write_text(said.replace("0.5.15.post1", "0.5.14"))
    run_for_real(workload, asked, tmp_path / "two")
    assert "was baked by release 0.5.14, this is 0.5.15.post1: baked again" in (tmp_path / "two" / "stderr").read_text()
    assert "compiling kernels" in (tmp_path / "two" / "prepare.log").read_text()
    assert (baked / "done").read_text().count("0.5.15.post1") == 1


def test_a_manifest_that_is_torn_is_none(tmp_path: Path) -> None:
    baked = Manifest("0.5.15", 12.0, 60.0)
    baked.write(tmp_path)
    assert Manifest.of(tmp_path) == baked
    (tmp_path / "done").write_text('{"release": "0.5.15", "ready_s": 12.0')
    assert Manifest.of(tmp_path) is None


def test_a_study_that_keeps_baked_caches_otherwise_is_told_that_it_is_a_folder_now(tmp_path: Path) -> None:
    (problem,) = sglang_offline(prepared(tmp_path, prepare=["bake"], bake_into="tar")).problems()
    assert problem.where == ("workload", "bake_into")
    assert "kept as a folder; remove this" in problem.message
