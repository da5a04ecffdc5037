"""What failed where: counts by kind with the first of each, and a map of failures of one kind that lie together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable, value_text
from ridgeline.records.expression import Value, is_number
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.shapes import HeatCell, HeatFigure
from ridgeline.report.figures.values import is_ok, judged_runs, varied_knobs
from ridgeline.stats.wording import count, metric_text
from ridgeline.study.history import History

OUT_OF_MEMORY = ("oom-start", "oom-run")
_OOM = "oom"  # both of them
_MOST_PARTS = 12  # columns or lines of the map; a number with more values is cut into about that many ranges


def failure_counts(history: History) -> list[tuple[str, int, str]]:
    """Kind, by its value in files, how many, and the story of the first of them; most frequent first."""
    counts: Counter[str] = Counter()
    stories: dict[str, str] = {}
    for run in history.runs.values():
        if run.outcome is not None and not is_ok(run):
            counts[run.outcome.kind.value] += 1
            stories.setdefault(run.outcome.kind.value, f"#{run.trial}: {run.outcome}")
    return [(kind, n, stories[kind]) for kind, n in counts.most_common()]


def what_failed(history: History, answer: Answer) -> str:
    """Of a campaign that was stopped since not even its first setting passed: how that failed. Empty for others."""
    runs = [*history.runs.values()]
    if "did not pass" not in answer.stopped or any(map(is_ok, runs)) or not runs or (last := runs[-1].outcome) is None:
        return ""
    return f"{answer.reference.label} did not pass: {last.reason or last.kind.text}"


def failure_table(study: Study, history: History) -> TextTable | None:
    found = failure_counts(history)
    if not found:
        return None
    rows = tuple((Kind(kind).text, str(n), story) for kind, n, story in found)
    title, head = "Runs that do not count", ("outcome", "runs", "first one")
    unexplained = _without_pattern(_judged(history), _pattern(study, history))
    notes = (f"{unexplained}: see each by itself.",) if unexplained else ()
    return TextTable(title, head, rows, frozenset(range(len(rows))), notes=notes)


Judged = Sequence[tuple[Trial, Run]]


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Failures of one kind that lie together: within `x`, or for each value of `y` within a part of `x`."""

    kind: str
    x: str
    y: str | None


def crash_map(study: Study, history: History) -> HeatFigure | None:
    """Where failures of one kind lie, and passes do not; None where no kind of failure has such a place.

    Failures of other kinds are left out of it: two crashes with different causes share no knob.
    """
    every = _judged(history)
    pattern = _pattern(study, history)
    if pattern is None:
        return None
    runs = [(t, r) for t, r in every if is_ok(r) or _kind(r) == pattern.kind]
    ranked = sorted(varied_knobs(study, history), key=lambda name: -_told_by(name, runs))
    first, second = pattern.x, pattern.y or next(name for name in ranked if name != pattern.x)
    # the edge is read along the x axis, so numbers go there
    if not _numeric(first, runs) and _numeric(second, runs):
        first, second = second, first
    columns, lines = _parts(first, runs), _parts(second, runs)
    cells = tuple(tuple(_cell(study, runs, first, x, second, y) for x in columns) for y in lines)
    edges = tuple(_edge(row) for row in cells) if _numeric(first, runs) else ()
    edge = (
        "The heavy line is the edge of memory: right of it nothing passed." if any(e is not None for e in edges) else ""
    )
    others = _without_pattern(every, pattern)
    says = " ".join(part for part in (_place(pattern, runs), edge, f"The rest: {others}." if others else "") if part)
    return HeatFigure(
        "crashes", f"Where settings failed: {_words(pattern.kind)}", says, first, second,
        tuple(map(_shown, columns)), tuple(map(_shown, lines)), cells, "share that failed", edges, False,
    )  # fmt: skip


def _judged(history: History) -> Judged:
    return [(t, r) for t, r in judged_runs(history) if t.stage is not Stage.PROFILE]


def _kind(run: Run) -> str:
    return _short(run.outcome.kind.value) if run.outcome is not None else ""


def _pattern(study: Study, history: History) -> _Pattern | None:
    """Of the kind with most failures that lie together: one knob that holds them, else two."""
    every, knobs = _judged(history), varied_knobs(study, history)
    if len(knobs) < 2:
        return None
    for kind, n in Counter(_kind(r) for _, r in every if not is_ok(r)).most_common():
        runs = [(t, r) for t, r in every if is_ok(r) or _kind(r) == kind]
        if n < 2 or n == len(runs):
            continue
        ranked = sorted(knobs, key=lambda name: -_told_by(name, runs))
        for x in ranked:
            if _holds(x, runs):
                return _Pattern(kind, x, None)
        for x in ranked:
            for y in ranked:
                if x != y and _numeric(x, runs) and _holds_for_each(x, y, runs):
                    return _Pattern(kind, x, y)
    return None


def _holds(name: str, runs: Judged) -> bool:
    """Whether the failures share a place on this knob in which nothing passed."""
    failed = [t.point.get(name) for t, r in runs if not is_ok(r)]
    passed = [t.point.get(name) for t, r in runs if is_ok(r)]
    if _numeric(name, runs):
        low, high = _span(failed)
        return bool(passed) and not any(low <= _number(value) <= high for value in passed)
    return (
        bool(passed) and len(set(map(repr, failed))) < len(failed) and not {*map(repr, failed)} & {*map(repr, passed)}
    )


def _holds_for_each(x: str, y: str, runs: Judged) -> bool:
    groups: dict[str, list[tuple[Trial, Run]]] = {}
    for trial, run in runs:
        groups.setdefault(repr(trial.point.get(y)), []).append((trial, run))
    failing = [group for group in groups.values() if any(not is_ok(r) for _, r in group)]
    failures = sum(not is_ok(r) for _, r in runs)
    return len(failing) < failures and all(_holds(x, group) for group in failing)


def _span(values: Sequence[Value]) -> tuple[float, float]:
    numbers = [_number(value) for value in values]
    return min(numbers), max(numbers)


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _place(pattern: _Pattern, runs: Judged) -> str:
    failed = [t.point.get(pattern.x) for t, r in runs if not is_ok(r)]
    values = sorted(set(failed), key=lambda v: (not is_number(v), v if is_number(v) else 0, str(v)))
    where = f"{pattern.x} {_shown(values) if _numeric(pattern.x, runs) else ', '.join(map(str, values))}"
    every = "Both" if len(failed) == 2 else f"All {len(failed)}"
    said = f"{every} failures ({_words(pattern.kind)}) are at {where}"
    if pattern.y is None:
        return f"{said}, where nothing passed."
    return f"{said}; where exactly depends on {pattern.y}, and beyond it nothing passed."


def _without_pattern(every: Judged, pattern: _Pattern | None) -> str:
    """`N failures without a pattern (...)`, of failures that settings caused; empty where there are none."""
    kinds = Counter(_kind(r) for _, r in every if not is_ok(r) and (pattern is None or _kind(r) != pattern.kind))
    if not kinds:
        return ""
    return f"{count(kinds.total(), 'failure')} without a pattern ({', '.join(map(_words, kinds))})"


def _shown(part: Sequence[Value]) -> str:
    ends = [value_text(value) for value in part]
    return ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


def _numeric(name: str, runs: Sequence[tuple[Trial, Run]]) -> bool:
    return all(is_number(t.point.get(name)) for t, _ in runs)


def _parts(name: str, runs: Sequence[tuple[Trial, Run]]) -> list[list[Value]]:
    """The values of a knob from low to high; neighbours together where there are too many."""
    seen = list(dict.fromkeys(t.point.get(name) for t, _ in runs))
    seen.sort(key=lambda v: (not is_number(v), v if is_number(v) else 0, str(v)))
    size = -(-len(seen) // _MOST_PARTS)
    return [seen[at : at + size] for at in range(0, len(seen), size)]


def _told_by(name: str, runs: Sequence[tuple[Trial, Run]]) -> float:
    """How much knowing this knob says about whether a run fails, in bits, less what its many values say by chance."""
    groups: dict[str, list[bool]] = {}
    for trial, run in runs:
        groups.setdefault(repr(trial.point.get(name)), []).append(is_ok(run))
    inside = sum(len(g) / len(runs) * _bits(sum(g) / len(g)) for g in groups.values())
    chance = (len(groups) - 1) / (2 * len(runs) * math.log(2))
    return _bits(sum(is_ok(r) for _, r in runs) / len(runs)) - inside - chance


def _bits(share: float) -> float:
    return 0.0 if share in (0.0, 1.0) else -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def _cell(
    study: Study, runs: Sequence[tuple[Trial, Run]], x: str, at_x: Sequence[Value], y: str, at_y: Sequence[Value]
) -> HeatCell:
    here = [(t, r) for t, r in runs if t.point.get(x) in at_x and t.point.get(y) in at_y]
    if not here:
        return HeatCell()
    kinds = Counter(r.outcome.kind.value for _, r in here if r.outcome is not None and not is_ok(r))
    passed = [r.metrics[study.goal.metric] for _, r in here if is_ok(r) and study.goal.metric in r.metrics]
    best = f"; best {metric_text(max(passed, key=study.goal.score))}" if passed else ""
    line = ", ".join(f"{n} {Kind(kind).text}" for kind, n in kinds.items())
    label = f"{x} {_shown(at_x)}, {y} {_shown(at_y)}: {len(passed)} passed{', ' + line if line else ''}{best}"
    worst = kinds.most_common(1)[0][0] if kinds else ""
    text = f"{sum(kinds.values())}/{len(here)} failed" if kinds else f"{len(here)} ok"
    return HeatCell(sum(kinds.values()) / len(here), text, label, worst)


def _words(short: str) -> str:
    return Kind.OOM_RUN.short if short == _OOM else Kind(short).text


def _short(kind: str) -> str:
    return _OOM if kind in OUT_OF_MEMORY else kind


def _edge(row: Sequence[HeatCell]) -> int | None:
    """The last column with a pass, where only out-of-memory follows; None where the row shows no edge."""
    ran = [at for at, cell in enumerate(row) if cell.value is not None]
    passed = [at for at in ran if (row[at].value or 0.0) < 1.0]
    if not passed:
        return None
    after = [row[at].failed for at in ran if at > passed[-1]]
    return passed[-1] if after and all(kind in OUT_OF_MEMORY for kind in after) else None
