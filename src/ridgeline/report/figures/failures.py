"""What failed: counts by kind with the first of each, and where failures of one kind lie together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable, value_text
from ridgeline.records.expression import is_number
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.values import is_ok, judged_runs, varied_knobs
from ridgeline.stats.wording import count
from ridgeline.study.history import History

_Judged = Sequence[tuple[Trial, Run]]


def what_failed(history: History, answer: Answer) -> str:
    """Of a campaign that was stopped since not even its first setting passed: how that failed. Empty for others."""
    runs = [*history.runs.values()]
    if "did not pass" not in answer.stopped or any(map(is_ok, runs)) or not runs or (last := runs[-1].outcome) is None:
        return ""
    return f"{answer.reference.label} did not pass: {last.reason or last.kind.text}"


def failure_table(study: Study, history: History) -> TextTable | None:
    """A row for each kind, most frequent first; None where nothing failed."""
    failed: dict[Kind, list[str]] = {}
    for run in history.runs.values():
        if run.outcome is not None and not is_ok(run):
            failed.setdefault(run.outcome.kind, []).append(f"#{run.trial}: {run.outcome}")
    if not failed:
        return None
    found = sorted(failed.items(), key=lambda each: -len(each[1]))
    rows = tuple((kind.text, str(len(stories)), stories[0]) for kind, stories in found)
    title, head = "Runs that do not count", ("outcome", "runs", "first one")
    return TextTable(title, head, rows, frozenset(range(len(rows))), notes=tuple(_where(study, history)))


def _where(study: Study, history: History) -> Iterator[str]:
    """Where failures of one kind lie and passes do not, and that the others have no such place: two crashes with
    different causes share no knob."""
    judged = [(t, r) for t, r in judged_runs(history) if t.stage is not Stage.PROFILE]
    knobs = varied_knobs(study, history)
    kinds = Counter(_kind(run) for _, run in judged if not is_ok(run))
    for kind, n in kinds.most_common():
        runs = [(t, r) for t, r in judged if is_ok(r) or _kind(r) == kind]
        if 1 < n < len(runs) and len(knobs) > 1 and (place := _place(knobs, runs)):
            yield f"{'Both' if n == 2 else f'All {n}'} failures ({kind}) are at {place}"
            del kinds[kind]
            break
    if kinds:
        yield f"{count(kinds.total(), 'failure')} ({', '.join(kinds)}) not explained by any knob."


def _kind(run: Run) -> str:
    """Running out of memory is one kind, at the start and later."""
    assert run.outcome is not None
    kind = run.outcome.kind
    return Kind.OOM_RUN.short if kind in (Kind.OOM_START, Kind.OOM_RUN) else kind.text


def _place(knobs: Sequence[str], runs: _Judged) -> str:
    """The part of one knob in which the failures lie, else for each value of a second one a part; empty for neither."""
    for x in knobs:
        if _holds(x, runs):
            return f"{_part(x, runs)}, where nothing passed."
    for x, y in permutations(knobs, 2):
        if _numeric(x, runs) and _holds_for_each(x, y, runs):
            return f"{_part(x, runs)}; where exactly depends on {y}, and beyond it nothing passed."
    return ""


def _part(name: str, runs: _Judged) -> str:
    values = {t.point.get(name) for t, r in runs if not is_ok(r)}
    ordered = sorted(values, key=lambda v: (not is_number(v), v if is_number(v) else 0, str(v)))
    if not _numeric(name, runs):
        return f"{name} {', '.join(map(str, ordered))}"
    return f"{name} {' to '.join(map(value_text, dict.fromkeys((ordered[0], ordered[-1]))))}"


def _holds(name: str, runs: _Judged) -> bool:
    """Whether the failures share a place on this knob in which nothing passed."""
    failed = [t.point.get(name) for t, r in runs if not is_ok(r)]
    passed = [t.point.get(name) for t, r in runs if is_ok(r)]
    if not passed:
        return False
    if _numeric(name, runs):
        return not any(min(failed) <= value <= max(failed) for value in passed)  # type: ignore[operator, type-var]
    return len(set(map(repr, failed))) < len(failed) and not {*map(repr, failed)} & {*map(repr, passed)}


def _holds_for_each(x: str, y: str, runs: _Judged) -> bool:
    groups: dict[str, list[tuple[Trial, Run]]] = {}
    for trial, run in runs:
        groups.setdefault(repr(trial.point.get(y)), []).append((trial, run))
    failing = [group for group in groups.values() if any(not is_ok(r) for _, r in group)]
    failures = sum(not is_ok(r) for _, r in runs)
    return len(failing) < failures and all(_holds(x, group) for group in failing)


def _numeric(name: str, runs: _Judged) -> bool:
    return all(is_number(t.point.get(name)) for t, _ in runs)
