"""Where the time of a run of NWChem goes."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.records.answer import Answer
from ridgeline.records.study import Study
from ridgeline.report.figures.shapes import Axis, BarFigure, BarPart, BarRow
from ridgeline.report.figures.values import settings_shown
from ridgeline.study.history import History


def time_split(study: Study, history: History, answer: Answer) -> BarFigure | None:
    """NWChem's own account: iterations, the rest of the program, and what starting and ending it took."""
    rows = []
    for label, runs in settings_shown(study, history, answer):
        metrics = runs[-1].metrics
        wall, inside, iterative = (metrics.get(n) for n in ("wall_s", "nwchem_wall_s", "iterative_s"))
        if wall is None or inside is None or wall < inside:
            continue
        parts = [("iterations", iterative or 0.0), ("rest of the program", max(0.0, inside - (iterative or 0.0)))]
        parts.append(("starting and ending", wall - inside))
        rows.append(BarRow(label, tuple(BarPart(n, v) for n, v in parts if v > 0), f"{wall:.1f} s"))
    if not rows:
        return None
    says = "The wall time of one run of each setting, as the program accounts for it."
    return BarFigure("science-time", "Where a run's time goes", says, Axis("seconds", from_zero=True), tuple(rows))


def section(study: Study, history: History, answer: Answer) -> Iterator[BarFigure]:
    split = time_split(study, history, answer)
    if split is not None:
        yield split
