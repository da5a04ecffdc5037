"""What each analyzer says about real and faithful files, and that it keeps silent about sound ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.diagnose.base import Analyzer, diagnose, kinds_of
from ridgeline.records.finding import Finding

SAMPLES = Path(__file__).parent.parent / "samples"
ANALYZERS: list[Analyzer] = [catalog.part("analyzers", name) for name in catalog.shipped("analyzers")]
FILES = sorted(
    p
    for kind in (
        *("batch", "bindings", "dmon", "ipm", "mpip", "nccl", "nsys", "nwchem", "pbs", "perf", "sacct", "sglang"),
        *("torch-trace", "vllm", "vtune"),
    )
    for p in (SAMPLES / kind).iterdir()
)


def findings(name: str) -> tuple[Finding, ...]:
    return diagnose(SAMPLES / name, ANALYZERS).findings


def analyzed(kind: str, text: str) -> list[Finding]:
    analyzer: Analyzer = catalog.part("analyzers", kind)
    return analyzer.analyze("file", text.splitlines())


@pytest.mark.parametrize(
    ("name", "claim", "advice"),
    [
        ("mpip/nwchem-waiting.mpiP", "83% of MPI time is waiting", "spread its work"),
        ("mpip/nwchem-waiting.mpiP", "rank 0 computes 1.56 times", "serial work"),
        ("ipm/banner.txt", "collectives take 35%", "7.1 ms on average"),
        ("ipm/banner.txt", "input and output take 12%", "scratch"),
        ("ipm/solver.ipm.xml", "87% of MPI time is waiting", "spread"),
        ("vtune/hotspots-tab.csv", "47% of the time is in DGEMM of the reference BLAS", "OpenBLAS"),
        ("perf/nwchem-reference-blas.txt", "50% of the time is in DGEMM of the reference BLAS", "libopenblas0-serial"),
        ("perf/nwchem-openblas-2ranks.txt", "OpenBLAS kernels for PRESCOTT", "OPENBLAS_CORETYPE=SKYLAKEX"),
        ("nsys/decode-tp8.csv", "NCCL kernels take 40%", "tensor-parallel"),
        ("sglang/offline-llama8b-h200-default.log", "than the largest captured CUDA graph holds (256)", "towards 951"),
        ("sglang/offline-dsv2lite-h200-mrr1024.log", "no tuned configuration", "Tune it once"),
        ("sglang/offline-dsv2lite-h200-runtime-oom.log", "while running (not at start)", "Lower --mem-fraction-static"),
        ("nccl/two-nodes-ib.txt", "NCCL_NVLS_ENALBE=0 was asked for", "spelling"),
        ("nccl/two-nodes-ib.txt", "mlx5_2 is an Ethernet port", "NCCL_IB_HCA=mlx5_0"),
        ("nccl/sockets.txt", "TCP sockets", "No device found"),
        ("nwchem/not-converged.out", "did not converge", "iterations"),
        ("nwchem/mpich-diverged.out", "80.4040 electrons where there are 10", "ARMCI_USE_WIN_ALLOCATE=0"),
        ("nwchem/memory-inconsistent.out", "memory line contradicts itself", "total"),
        ("nwchem/no-basis.out", "basis set was not found", "NWCHEM_BASIS_LIBRARY"),
        ("nwchem/partly-cached-2h2o.out", "52% of the integrals are computed again", "semidirect memsize"),
        ("nwchem/direct-1h2o.out", "in each of 6 iterations", "semidirect memsize"),
        ("nwchem/semidirect-1h2o-2ranks.out", "20% of the time is an SCF task", "Remove `task scf`"),
        ("vllm/v0-preempting.log", "51 requests were preempted", "--gpu-memory-utilization"),
        ("vllm/gpu-0.11-full-cache.log", "KV cache was full in 2 of 3", "more memory"),
        ("vllm/cpu-0.32-full-cache.log", "KV cache was full in 3 of 7", "num_preemptions_total"),
        ("vllm/cpu-0.32-rejected.log", "refused its arguments", "engine versions"),
        ("vllm/pool-too-small.log", "no room for the KV pool", "Raise the memory fraction"),
        ("batch/gadi-gpu-killed.txt", "walltime 3621 exceeded limit 3600", "more time"),
        ("batch/gadi.txt", "1536 cores were busy 43%", "ridgeline study scale"),
        ("torch-trace/decode-moe-eager.json", "no kernel ran for at least 44% of the time", "CUDA graphs"),
        ("torch-trace/decode-moe-eager.json", "NCCL kernels take 31% of GPU time, all-reduce 31%", "tensor-parallel"),
        ("torch-trace/decode-moe-eager.json", "MoE kernels take 40%", "tuned configuration"),
        ("torch-trace/cpu-only-2.13.json", "37 events of the host and no kernel", "ProfilerActivity.CUDA"),
        ("dmon/two-gpus-one-behind.txt", "GPU 1 is at 42% while the others are at 98%", "CUDA_VISIBLE_DEVICES"),
        ("dmon/two-gpus-one-behind.txt", "the power limit held down the clock of 1 of 2 GPUs", "POWER"),
        ("dmon/idle-with-time.txt", "no kernel ran in 83% of the samples of 1 GPU", "batch"),
        ("sacct/week.txt", "job 4102 ran into the time limit", "more time"),
        ("sacct/week.txt", "job 4103 ran out of memory", "fewer ranks"),
        ("sacct/week.txt", "job 4105 lost a node (on n4,n5)", "--exclude"),
        ("sacct/week.txt", "job 4104 kept its 16 cores 7% busy", "ridgeline study scale"),
        ("sacct/week.txt", "2 of 7 jobs completed; 86.82 core-hours", "--compare"),
        ("sacct/plain.txt", "job 3 failed (exit code 7)", "output"),
        ("pbs/qstat-fx.txt", "job 18.vm ran into the time limit", "more time"),
        ("pbs/qstat-fx.txt", "job 17.vm kept its 16 cores 15% busy", "fewer cores"),
        ("pbs/qstat.json", "job 0.vm failed (exit code 7)", "output"),
        ("pbs/tracejob.txt", "job 21.vm failed (exit code 137)", "137 is a kill"),
        ("pbs/accounting.txt", "job 22.vm for 7 times as much", "earlier"),
        ("perf/by-library.txt", "31% of the time is in the operating system's kernel", "page faults"),
        ("perf/by-library.txt", "by library: libopenblas.so.0 46%", "faster library"),
        ("nwchem/no-basis.err", "basis set was not found", "NWCHEM_BASIS_LIBRARY"),
        ("nwchem/direct-1h2o.out", "finished: DFT energy -76.420", "guard"),
        ("nccl/no-peer-access.txt", "GPUs of one node talk through host memory", "NCCL_P2P_DISABLE"),
        ("mpip/manager.mpiP", "rank 0 does next to nothing but communicate", "by design"),
        ("bindings/openmpi-map-by-node.txt", "1 of 4 ranks are not bound", "--bind-to core"),
    ],
)
def test_a_file_gives_this_finding(name: str, claim: str, advice: str) -> None:
    found = [f for f in findings(name) if claim in f.claim]
    assert len(found) == 1, [f.claim for f in findings(name)]
    assert advice in found[0].advice


@pytest.mark.parametrize("name", ["mpip/stencil-balanced-3.4.1.mpiP", "bindings/openmpi-2ranks.txt"])
def test_a_sound_file_gives_none(name: str) -> None:
    assert findings(name) == ()


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_evidence_is_in_the_file_at_its_line(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    for finding in diagnose(path, ANALYZERS).findings:
        for evidence in finding.evidence:
            said = evidence.text.strip("… ")[:40]
            assert said in lines[evidence.line_number - 1].decode("utf-8", "replace").replace("\x1b[1;33m", "")


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_sample_is_recognised_as_its_own_kind_only(path: Path) -> None:
    known = kinds_of(path.read_text(errors="replace").split("\n"), ANALYZERS)
    # what a launcher says of a failed run is in the program's output, whatever the program is
    kinds = [a.kind for a in known if a.failures != "outside"]
    assert len(kinds) == 1
    assert kinds[0].startswith(path.parent.name)


def test_faults_come_first_and_then_what_is_most_at_stake() -> None:
    order = {"fault": 0, "warning": 1, "advice": 1, "note": 2}
    for path in FILES:
        found = diagnose(path, ANALYZERS).findings
        keys = [(order[f.severity], -(-1.0 if f.share is None else f.share)) for f in found]
        assert keys == sorted(keys), "faults first, notes last, the time at stake between them"


def decode(line: int, running: int, usage: float, queued: int, graph: bool = True) -> str:
    return (
        f"[2025-07-01 10:00:{line:02d}] Decode batch, #running-req: {running}, #token: 9, token usage: {usage}, "
        f"cuda graph: {graph}, gen throughput (token/s): 9.0, #queue-req: {queued}"
    )


LIMITS = "[2025-07-01 10:00:00] max_total_num_tokens=1000, chunked_prefill_size=8192, max_running_requests=64"


def test_sglang_prompts_seen_before() -> None:
    cold = "Prefill batch, #new-seq: 1, #new-token: 990, #cached-token: 10, token usage: 0.1, #running-req: 0"
    warm = cold.replace("990", "500").replace("#cached-token: 10", "#cached-token: 500")
    assert not analyzed("sglang-log", cold)
    (finding,) = analyzed("sglang-log", f"{cold}\n{warm}")
    assert "25.5% of the prompt tokens came from the cache" in finding.claim
    # the same hits in the warm-up do not count against the measurement
    assert not analyzed("sglang-log", f"{warm}\nBenchmark...\n{cold}")


def test_sglang_pool_full_against_cap_reached() -> None:
    full = "\n".join([LIMITS, *(decode(i, 40, 0.99, 7) for i in range(5))])
    assert ["the KV pool limits" in f.claim for f in analyzed("sglang-log", full)] == [True]
    capped = "\n".join([LIMITS, *(decode(i, 64, 0.30, 7) for i in range(5))])
    assert ["at the cap of 64 running requests" in f.claim for f in analyzed("sglang-log", capped)] == [True]
    idle = "\n".join([LIMITS, *(decode(i, 20, 0.30, 0) for i in range(5))])
    assert analyzed("sglang-log", idle) == []


def test_sglang_retractions_and_late_compiles() -> None:
    text = "\n".join(
        [
            "The server is fired up and ready to roll!",
            "[2025-07-01 10:00:20 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 7, #new_token",
            "[2025-07-01 10:00:21 TP0] Entering DeepGEMM JIT Pre-Compile session.",
        ]
    )
    claims = [f.claim for f in analyzed("sglang-log", text)]
    assert any("7 requests were taken back" in c for c in claims)
    assert any("compiled while the run was being measured" in c for c in claims)


def test_start_up_and_run_time_out_of_memory_ask_for_different_things() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    (start,) = analyzed("sglang-log", oom)
    (run,) = analyzed("sglang-log", f"{LIMITS}\n{oom}")
    pool = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    (small,) = analyzed("sglang-log", pool)
    assert "while starting" in start.claim and "while running" in run.claim
    assert "Lower --mem-fraction-static" in run.advice and "Raise the memory fraction" in small.advice


def test_an_exception_the_engine_survived_is_no_failure() -> None:
    survived = f"{LIMITS}\nValueError: bad request\n{decode(1, 1, 0.1, 0)}"
    assert analyzed("sglang-log", survived) == []
    assert analyzed("sglang-log", f"{survived}\nValueError: the end")[0].severity == "fault"


def test_nwchem_progress_ranks_are_counted_from_the_bindings() -> None:
    text = "\n".join(
        [
            "    nproc           =        3",
            "            NWChem SCF Module",
            " Total times  cpu:        9.9s     wall:        9.9s",
        ]
        + [f"[n1:10] MCW rank {r} bound to socket 0[core {r}[hwt 0]]: [B/.]" for r in range(4)]
    )
    (finding,) = analyzed("nwchem-out", text)
    assert "4 ranks were started and 3 compute" in finding.claim


def test_nwchem_that_was_cut_off() -> None:
    lines = (SAMPLES / "nwchem" / "direct-1h2o.out").read_text().split("\n")
    cut = "\n".join(lines[:345])
    assert ["ends without `Total times`" in f.claim for f in analyzed("nwchem-out", cut)] == [True]


def test_nccl_algorithm_that_was_not_used() -> None:
    text = (
        "n1:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n"
        "n1:1:1 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"
    )
    (finding,) = analyzed("nccl-log", text)
    assert "NCCL_ALGO is Tree, yet AllReduce of 1024 bytes used RING" in finding.claim


def test_a_manager_is_no_imbalance_and_its_waiting_does_not_count() -> None:
    claims = [f.claim for f in findings("mpip/manager.mpiP")]
    assert len(claims) == 1 and "manager or progress rank" in claims[0], claims
    # the same ranks without the manager's row: one of the others has twice the work
    text = (
        (SAMPLES / "mpip" / "manager.mpiP")
        .read_text()
        .replace("   3        100       4.1     4.10", "   3        200       4.1     2.05")
    )
    assert any("rank 3 computes" in f.claim for f in analyzed("mpip", text))


def test_a_cancelled_job_is_no_failure() -> None:
    claims = " ".join(f.claim for name in ("sacct/week.txt", "pbs/qstat-fx.txt") for f in findings(name))
    assert "4106" not in claims and "19.vm" not in claims


def test_two_ranks_on_one_core() -> None:
    line = "[n1:10] MCW rank {} bound to socket 0[core 0[hwt 0]]: [B/.]"
    (finding,) = analyzed("bindings", f"{line.format(0)}\n{line.format(1)}")
    assert "core 0 of n1 to ranks 0, 1" in finding.claim


def test_a_footer_close_to_its_memory_and_a_failed_job() -> None:
    text = (
        "Resource Usage on 2024-11-03 12:55:36:\n Exit Status: 137\n"
        " Memory Requested: 100.0GB Memory Used: 99.0GB\n GPU Utilisation: 12%"
    )
    claims = [f.claim for f in analyzed("batch-footer", text)]
    assert claims == [
        "the job ended with status 137",
        "the job used 99% of the memory it asked for",
        "the GPUs were in use 12% of the time",
    ]


def test_vllm_cap_and_hits() -> None:
    text = (
        "INFO [utils.py:233] non-default args: {'max_num_seqs': 8}\n"
        "INFO Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, "
        "Running: 8 reqs, Waiting: 3 reqs, GPU KV cache usage: 10.0%, Prefix cache hit rate: 60.0%"
    )
    claims = [f.claim for f in analyzed("vllm-log", text)]
    assert any("cap of 8 running sequences" in c for c in claims)
    assert any("60% of prompt tokens came from the prefix cache" in c for c in claims)
