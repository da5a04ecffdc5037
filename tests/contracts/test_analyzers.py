"""Every analyzer of the catalog keeps the promises of ridgeline.testing.contracts.analyzers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline import catalog
from ridgeline.testing.contracts import as_lines, held_to
from ridgeline.testing.contracts.analyzers import AnalyzerContract

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
GROUPS = (
    *(
        "batch",
        "bindings",
        "failures",
        "ipm",
        "mpip",
        "nccl",
        "nsys",
        "nwchem",
        "perf",
        "sglang",
        "torch-trace",
    ),
    *("vllm", "vtune"),
)
FILES = [
    path.read_bytes()
    for group in GROUPS
    for path in sorted((SAMPLES / group).iterdir())
    if path.is_file() and path.suffix != ".md"
]


class OverSamples(AnalyzerContract):
    """All sample files that bear the analyzer's mark."""

    def samples(self) -> Sequence[bytes]:
        mark = self.analyzer().mark
        return [text for text in FILES if any(mark.search(line) for line in as_lines(text))]


class TestSglangLog(OverSamples):
    name = "sglang-log"


class TestVllmLog(OverSamples):
    name = "vllm-log"


class TestNcclLog(OverSamples):
    name = "nccl-log"


class TestNwchemOut(OverSamples):
    name = "nwchem-out"


class TestMpip(OverSamples):
    name = "mpip"


class TestIpm(OverSamples):
    name = "ipm"


class TestVtune(OverSamples):
    name = "vtune"


class TestPerf(OverSamples):
    name = "perf"


class TestNsys(OverSamples):
    name = "nsys"


class TestTorchTrace(OverSamples):
    name = "torch-trace"


class TestBatchFooter(OverSamples):
    name = "batch-footer"


class TestBindings(OverSamples):
    name = "bindings"


class TestFailedJob(OverSamples):
    name = "failed-job"


class TestFailedProgram(OverSamples):
    name = "failed-program"
    foreign = tuple(lines for lines in OverSamples.foreign if not any("Traceback" in line for line in lines))


def test_every_analyzer_of_the_catalog_is_held_to_these_promises() -> None:
    assert set(catalog.shipped("analyzers")) <= held_to(AnalyzerContract)


def test_an_analyzer_is_called_as_in_the_catalog_and_says_what_it_reads() -> None:
    for name in catalog.shipped("analyzers"):
        analyzer = catalog.part("analyzers", name)
        assert analyzer.kind == name
        assert " " in analyzer.what and analyzer.what != name
