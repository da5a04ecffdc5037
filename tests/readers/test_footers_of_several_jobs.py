"""Output that several jobs wrote one after the other: what is said of the last one is its own, and nothing older."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from ridgeline.diagnose.readers.batch_text import BatchFooter, read_batch_footer

SAMPLES = Path(__file__).parent.parent / "samples" / "batch"
KILLED = "=>> PBS: job killed: walltime 3621 exceeded limit 3600"


def lines_of(name: str) -> list[str]:
    return (SAMPLES / name).read_text().splitlines()


def without_lines(footer: BatchFooter | None, before: int) -> BatchFooter:
    assert footer is not None
    killed_line = footer.killed_line - before if footer.killed else 0
    return replace(footer, line=footer.line - before, killed_line=killed_line)


NAMES = ("gadi.txt", "aspire2a-plus.txt", "gadi-gpu-killed.txt")


@pytest.mark.parametrize("last", NAMES)
@pytest.mark.parametrize("first", NAMES)
def test_the_footer_of_the_last_job_has_nothing_of_the_one_before(first: str, last: str) -> None:
    before, own = lines_of(first), lines_of(last)
    joined = without_lines(read_batch_footer([*before, *own]), len(before))
    alone = read_batch_footer(own)
    for field in fields(BatchFooter):
        assert getattr(joined, field.name) == getattr(alone, field.name), field.name


def test_a_kill_belongs_to_the_footer_after_it() -> None:
    """A job that was killed, then one that was not; and the other way round."""
    footer = [
        "Resource Usage on 2026-01-0{n} 00:00:00:",
        "Job Id: {n}.pbs  Exit Status: {n}",
        "Walltime used: 00:0{n}:01",
    ]
    first, second = ([line.format(n=n) for line in footer] for n in (1, 2))
    after = read_batch_footer([KILLED, *first, *second])
    assert after is not None and (after.killed, after.killed_line, after.line) == (None, 0, 5)
    assert (after.exit_status, after.wall_used_s) == (2, 121.0)
    later = read_batch_footer([*first, KILLED, *second])
    assert later is not None and (later.killed_line, later.line) == (4, 5)
    assert later.killed == "walltime 3621 exceeded limit 3600"
    twice = read_batch_footer([KILLED, *first, KILLED.replace("3621", "9999"), *second])
    assert twice is not None and twice.killed == "walltime 9999 exceeded limit 3600"
    only = read_batch_footer(["x", KILLED])
    assert only is not None and (only.line, only.killed_line) == (2, 2)


def test_gpus_of_all_nodes_are_added_unless_the_site_says_how_many() -> None:
    nodes = "Execution Nodes Used: (a1:ngpus=8:ncpus=4)+(a2:ngpus=4)+(a1:ngpus=8)"
    start = "Resource Usage on 2026-01-01 00:00:00:"
    found = read_batch_footer([start, nodes])
    assert found is not None and found.ngpus_requested == 20
    stated = read_batch_footer([start, "NGPUs Requested: 3", nodes])
    assert stated is not None and stated.ngpus_requested == 3
    both = read_batch_footer([start, "NCPUs: Requested(48), Used(40)", "Memory : Requested(2gb), Used(1kb)"])
    assert both is not None and (both.ncpus_requested, both.ncpus_used) == (48, 40)
    assert (both.memory_requested_bytes, both.memory_used_bytes) == (2 * 2**30, 1024)
