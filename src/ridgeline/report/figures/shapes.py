"""The report's figures as data, before anything is drawn: what a figure holds, whoever draws it.

A figure has a `key` that is its anchor on the page, a `title`, and `says`: how to read it, in a sentence. Everything in
it is plain numbers and text, so `dataclasses.asdict` gives JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

# what a mark is; the drawing gives each a colour and a form of its own, so that colour is never the only difference
BASELINE, SENTINEL, SEARCH, CONFIRM, WINNER, BEST, OTHER = (
    "baseline", "sentinel", "search", "confirm", "winner", "best", "other",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axis:
    """`ticks` are (place, text) where values have names; otherwise the drawing chooses. `log` is a log scale."""

    label: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    from_zero: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """One value, with its interval where there is one; `trial` links it to the table of runs."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    trial: int | None = None


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """`form` is points, line, dashed, steps or both; `look` one of the words above, or a number of the palette."""

    name: str
    points: tuple[PlotPoint, ...]
    look: str = OTHER
    form: str = "points"


@dataclass(frozen=True, slots=True)
class PlotBand:
    """A range of values that is shaded across the figure, such as the baseline with its scatter."""

    label: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PlotSpan:
    """A part of the x axis that is shaded from top to bottom: a block, a time in which the machine was slower."""

    label: str
    start: float
    end: float
    look: str = "plain"


@dataclass(frozen=True, slots=True)
class PlotLimit:
    """A straight line with its meaning: an SLO, the knee, an edge. On the y axis unless `across` is x."""

    label: str
    value: float
    across: str = "y"


@dataclass(frozen=True, slots=True)
class StripMark:
    """Something without a value, such as a failed run: in a strip of its own below the axis, one lane for each kind."""

    x: float
    lane: str
    label: str = ""
    trial: int | None = None


@dataclass(frozen=True, slots=True)
class PlotFigure:
    key: str
    title: str
    says: str
    x: Axis
    y: Axis
    series: tuple[PlotSeries, ...] = ()
    bands: tuple[PlotBand, ...] = ()
    spans: tuple[PlotSpan, ...] = ()
    limits: tuple[PlotLimit, ...] = ()
    strip: tuple[StripMark, ...] = ()
    notes: tuple[str, ...] = ()
    small: bool = False  # one of several beside each other


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """One estimate with its interval; `dots` are the single values behind it. None: too little to say."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    dots: tuple[float, ...] = ()
    text: str = ""
    look: str = OTHER


@dataclass(frozen=True, slots=True)
class IntervalFigure:
    """Rows of intervals of ratios on one axis; at 1 nothing changes."""

    key: str
    title: str
    says: str
    x: Axis
    rows: tuple[IntervalRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BarPart:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class BarRow:
    """`look` is what the whole bar stands for, where it has one part and is the baseline or the setting."""

    label: str
    parts: tuple[BarPart, ...]
    text: str = ""
    look: str = ""


@dataclass(frozen=True, slots=True)
class BarFigure:
    """Bars from zero, each of one part or of several that add up."""

    key: str
    title: str
    says: str
    x: Axis
    rows: tuple[BarRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    label: str
    ticks: tuple[tuple[float, str], ...]  # place from 0 (bottom) to 1, and its text


@dataclass(frozen=True, slots=True)
class ParallelLine:
    """One setting through all axes; None where it lacks the knob. `share` is 1 for the best, 0 for the worst."""

    places: tuple[float | None, ...]
    trial: int
    label: str
    share: float | None
    look: str = OTHER


@dataclass(frozen=True, slots=True)
class ParallelFigure:
    key: str
    title: str
    says: str
    axes: tuple[ParallelAxis, ...]
    lines: tuple[ParallelLine, ...]
    chosen: str = "the recommended setting"  # what the line of the answer's setting is called
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FigureGroup:
    """Small figures of one thing, side by side."""

    key: str
    title: str
    says: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()


Figure = PlotFigure | IntervalFigure | BarFigure | ParallelFigure
