"""Footers of PBS sites and bindings of launchers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.diagnose.readers.batch_text import clock_s, read_batch_footer, read_bindings, size_bytes
from ridgeline.diagnose.readers.lines import TextFile

SAMPLES = Path(__file__).parent.parent / "samples"


def test_gadi() -> None:
    footer = read_batch_footer(TextFile(SAMPLES / "batch" / "gadi.txt"))
    assert (footer.exit_status, footer.service_units) == (0, 11.95)
    assert (footer.ncpus_requested, footer.cpu_s) == (1536, 2 * 3600 + 32 * 60 + 59)
    assert footer.memory_used_bytes == round(493.55 * 2**30)
    assert footer.wall_used_s == 14


def test_gadi_labels_of_another_year_on_one_line() -> None:
    line = "   WALLTIME REQUESTED: 00:10:00  Walltime used: 00:00:14  nGPUs Requested: 1  GPU Utilisation: 100%"
    footer = read_batch_footer(["Resource Usage on 2026-01-01 00:00:00:", line])
    assert (footer.wall_used_s, footer.ngpus_requested, footer.gpu_share) == (14, 1, 1.0)


def test_aspire2a_plus() -> None:
    footer = read_batch_footer(TextFile(SAMPLES / "batch" / "aspire2a-plus.txt"))
    assert (footer.ncpus_requested, footer.ncpus_used, footer.ngpus_requested) == (224, 224, 16)
    assert footer.memory_used_bytes == 37195476 * 1024
    assert footer.wall_used_s == 7 * 60 + 42


def test_a_killed_job_says_why_also_without_a_footer() -> None:
    footer = read_batch_footer(["=>> PBS: job killed: walltime 10 exceeded limit 3"])
    assert (footer.killed, footer.exit_status) == ("walltime 10 exceeded limit 3", None)
    full = read_batch_footer(TextFile(SAMPLES / "batch" / "gadi-gpu-killed.txt"))
    assert full.killed and full.exit_status == 271 and full.gpu_share == 0.97


def test_no_footer_is_none() -> None:
    assert read_batch_footer(["Job Id: 1", "Exit Status: 0"]) is None


@pytest.mark.parametrize(
    ("text", "size"), [("37195476kb", 37195476 * 1024), ("0B", 0), ("5.86TB", round(5.86 * 2**40)), ("many", None)]
)
def test_sizes(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("100:00:01", 360001.0), ("00:10", None), ("-1:00:00", None), (None, None)]
)
def test_clocks(text: str | None, seconds: float | None) -> None:
    assert clock_s(text) == seconds


def test_open_mpi_bindings_are_real() -> None:
    bindings = read_bindings(TextFile(SAMPLES / "bindings" / "openmpi-2ranks.txt"))
    assert [(b.rank, b.cpus) for b in bindings] == [(0, (0,)), (1, (1,))]


def test_bindings_across_nodes_and_unbound() -> None:
    bindings = read_bindings(TextFile(SAMPLES / "bindings" / "openmpi-map-by-node.txt"))
    assert [(b.rank, b.host[-4:], b.cpus) for b in bindings] == [
        (0, "0512", (0,)),
        (2, "0512", (1, 2)),
        (1, "0519", (24,)),
        (3, "0519", None),
    ]


def test_bindings_of_other_launchers() -> None:
    bindings = read_bindings(TextFile(SAMPLES / "bindings" / "other-launchers.txt"))
    assert [(b.rank, b.cpus) for b in bindings] == [
        (0, (0, 1, 2, 3)),
        (1, (4, 6)),
        (2, None),
        (3, (0, 4)),
        (4, (0, 1, 2, 40, 41)),
        (5, (1, 2)),
    ]
