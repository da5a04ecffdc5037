"""What every workload does with a run's folder: fill it, and make it a job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ridgeline.errors import StoreError
from ridgeline.records.run import Job, Resources, job_name
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Makes the folder. A full disk is the store's trouble, and no fault of the setting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder}: cannot fill the run folder ({error.strerror}); make room and resume"
        ) from error


def job_in(
    folder: Path,
    study: Study,
    resources: Resources,
    command: str,
    env: Mapping[str, str] | None = None,
    grace_s: float | None = None,
) -> Job:
    """The job of that folder, within the study's limits. `grace_s` as `Job` has it."""
    limits = study.job
    return Job(
        name=job_name(study.name, folder.name),
        folder=folder,
        command=command,
        env=env or {},
        resources=resources,
        limit_s=limits.limit_s,
        silence_limit_s=limits.silence_limit_s,
        grace_s=grace_s,
    )


def build_seen_from(folder: Path, trial: Trial) -> str:
    """The way from a run folder to what was built for it; `.` where nothing was."""
    return os.path.relpath(trial.build.resolve(), folder.resolve()) if trial.build else "."
