"""Findings with the lines that show them, and two files side by side, for a terminal of 80 columns."""

from __future__ import annotations

from textwrap import wrap

from ridgeline.diagnose.base import Diagnosis
from ridgeline.diagnose.comparison import FigureChange, FindingChange, LogComparison
from ridgeline.records.finding import Finding

WIDTH = 80
_QUOTE_LINES = 3
_Row = tuple[str, str, str, str]


def diagnosis_text(diagnosis: Diagnosis) -> str:
    head = f"{diagnosis.path} ({', '.join(diagnosis.kinds)})"
    notes = [_wrapped(f"  note: {note}", "    ") for note in diagnosis.notes]
    if not diagnosis.findings:
        return "\n".join([*notes, f"{head}: nothing to report"])
    return "\n\n".join([_wrapped(head, "  "), *notes, *map(_finding, diagnosis.findings)])


def _finding(finding: Finding) -> str:
    lines = [_wrapped(f"  {finding.severity}: {finding.claim}", "    ")]
    lines += [_quote(f"{e.line_number}: {e.text}") for e in finding.evidence]
    if finding.share is not None or finding.severity != "note":
        lines.append(f"    at stake: {stake(finding)}")
    lines.append(_wrapped(f"    -> {finding.advice}", "       "))
    if finding.knobs:
        knobs = ", ".join(f"{k.name} {_values(k.values)}" for k in finding.knobs)
        lines.append(_wrapped(f"    try: {knobs}", "       "))
    return "\n".join(lines)


def stake(finding: Finding) -> str:
    return "not known" if finding.share is None else f"up to {finding.share:.0%} of the time"


def _values(values: tuple[object, ...]) -> str:
    return " or ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)


def _quote(text: str) -> str:
    """As far as it fits into three lines: the rest is in the file, at the number in front."""
    lines = wrap(_printable(text), WIDTH, initial_indent="      ", subsequent_indent="        ", break_on_hyphens=False)
    if len(lines) > _QUOTE_LINES:
        lines = lines[:_QUOTE_LINES]
        lines[-1] = lines[-1][: WIDTH - 2] + " …"
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> str:
    start = len(text) - len(text.lstrip())
    return "\n".join(
        wrap(
            _printable(text.strip()),
            WIDTH,
            initial_indent=" " * start,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
    )


def _printable(text: str) -> str:
    """A log can hold codes that would move the cursor or rename the window."""
    return "".join(c if c.isprintable() else " " if c in "\t\r\n" else "\ufffd" for c in text)


def comparison_text(comparison: LogComparison) -> str:
    first, second = comparison.first, comparison.second
    parts = [_wrapped(f"A {first.path} ({', '.join(first.kinds)})", "  ")]
    parts[0] += "\n" + _wrapped(f"B {second.path} ({', '.join(second.kinds)})", "  ")
    parts += [_wrapped(f"  note: {note}", "    ") for note in (*first.notes, *second.notes)]
    if comparison.settings:
        rows = [(n, _short(a), _short(b), "") for n, a, b in comparison.settings]
        parts.append(_columns(("settings that differ", "A", "B", ""), rows))
    moved = [f for f in comparison.figures if f.first or f.second]
    if moved:
        rows = [(f.name, _amount(f.first, f.unit), _amount(f.second, f.unit), _change(f)) for f in moved]
        parts.append(_columns(("figures", "A", "B", "change"), rows))
    parts += _finding_changes(comparison.findings)
    if len(parts) == 1:
        parts.append("nothing changed that the logs tell of")
    return "\n\n".join(parts)


def _finding_changes(changes: tuple[FindingChange, ...]) -> list[str]:
    came = [c.second for c in changes if c.second and not c.first]
    went = [c.first for c in changes if c.first and not c.second]
    stayed = [(c.first, c.second) for c in changes if c.first and c.second]
    parts = []
    for title, findings in (("only in B", came), ("only in A", went)):
        if findings:
            parts.append("\n".join([f"{title}:", *(_line(f) for f in findings)]))
    if stayed:
        lines = [
            _line(after) + (f" (A: {stake(before)})" if before.share != after.share else "") for before, after in stayed
        ]
        parts.append("\n".join(["in both, as B says it:", *(_wrapped(line, "    ") for line in lines)]))
    return parts


def _line(finding: Finding) -> str:
    said = f"  {finding.severity}: {finding.claim}"
    return _wrapped(said + (f"; at stake: {stake(finding)}" if finding.share is not None else ""), "    ")


def _short(value: object) -> str:
    text = _printable("–" if value is None else str(value))
    return text if len(text) <= 18 else text[:17] + "…"


def _cut(name: str) -> str:
    return name if len(name) <= 34 else name[:33] + "…"


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "share":
        return f"{value:.1%}"
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{shown} {unit}".strip()


def _change(figure: FigureChange) -> str:
    if figure.first is None or figure.second is None:
        return ""
    if figure.unit == "share":
        points = 100 * (figure.second - figure.first)
        return f"{points:+.1f} points" if abs(points) >= 0.05 else "same"
    ratio = figure.ratio
    return "" if ratio is None else "same" if ratio == 1 else f"{100 * (ratio - 1):+.1f}%"


def _columns(head: _Row, rows: list[_Row]) -> str:
    cut = [(_cut(row[0]), *row[1:]) for row in [head, *rows]]
    widths = [max(len(row[at]) for row in cut) for at in range(4)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
        for row in cut
    )
