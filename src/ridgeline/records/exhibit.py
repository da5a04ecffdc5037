"""What a campaign shows besides its answer, as data: tables, curves and comparisons, before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from ridgeline.records.space import Point

# titles of tables that have a section of their own in the report
EQUIVALENCE, TASK_RULES = "Equivalence", "Task rules"


@dataclass(frozen=True, slots=True)
class TextTable:
    """Cells as people read them. `failed` and `changed` are rows, by index, to be set apart; `notes` stand below."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    failed: frozenset[int] = frozenset()
    changed: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


class Shown:
    """A result that Python and notebooks show as a short table, and not as all that it holds."""

    __slots__ = ()

    def shown(self) -> TextTable:
        raise NotImplementedError

    def __repr__(self) -> str:
        table = self.shown()
        rows = [table.head, *table.rows] if any(table.head) and table.rows else [*table.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(
            [table.title, *(f"  {line.rstrip()}" for line in lines), *(f"  {note}" for note in table.notes)]
        )

    def _repr_html_(self) -> str:
        table = self.shown()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head) if any(table.head) and table.rows else ""
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.rows)
        body = "".join(f"<tr>{row}</tr>" for row in ([head] if head else []) + [*rows])
        notes = "".join(f"<div>{escape(note)}</div>" for note in table.notes)
        return f"<table><caption>{escape(table.title)}</caption>{body}</table>{notes}"


def side_by_side(title: str, labels: tuple[str, str], first: Point, second: Point) -> TextTable:
    """Two settings, a row for each knob; rows in which they differ are `changed`."""
    names = list(dict.fromkeys((*first, *second)))
    rows = tuple((name, value_text(first.get(name)), value_text(second.get(name))) for name in names)
    changed = frozenset(at for at, name in enumerate(names) if first.get(name) != second.get(name))
    return TextTable(title, ("knob", *labels), rows, changed=changed)


def changes(baseline: Point, candidate: Point) -> str:
    """What a candidate changes, in the order of the study's knobs."""
    names = [name for name in dict.fromkeys((*baseline, *candidate)) if baseline.get(name) != candidate.get(name)]
    return ", ".join(f"{name} {value_text(candidate.get(name))}" for name in names)


def value_text(value: object) -> str:
    """A knob's value, in sentences, tables and figures alike."""
    return "absent" if value is None else "''" if value == "" else str(value)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a figure; `ideal` ones are there to be compared with and are drawn thin."""

    label: str
    points: tuple[CurvePoint, ...]
    ideal: bool = False


@dataclass(frozen=True, slots=True)
class CurveFigure:
    """`names` are those of the places 0, 1, … where x counts things that have names; `marks` are places to point at."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    says: str = ""
    names: tuple[str, ...] = ()
    marks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ComparedSetting:
    """One candidate's ratio to the reference with its interval; above 1 is better."""

    label: str
    estimate: float
    low: float
    high: float
    verdict: str


@dataclass(frozen=True, slots=True)
class KindShown:
    """What report and slides show of one kind of campaign, said by the kind itself; the defaults are those of a
    question about given settings.

    `title` heads the section of its own figures and tables. `searches`: for the best of many settings, so that knobs,
    the way to the best and what to try next are shown. `two`: two given settings are held against each other.
    `versions`: blocks compare whichever two tell most, so that no setting is in all of them.
    `stored`: what the runs are held against was measured before.
    """

    title: str = "What was found"
    searches: bool = False
    two: bool = False
    versions: bool = False
    stored: bool = False
    figure: str = ""  # its own, as `module:function` of (study, history, answer)
    how: str = ""  # it was measured, in a sentence; {names} are those of the question's fields


@dataclass(frozen=True, slots=True)
class Exhibits:
    """All of them; empty where there is nothing to show.

    `setting` is the setting to use beside what it replaces, shown with what to paste. `groups` says what a trial is
    called in the figure of runs; without it, runs are distinguished by stage and the best value so far is drawn.
    `doubts` are reasons to trust the answer less.
    """

    setting: TextTable | None = None
    tables: tuple[TextTable, ...] = ()
    figures: tuple[CurveFigure, ...] = ()
    comparisons_title: str = ""
    comparisons: tuple[ComparedSetting, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    groups: Mapping[int, str] = field(default_factory=dict)
