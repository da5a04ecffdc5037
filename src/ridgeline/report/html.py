"""Sections as HTML. Whatever came from a study or a log is escaped on its way into a tag."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from urllib.parse import quote

from ridgeline.records.exhibit import TextTable
from ridgeline.records.expression import is_number
from ridgeline.report.drawing.draw import drawn, legend, table_of
from ridgeline.report.figures.shapes import FigureGroup
from ridgeline.report.parts import Bullets, CodeText, FactTiles, Fold, Paragraph, Part, RunRows, Section
from ridgeline.report.table import Row
from ridgeline.stats.wording import count

MOST_ROWS = 400  # of the table behind a figure; all runs are in the table of runs
FILTER = "placeholder='filter: oom, tp 8, #12 …' aria-label='filter runs'"
COPY = "<button type=button class=copy hidden>copy</button>"


def section_html(section: Section, folders: Folders) -> str:
    parts = (untitled(part) if getattr(part, "title", "") == section.title else part for part in section.parts)
    body = "\n".join(piece for part in parts for piece in part_html(part, folders))
    title = f"<h2>{_e(section.title)}</h2>" if section.title else ""
    return f"<section id={section.key}>{title}\n{body}\n</section>"


def untitled(part: Part) -> Part:
    """Without the title that its section already has."""
    if isinstance(part, Fold | Paragraph | CodeText | Bullets | FactTiles | RunRows):
        return part
    return replace(part, title="")


def _heading(title: str) -> str:
    return f"<h3>{_e(title)}</h3>" if title else ""


def contents(sections: Iterable[Section]) -> str:
    links = "".join(f"<a href='#{s.key}'>{_e(s.title)}</a>" for s in sections if s.title)
    return f"<nav aria-label=contents>{links}</nav>" if links else ""


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


def part_html(part: Part, folders: Folders) -> Iterator[str]:
    match part:
        case Paragraph():
            yield f"<p{f' class={part.look}' if part.look else ''}>{_e(part.text)}</p>"
        case CodeText():
            yield f"<div class=code>{COPY if part.copy else ''}<pre>{_e(part.text)}</pre></div>"
        case Bullets():
            yield "<ul>" + "".join(f"<li>{_e(line)}" for line in part.lines) + "</ul>"
        case FactTiles():
            yield "<dl class=tiles>" + "".join(_tile(*fact) for fact in part.facts) + "</dl>"
        case TextTable():
            yield from _table(part)
        case RunRows():
            yield from _runs(part, folders)
        case Fold():
            inside = "\n".join(piece for each in part.parts for piece in part_html(each, folders))
            yield f"<details><summary>{_e(part.title)}</summary>{inside}</details>"
        case FigureGroup():
            yield from _group(part)
        case _:
            yield f"<figure id={_key(part.key)}>{_heading(part.title)}"
            if part.says:
                yield f"<figcaption>{_e(part.says)}</figcaption>"
            yield f"{legend(part)}{drawn(part)}"
            yield from (f"<p class=sub>{_e(note)}</p>" for note in part.notes)
            yield f"{_numbers(table_of(part))}</figure>"


def _key(key: str) -> str:
    """An anchor: metric and knob names may hold anything."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in key)


def _tile(what: str, value: str, beside: str) -> str:
    return f"<div><dt>{_e(what)}</dt><dd>{_e(value)} <small>{_e(beside)}</small></dd></div>"


def _group(group: FigureGroup) -> Iterator[str]:
    yield f"<figure id={_key(group.key)}-figure>{_heading(group.title)}<figcaption>{_e(group.says)}</figcaption>"
    if group.choices:
        yield legend(group.figures[0])
        yield from _choices(group)
        yield _numbers(table_of(group.figures[0]))
    else:
        yield legend(group.figures[0])
        each = (
            f"<div class=small><h4>{_e(f.title)}</h4>{drawn(f)}{_numbers(table_of(f))}</div>" for f in group.figures
        )
        yield f"<div class=multiples>{''.join(each)}</div>"
    yield from (f"<p class=sub>{_e(note)}</p>" for note in group.notes)
    yield "</figure>"


def _choices(group: FigureGroup) -> Iterator[str]:
    """Radio buttons and style alone choose the view, so that it works without scripts."""
    yield "<div class=choices>"
    for at, name in enumerate(group.choices):
        on = " checked" if at == 0 else ""
        yield f"<input type=radio name='{_key(group.key)}' id='{_key(group.key)}-{at}' class=c{at}{on}>"
        yield f"<label for='{_key(group.key)}-{at}'>{_e(name)}</label>"
    yield from (f"<div class='view v{at}'>{drawn(figure)}</div>" for at, figure in enumerate(group.figures))
    yield "</div>"


def _numbers(table: TextTable) -> str:
    return f"<details class=numbers><summary>the numbers</summary>{''.join(_plain_table(table))}</details>"


def _table(table: TextTable) -> Iterator[str]:
    yield _heading(table.title)
    yield from _plain_table(table)
    yield from (f"<p class=sub>{_e(note)}</p>" for note in table.notes)


def _plain_table(table: TextTable) -> Iterator[str]:
    heads = "".join(f"<th>{_e(name)}" for name in table.head)
    yield "<div class=scroll><table>" + (f"<tr>{heads}</tr>" if any(table.head) else "")
    for at, row in enumerate(table.rows[:MOST_ROWS]):
        look = " class=bad" if at in table.failed else " class=changed" if at in table.changed else ""
        yield f"<tr{look}>{''.join(f'<td>{_e(cell)}' for cell in row)}</tr>"
    yield "</table></div>"
    if len(table.rows) > MOST_ROWS:
        yield f"<p class=sub>{len(table.rows) - MOST_ROWS:,} more; `ridgeline export` has all of them.</p>"


def _runs(part: RunRows, folders: Folders) -> Iterator[str]:
    yield f"<div class=tools hidden><input type=search {FILTER}><span></span></div>"
    yield _run_table(part, part.rows, folders)
    if part.folded:
        yield f"<details id=confirm-runs><summary>{count(len(part.folded), 'run')} of the confirmation</summary>"
        yield f"{_run_table(part, part.folded, folders)}</details>"


def _run_table(part: RunRows, rows: Iterable[Row], folders: Folders) -> str:
    printed = len(part.headings) if part.on_paper is None else part.on_paper
    head = "".join(
        f"<th scope=col{'' if at < printed else ' class=more'}>{_e(name)}" for at, name in enumerate(part.headings)
    )
    body = "".join(_run(part, row, folders) for row in rows)
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='scroll runs'><table class=sortable>{table}</table></div>"


def _run(part: RunRows, row: Row, folders: Folders) -> str:
    look = "bad" if row["outcome"] != "ok" else "win" if row["is"] == part.winner else ""
    printed = len(part.columns) if part.on_paper is None else part.on_paper
    cells = "".join(
        _cell(name, row.get(name), folders, "" if at < printed else "more") for at, name in enumerate(part.columns)
    )
    return f"<tr{f' class={look}' if look else ''} data-t={row['trial']}>{cells}</tr>"


def _cell(name: str, value: object, folders: Folders, look: str) -> str:
    plain, number = (f" class={look}" if look else ""), f' class="num {look}"' if look else " class=num"
    if name == "folder":
        return f"<td{plain}>{folders.link(str(value))}"
    if name == "trial":
        return f"<td{number} data-v={value}>#{value}"
    if not is_number(value):
        return f"<td{plain}>{'' if value is None else _e(value)}"
    return f"<td{number} data-v={value!r}>{value:.6g}" if isinstance(value, float) else f"<td{number}>{value}"


def _e(value: object) -> str:
    return escape(str(value))
