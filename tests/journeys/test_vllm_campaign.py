"""Campaigns on a real engine: ten trials, every failure it is known for, and the edge of its memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.campaign.judge import find_signature
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.records.outcome import Kind
from ridgeline.serving.engines.failures import signatures
from ridgeline.serving.engines.vllm.engine import VLLM
from ridgeline.study.history import History
from ridgeline.study.journal import read_events
from tests.journeys.vllm_engine import ALONE, ENGINE, MIXTURE, answered, missing, ridgeline, vllm_command, write_model

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
    site = {"name": "cores", "batch": "local", "jobs_at_once": parts.pop("at_once", 1)}
    (folder / "site.yaml").write_text(yaml.safe_dump(site))
    study = {"version": 1, "name": name, "workload": workload, "goal": {"maximize": "total_tok_s"}, **parts}
    study["site"] = "site.yaml"
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"job": {"limit": 900}, **study}, sort_keys=False))
    return path


def replayed(folder: Path) -> History:
    return History.replay(folder, read_events(folder / "journal.jsonl"))


def test_ten_trials_find_the_batch_that_matters(tmp_path: Path) -> None:
    """Two at a time, a thread each: what is looked for is a factor of ten and more, not a percent."""
    study = write_study(
        tmp_path,
        "batching",
        at_once=2,
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
    done = ridgeline("tune", str(study), "--out", "out", cwd=tmp_path, timeout_s=2000)
    assert done.returncode == 1, "nothing was confirmed"
    history = replayed(tmp_path / "out")
    assert len(history.trials) == 11
    kinds = {run.outcome.kind for run in history.runs.values() if run.outcome}
    assert kinds == {Kind.OK}, [str(run.outcome) for run in history.runs.values()]
    best = answered("best", "out", cwd=tmp_path, code=1)
    assert best["settings"]["max_num_seqs"] > 1, "one request at a time is never the fastest"
    assert f"--max-num-seqs {best['settings']['max_num_seqs']}" in best["paste"]
    for run in history.runs.values():
        assert run.metrics["output_tokens"] == 48 * 24
        assert run.metrics["kv_tokens"] == 2**30 / 2048, "what was applied is read back from the engine's log"
        assert (run.folder / "samples.csv").is_file(), "the host was watched"
        assert "host_cpu_share" in run.metrics


def test_failures_are_told_apart_and_answered(tmp_path: Path) -> None:
    """A window that the KV pool cannot hold and one that the model does not have look alike and are not.

    1 GiB of KV at 2 KiB a token is 524,288 tokens, less a block that vLLM keeps for itself. The pool being too small,
    the next trial has a larger one, and that works; a window larger than the model's is a refusal, and stays one.
    """
    study = write_study(
        tmp_path,
        "windows",
        model=write_model(tmp_path / "wide", context_tokens=1 << 20),
        flags={"max_num_seqs": 4, "max_num_batched_tokens": 512, "enable_chunked_prefill": True},
        space={"max_model_len": [512, 1 << 19, 1 << 21], "VLLM_CPU_KVCACHE_SPACE": [1, 2]},
        baseline={"max_model_len": 512, "VLLM_CPU_KVCACHE_SPACE": 1},
        presets=[{"max_model_len": length, "VLLM_CPU_KVCACHE_SPACE": 1} for length in (1 << 19, 1 << 21)],
        budget={"trials": 3},
        stages={"baseline": {"repeats": 1}, "confirm": {"top": 0}},
    )
    done = ridgeline("tune", str(study), "--out", "out", cwd=tmp_path, timeout_s=1500)
    # a larger window is no faster: which of two equal settings came out ahead is luck, and 1 says "keep the baseline"
    assert done.returncode in (0, 1), done.stderr[-2000:]
    history = replayed(tmp_path / "out")
    ended = [(trial, run.outcome) for trial in history.trials.values() if (run := history.final_run(trial))]
    assert [outcome.kind for _, outcome in ended if outcome] == [Kind.OK, Kind.OOM_START, Kind.OK, Kind.REJECTED]
    (_, small), (answer, _), (_, refused) = ended[1:]
    assert small is not None and small.evidence is not None and "To serve at least one request" in small.evidence.text
    assert answer.point == {"max_model_len": 1 << 19, "VLLM_CPU_KVCACHE_SPACE": 2}
    assert answer.why.startswith("moved VLLM_CPU_KVCACHE_SPACE up after start-up OOM of trial 2")
    assert refused is not None and refused.evidence is not None and "max_model_len" in refused.evidence.text


def test_the_edge_of_the_window(tmp_path: Path) -> None:
    """As above: half of 524,288 tokens is the edge, on a ladder of doublings."""
    study = write_study(
        tmp_path,
        "window",
        model=write_model(tmp_path / "wide", context_tokens=1 << 20),
        flags={"max_num_seqs": 4, "max_num_batched_tokens": 512, "enable_chunked_prefill": True},
        space={"max_model_len": {"from": 1 << 17, "to": 1 << 19, "times": 2}},
        baseline={"max_model_len": 1 << 18},
    )
    words = ("study", "edge", str(study), "--knob", "max_model_len", "--repeats", "1", "--out", "out")
    verdict = answered(*words, cwd=tmp_path)["verdict"]
    assert verdict["kind"] == "edge"
    assert (verdict["edge"], verdict["first_failing"]) == (1 << 18, 1 << 19)
    assert verdict["failed_runs"] == 1
    assert verdict["production"] == 1 << 17
    assert "KV pool" in verdict["headline"]
    (why,) = next(row["why"] for row in verdict["tried"] if row["value"] == 1 << 19)
    assert why.startswith("out of memory at start")
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
    point = {"max_num_seqs": 4, "block_size": 16}
    study = write_study(tmp_path, "block", model=model, space={"max_num_seqs": [4], "block_size": [16]}, baseline=point)
    done = ridgeline("check", str(study), cwd=tmp_path)
    assert done.returncode == 2
    assert "multiples of 32" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--no-such-flag", "1"), "--no-such-flag"),
        (("--tensor-parallel-size", "3"), "must be divisible by tensor parallel size"),
    ],
)
def test_what_we_refuse_the_engine_refuses_too(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """Asked directly, past our own rules: the engine's words are those by which a run is judged."""
    command = vllm_command(write_model(tmp_path / "tiny"), 1, *words)
    done = subprocess.run(command, capture_output=True, text=True, env=ALONE, timeout=900, check=False)
    assert done.returncode != 0
    (tmp_path / "engine.log").write_text(done.stdout + done.stderr)
    outcome = find_signature(tmp_path, ["engine.log"], (*signatures(VLLM.flags, VLLM.failure_texts), *PROGRAM_FAILURES))
    assert outcome is not None
    assert outcome.kind is Kind.REJECTED
    assert outcome.evidence is not None and said in outcome.evidence.text


def test_an_engine_that_dies_by_a_signal_says_which(tmp_path: Path) -> None:
    """As bfloat16 does on a processor without it: no word of Python's, only a signal."""
    study = write_study(
        tmp_path,
        "killed",
        model=write_model(tmp_path / "tiny"),
        flags={"max_num_batched_tokens": 512, "max_model_len": 512},
        space={"max_num_seqs": [4]},
        baseline={"max_num_seqs": 4},
    )
    command = [sys.executable, "-m", "ridgeline", "tune", str(study), "--out", "out"]
    tuning = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    os.kill(engine_of(tmp_path / "out", tuning), signal.SIGILL)
    told, _ = tuning.communicate(timeout=600)
    assert tuning.returncode == 1, "the baseline did not pass"
    assert "SIGILL" in told
    (run,) = replayed(tmp_path / "out").runs.values()
    assert run.outcome is not None and run.outcome.kind is Kind.CRASH


def engine_of(folder: Path, tuning: subprocess.Popen[str]) -> int:
    """The pid of the engine that runs in the first run folder, once it has written its first line."""
    until = time.monotonic() + 300
    while time.monotonic() < until and tuning.poll() is None:
        for log in folder.glob("runs/*/engine.log"):
            for entry in Path("/proc").iterdir() if log.stat().st_size else ():
                if entry.name.isdecimal() and runs_in(entry, log.parent) and b"vllm" in command_line(entry):
                    return int(entry.name)
        time.sleep(0.2)
    raise AssertionError(f"no engine was seen; tune ended with {tuning.poll()}")


def runs_in(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink() == folder.resolve()
    except OSError:
        return False  # gone meanwhile, or not ours to look at


def command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_baseline_and_winner_are_profiled_within_their_limits(tmp_path: Path) -> None:
    study = write_study(
        tmp_path,
        "profiled",
        model=write_model(tmp_path / "tiny"),
        flags={"max_model_len": 512, "max_num_batched_tokens": 512},
        traffic={"input_tokens": 24, "output_tokens": 24, "requests": 16},
        space={"max_num_seqs": [1, 16]},
        baseline={"max_num_seqs": 1},
        budget={"trials": 1},
        stages={
            "baseline": {"repeats": 1},
            "search": {"sampler": "random", "seed": 3, "sentinel_every": 0},
            "confirm": {"top": 0},
            "profile": {"tool": "torch", "steps": 5, "after": 1, "size": "50 MB"},
        },
    )
    done = ridgeline("tune", str(study), "--out", "out", cwd=tmp_path, timeout_s=2000)
    assert done.returncode == 1 and "the study asks for no confirmation" in done.stderr, done.stderr[-2000:]
    history = replayed(tmp_path / "out")
    profiled = {
        t.point["max_num_seqs"]: r for r in history.runs.values() if (t := history.trials[r.trial]).stage == "profile"
    }
    assert set(profiled) == {1, 16}
    traces = {seqs: next((run.folder / "profile").glob("*.json.gz")) for seqs, run in profiled.items()}
    assert all(0 < trace.stat().st_size < 50_000_000 for trace in traces.values())
    unprofiled = [run.folder for run in history.runs.values() if run not in profiled.values()]
    assert not any((folder / "profile").exists() for folder in unprofiled)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Profiles, before and after" in page
    assert "matrix products of operator time" in page
    compared = ridgeline("diagnose", "--compare", str(traces[1]), str(traces[16]), cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "operator time" in compared.stdout


DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}


def test_experts_and_drafts_of_dummy_weights(tmp_path: Path) -> None:
    """What the engine cannot be made to do here is refused; without that it runs, and everybody is told what it kept.

    Of 8 prompts of 200 tokens, one sampled token in ten is somewhere before it, and what followed there is drafted.
    """
    parts: dict[str, Any] = {
        "model": write_model(tmp_path / "mixture", shape=MIXTURE),
        "flags": {"max_model_len": 512, "max_num_batched_tokens": 512, "speculative_config": json.dumps(DRAFTS)},
        "env": {"VLLM_LOG_STATS_INTERVAL": "0.1"},
        "traffic": {"input_tokens": 200, "output_tokens": 32, "requests": 8},
        "space": {"max_num_seqs": [8]},
        "baseline": {"max_num_seqs": 8},
        "budget": {"trials": 1},
        "stages": {"baseline": {"repeats": 1}, "confirm": {"top": 0}},
    }
    study = write_study(tmp_path, "drafts", **parts)
    asked = yaml.safe_load(study.read_text())
    asked["workload"] |= {"experts": "uniform", "accept_length": 2.0}
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(asked))
    refused = ridgeline("check", "asked.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "routes by its weights alone; write as-loaded" in refused.stderr
    assert "stops at the first; remove accept_length" in refused.stderr

    warnings = answered("check", str(study), cwd=tmp_path)["warnings"]
    assert any("collapsed routing" in text and "on processors has no switch" in text for text in warnings)
    assert any("repeat themselves" in text for text in warnings)
    ridgeline("tune", str(study), "--out", "out", cwd=tmp_path, timeout_s=600)
    (run,) = replayed(tmp_path / "out").runs.values()
    assert run.outcome is not None and run.outcome.kind is Kind.OK, str(run.outcome)
    assert 1 <= run.metrics["accept_length"] <= 4
    (opened,) = (e for e in map(json.loads, (tmp_path / "out/journal.jsonl").open()) if e["event"] == "opened")
    assert opened["receipt"]["programs"]["weights"] == {"load_format": "dummy"}


@pytest.mark.parametrize(
    ("env", "drafts", "said"),
    [
        ({"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}, None, "expected scalar type Int but found Long"),
        (
            {},
            DRAFTS | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0},
            "Synthetic acceptance not supported with CPU sampling",
        ),
    ],
    ids=("experts", "drafts"),
)
def test_the_switches_for_dummy_weights_end_it(
    tmp_path: Path, env: dict[str, str], drafts: dict[str, object] | None, said: str
) -> None:
    """Why they are left alone on processors: when this fails, a release has learnt them, and `steered` may say so."""
    model = write_model(tmp_path / "mixture", shape=MIXTURE)
    own = {"load_format": "dummy", "dtype": "float32", "enforce_eager": True, "distributed_executor_backend": "uni"}
    program = (
        "import vllm\n"
        f"llm = vllm.LLM({str(model)!r}, max_model_len=512, speculative_config={drafts!r}, **{own!r})\n"
        "prompt, greedy = [5, 6, 7] * 9, vllm.SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)\n"
        "llm.generate([{'prompt_token_ids': prompt}], greedy)\n"
    )
    command = ["nice", "-n", "10", str(ENGINE / "bin" / "python"), "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **ALONE, **env}, timeout=600, check=False
    )
    assert done.returncode != 0 and said in done.stderr, done.stderr[-2000:]
