"""What had to hold for a result to count: each guard with the runs it judged, and how near to its limit they came."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ridgeline.records.exhibit import TextTable
from ridgeline.records.guard import Closeness, Condition, Guard
from ridgeline.records.outcome import Kind
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.study.history import History

_SIMPLE = re.compile(r"^\s*(\w+)\s*(<=|>=|==|<|>)\s*([-+0-9.eE]+)\s*$")


def guard_table(study: Study, history: History) -> TextTable | None:
    """None for a study without guards."""
    if not study.guards:
        return None
    passed = [(t.number, {**r.texts, **r.metrics}) for t, r in history.ok_runs(*Stage)]
    broken = [run for run in history.runs.values() if run.outcome is not None and run.outcome.kind is Kind.WRONG]
    rows = []
    for guard in study.guards:
        failing = [f"#{r.trial}" for r in broken if r.outcome is not None and _names(guard, r.outcome.reason)]
        rows.append((str(guard), str(len(passed)), _worst(guard, passed, history.reference), ", ".join(failing) or "–"))
    failed = frozenset(at for at, row in enumerate(rows) if row[3] != "–")
    head = ("guard", "runs that passed", "tightest margin", "runs rejected")
    return TextTable("Guards", head, tuple(rows), failed)


def _names(guard: Guard, reason: str) -> bool:
    if isinstance(guard, Closeness):
        return reason.startswith(f"{guard.metric} ")
    return str(guard) in reason or (not guard.names and str(guard).split(" ")[0] in reason)


def _worst(guard: Guard, runs: list[tuple[int, dict[str, object]]], reference: Mapping[str, object]) -> str:
    """How near the nearest run came, in words; what no number measures simply held."""
    if not runs:
        return "no run counts yet"
    if isinstance(guard, Closeness):
        return _closeness(guard, runs, reference)
    match = _SIMPLE.match(str(guard)) if isinstance(guard, Condition) else None
    if match is None:
        return "held in all of them"
    metric, sign, limit = match[1], match[2], float(match[3])
    values = [(number, float(v)) for number, row in runs if isinstance(v := row.get(metric), int | float)]
    if not values:
        return "not measured"
    if sign == "==":
        return f"all equal {limit:g}" if all(v == limit for _, v in values) else "held in all of them"
    number, value = (max if sign in ("<", "<=") else min)(values, key=lambda pair: pair[1])
    room = (limit - value) if sign in ("<", "<=") else (value - limit)
    share = f", {room / abs(limit):.0%} of the limit to spare" if limit else ""
    return f"{value:.4g} at #{number}{share}"


def _closeness(guard: Closeness, runs: list[tuple[int, dict[str, object]]], reference: Mapping[str, object]) -> str:
    target = guard.reference if guard.reference is not None else reference.get(guard.metric)
    if not isinstance(target, int | float):
        return "held in all of them"
    limit = guard.abs_tol + guard.rel_tol * abs(target)
    gaps = [(abs(v - target), number) for number, row in runs if isinstance(v := row.get(guard.metric), int | float)]
    if not gaps:
        return "not measured"
    gap, number = max(gaps)
    share = f", {gap / limit:.0%} of the tolerance used" if limit else ""
    return f"off by {gap:.3g} at #{number}{share}"
