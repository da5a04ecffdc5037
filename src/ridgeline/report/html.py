"""Sections as HTML. Whatever came from a study or a log is escaped on its way into a tag."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from urllib.parse import quote

from ridgeline.records.exhibit import TextTable
from ridgeline.records.expression import is_number
from ridgeline.records.outcome import Kind
from ridgeline.records.trial import Stage
from ridgeline.report.drawing.draw import HALF_PX, SMALL_PX, WIDE_PX, draw, legend, table_of
from ridgeline.report.figures.shapes import BarFigure, Figure, FigureGroup, IntervalFigure, PlotFigure
from ridgeline.report.parts import (
    AnswerCard,
    Bullets,
    CodeText,
    FactTiles,
    Fold,
    Paragraph,
    Part,
    Section,
)  # fmt: skip
from ridgeline.report.table import Row, RunRows
from ridgeline.stats.wording import count

_LONG_CELL = 32  # characters, from which on the text of a cell may be broken
_FEW_PLACES = 12  # of an axis, which half the width has room for
_LONG_CODE = 24  # lines, from which on paper has them in two columns
MOST_ROWS = 150  # of the table behind a figure; all runs are in the table of runs
_FILTER = "placeholder='filter: memory, tp 8, #12 …' aria-label='filter runs'"
_COPY = "<button type=button class=copy hidden>copy</button>"


def section_html(section: Section, folders: Folders) -> str:
    parts = [_untitled(part) if getattr(part, "title", "") == section.title else part for part in section.parts]
    halves = _halves(parts)
    body = "\n".join(piece for at, part in enumerate(parts) for piece in part_html(part, folders, at in halves))
    title = f"<h2><a href='#{section.key}'>{_e(section.title)}</a></h2>" if section.title else ""
    card = next((part for part in parts if isinstance(part, AnswerCard)), None)
    if card is not None:
        title = "<h2 class=unseen>The answer</h2>"
    look = "" if card is None else " class=answer" if card.figure is not None else " class='answer alone'"
    return f"<section id={section.key}{look}>{title}\n{body}\n</section>"


def _halves(parts: Sequence[Part]) -> set[int]:
    """Which figures share a row: those that read well in half the width and have a neighbour of their kind."""
    found: set[int] = set()
    at = 0
    while at + 1 < len(parts):
        if _fits_half(parts[at]) and _fits_half(parts[at + 1]):
            found |= {at, at + 1}
            at += 1
        at += 1
    return found


def _fits_half(part: Part) -> bool:
    if isinstance(part, TextTable):
        rows = [part.head, *part.rows]
        return len(rows) <= 16 and sum(max(map(len, column)) + 3 for column in zip(*rows, strict=False)) <= 70
    if isinstance(part, PlotFigure):
        return 0 < len(part.x.ticks) <= _FEW_PLACES and not part.spans
    return isinstance(part, IntervalFigure | BarFigure)


def _untitled(part: Part) -> Part:
    """Without the title that its section already has."""
    if isinstance(part, Fold | Paragraph | CodeText | Bullets | FactTiles | RunRows | AnswerCard):
        return part
    return replace(part, title="")


def _heading(title: str, key: str = "") -> str:
    """With a key, a link to itself that can be copied and sent on."""
    text = f"<a href='#{key}'>{_e(title)}</a>" if key else _e(title)
    return f"<h3>{text}</h3>" if title else ""


def contents(sections: Iterable[Section]) -> str:
    links = "".join(f"<a href='#{s.key}'>{_e(s.title or 'The answer')}</a>" for s in sections)
    return f"<nav class=contents aria-label=contents>{links}</nav>" if links else ""


class Folders:
    """Links from where the page lies to the folders of runs; none where a folder is gone, or the page has no place."""

    def __init__(self, root: Path, page: Path | None) -> None:
        self.root = root
        self._base = None if page is None else page.resolve().parent

    def link(self, folder: str) -> str:
        name = _e(folder.removeprefix("runs/"))
        path = self.root / folder
        if self._base is None:
            return name
        if not path.is_dir():
            return f"{name} (gone)"
        return f"<a href='{_e(quote(Path(os.path.relpath(path, self._base)).as_posix()))}'>{name}</a>"


def part_html(part: Part, folders: Folders, half: bool = False) -> Iterator[str]:
    match part:
        case AnswerCard():
            yield from _answer(part)
        case Paragraph():
            yield f"<p{f' class={part.look}' if part.look else ''}>{prose(part.text)}</p>"
        case CodeText():
            yield code_html(part.text, part.copy)
        case Bullets():
            yield "<ul>" + "".join(f"<li>{prose(line)}" for line in part.lines) + "</ul>"
        case FactTiles():
            yield "<dl class=tiles>" + "".join(_tile(*fact) for fact in part.facts) + "</dl>"
        case TextTable():
            yield f"<div class='tabled{' half' if half else ''}'>{''.join(_table(part))}</div>"
        case RunRows():
            yield from _runs(part, folders)
        case Fold():
            inside = "\n".join(piece for each in part.parts for piece in part_html(each, folders))
            look = "" if part.on_paper else " class=unprinted"
            yield f"<details{look}><summary>{_e(part.title)}</summary>{inside}</details>"
        case FigureGroup():
            yield from _group(part)
        case _:
            yield figure_html(part, "half" if half else "")


def figure_html(figure: Figure, look: str = "") -> str:
    """`look` is `half` for one of two beside each other."""
    said = f"<figcaption>{prose(figure.says)}</figcaption>" if figure.says else ""
    notes = "".join(f"<p class=sub>{prose(note)}</p>" for note in figure.notes)
    return (
        f"<figure id={_key(figure.key)} class='{look}'>{_heading(figure.title, _key(figure.key))}{said}{legend(figure)}"
        f"{_drawn(figure, HALF_PX if 'half' in look else WIDE_PX)}{notes}{_numbers(table_of(figure))}</figure>"
    )


def _drawn(figure: Figure, width: float = WIDE_PX) -> str:
    """In a box that scrolls sideways where the screen is too narrow to read it."""
    return f"<div class=drawing tabindex=0>{draw(figure, width)}</div>"


def _answer(card: AnswerCard) -> Iterator[str]:
    if card.ratio:
        yield f"<p class=ratio><strong>{_e(card.ratio)}</strong> <span>{_e(card.than)}</span></p>"
    else:
        more = f" <small>{prose(card.details)}</small>" if card.details else ""
        yield f"<p class=headline>{_e(card.lead)}{more}</p>"
    if card.before:
        was, now = f"<span class=was>{_e(card.before)}</span>", f"<span class=now>{_e(card.after)}</span>"
        yield f"<p class=change>{was} → {now} <small>{_e(card.unit)}</small></p>"
    if card.interval:
        yield f"<p class=sure>{_e(card.interval)}</p>"
    if card.moved:
        yield f"<p class=moved>{_e(card.moved)}</p>"
    if card.facts:
        yield "<dl class=facts>" + "".join(_tile(*fact) for fact in card.facts) + "</dl>"
    yield from (f"<p class='note doubt'>{prose(doubt)}</p>" for doubt in card.doubts)
    if card.command:
        title = f"<p class=sub>{prose(card.command_title)}</p>" if card.command_title else ""
        yield f"<div class=do>{title}{code_html(card.command, copy=True)}</div>"
    if card.figure is not None:
        yield figure_html(card.figure, "proof half")
    yield from (f"<p class=sub>{prose(note)}</p>" for note in (card.command_note, *card.notes) if note)


_NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?[x%]?|–|", re.ASCII)
_ARGUMENT = re.compile(r"(--?[A-Za-z][\w-]* (?!-)\S{1,24}(?=\s|$)|\S+)")


def code_html(text: str, copy: bool = False) -> str:
    """Text to paste. A browser would break lines at hyphens: words stay whole, and a flag keeps its value."""
    look = "'code long'" if text.count("\n") > _LONG_CODE else "code"
    return f"<div class={look}>{_COPY if copy else ''}<pre tabindex=0>{_whole_words(text)}</pre></div>"


def _whole_words(text: str) -> str:
    return "".join(
        f"<span class=w>{_e(piece)}</span>" if at % 2 and ("-" in piece or " " in piece) else _e(piece)
        for at, piece in enumerate(_ARGUMENT.split(text))
    )


def _key(key: str) -> str:
    """An anchor: metric and knob names may hold anything."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in key)


def _tile(what: str, value: str, beside: str) -> str:
    return f"<div><dt>{_e(what)}</dt><dd>{_e(value)} <small>{_e(beside)}</small></dd></div>"


def _group(group: FigureGroup) -> Iterator[str]:
    key = f"{_key(group.key)}-figure"
    yield f"<figure id={key}>{_heading(group.title, key)}<figcaption>{prose(group.says)}</figcaption>"
    yield legend(group.figures[0])
    # two or four fill two columns, other numbers three
    two = len(group.figures) in (2, 4)
    look, width = ("'small half'", HALF_PX) if two else ("small", SMALL_PX)
    each = (
        f"<div class={look}><h4>{_e(f.title)}</h4>{_drawn(f, width)}{_numbers(table_of(f))}</div>"
        for f in group.figures
    )
    yield f"<div class='multiples{' two' if two else ''}'>{''.join(each)}</div>"
    yield from (f"<p class=sub>{prose(note)}</p>" for note in group.notes)
    yield "</figure>"


def _numbers(table: TextTable) -> str:
    return (
        f"<details class=numbers><summary>the numbers</summary>{''.join(_plain_table(table, aligned=False))}</details>"
    )


def _table(table: TextTable) -> Iterator[str]:
    yield _heading(table.title)
    yield from _plain_table(table)
    yield from (f"<p class=sub>{prose(note)}</p>" for note in table.notes)


def _plain_table(table: TextTable, aligned: bool = True) -> Iterator[str]:
    """`aligned`: columns of numbers to the right, which a long table behind a figure does without for its size."""
    number = [aligned and all(_NUMBER.fullmatch(cell) for cell in column) for column in zip(*table.rows, strict=True)]
    kinds = [" class=num" if each else "" for each in number] or [""] * len(table.head)
    # a heading that says nothing is none
    heads = "".join(f"<th{kind}>{_e(name)}" if name else "<td>" for kind, name in zip(kinds, table.head, strict=True))
    yield "<div class=scroll tabindex=0><table>" + (f"<tr>{heads}</tr>" if any(table.head) else "")
    for at, row in enumerate(table.rows[:MOST_ROWS]):
        look = " class=bad" if at in table.failed else " class=changed" if at in table.changed else ""
        yield f"<tr{look}>{''.join(_text_cell(kind, cell) for kind, cell in zip(kinds, row, strict=True))}</tr>"
    yield "</table></div>"
    if len(table.rows) > MOST_ROWS:
        more = f"{len(table.rows) - MOST_ROWS:,} more"
        yield f"<p class=sub>{more}; <code>ridgeline study export</code> has all of them.</p>"


def _text_cell(kind: str, cell: str) -> str:
    """A long text keeps enough width to be read, on a phone too; short ones stay on a line."""
    cell = cell.replace(" -> ", " → ")
    return f"<td{kind}>{_e(cell)}" if kind or len(cell) <= _LONG_CELL else f"<td class=story>{prose(cell)}"


def _runs(part: RunRows, folders: Folders) -> Iterator[str]:
    yield f"<div class=tools hidden><input type=search {_FILTER}><span></span></div>"
    yield _run_table(part, part.rows, folders, "run-table")
    if part.folded:
        yield f"<details id=confirm-runs><summary>{count(len(part.folded), 'run')} of the confirmation</summary>"
        yield f"{_run_table(part, part.folded, folders, 'confirm-table')}</details>"


def _run_table(part: RunRows, rows: Sequence[Row], folders: Folders, key: str) -> str:
    """Columns of numbers, and those that paper has no room for, are styled by their place: a class a cell is half
    the size of a long table."""
    printed = len(part.headings) if part.on_paper is None else part.on_paper
    numbers = (n for n, name in enumerate(part.columns, 1) if any(is_number(row.get(name)) for row in rows[:50]))
    style = ",".join(f"#{key} td:nth-child({at})" for at in numbers)
    right = f"{style}{{text-align:right;font-variant-numeric:tabular-nums}}"
    paper = f"@media print{{#{key} th:nth-child(n+{printed + 1}),#{key} td:nth-child(n+{printed + 1}){{display:none}}}}"
    head = "".join(f"<th scope=col>{_e(name)}" for name in part.headings)
    body = "".join(_run(part, row, folders) for row in rows)
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return (
        f"<style>{right}{paper}</style><div class='scroll runs' tabindex=0 role=region aria-label='runs'>"
        f"<table class=sortable id={key}>{table}</table></div>"
    )


def _run(part: RunRows, row: Row, folders: Folders) -> str:
    look = "bad" if row["outcome"] != "ok" else "win" if row["is"] == part.winner else ""
    cells = "".join(_cell(name, row.get(name), folders) for name in part.columns)
    return f"<tr{f' class={look}' if look else ''} data-t={row['trial']}>{cells}"


def _cell(name: str, value: object, folders: Folders) -> str:
    if name == "folder":
        return f"<td>{folders.link(str(value))}"
    if name == "trial":
        return f"<td data-v={value}>#{value}"
    if name == "outcome":
        return f"<td>{Kind(str(value)).text}"
    if name == "stage":
        return f"<td>{Stage(str(value)).text}"
    return f"<td>{_number(value)}" if isinstance(value, float) else f"<td>{'' if value is None else _e(value)}"


_QUOTED = re.compile(r"`([^`\n]+)`")


def prose(text: str) -> str:
    """A sentence, escaped; what it has in backticks is set as code."""
    pieces = _QUOTED.split(text)
    return "".join(f"<code>{_whole_words(p)}</code>" if at % 2 else _e(p) for at, p in enumerate(pieces))


def _number(value: float) -> str:
    """Six digits, and of large numbers those before the point, instead of an exponent."""
    text = f"{value:.6g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text


def _e(value: object) -> str:
    return escape(str(value))
