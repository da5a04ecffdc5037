"""The history of a gate as a page: what each measured, and where its level changed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from ridgeline.errors import InputError
from ridgeline.records.exhibit import TextTable
from ridgeline.records.study import Study
from ridgeline.report.figures.shapes import BASELINE, OTHER, Axis, PlotFigure, PlotLimit, PlotPoint, PlotSeries
from ridgeline.report.figures.values import counted_axis
from ridgeline.report.html import Folders
from ridgeline.report.page import whole_page, write_page
from ridgeline.report.parts import FactTiles, Paragraph, Section
from ridgeline.stats.change_points import Jump, Observed, change_points
from ridgeline.stats.wording import count, metric_text, percent, percent_range
from ridgeline.study.gate_history import PastGate

_MOST_GATES = 200  # newest; the page says how many are older


def write_gate_history(gates: Sequence[PastGate], study: Study, history: Path) -> None:
    """The page beside the history file."""
    out = history.with_suffix(".html")
    if out == history:
        out = history.with_name(f"{history.name}.html")
    shown = gate_sections(gates)
    write_page(whole_page(f"{study.name}: gates", study.question, shown, Folders(Path(), None)), out)


def gate_sections(gates: Sequence[PastGate]) -> list[Section]:
    """Of the machine that was measured last; another one's figures say nothing of the program."""
    if not gates:
        raise InputError("the history has no gate yet; run one with --history")
    last = gates[-1]
    here = [gate for gate in gates if _question(gate) == _question(last)]
    shown = here[-_MOST_GATES:]
    found = change_points(_runs(shown), len(shown))
    unit = f" ({last.unit})" if last.unit else ""
    tiles = (
        ("gates", str(len(shown)), f"{shown[0].at[:10]} to {last.at[:10]}"),
        ("changes of speed", str(len(found)), "each with 95% confidence"),
        ("now", metric_text(median(last.values)), f"{last.metric}{unit}, median of {count(len(last.values), 'run')}"),
    )
    said = f"No change of speed in {count(len(shown), 'gate')}"
    if not found and last.conclusion == "slower":
        said = "The last gate was slower than its reference; the gates after it will show whether that stays"
    if found:
        size = percent(abs(found[-1].change)).lstrip("+")
        said = f"{size} {'slower' if found[-1].change > 0 else 'faster'} since {_name(shown[found[-1].at + 1])}"
    notes = [f"Machine: {', '.join(f'{name} {value}' for name, value in last.machine.items())}."]
    if elsewhere := len(gates) - len(here):
        notes.append(f"{count(elsewhere, 'gate')} of other machines or metrics left out.")
    if older := len(here) - len(shown):
        notes.append(f"{count(older, 'older gate')} left out.")
    better = "higher" if last.direction == "maximize" else "lower"
    figure = _figure(shown, found, f"{last.metric}{unit}, {better} is better")
    return [
        Section(
            "verdict", "", (Paragraph(said, "headline"), FactTiles(tiles), figure, Paragraph(" ".join(notes), "sub"))
        ),
        Section("changes", "Changes", _change_parts(shown, found)),
        Section("gates", "All gates", (_table(shown),)),
    ]


def _question(gate: PastGate) -> tuple[str, str, str, str]:
    return gate.study, gate.metric, gate.direction, json.dumps(dict(gate.machine), sort_keys=True)


def _runs(gates: Sequence[PastGate]) -> list[Observed]:
    """Runs of one gate share what the machine was like that day: a block."""
    sign = 1.0 if gates[0].direction == "minimize" else -1.0
    return [Observed(at, sign * math.log(value), at) for at, gate in enumerate(gates) for value in gate.values]


def _figure(gates: Sequence[PastGate], found: Sequence[Jump], axis: str) -> PlotFigure:
    edges = [0, *(jump.at + 1 for jump in found), len(gates)]
    levels = []
    for first, end in pairwise(edges):
        level = median(value for gate in gates[first:end] for value in gate.values)
        levels += [PlotPoint(max(1.0, first + 0.5), level), PlotPoint(min(len(gates), end + 0.5), level)]
    points = tuple(
        PlotPoint(
            at,
            median(gate.values),
            min(gate.values),
            max(gate.values),
            label=f"{_name(gate)}: {gate.conclusion.replace('-', ' ')}",
        )
        for at, gate in enumerate(gates, 1)
    )
    says = "The median of each gate's runs with their range, oldest first; the line is the level between two changes."
    marks = tuple(PlotLimit(percent(jump.change), jump.at + 1.5, "x") for jump in found)
    low, high = (side(value for gate in gates for value in gate.values) for side in (min, max))
    y = Axis(axis, high=high + 0.25 * (high - low) if marks else None)  # the texts of the marks are on top
    series = (PlotSeries("median", points, OTHER), PlotSeries("level", tuple(levels), BASELINE, "steps"))
    return PlotFigure("levels", "", says, counted_axis("gate", len(gates)), y, series, limits=marks)


def _change_parts(gates: Sequence[PastGate], found: Sequence[Jump]) -> tuple[Paragraph | TextTable, ...]:
    if not found:
        return (Paragraph("None that these gates show.", "sub"),)
    rows = tuple(
        (*map(_name, gates[jump.at : jump.at + 2]), percent(jump.change), percent_range(jump.low, jump.high))
        for jump in found
    )
    says = (
        "Which commit between the two it was, `ridgeline ci bisect` finds. A change of the machine looks the same here."
    )
    return TextTable("", ("last before", "first after", "slowdown", "95%"), rows), Paragraph(says, "sub")


def _name(gate: PastGate) -> str:
    return f"{gate.at[:10]} {gate.commit[:10]}".strip()


def _table(gates: Sequence[PastGate]) -> TextTable:
    rows = tuple(
        (
            gate.at[:16].replace("T", " "),
            gate.commit[:10] or "–",
            metric_text(median(gate.values)),
            str(len(gate.values)),
            gate.conclusion.replace("-", " "),
        )
        for gate in reversed(gates)
    )
    return TextTable("", ("when (UTC)", "commit", "median", "runs", "verdict"), rows)
