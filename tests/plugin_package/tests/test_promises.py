"""The parts of this package keep the promises of their seams."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from ridgeline.records.site import Site
from ridgeline.records.space import Discrete, Space
from ridgeline.records.study import Goal, Study, WorkloadChoice
from ridgeline.serving.engines.contract import EngineContract
from ridgeline.testing.contracts.analyzers import AnalyzerContract
from ridgeline.testing.contracts.executors import DialectContract, ExecutorContract
from ridgeline.testing.contracts.samplers import SamplerContract
from ridgeline.testing.contracts.workloads import WorkloadContract, WorkloadExample


class TestNearest(SamplerContract):
    name = "nearest"
    takes_continuous = False


class TestGzip(WorkloadContract):
    name = "gzip"

    def example(self, folder: Path) -> WorkloadExample:
        (folder / "words.txt").write_text("word " * 1000)
        study = Study(
            "promises",
            WorkloadChoice("gzip", {"file": "words.txt"}),
            Space((Discrete("level", [1, 6, 9], ordered=True),), {}),
            Goal("size_bytes", "minimize"),
            baseline={"level": 6},
            folder=folder,
        )
        return WorkloadExample(study, lambda run: (run / "stdout").write_text("45\n"), value=45.0, pasted={"level": 9})


def reef_study(folder: Path, kind: str) -> Study:
    options = {"model": "any", "engine": sys.executable, "traffic": {"requests": 8}}
    space = Space((Discrete("max_running_requests", [2, 4], ordered=True), Discrete("step_ms", [1, 2], True)), {})
    baseline = {"max_running_requests": 2, "step_ms": 1}
    return Study("reef", WorkloadChoice(kind, options), space, Goal("total_tok_s", "maximize"), baseline, folder)


class TestReef(EngineContract):
    name = "reef"
    failed = MappingProxyType({"reef: out of memory: 9 slots": "cuda-oom"})


class TestReefOffline(WorkloadContract):
    name = "reef-offline"

    def example(self, folder: Path) -> WorkloadExample:
        def write_run(run: Path) -> None:
            (run / "engine.log").write_text('reef 0.1.0 starts with {"slots": 2, "step_ms": 1.0}\n')
            (run / "offline.jsonl").write_text('{"total_tok_s": 45, "successful_requests": 8}')

        study = reef_study(folder, self.name)
        return WorkloadExample(study, write_run, 45.0, {"max_running_requests": 4}, log="offline.jsonl")


class TestGzipMessages(AnalyzerContract):
    name = "gzip-messages"

    def samples(self) -> Sequence[bytes]:
        return [b"unpacking\ngzip: a.gz: unexpected end of file\n", b"gzip: b.gz: not in gzip format\n"]


class TestTideDialect(DialectContract):
    name = "tide"

    def answers(self) -> Sequence[str]:
        return ["1 exited 3 0001-a-1f\n2 cancelled 137 b\n3 running 0 c\n"]


class TestTide(ExecutorContract):
    name = "tide"
    patience_s = 30.0

    @pytest.fixture(autouse=True)
    def _spool(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDE_SPOOL", str(tmp_path_factory.mktemp("tide")))

    def site(self) -> Site:
        return Site(name="tide", batch="tide", poll_s=0.2, options={"lost_after_s": 0.5, "settle_s": 0.5})
