"""What failed: counts by kind with the first of each, and where failures of one kind lie together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable, value_text
from ridgeline.records.expression import Value, is_number
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.values import is_ok, judged_runs, varied_knobs
from ridgeline.stats.wording import count
from ridgeline.study.history import History

_OOM = "oom"  # at the start and while running


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
    return TextTable(title, head, rows, frozenset(range(len(rows))), notes=tuple(_where(study, history)))


def _where(study: Study, history: History) -> Iterator[str]:
    """Where failures of one kind lie and passes do not, and that the others have no such place: two crashes with
    different causes share no knob."""
    every, pattern = _judged(history), _pattern(study, history)
    if pattern is not None:
        yield _place(pattern, [(t, r) for t, r in every if is_ok(r) or _kind(r) == pattern.kind])
    kinds = Counter(_kind(r) for _, r in every if not is_ok(r) and (pattern is None or _kind(r) != pattern.kind))
    if kinds:
        named = ", ".join(map(_words, kinds))
        yield f"{count(kinds.total(), 'failure')} without a pattern ({named}): see each by itself."


Judged = Sequence[tuple[Trial, Run]]


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Failures of one kind that lie together: within `x`, or for each value of `y` within a part of `x`."""

    kind: str
    x: str
    y: str | None


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
        for x in knobs:
            if _holds(x, runs):
                return _Pattern(kind, x, None)
        for x in knobs:
            for y in knobs:
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


def _shown(part: Sequence[Value]) -> str:
    ends = [value_text(value) for value in part]
    return ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


def _numeric(name: str, runs: Sequence[tuple[Trial, Run]]) -> bool:
    return all(is_number(t.point.get(name)) for t, _ in runs)


def _words(short: str) -> str:
    return Kind.OOM_RUN.short if short == _OOM else Kind(short).text


def _short(kind: str) -> str:
    return _OOM if kind in (Kind.OOM_START, Kind.OOM_RUN) else kind
