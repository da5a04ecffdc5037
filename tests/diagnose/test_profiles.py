"""Profiles of five tools in one shape. perf's are real; the others follow the tools' formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.diagnose.profilers.libraries import read_perf_report, read_vtune
from ridgeline.diagnose.profilers.mpi import read_ipm, read_mpip
from ridgeline.diagnose.profilers.profile import Call
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.serving.findings.nsys import read_nsys

SAMPLES = Path(__file__).parent.parent / "samples"


def test_mpip_gives_shares_waiting_and_ranks() -> None:
    profile = read_mpip(TextFile(SAMPLES / "mpip" / "nwchem-waiting.mpiP"))
    assert profile.ranks == 16 and profile.wall_s == 51.2
    assert profile.communication_share == pytest.approx(0.437, abs=1e-3)
    assert profile.waiting_share == pytest.approx(0.83)
    # two callsites of Barrier are one call
    barrier = next(c for c in profile.calls if c.name == "MPI_Barrier")
    assert barrier.share_of_communication == pytest.approx(0.32) and barrier.count == 24900 + 19920
    assert profile.busy_ratio == pytest.approx(1.56, abs=0.01)


def test_mpip_3_4_1_has_no_count_column() -> None:
    profile = read_mpip(TextFile(SAMPLES / "mpip" / "stencil-balanced-3.4.1.mpiP"))
    assert [(c.name, c.count, c.seconds) for c in profile.calls] == [
        ("MPI_Sendrecv", None, 2.11),
        ("MPI_Allreduce", None, 0.42),
    ]
    assert profile.waiting_share == 0.0


def test_an_ipm_banner_after_a_programs_output() -> None:
    profile = read_ipm(TextFile(SAMPLES / "ipm" / "banner.txt"))
    assert (profile.ranks, profile.wall_s, profile.communication_share) == (96, 51.24, 0.441)
    assert profile.io_share == pytest.approx(0.119)
    assert profile.calls[0].name == "MPI_Allreduce" and profile.calls[0].count == 184512
    assert profile.calls[0].share_of_communication == pytest.approx(0.6, abs=0.01)
    assert profile.busy_ratio == pytest.approx((51.22 - 11.02) / (51.22 - 22.59))


def test_ipm_xml_has_one_time_per_rank_even_when_cut() -> None:
    lines = list(TextFile(SAMPLES / "ipm" / "solver.ipm.xml"))
    profile = read_ipm(lines)
    assert [round(t.communication_s, 2) for t in profile.rank_times] == [1.1, 5.92, 6.03, 5.88]
    assert profile.waiting_share == pytest.approx(0.87)
    half = read_ipm(lines[: len(lines) // 2])
    assert 0 < len(half.rank_times) < 4


@pytest.mark.parametrize("name", ["hotspots-tab.csv", "hotspots-comma.csv"])
def test_vtune_with_any_delimiter(name: str) -> None:
    profile = read_vtune(TextFile(SAMPLES / "vtune" / name))
    assert profile.functions[0].name == "dgemm_" and profile.functions[0].module == "libblas.so.3.11.0"
    assert sum(f.share for f in profile.functions) == pytest.approx(1.0)
    assert profile.communication_share == pytest.approx((9.51 + 6.44 + 2.20) / 64.0, abs=0.001)


def test_perf_reports_the_functions_own_time() -> None:
    profile = read_perf_report(TextFile(SAMPLES / "perf" / "nwchem-reference-blas.txt"))
    assert profile.functions[0].name == "dgemm_" and profile.functions[0].share == pytest.approx(0.4972)
    two = read_perf_report(TextFile(SAMPLES / "perf" / "nwchem-openblas-2ranks.txt"))
    assert two.communication_share == pytest.approx(0.059, abs=1e-6)


def test_perf_with_call_graphs_counts_self_not_children() -> None:
    rows = [
        "# Children      Self  Command         Shared Object                   Symbol",
        "    15.97%    15.94%  nwchem.openmpi  libopenblasp-r0.3.21.so         [.] dgemm_kernel_PRESCOTT",
        "            |          ",
        "             --2.29%--0",
        "     8.97%     1.14%  nwchem.openmpi  [kernel.kallsyms]               [k] exc_page_fault",
    ]
    assert [(f.name, f.share) for f in read_perf_report(rows).functions] == [
        ("dgemm_kernel_PRESCOTT", pytest.approx(0.1594)),
        ("exc_page_fault", pytest.approx(0.0114)),
    ]


def test_nsys_counts_nccl_kernels_as_communication() -> None:
    profile = read_nsys(TextFile(SAMPLES / "nsys" / "decode-tp8.csv"))
    assert profile.communication_share == pytest.approx(0.4)
    assert {f.module for f in profile.functions} == {"GPU", "CUDA API"}


@pytest.mark.parametrize(
    ("name", "waits", "collective"),
    [
        ("MPI_Barrier", True, False),
        ("PMPI_Iprobe", True, False),
        ("mpi_waitall_", True, False),
        ("MPI_Test", True, False),
        ("opal_progress", True, False),
        ("MPI_Allreduce", False, True),
        ("MPI_Iallgather", False, True),
        ("MPI_Reduce_scatter_block", False, True),
        ("MPI_Recv", False, False),
        ("MPI_Isend", False, False),
        ("MPI_Testing_not_a_call", False, False),
    ],
)
def test_which_calls_wait(name: str, waits: bool, collective: bool) -> None:
    call = Call(name, 1.0, None, None, None, 1)
    assert (call.waits, call.collective) == (waits, collective)
