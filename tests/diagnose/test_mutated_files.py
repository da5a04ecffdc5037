"""Logs are torn, spliced and full of garbage. A reader gives fewer facts or a ReadError, in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from ridgeline import catalog
from ridgeline.diagnose.profilers.tools import read_ipm, read_mpip, read_perf_report, read_vtune
from ridgeline.diagnose.readers.batch_text import read_batch_footer, read_bindings
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import ReadError
from ridgeline.nwchem.output import read_nwchem_out
from ridgeline.serving.engines.nccl_log import read_nccl_log
from ridgeline.serving.engines.sglang.log import read_offline_jsonl, read_sglang_log
from ridgeline.serving.engines.vllm.log import read_vllm_log
from ridgeline.serving.findings.kernels import read_nsys
from ridgeline.testing.contracts import as_lines, mutated

SAMPLES = Path(__file__).parent.parent / "samples"
Reader = Callable[[Iterable[str]], object]
READERS: dict[str, Reader] = {
    "sglang": read_sglang_log,
    "vllm": read_vllm_log,
    "nccl": read_nccl_log,
    "nwchem": read_nwchem_out,
    "mpip": read_mpip,
    "ipm": read_ipm,
    "vtune": read_vtune,
    "perf": read_perf_report,
    "nsys": read_nsys,
    "batch": read_batch_footer,
    "bindings": read_bindings,
}
ANALYZERS = {name: catalog.part("analyzers", name) for name in catalog.shipped("analyzers")}
TEXTS = {kind: [p.read_bytes() for p in sorted((SAMPLES / kind).iterdir()) if p.is_file()] for kind in READERS}

FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow]
)


def must_return(read: Callable[[], object]) -> None:
    try:
        read()
    except ReadError:
        pass


@pytest.mark.parametrize("kind", READERS)
def test_a_mutated_file_never_breaks_its_reader(kind: str) -> None:
    @FUZZ
    @given(mutated(TEXTS[kind]))
    def check(text: bytes) -> None:
        must_return(lambda: READERS[kind](as_lines(text)))

    check()


@pytest.mark.parametrize("kind", [*READERS, "jsonl"])
def test_a_file_of_another_kind_is_no_error(kind: str) -> None:
    read = READERS.get(kind, read_offline_jsonl)
    for group in TEXTS.values():
        for text in group:
            must_return(lambda t=text: read(as_lines(t)))
    must_return(lambda: read([]))


LONG = 300_000
NASTY = ["a" * LONG, " " * LONG, "(" * LONG, "9" * LONG, ", " * (LONG // 2), "<func " * (LONG // 6), "[" * LONG]
OPENINGS = [
    "",
    "server_args=ServerArgs(model_path=",
    "server_args=ServerArgs(a=" + "b(c=" * 500,
    "Decode batch, #running-req: ",
    "non-default args: {",
    "n1:1:1 [0] NCCL INFO Channel 00/0 : ",
    "# MPI_Barrier ",
    " d= 0,ls=0.0,diis ",
    " #quartets = ",
    "Function\tCPU Time\t",
    "Time (%),Total Time (ns),",
    "    15.97%  ",
    "[n1:1] MCW rank 0 bound to ",
    "Execution Nodes Used: ",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", READERS)
def test_hostile_lines_do_not_take_for_ever(kind: str) -> None:
    """The time-out is the assertion: a pattern that backtracks without bound would run for hours on these."""
    header = {
        "batch": ["Resource Usage on 2024-11-03 12:55:36:"],
        "mpip": ["@--- Aggregate Time (top", "Call Site Time"],
    }
    for opening in OPENINGS:
        lines = [*header.get(kind, []), *(opening + nasty for nasty in NASTY)]
        must_return(lambda rows=lines: READERS[kind](rows))


@pytest.mark.timeout(120)
def test_hostile_lines_do_not_hold_up_recognition(tmp_path: Path) -> None:
    from ridgeline.diagnose.base import diagnose

    path = tmp_path / "hostile"
    path.write_text("\n".join(opening + nasty for opening in OPENINGS for nasty in NASTY))
    diagnose(path, list(ANALYZERS.values()))


def test_lines_of_a_file_are_bounded_and_counted_like_grep(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\r\ntwo\rstill two\n" + b"x" * 3_000_000 + b"\n\xff\xfe\nlast")
    lines = list(TextFile(path))
    assert [lines[0], lines[1], lines[3], lines[4]] == ["one", "two\rstill two", "\ufffd\ufffd", "last"]
    assert len(lines) == 5 and len(lines[2]) == 1 << 20
    with pytest.raises(ReadError, match="nowhere"):
        list(TextFile(tmp_path / "nowhere"))
