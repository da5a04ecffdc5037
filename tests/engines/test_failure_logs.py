"""Logs of engines that failed: how the run is judged, by which line, what moves next, and what `diagnose` advises."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.campaign.judge import find_signature
from ridgeline.diagnose.base import diagnose
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.failures import cause_of, signatures
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.vllm.engine import VLLM

SAMPLES = Path(__file__).parent.parent / "samples" / "engine-failures"
ANALYZERS = [catalog.part("analyzers", name) for name in catalog.shipped("analyzers")]

# log -> how it ended, the line that says so, which knob moves first (+ up, - down), and words of the advice
Answer = tuple[Kind, int, str, str]
SGLANG_LOGS: dict[str, Answer] = {
    "0.4.3-shared-memory": (Kind.SITE_FAULT, 6, "", "--shm-size"),
    "0.4.6-graphs-refused": (Kind.CRASH, 4, "", "less memory does not help"),
    "0.4.9-triton-memory": (Kind.REJECTED, 5, "", "another back end"),
    "0.5.2-request-slots": (Kind.OOM_RUN, 6, "max_running_requests-", "--max-running-requests"),
    "0.5.8-fp8-blocks": (Kind.REJECTED, 8, "tp-", "fewer GPUs"),
    "0.5.8-illegal-access": (Kind.CRASH, 7, "", "CUDA_LAUNCH_BLOCKING"),
    "0.5.10-no-kernel": (Kind.REJECTED, 4, "", "compute capability"),
    "0.5.11-no-ninja": (Kind.REJECTED, 9, "", "CUDA_HOME"),
    "0.5.13-kernel-library": (Kind.REJECTED, 5, "", "sglang-kernel"),
    "0.5.17-blackwell": (Kind.REJECTED, 3, "", "another"),
    "0.5.20-host-cache": (Kind.REJECTED, 7, "hicache_ratio-", "--hicache-ratio"),
    "0.5.22-pinning": (Kind.REJECTED, 4, "hicache_ratio-", "ulimit -l"),
}
VLLM_LOGS: dict[str, Answer] = {
    "cpu-0.32-architecture": (Kind.REJECTED, 6, "", "newer release"),
    "cpu-0.32-batched-tokens": (Kind.REJECTED, 9, "", "what does not go together"),
    "cpu-0.32-block-size": (Kind.REJECTED, 21, "", "--block-size"),
    "cpu-0.32-choice": (Kind.REJECTED, 2, "", "--kv-cache-dtype"),
    "cpu-0.32-context": (Kind.REJECTED, 7, "", "argument"),
    "cpu-0.32-draft-vocabulary": (Kind.REJECTED, 13, "", "what does not go together"),
    "cpu-0.32-flag": (Kind.REJECTED, 4, "", "did you mean --max-num-seqs?"),
    "cpu-0.32-heads": (Kind.REJECTED, 9, "tp-", "heads"),
    "cpu-0.32-hub": (Kind.SITE_FAULT, 5, "", "HF_HUB_OFFLINE"),
    "cpu-0.32-kv-space": (Kind.OOM_START, 18, "gpu_memory_utilization-", "VLLM_CPU_KVCACHE_SPACE"),
    "cpu-0.32-model-type": (Kind.REJECTED, 4, "", "transformers"),
    "cpu-0.32-no-folder": (Kind.REJECTED, 5, "", "path or name"),
    "cpu-0.32-no-nixl": (Kind.REJECTED, 32, "", "nixl"),
    "cpu-0.32-offload": (Kind.REJECTED, 23, "", "what does not go together"),
    "cpu-0.32-pool": (Kind.OOM_START, 19, "gpu_memory_utilization+", "gpu_memory_utilization"),
    "cpu-0.32-port": (Kind.SITE_FAULT, 4, "", "another port"),
    "cpu-0.32-remote-code": (Kind.REJECTED, 6, "", "trust_remote_code"),
    "cpu-0.32-tokenizer": (Kind.REJECTED, 9, "", "tokenizer"),
    "gpu-0.8-warm-up": (Kind.OOM_START, 12, "max_running_requests-", "max_num_seqs"),
    "gpu-0.11-no-nvcc": (Kind.REJECTED, 5, "", "flashinfer-cubin"),
    "gpu-0.12-gpu-in-use": (Kind.NODE_FAULT, 4, "", "nvidia-smi"),
    "gpu-0.24-time-out": (Kind.HANG, 13, "", "slower or gone"),
    "gpu-0.29-memory-profiling": (Kind.NODE_FAULT, 5, "", "nvidia-smi"),
}
LOGS = [
    *((SGLANG, "sglang", name, answer) for name, answer in SGLANG_LOGS.items()),
    *((VLLM, "vllm", name, answer) for name, answer in VLLM_LOGS.items()),
]
named = pytest.mark.parametrize(("engine", "folder", "name", "answer"), LOGS, ids=[name for *_, name, _ in LOGS])


def judged(engine: ServingEngine, log: Path, run: Path) -> Outcome:
    """As the session on the node reads it, and as the controller judges what the session said."""
    read = engine.read(TextFile(log))
    cause = cause_of(read.failures, read.weights_loaded)
    assert cause is not None
    (run / "stderr").write_text(cause.marked_line(log.name) + "\n")
    rows = (*signatures(engine.flags, engine.failure_texts, engine.memory_flag), *PROGRAM_FAILURES)
    outcome = find_signature(run, ["stderr"], rows)
    assert outcome is not None
    return outcome


@named
def test_a_failed_engine_is_judged_by_its_deciding_line(
    tmp_path: Path, engine: ServingEngine, folder: str, name: str, answer: Answer
) -> None:
    kind, line, move, _ = answer
    outcome = judged(engine, SAMPLES / folder / f"{name}.log", tmp_path)
    assert outcome.kind is kind
    assert outcome.evidence is not None and f"{name}.log:{line}: " in outcome.evidence.text
    first = outcome.advice[0] if outcome.advice else None
    assert (f"{first.knob}{'+' if first.direction > 0 else '-'}" if first else "") == move
    assert outcome.remedy and "{" not in outcome.remedy


@named
def test_diagnose_names_the_same_line_and_what_to_do(
    engine: ServingEngine, folder: str, name: str, answer: Answer
) -> None:
    _, line, _, words = answer
    found = diagnose(SAMPLES / folder / f"{name}.log", ANALYZERS)
    (fault,) = [finding for finding in found.findings if finding.key.startswith(f"{engine.name}.failed-")]
    assert fault.severity == "fault"
    assert fault.evidence[0].line_number == line
    assert words in fault.advice and "{" not in fault.advice


def test_every_sample_has_an_answer() -> None:
    there = {path.stem for folder in ("sglang", "vllm") for path in (SAMPLES / folder).glob("*.log")}
    assert there == {*SGLANG_LOGS, *VLLM_LOGS, "0.5.4-request-given-up"}


def test_a_request_that_its_client_gave_up_is_no_failure() -> None:
    log = SAMPLES / "sglang" / "0.5.4-request-given-up.log"
    assert not SGLANG.read(TextFile(log)).failures
