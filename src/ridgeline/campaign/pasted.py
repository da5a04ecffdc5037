"""A point as a person types it: what the workload writes, after the modules that the study loads for it."""

from __future__ import annotations

import shlex

from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.workloads.base import Workload


def pasted(study: Study, workload: Workload, point: Point) -> str:
    settings = study.space.settings(point)
    loads = [f"module load {shlex.quote(name)}" for name in study.job.loaded(settings)]
    return "\n".join([*loads, workload.paste(settings)])
