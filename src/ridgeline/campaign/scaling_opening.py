"""From a study file and a knob to the folder of a scaling campaign."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.campaign.assembly import Overrides
from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.comparison import parse_point
from ridgeline.campaign.scaling import UNITS
from ridgeline.errors import InputError
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.store.folder import StudyFolder


def scaling_folder(
    study_path: Path, over: str | None, at: str, repeats: int, out: Path | None
) -> tuple[StudyFolder, Overrides]:
    """A new folder for the scaling of a setting over one knob, and the overrides that make its campaign one."""
    found = check_study(study_path)
    knob = over or _knob_to_scale(found.study)
    start = parse_point(found, at, found.study.baseline)
    points, refused = _sizes(found, knob, start)
    folder = StudyFolder.create(out or Path("studies") / f"{found.study.name}-scale-{knob}", found.file)
    scale = {"over": knob, "points": [dict(p) for p in points], "repeats": repeats, "refused": refused}
    return folder, {"scale": scale}


def _knob_to_scale(study: Study) -> str:
    for name in UNITS:
        if name in study.space.by_name and len(_numbers(study, name)) > 1:
            return name
    raise InputError(
        f"{study.name}: no knob among {', '.join(UNITS)} has two values or more; name the one to scale with --over"
    )


def _numbers(study: Study, knob: str) -> list[int]:
    values: Sequence[object] = getattr(study.space.by_name[knob], "values", ())
    return sorted(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0)


def _sizes(found: CheckedStudy, knob: str, start: Point) -> tuple[list[Point], dict[str, str]]:
    study = found.study
    if knob not in study.space.by_name:
        raise InputError(f"--over {knob}: not a knob of the study; known: {', '.join(study.space.by_name)}")
    points: list[Point] = []
    refused: dict[str, str] = {}
    for size in _numbers(study, knob):
        point = study.space.restrict({**start, knob: size})
        if gaps := study.space.missing(point):
            refused[str(size)] = f"{', '.join(gaps)} has no value there"
        elif reason := found.refusal(point):
            refused[str(size)] = reason
        else:
            points.append(point)
    if len(points) < 2:
        why = "; ".join(f"{size}: {reason}" for size, reason in refused.items())
        raise InputError(f"{knob} has {len(points)} legal whole numbers, scaling needs two{why and f' ({why})'}")
    return points, refused
