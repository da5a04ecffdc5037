"""Tune there, confirm here: settings that a search on a stand-in found, carried to the target.

The stand-in is a smaller cluster, fewer GPUs or a simulated site. What it measured is never taken for a measurement of
the target: there every setting runs again, with the target's own baseline and confirmation. The figures of the stand-in
travel in the question of the target's campaign, so that one report shows both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.campaign import scores
from ridgeline.errors import InputError
from ridgeline.records.exhibit import TextTable, changes
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.verdict import Comparison
from ridgeline.stats.wording import count, ratio_range, ratio_text
from ridgeline.study.history import History
from ridgeline.study.study_space import checked_point


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
    if not base or not score or not sum(base):
        return None
    ratio = score / (sum(base) / len(base))
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
        rows.append(
            (
                changes(study.baseline, each["point"]),
                _times(each.get("gain")),
                _times(_gain(study, history, ranked[key])) if key in ranked else _not_passed(history, key),
                _confirmed(confirmed.get(key)),
            )
        )
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
