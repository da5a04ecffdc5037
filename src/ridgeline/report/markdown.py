"""Sections as Markdown, for a repository or a pull request: the text and the tables, small figures as their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.records.exhibit import TextTable
from ridgeline.report.drawing.draw import table_of
from ridgeline.report.figures.shapes import FigureGroup, PlotFigure
from ridgeline.report.parts import (
    AnswerCard,
    Bullets,
    CodeText,
    FactTiles,
    Fold,
    Hint,
    Paragraph,
    Part,
    RunRows,
    Section,
)
from ridgeline.stats.wording import count

MOST_ROWS = 30  # of a table; longer ones are for the page and `study export`
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown(name: str, question: str, sections: list[Section]) -> str:
    lines = [f"# {_e(name)}", "", *([_e(question), ""] if question else [])]
    for section in sections:
        if section.title:
            lines += [f"## {_e(section.title)}", ""]
        for part in section.parts:
            lines += _part(part, section.title)
    return "\n".join(lines).rstrip() + "\n"


def _part(part: Part, heading: str) -> Iterator[str]:
    match part:
        case Paragraph():
            text = _e(part.text)
            yield from (f"**{text}**" if part.look == "headline" else f"> {text}" if part.look == "note" else text, "")
        case AnswerCard():
            yield from _answer(part)
        case Hint():
            yield from (_e(part.text), "")
            if part.command:
                yield from _part(CodeText(part.command), "")
        case CodeText():
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", part.text)), default=0))
            yield from (f"{fence}sh", part.text, fence, "")
        case Bullets():
            yield from (*(f"- {_e(line)}" for line in part.lines), "")
        case FactTiles():
            rows = tuple((what, f"{value} {beside}".strip()) for what, value, beside in part.facts)
            yield from _table(TextTable("", ("", ""), rows), heading)
        case TextTable():
            yield from _table(part, heading)
        case RunRows():
            total = len(part.rows) + len(part.folded)
            yield from (f"{count(total, 'run')}; `ridgeline study export` writes them as a table.", "")
        case Fold():
            yield from ("<details>", f"<summary>{_e(part.title)}</summary>", "")
            for each in part.parts:
                yield from _part(each, "")
            yield from ("</details>", "")
        case FigureGroup() | PlotFigure():
            yield from (f"*{_e(part.title)}: {_e(part.says)} See report.html.*", "")
            yield from (line for note in part.notes for line in (_e(note), ""))
        case _:
            yield from _table(table_of(part), heading)
            yield from (f"*{_e(part.says)}*", "")


def _answer(card: AnswerCard) -> Iterator[str]:
    yield from (f"**{_e(card.statement)}**", "")
    yield from (line for doubt in card.doubts for line in (f"> {_e(doubt)}", ""))
    rows = tuple((what, f"{value} {beside}".strip()) for what, value, beside in card.facts)
    yield from _table(TextTable("", ("", ""), rows), "")
    if card.command:
        yield from _part(CodeText(card.command), "")
    yield from (line for note in (card.command_note, *card.notes) if note for line in (_e(note), ""))


def _table(table: TextTable, heading: str) -> Iterator[str]:
    if not table.rows:
        yield from (line for note in table.notes for line in (_e(note), ""))
        return
    if table.title and table.title != heading:
        yield from (f"### {_e(table.title)}", "")
    head = table.head or ("",) * len(table.rows[0])
    yield f"| {' | '.join(map(_e, head))} |"
    yield f"|{'---|' * len(head)}"
    for at, row in enumerate(table.rows[:MOST_ROWS]):
        bold = "**" if at in table.changed else ""
        yield f"| {' | '.join(f'{bold}{_e(cell)}{bold}' if cell.strip() else '' for cell in row)} |"
    yield ""
    if len(table.rows) > MOST_ROWS:
        yield from (f"{len(table.rows) - MOST_ROWS} more are in the HTML page.", "")
    yield from (line for note in table.notes for line in (_e(note), ""))


def _e(text: str) -> str:
    """Nothing that a log or a name says becomes a heading, a link or HTML."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
