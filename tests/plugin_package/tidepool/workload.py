"""`gzip`: how small a file gets. Knobs: level (1 to 9), rsyncable. Metric: size_bytes."""

import re
import shlex
from pathlib import Path

from ridgeline.records.measurement import Measurement, Reading
from ridgeline.records.outcome import Kind, Signature
from ridgeline.records.run import Job, Run
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.workloads.base import Problem, Workload


class GzipWorkload(Workload):
    # lines of a failed run that say what kind of failure it was; without one it is a crash
    signatures = (Signature(re.compile("No space left on device"), Kind.NODE_FAULT, "the disk is full"),)
    logs = ("stderr",)

    def __init__(self, study: Study) -> None:
        self._study = study
        self._file = study.folder / str(study.workload.options.get("file", ""))

    def problems(self) -> list[Problem]:
        if not self._file.is_file():
            return [Problem(("workload", "file"), f"{self._file}: no such file; name the file to compress")]
        return []

    def refusal(self, settings: Settings) -> str | None:
        return None if settings.get("level", 6) in range(1, 10) else "gzip has levels 1 to 9"

    def prepare(self, trial: Trial, folder: Path) -> Job:
        folder.mkdir(parents=True, exist_ok=True)
        return Job(
            name=folder.name,
            folder=folder,
            command=f"{self.paste(trial.settings)} < {shlex.quote(str(self._file.resolve()))} | wc -c",
            resources=self._study.job.resources(trial.settings),
            limit_s=self._study.job.limit_s,
            silence_limit_s=self._study.job.silence_limit_s,
        )

    def read(self, run: Run) -> Reading:
        try:
            size = int((run.folder / "stdout").read_bytes())
        except (OSError, ValueError) as error:
            return Reading(problem=f"stdout does not hold a size: {error}")
        return Reading((Measurement("size_bytes", float(size), "B", "stdout"),))

    def paste(self, settings: Settings) -> str:
        rsyncable = " --rsyncable" if settings.get("rsyncable") else ""
        return f"gzip -{settings.get('level', 6)}{rsyncable}"
