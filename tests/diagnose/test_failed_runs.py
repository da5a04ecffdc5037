"""Outputs of runs that failed: one cause each, with its line and what to do; and the same row decides the outcome."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.campaign.judge import find_signature
from ridgeline.diagnose.base import Diagnosis, diagnose
from ridgeline.diagnose.readers.failures import BY_SIGNAL, PROGRAM_FAILURES, failure_in, failure_named
from ridgeline.records.outcome import Kind

SAMPLES = Path(__file__).parent.parent / "samples"
ANALYZERS = [catalog.part("analyzers", name) for name in catalog.shipped("analyzers")]

EXPECTED = {
    "bash-segfault": ("run.segfault", 2, "backtrace", Kind.CRASH),
    "cpp-exception": ("run.cpp-exception", 2, "", Kind.CRASH),
    "disk-full": ("run.disk-full", 1, "scratch", Kind.SITE_FAULT),
    "double-free": ("run.heap-damage", 2, "valgrind", Kind.CRASH),
    "intel-mpi-killed": ("run.killed", 6, "dmesg", Kind.OOM_RUN),
    "kernel-oom-cgroup": ("run.cgroup-oom", 10, "more memory", Kind.OOM_RUN),
    "kernel-oom-node": ("run.node-oom", 1, "who else", Kind.OOM_RUN),
    "mpich-4.0-abort": ("run.mpi-abort", 3, "that rank printed", Kind.CRASH),
    "mpich-4.0-killed": ("run.killed", 11, "dmesg", Kind.OOM_RUN),
    "mpich-4.0-no-program": ("run.no-program", 1, "`run`", Kind.REJECTED),
    "mpich-4.0-segfault": ("run.segfault", 2, "backtrace", Kind.CRASH),
    "mpich-4.0-wrong-rank": ("run.mpi-error", 3, "too few ranks", Kind.CRASH),
    "no-library": ("run.no-library", 1, "`job: modules`", Kind.REJECTED),
    "openmpi-4.1-abort": ("run.mpi-abort", 2, "that rank printed", Kind.CRASH),
    "openmpi-4.1-exit-code": ("run.mpi-abort", 8, "that rank printed", Kind.CRASH),
    "openmpi-4.1-killed": ("run.killed", 8, "dmesg", Kind.OOM_RUN),
    "openmpi-4.1-no-program": ("run.no-program", 5, "`run`", Kind.REJECTED),
    "openmpi-4.1-segfault": ("run.segfault", 4, "backtrace", Kind.CRASH),
    "openmpi-4.1-slots": ("run.slots", 2, "fewer ranks", Kind.REJECTED),
    "openmpi-4.1-wrong-rank": ("run.mpi-error", 6, "too few ranks", Kind.CRASH),
    "openmpi-5-abort": ("run.mpi-abort", 3, "that rank printed", Kind.CRASH),
    "openmpi-5-segfault": ("run.segfault", 4, "backtrace", Kind.CRASH),
    "python-exception": ("run.python-exception", 4, "lines above", Kind.CRASH),
    "python-no-file": ("run.no-file", 8, "`workload: files`", Kind.REJECTED),
    "python-no-module": ("run.no-python-module", 3, "nosuchmod.py", Kind.REJECTED),
    "python-segfault": ("run.segfault", 1, "backtrace", Kind.CRASH),
    "quota": ("run.quota", 4, "another file system", Kind.SITE_FAULT),
    "shell-killed": ("run.killed", 1, "dmesg", Kind.OOM_RUN),
    "shell-no-program": ("run.no-program", 1, "`run`", Kind.REJECTED),
    "slurm-20-oom": ("run.slurm-oom", 1, "--mem", Kind.OOM_RUN),
    "slurm-oom": ("run.slurm-oom", 2, "--mem", Kind.OOM_RUN),
    "srun-22.05-bus-error": ("run.bus-error", 3, "/dev/shm", Kind.CRASH),
    "srun-22.05-exit-code": ("run.task-exit", 3, "that task printed", Kind.CRASH),
    "srun-22.05-illegal": ("run.illegal-instruction", 3, "-march", Kind.CRASH),
    "srun-22.05-killed": ("run.killed", 3, "dmesg", Kind.OOM_RUN),
    "srun-22.05-no-program": ("run.no-program", 1, "`run`", Kind.REJECTED),
    "srun-22.05-not-executable": ("run.not-executable", 1, "chmod +x", Kind.REJECTED),
    "srun-22.05-segfault": ("run.segfault", 3, "backtrace", Kind.CRASH),
    "torch-2.11-cuda-oom": ("run.cuda-oom", 5, "expandable_segments", Kind.OOM_RUN),
    "torch-2.11-device-assert": ("run.gpu-fault", 21, "CUDA_LAUNCH_BLOCKING", Kind.CRASH),
    "torch-2.11-no-gpu": ("run.no-gpu", 4, "`job: gpus`", Kind.REJECTED),
    "ucx-link": ("run.link", 1, "switch port", Kind.CRASH),
}


def diagnosed(path: Path) -> Diagnosis:
    return diagnose(path, ANALYZERS)


@pytest.mark.parametrize("name", EXPECTED)
def test_one_cause_with_its_line_and_what_to_do_and_the_judge_agrees(tmp_path: Path, name: str) -> None:
    key, line, advice, kind = EXPECTED[name]
    sample = SAMPLES / "failures" / f"{name}.txt"
    (finding,) = diagnosed(sample).findings
    assert (finding.key, finding.evidence[0].line_number, finding.severity) == (key, line, "fault")
    assert advice in finding.advice and "{" not in finding.claim + finding.advice
    shutil.copy(sample, tmp_path / "stderr")
    judged = find_signature(tmp_path, ["stderr"], PROGRAM_FAILURES)
    assert judged is not None
    assert (judged.kind, judged.reason) == (kind, finding.claim)
    assert judged.remedy[1:] == finding.advice[1:-1]


def test_every_sample_is_expected() -> None:
    assert {path.stem for path in (SAMPLES / "failures").glob("*.txt")} - {"nccl-timeout"} == EXPECTED.keys()


def test_what_nccl_and_the_watchdog_say_are_two_findings() -> None:
    keys = [finding.key for finding in diagnosed(SAMPLES / "failures/nccl-timeout.txt").findings]
    assert keys == ["run.collective-timeout", "run.nccl"]


def test_figures_of_a_gpu_out_of_memory_are_in_the_claim() -> None:
    (finding,) = diagnosed(SAMPLES / "failures/torch-2.11-cuda-oom.txt").findings
    assert finding.claim == "out of GPU memory: 40.00 GiB asked for with 19.29 GiB free of 139.80 GiB on GPU 0"


@pytest.mark.parametrize(
    "sample", ["sglang/offline-dsv2lite-h200-runtime-oom.log", "nwchem/no-basis.err", "vllm/pool-too-small.log"]
)
def test_a_program_that_is_known_is_not_explained_twice(sample: str) -> None:
    found = diagnosed(SAMPLES / sample)
    assert not [finding.key for finding in found.findings if finding.key.startswith("run.")]
    assert not {"failed-job", "failed-program"} & set(found.kinds)


def test_an_exception_after_which_the_program_went_on_is_no_fault(tmp_path: Path) -> None:
    log = (SAMPLES / "failures/python-exception.txt").read_text() + "step\n" * 500
    (tmp_path / "out").write_text(log)
    (finding,) = diagnosed(tmp_path / "out").findings
    assert finding.severity == "warning" and "continues for 500 lines" in finding.advice


def test_the_words_that_are_looked_for_first_miss_no_row() -> None:
    for path in SAMPLES.rglob("*"):
        if path.is_file() and path.suffix in (".txt", ".log", ".out", ".err"):
            for line in path.read_text(errors="replace").splitlines():
                row = next((r for r in PROGRAM_FAILURES if r.pattern.search(line[:2000])), None)
                found = failure_in(line[:2000])
                assert (found[0] if found else None) == row, line


def test_every_signal_has_its_row() -> None:
    assert all(failure_named(name).remedy for name in BY_SIGNAL.values())


@pytest.mark.parametrize(
    ("line", "said_by"),
    [
        ("bash: line 3: solver: command not found", "failed-job"),
        ("./solver: error while loading shared libraries: libmpi.so.40: cannot open shared object file", "failed-job"),
        ("run.sh: line 9: 4711 Segmentation fault      (core dumped) ./solver", "failed-job"),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks were killed.",
            "failed-job",
        ),
        ("write error: No space left on device", "failed-job"),
        ("[n1:12:0] Transport retry count exceeded on mlx5_0:1/IB", "failed-job"),
        ("There are not enough slots available in the system to satisfy the 8", "failed-job"),
        ("ModuleNotFoundError: No module named 'numpy'", "failed-program"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "failed-program"),
        ("  what():  std::bad_function_call", "failed-program"),
        ("ValueError: the grid has no cells", "failed-program"),
        ("RuntimeError: No CUDA GPUs are available", "failed-program"),
    ],
)
def test_what_the_job_says_and_what_the_program_says_are_told_apart(line: str, said_by: str) -> None:
    """What a shell, a launcher, a batch system or the kernel says counts whatever program wrote the rest."""
    explained = {
        name
        for name in ("failed-job", "failed-program")
        if catalog.part("analyzers", name).analyze("log", ["step 1", line])
    }
    assert explained == {said_by}
