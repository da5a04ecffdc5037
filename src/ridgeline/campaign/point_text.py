"""A setting as a person types it: `knob=value,knob=value` on our command line, and what runs it without us."""

from __future__ import annotations

import shlex

from ridgeline.campaign.check import CheckedStudy
from ridgeline.errors import InputError, near
from ridgeline.records.expression import Value
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.store.yaml_tree import resolve
from ridgeline.workloads.base import Workload


def parse_point(found: CheckedStudy, text: str, start: Point) -> Point:
    """`knob=value,knob=value` applied to `start`; the word baseline is the study's own."""
    space = found.study.space
    if text.strip() == "baseline":
        return found.study.baseline
    values: dict[str, Value] = dict(start)
    for part in text.split(","):
        name, sep, value = (piece.strip() for piece in part.partition("="))
        if not sep or name not in space.by_name:
            raise InputError(f"{part.strip()!r} is not knob=value; {near(name, space.by_name)}")
        values[name] = value if space.by_name[name].contains(value) else resolve(value)
        if not space.by_name[name].contains(values[name]):
            raise InputError(f"{name}={value} lies outside the study's space; see `ridgeline check`")
    point = space.restrict(values)
    if gaps := space.missing(point):
        raise InputError(f"{text!r} leaves {', '.join(gaps)} without a value; add {gaps[0]}=VALUE")
    if reason := found.refusal(point):
        raise InputError(f"{text!r} is refused: {reason}")
    return point


def pasted(study: Study, workload: Workload, point: Point) -> str:
    """What the workload writes, after the modules that the study loads for this point."""
    settings = study.space.settings(point)
    loads = [f"module load {shlex.quote(name)}" for name in study.job.loaded(settings)]
    return "\n".join([*loads, workload.paste(settings)])
