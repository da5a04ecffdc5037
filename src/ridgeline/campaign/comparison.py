"""Two settings of a study, compared in interleaved runs: a campaign whose search is one given setting."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ridgeline.campaign.assembly import Overrides
from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.records.space import Point, point_hash, point_key
from ridgeline.store.folder import StudyFolder
from ridgeline.store.yaml_tree import resolve


def comparison_folder(
    study_path: Path, a: str, b: str, blocks: int | None, out: Path | None
) -> tuple[StudyFolder, Overrides]:
    found = check_study(study_path)
    first = parse_point(found, a, found.study.baseline)
    second = parse_point(found, b, first)
    if point_key(first) == point_key(second):
        raise InputError(f"both settings are {point_key(first)}; change at least one knob of B")
    name = f"{found.study.name}-{point_hash(first)[:6]}-{point_hash(second)[:6]}"
    folder = StudyFolder.create(out or Path("studies") / name, found.file)
    overrides: dict[str, object] = {"baseline": dict(first), "candidate": dict(second)}
    return folder, overrides if blocks is None else overrides | {"blocks": blocks}


def parse_point(found: CheckedStudy, text: str, start: Point) -> Point:
    """`knob=value,knob=value` applied to `start`; the word baseline is the study's own."""
    space = found.study.space
    if text.strip() == "baseline":
        return found.study.baseline
    values: dict[str, Value] = dict(start)
    for part in text.split(","):
        name, sep, value = (word.strip() for word in part.partition("="))
        if not sep or name not in space.by_name:
            near = get_close_matches(name, space.by_name, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(space.by_name)}"
            raise InputError(f"{part.strip()!r} is not knob=value; {hint}")
        values[name] = value if space.by_name[name].contains(value) else resolve(value)
        if not space.by_name[name].contains(values[name]):
            raise InputError(f"{name}={value} lies outside the study's space; see `ridgeline check`")
    point = space.restrict(values)
    if gaps := space.missing(point):
        raise InputError(f"{text!r} leaves {', '.join(gaps)} without a value; add {gaps[0]}=VALUE")
    if reason := found.refusal(point):
        raise InputError(f"{text!r} is refused: {reason}")
    return point
