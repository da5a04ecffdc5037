"""Profiles of five tools in one shape. perf's are real; the others follow the tools' formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.diagnose.profilers.findings import judged
from ridgeline.diagnose.profilers.profile import Call, Profile, RankTime
from ridgeline.diagnose.profilers.tools import read_ipm, read_mpip, read_perf_report, read_vtune
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.serving.findings.kernels import read_nsys

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


def call(name: str, share: float | None, *, seconds: float = 1.0, of_time: float | None = None, line: int = 7) -> Call:
    return Call(name, seconds, share, of_time, 1000, line)


def ranks(*times: tuple[float, float]) -> tuple[RankTime, ...]:
    """Time and communication of each."""
    return tuple(RankTime(n, *each, 20 + n) for n, each in enumerate(times))


WAITS, REDUCES = call("MPI_Barrier", 0.5), call("MPI_Allreduce", 0.4)


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        # waiting: a tenth of the run is communication, and half of that only waits
        (Profile("mpip", communication_share=0.1, communication_line=3, calls=(WAITS,)), ["profile.waiting"]),
        (Profile("mpip", communication_share=0.09, communication_line=3, calls=(WAITS,)), []),
        (Profile("mpip", communication_share=0.2, communication_line=3, calls=(call("MPI_Barrier", 0.49),)), []),
        (Profile("mpip", communication_share=0.2, communication_line=3, calls=(call("MPI_Recv", 0.9),)), []),
        # collectives: a tenth of the run, whatever share of communication they are
        (Profile("mpip", communication_share=0.25, communication_line=3, calls=(REDUCES,)), ["profile.collectives"]),
        (Profile("mpip", communication_share=0.24, communication_line=3, calls=(REDUCES,)), []),
        (Profile("nsys", communication_share=0.9, communication_line=3, calls=(REDUCES,)), []),
        # communication: three tenths of the run, unless most of it is waiting, which has been said
        (Profile("ipm", communication_share=0.3, communication_line=3), ["profile.communication"]),
        (Profile("ipm", communication_share=0.29, communication_line=3), []),
        (Profile("ipm", communication_share=0.3), []),
        (Profile("nsys", communication_share=0.3, communication_line=3), []),
        (Profile("mpip", communication_share=0.3, communication_line=3, calls=(WAITS,)), ["profile.waiting"]),
        # input and output: a tenth of the run, as the tool says or summed over the calls
        (Profile("ipm", io_share=0.1, io_line=4), ["profile.io"]),
        (Profile("ipm", io_share=0.09, io_line=4), []),
        (Profile("mpip", calls=(call("MPI_File_write", None, of_time=0.06), call("read", None, of_time=0.05))),
         ["profile.io"]),
        (Profile("mpip", calls=(call("MPI_File_write", None, of_time=0.06),)), []),
        # imbalance: the busiest computes a fifth longer than the mean
        (Profile("mpip", rank_times=ranks((10, 1), (10, 4)), busy_ratio=1.2), ["profile.imbalance"]),
        (Profile("mpip", rank_times=ranks((10, 1), (10, 4)), busy_ratio=1.19), []),
        # a rank that computes less than a twentieth of the usual is a manager, at most a third of the ranks
        (Profile("mpip", rank_times=ranks((10, 9.8), (10, 5), (10, 5))), ["profile.managers"]),
        (Profile("mpip", rank_times=ranks((10, 9.7), (10, 5), (10, 5))), []),
        (Profile("mpip", rank_times=ranks((10, 9.8), (10, 5))), []),
        (Profile("mpip", rank_times=ranks((10, 9.8), (10, 9.8), (10, 5), (10, 5), (10, 5))), []),
    ],
)  # fmt: skip
def test_what_a_profile_is_found_guilty_of_begins_at_its_limit(profile: Profile, says: list[str]) -> None:
    assert [claim.key for claim in judged(profile)] == says


def test_a_long_collective_is_no_matter_of_latency() -> None:
    """Above a millisecond a call, messages are large or ranks late; at or below, latency is what is paid for."""
    for seconds, said in ((1.0, "Use fewer ranks"), (1.5, "A call lasts 1.5 ms on average")):
        calls = (call("MPI_Allreduce", 0.6, seconds=seconds, line=5), call("MPI_Bcast", 0.2, line=6))
        (claim,) = judged(Profile("ipm", communication_share=0.25, communication_line=3, calls=calls))
        assert claim.claim == "collectives take 20% of the run, MPI_Allreduce most" and claim.share == pytest.approx(
            0.2
        )
        assert claim.advice.startswith(said)
        assert [quote.line for quote in claim.quotes] == [3, 5, 6]


def test_waiting_names_the_longest_calls_and_its_likely_cause() -> None:
    calls = (call("MPI_Wait", 0.4, line=5), call("MPI_Send", 0.1, line=6), call("MPI_Barrier", 0.3, line=7))
    for ratio, cause in (
        (1.1, "The busiest rank computes 1.10 times the mean"),
        (1.09, "Ranks reach"),
        (None, "Ranks"),
    ):
        shares = Profile("ipm", communication_share=0.2, communication_line=3, calls=calls, busy_ratio=ratio)
        (claim,) = judged(shares)
        assert claim.claim == (
            "70% of MPI time is waiting for other ranks (MPI_Wait 40%, MPI_Barrier 30%), not moving data; "
            "MPI takes 20% of the run"
        )
        assert claim.advice.startswith(cause) and claim.share == pytest.approx(0.14)
        assert [quote.line for quote in claim.quotes] == [3, 5, 7]


def test_the_busiest_rank_is_named_with_what_the_others_lose_and_managers_are_left_out() -> None:
    """Rank 2 computes 8 of 10 s, the workers' mean is 5: the others wait for 3 of its 10 s."""
    times = ranks((10, 9.9), (10, 5), (10, 2), (10, 8))
    claims = {claim.key: claim for claim in judged(Profile("mpip", rank_times=times, busy_ratio=1.6))}
    assert claims["profile.managers"].claim.startswith("rank 0 does next to nothing but communicate")
    worst = claims["profile.imbalance"]
    assert worst.claim.startswith("rank 2 computes 1.60 times as long as the mean")
    assert worst.share == pytest.approx(0.3)
    assert [quote.line for quote in worst.quotes] == [22, 23], "the busiest and the idlest of those that work"
