"""`lammps`: an input script, run with each setting. Knobs are `ranks`, and variables of the script (`-var`)."""

import shlex
from pathlib import Path

from lammps_wing.log import LOG, read_log
from ridgeline.errors import Problem
from ridgeline.records.measurement import Reading, reported
from ridgeline.records.run import Job, Run
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.workloads.base import Workload
from ridgeline.workloads.run_folder import filling, job_in

_INPUT = "in.lammps"  # in the run folder


class LammpsWorkload(Workload):
    logs = ("stderr", LOG, "stdout")
    pasted_whole = True

    def __init__(self, study: Study) -> None:
        self._study = study
        self._script = study.folder / str(study.workload.options.get("input", ""))

    def problems(self) -> list[Problem]:
        if not self._script.is_file():
            return [Problem(("workload", "input"), f"{self._script}: no such file; name the LAMMPS input script")]
        return []

    def refusal(self, settings: Settings) -> str | None:
        return None

    def prepare(self, trial: Trial, folder: Path) -> Job:
        with filling(folder):
            (folder / _INPUT).write_bytes(self._script.read_bytes())
        resources = self._study.job.resources(trial.settings)
        return job_in(folder, self._study, resources, self._command(trial.settings, _INPUT))

    def read(self, run: Run) -> Reading:
        try:
            found = read_log((run.folder / LOG).read_text(errors="replace"))
        except OSError as error:
            return Reading(problem=f"{LOG}: {error.strerror}")
        if "timesteps_s" not in found:
            return Reading(problem=f"{LOG} has no line `Performance: ... timesteps/s`: the run did not come to its end")
        return Reading(tuple(reported(name, value, LOG) for name, value in found.items()))

    def paste(self, settings: Settings) -> str:
        return self._command(settings, str(self._script))

    def _command(self, settings: Settings, script: str) -> str:
        variables = [word for name, value in settings.items() if name != "ranks" for word in ("-var", name, str(value))]
        lmp = shlex.join(["lmp", "-in", script, "-log", LOG, *variables])
        ranks = int(settings.get("ranks", 1))
        return lmp if ranks == 1 else f"mpirun -n {ranks} {lmp}"
