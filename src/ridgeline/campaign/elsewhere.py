"""What other studies found, brought to a new one: never as if measured here, only as what is expected or tried again.

`gather` and `keep` are observations that a sampler begins with. They are written into the new study's folder when it is
made, so that a resumed campaign knows the same, whatever became of the earlier folders.

`carry` takes the best settings of a stand-in (a smaller cluster, fewer GPUs, a simulated site) to the target, where
every one runs again, with the target's own baseline and confirmation. The figures of the stand-in travel in the
question of the target's campaign, so that one report shows both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ridgeline.campaign import scores
from ridgeline.errors import InputError, StoreError
from ridgeline.files import read_text, write_whole
from ridgeline.records.exhibit import TextTable, changes
from ridgeline.records.observation import Observation
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Point, Space, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.verdict import Comparison
from ridgeline.stats.wording import count, ratio_range, ratio_text
from ridgeline.study.folder import StudyFolder
from ridgeline.study.history import History, read_history
from ridgeline.study.study_space import checked_point

FILE = "warm-start.json"


def gather(study: Study, folders: Sequence[Path]) -> list[Observation]:
    """The observations of these study folders that mean something here. InputError says which folder cannot help."""
    found: list[Observation] = []
    for path in folders:
        history = read_history(StudyFolder.open(path).path)
        earlier = StudyFolder(path).load(history).study
        where = f"--warm-start {path}"
        if earlier.goal != study.goal:
            raise InputError(
                f"{where}: its goal is to {earlier.goal.direction} {earlier.goal.metric}, this study's to "
                f"{study.goal.direction} {study.goal.metric}; name a study with the same goal"
            )
        if lacking := [name for name in study.space.by_name if name not in earlier.space.by_name]:
            raise InputError(
                f"{where}: another space: it has no knob {', '.join(lacking)} "
                f"(its knobs: {', '.join(earlier.space.by_name)}); name a study of the same space"
            )
        shared = _of_space(study.space, earlier, history)
        if not shared:
            raise InputError(
                f"{where}: none of its trials is a point of this study's space; name a study that shares some"
            )
        found += shared
    return found


def keep(folder: StudyFolder, observations: Sequence[Observation]) -> None:
    rows = [{"point": dict(each.point), "score": each.score, "node_s": each.node_s} for each in observations]
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


def _of_space(space: Space, earlier: Study, history: History) -> list[Observation]:
    """Each setting that passed with its mean score, each that failed by its own fault, as points of this space."""
    passed: dict[str, tuple[Point, list[float]]] = {}
    failed: dict[str, Point] = {}
    for trial, score in scores.compared_scores(earlier, history, *Stage):
        if (own := _own(space, trial.point)) is not None:
            passed.setdefault(point_key(own), (own, []))[1].append(score)
    for trial in history.trials.values():
        run, own = history.final_run(trial), _own(space, trial.point)
        if own is None or point_key(own) in passed or run is None or run.outcome is None:
            continue
        if run.outcome.kind.caused_by_setting:
            failed[point_key(own)] = own
    means = [Observation(point, fmean(values)) for point, values in passed.values()]
    return [*means, *(Observation(point, None) for point in failed.values())]


def _own(space: Space, point: Point) -> Point | None:
    own = space.restrict(point)
    inside = all(space.by_name[name].contains(value) for name, value in own.items())
    return own if inside and not space.missing(own) else None


def carry(
    there: Study, history: History, target: Study, top: int
) -> tuple[list[dict[str, Any]], dict[str, Any], list[str]]:
    """The best settings of the stand-in as points of the target, each with its gain there; what is said of that search;
    and why others stayed behind. InputError where none can be carried."""
    ranked = scores.ranking(there, history)
    if not ranked:
        raise InputError(
            f"no setting passed on {there.site.name}, so there is nothing to carry; see `ridgeline status`"
        )
    carried: list[dict[str, Any]] = []
    behind: list[str] = []
    for point, score in ranked:
        if len(carried) == top:
            break
        found, problems = _in_target(target, point)
        if problems:
            behind.append(f"{changes(there.baseline, point)} stays behind: {'; '.join(problems)}")
        elif point_key(found) != point_key(target.baseline) and found not in [each["point"] for each in carried]:
            carried.append({"point": found, "gain": _gain(there, history, score)})
    if not carried:
        raise InputError(
            f"no setting of {there.site.name} fits the space here: {behind[0] if behind else 'all are the baseline'}"
        )
    searched = {
        "study": there.name,
        "site": there.site.name,
        "runs": len(history.runs),
        "node_hours": round(history.node_hours, 6),
    }
    return carried, searched, behind


def _in_target(target: Study, point: Point) -> tuple[dict[str, Any], list[str]]:
    """The point in the target's space: knobs that it does not know are left out, others are as in its baseline."""
    known = {name: value for name, value in point.items() if name in target.space.by_name}
    problems: list[str] = []
    found = checked_point(
        target.space, {**target.baseline, **known}, (), lambda where, what: problems.append(f"{where[-1]} {what}")
    )
    return found or {}, problems


def _gain(study: Study, history: History, score: float) -> float | None:
    """How many times better than the baseline, both as in the search."""
    base = [score for _, score in scores.compared_scores(study, history, Stage.BASELINE)]
    if not score or not sum(base):
        return None
    ratio = score / fmean(base)
    return ratio if study.goal.direction == "maximize" else 1 / ratio


def carried_table(
    carried: Sequence[Mapping[str, Any]],
    searched: Mapping[str, Any],
    study: Study,
    history: History,
    comparisons: Sequence[Comparison] = (),
) -> TextTable:
    """Each carried setting with its gain on the stand-in beside its gain here."""
    ranked = {point_key(point): score for point, score in scores.ranking(study, history)}
    confirmed = {comparison.candidate: comparison for comparison in comparisons}
    rows = []
    for each in carried:
        key = point_key(each["point"])
        here = _times(_gain(study, history, ranked[key])) if key in ranked else _not_passed(history, key)
        point = changes(study.baseline, each["point"])
        rows.append((point, _times(each.get("gain")), here, _confirmed(confirmed.get(key))))
    there = searched["site"]
    head = ("setting", f"first run on {there}", f"first run on {study.site.name}", f"confirmed on {study.site.name}")
    note = (
        f"searched on {there} ({searched['study']}): {count(searched['runs'], 'run')}, "
        f"{searched['node_hours']:.3g} node-hours; gains there are no measurements of {study.site.name}"
    )
    return TextTable("Found on the stand-in, tried here", head, tuple(rows), notes=(note,))


def _times(gain: float | None) -> str:
    return "–" if gain is None else ratio_text(gain)


def _not_passed(history: History, key: str) -> str:
    for run in history.runs.values():
        if history.trials[run.trial].key == key and run.outcome is not None and run.outcome.kind is not Kind.OK:
            return run.outcome.kind.value
    return "not tried"


def _confirmed(comparison: Comparison | None) -> str:
    if comparison is None:
        return "–"
    if comparison.ratio is None or comparison.low is None or comparison.high is None:
        return str(comparison.verdict.value)
    times, spread = ratio_range(comparison.ratio, comparison.low, comparison.high)
    return f"{times} ({spread})"
