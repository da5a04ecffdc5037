"""The parts of this package keep the promises of their seams."""

from collections.abc import Sequence
from pathlib import Path

from ridgeline.records.space import Discrete, Space
from ridgeline.records.study import Goal, Study, WorkloadChoice
from ridgeline.testing.contracts.analyzers import AnalyzerContract
from ridgeline.testing.contracts.workloads import WorkloadContract, WorkloadExample

HOME = Path(__file__).resolve().parent.parent
LOG = Path(__file__).with_name("melt.log")  # of LAMMPS 29 Sep 2021 on two ranks


class TestLammps(WorkloadContract):
    name = "lammps"

    def example(self, folder: Path) -> WorkloadExample:
        (folder / "in.melt").write_bytes((HOME / "in.melt").read_bytes())
        space = Space((Discrete("skin", [0.3, 0.5], ordered=True), Discrete("ranks", [1, 2], ordered=True)), {})
        study = Study(
            "promises",
            WorkloadChoice("lammps", {"input": "in.melt"}),
            space,
            Goal("timesteps_s", "maximize"),
            baseline={"skin": 0.3, "ranks": 1},
            folder=folder,
        )
        written = lambda run: (run / "log.lammps").write_bytes(LOG.read_bytes())  # noqa: E731
        return WorkloadExample(study, written, 26.065, {"skin": 0.5, "ranks": 2}, log="log.lammps")


class TestLog(AnalyzerContract):
    name = "lammps-log"

    def samples(self) -> Sequence[bytes]:
        return [LOG.read_bytes()]
