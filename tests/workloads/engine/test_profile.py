"""Runs under an engine's own profiler: a window of steps, bounded by time and size, in no measured run."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.campaign.status import _summary_of, _traces_in
from ridgeline.records.expression import Expression
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.site import Site
from ridgeline.records.study import JobLimits, ProfileStage, Study
from ridgeline.records.trial import Stage
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.vllm.engine import VLLM
from ridgeline.serving.workloads.engine.session import profile
from ridgeline.serving.workloads.engine.session.process import EngineFailed
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
KNOBS = {"attention_backend": ["fa3", "endless-trace", "no-trace", "huge-trace", "empty-report"]}
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


class StuckServer(BaseHTTPRequestHandler):
    """A profiler that is never done: it takes /stop_profile and does not answer before the test is over."""

    over = threading.Event()

    def do_POST(self) -> None:
        if self.path == "/stop_profile":
            self.over.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Writer:
    """An engine that writes its trace until it is stopped."""

    def __init__(self, traces: Path, step_bytes: int) -> None:
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(traces, step_bytes), daemon=True)
        self._thread.start()

    def _write(self, traces: Path, step_bytes: int) -> None:
        with (traces / "0.trace.json").open("ab", buffering=0) as file:
            while not self.stopped.wait(0.02):
                file.write(b"x" * step_bytes)

    def stop(self) -> list[int]:
        self.stopped.set()
        self._thread.join()
        return []


@pytest.mark.parametrize(
    ("step_bytes", "said"),
    [
        (100, r"its trace of 8 steps 1 s after it was told to stop; what it wrote \(0.0 MB\) was deleted"),
        (0, r"had not finished its trace .* ask for fewer steps \(stages.profile: steps\)"),
        (100_000, "larger than 1 MB and were deleted; ask for fewer steps"),
    ],
)
def test_a_profiler_that_does_not_stop_is_ended_with_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int, said: str
) -> None:
    """Also while it is waited for, its trace is watched: 40 GB are written in less than the two minutes it may take."""
    monkeypatch.setattr(profile, "_WRITE_S", 1.0 if step_bytes < 1000 else 600.0)
    monkeypatch.setattr(profile, "send_other", lambda *_: time.sleep(0.01))
    StuckServer.over.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), StuckServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    traces = tmp_path / "profile"
    traces.mkdir()
    engine = Writer(traces, step_bytes)
    asked = {"tool": "torch", "steps": 8, "after_s": 0.0, "limit_s": 0.1, "size_bytes": 1_000_000}
    window = profile.ProfileWindow(tmp_path, server.server_address[1], SGLANG, asked, engine)  # type: ignore[arg-type]
    plan = SimpleNamespace(traffic=SimpleNamespace(requests=1, pace=None))
    try:
        with pytest.raises(EngineFailed, match=said):
            window.record(plan, lambda: bool(engine.stopped.wait(60)))
        assert engine.stopped.is_set()
        assert not traces.exists()
    finally:
        StuckServer.over.set()
        engine.stop()
        server.shutdown()
        server.server_close()


def test_vllm_counts_steps_by_its_profiler_config(tmp_path: Path) -> None:
    config = json.loads(VLLM.profiler_arguments("torch", 8)[1])
    assert config["max_iterations"] == 8
    assert config["torch_profiler_dir"] == "profile"


def test_a_vllm_that_cannot_count_steps_is_refused(tmp_path: Path) -> None:
    of = replace(study(tmp_path, "vllm-offline", {"max_num_seqs": [8]}, version="0.11.0"), profile=STAGE)
    (problem,) = (p for p in vllm_offline(of).problems() if p.where == ("stages", "profile"))
    assert "vLLM 0.11.0 does not stop after a number of steps; use vLLM 0.13" in problem.message


# A stand-in for nsys 2024: it starts the program, and the stand-in for SGLang writes the report when its CUDA profiler
# range ends. What `stats` prints has the columns that the Nsight Systems User Guide lists for cuda_gpu_kern_sum
# (docs.nvidia.com/nsight-systems/UserGuide, "Report Scripts"), after the lines that it prints while it exports.
NSYS = """#!/bin/sh
case "$1" in
--version) echo "NVIDIA Nsight Systems version 2024.6.1";;
profile) shift
  while case "$1" in --output=*) report="${1#*=}";; --*) ;; *) false;; esac; do echo "$1" >> nsys.options; shift; done
  NSYS_REPORT="$PWD/$report.nsys-rep" exec "$@";;
stats)
  for report; do :; done
  grep -q kernels "$report" || { echo "SKIPPED: $report does not contain CUDA kernel data."; exit 0; }
  : > "${report%.nsys-rep}.sqlite"
  echo "$@" > stats.options
  cat <<'END'
Processing [profile/nsys.sqlite] with [cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
50.0,720000,8,90000.0,90000.0,89000,91000,500.0,"ncclDevKernel_AllReduce_Sum_bf16(ncclDevComm *, unsigned long)"
33.3,480000,8,60000.0,60000.0,59000,61000,500.0,nvjet_tst_128x64_h_bz_TNT
16.7,240000,8,30000.0,30000.0,29000,31000,500.0,"void flash_fwd_splitkv_kernel<T1, (bool)0>(T1)"
END
esac
"""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = tmp_path / "bin" / "nsys"
    tool.parent.mkdir()
    tool.write_text(NSYS)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return tool


def test_nsys_records_a_capture_range_and_leaves_its_kernel_table(tmp_path: Path, nsys: Path) -> None:
    outcome, run = profiled(tmp_path, "fa3", replace(STAGE, tool="nsys"))
    assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
    assert sorted(path.name for path in (run / "profile").iterdir()) == ["kernels.csv", "nsys.nsys-rep"]
    options = (run / "nsys.options").read_text().split()
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--cuda-graph-trace=node"} <= set(options)
    assert "--report cuda_gpu_kern_sum --format csv" in (run / "stats.options").read_text()
    (file,) = _traces_in(run)
    shares = {figure.name: figure.value for figure in _summary_of(file).figures if figure.unit == "share"}
    assert shares == pytest.approx(
        {
            "communication of kernel time": 0.5,
            "matrix products of kernel time": 1 / 3,
            "attention of kernel time": 1 / 6,
        }
    )


def test_a_node_without_nsys_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    outcome, run = profiled(tmp_path, "fa3", replace(STAGE, tool="nsys"))
    assert outcome.kind is Kind.CRASH
    assert "nsys does not run on" in str(outcome)
    remedies = "load a module that has it (job: {modules: [...]}), take an image with it, or use `tool: torch`"
    assert remedies in str(outcome)
    assert not (run / "engine.log").read_text(), "no engine was started for it"


@pytest.mark.parametrize(("backend", "said"), [("no-trace", "left no report"), ("empty-report", "recorded no kernel")])
def test_a_report_without_kernels_is_no_profile(tmp_path: Path, nsys: Path, backend: str, said: str) -> None:
    outcome, _ = profiled(tmp_path, backend, replace(STAGE, tool="nsys", limit_s=0.5))
    assert outcome.kind is Kind.CRASH
    assert said in str(outcome)


def test_a_report_of_nsys_that_grows_too_large_is_deleted(tmp_path: Path, nsys: Path) -> None:
    outcome, run = profiled(tmp_path, "huge-trace", replace(STAGE, tool="nsys", size_bytes=1_000_000))
    assert outcome.kind is Kind.CRASH
    assert "larger than 1 MB and were deleted" in str(outcome)
    assert not (run / "profile").exists()


def test_engines_are_told_to_open_a_cuda_profiler_range() -> None:
    """vLLM refuses a folder for traces beside `profiler: cuda`."""
    assert json.loads(VLLM.profiler_arguments("nsys", 8)[1]) == {"profiler": "cuda", "max_iterations": 8}
    body = SGLANG.profiler_body("nsys", 8, "profile")
    assert body["activities"] == ["CUDA_PROFILER"]
    assert body["num_steps"] == 8


def test_each_node_writes_a_report_of_its_own(tmp_path: Path) -> None:
    two = replace(
        asked(tmp_path, replace(STAGE, tool="nsys")),
        job=JobLimits(nodes=Expression.parse("2")),
        site=Site(launcher="srun", gpus_per_node=1),
    )
    sglang_serve(two).prepare(replace(trial(two), stage=Stage.PROFILE), tmp_path / "run")
    assert '--output=profile/nsys-"$rank" ' in (tmp_path / "run" / "engine.sh").read_text()
