"""The report's own figures as parts of a live page, so that page and report never disagree."""

from __future__ import annotations

import math
from dataclasses import replace

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import Exhibits
from ridgeline.records.study import Study
from ridgeline.report.figures.progress import progress_now
from ridgeline.report.figures.shapes import OTHER, WINNER, Axis, IntervalFigure, IntervalRow
from ridgeline.report.html import Folders, figure_html, part_html
from ridgeline.report.parts import Part
from ridgeline.report.sections import Findings, answer_card
from ridgeline.stats.wording import ratio_range
from ridgeline.study.history import History


def live_answer(found: Findings) -> str:
    """HTML: the first screen of the report, less the proof and the facts that stand beside it."""
    card = replace(answer_card(found), figure=None, facts=())
    return "".join(part_html(card, Folders(found.history.root, None)))


def live_progress(study: Study, history: History, exhibits: Exhibits, answer: Answer | None = None) -> str:
    """HTML: every run so far with the best of them."""
    figure = progress_now(study, history, answer, exhibits.groups)
    return "<p class=sub>No run has passed yet.</p>" if figure is None else figure_html(replace(figure, title=""))


def live_figures(history: History, exhibits: Exhibits) -> str:
    """HTML: what was compared, and the tables of this kind of campaign."""
    compared = compared_settings(exhibits)
    parts: list[Part] = [*([] if compared is None else [compared]), *exhibits.tables]
    folders = Folders(history.root, None)
    return "".join(piece for part in parts for piece in part_html(part, folders))


def compared_settings(exhibits: Exhibits) -> IntervalFigure | None:
    known = [c for c in exhibits.comparisons if math.isfinite(c.low) and math.isfinite(c.high)]
    if not known:
        return None
    rows = tuple(
        IntervalRow(
            c.label, c.estimate, c.low, c.high,
            text="{} ({}), {}".format(*ratio_range(c.estimate, c.low, c.high), c.verdict),
            look=WINNER if c.verdict == "better" else OTHER,
        )
        for c in known
    )  # fmt: skip
    axis = Axis("ratio (above 1 is better)")
    return IntervalFigure("compared", exhibits.comparisons_title, "", axis, rows)
