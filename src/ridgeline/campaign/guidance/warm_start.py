"""What earlier studies learned, brought to a new one: never as if measured here, only as what is expected.

The observations are written into the new study's folder when it is made, so that a resumed campaign knows the same,
whatever became of the earlier folders.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ridgeline.campaign import scores
from ridgeline.errors import InputError, StoreError
from ridgeline.files import read_text, write_whole
from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, Space, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.study.folder import StudyFolder
from ridgeline.study.history import History, read_history

FILE = "warm-start.json"


def gather(study: Study, folders: Sequence[Path]) -> list[Observation]:
    """The observations of these study folders that mean something here. InputError says which folder cannot help."""
    return [observation for path in folders for observation in _observations(study, path)]


def keep(folder: StudyFolder, observations: Sequence[Observation]) -> None:
    rows = [
        {"point": dict(observation.point), "score": observation.score, "node_s": observation.node_s}
        for observation in observations
    ]
    try:
        write_whole(folder.path / FILE, json.dumps(rows, indent=1) + "\n")
    except OSError as error:
        raise StoreError(f"{folder.path / FILE}: cannot be written ({error.strerror}); free space") from None


def kept(root: Path) -> list[Observation]:
    """The observations that this study folder began with; none where it began without."""
    path = root / FILE
    try:
        rows = json.loads(read_text(path))
        return [Observation(row["point"], row["score"], row.get("node_s")) for row in rows]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path}: cannot be read ({error}); restore a copy, or remove it to continue without it"
        ) from None


def _observations(study: Study, path: Path) -> list[Observation]:
    history = read_history(StudyFolder.open(path).path)
    earlier = StudyFolder(path).load(history).study
    where = f"--warm-start {path}"
    if earlier.goal != study.goal:
        raise InputError(
            f"{where}: its goal is to {earlier.goal.direction} {earlier.goal.metric}, this study's to "
            f"{study.goal.direction} {study.goal.metric}; name a study with the same goal"
        )
    if not set(study.space.by_name) <= set(earlier.space.by_name):
        lacking = [name for name in study.space.by_name if name not in earlier.space.by_name]
        raise InputError(
            f"{where}: another space: it has no knob {', '.join(lacking)} "
            f"(its knobs: {', '.join(earlier.space.by_name)}); name a study of the same space"
        )
    found = _of_space(study.space, earlier, history)
    if not found:
        raise InputError(f"{where}: none of its trials is a point of this study's space; name a study that shares some")
    return found


def _of_space(space: Space, earlier: Study, history: History) -> list[Observation]:
    """Each setting that passed with its mean score, each that failed by its own fault, as points of this space."""
    passed: dict[str, list[float]] = {}
    points: dict[str, Point] = {}
    failed: dict[str, Point] = {}
    for trial, score in scores.compared_scores(earlier, history, *Stage):
        if (own := _own(space, trial.point)) is not None:
            points[point_key(own)] = own
            passed.setdefault(point_key(own), []).append(score)
    for trial in history.trials.values():
        run = history.final_run(trial)
        own = _own(space, trial.point)
        if own is None or run is None or run.outcome is None or point_key(own) in points:
            continue
        if run.outcome.kind.caused_by_setting:
            failed[point_key(own)] = own
    means = [Observation(points[key], sum(values) / len(values)) for key, values in passed.items()]
    return [*means, *(Observation(point, None) for point in failed.values())]


def _own(space: Space, point: Point) -> Point | None:
    own = space.restrict(point)
    inside = all(space.by_name[name].contains(value) for name, value in own.items())
    return own if inside and not space.missing(own) else None
