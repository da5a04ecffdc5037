"""How the faces write the answer of a campaign, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ridgeline.cli.text.wording import yaml_text
from ridgeline.records.answer import CONFIRMED, Answer, Candidate
from ridgeline.records.exhibit import Exhibits, TextTable


def answer_lines(answer: Answer, exhibits: Exhibits) -> Iterable[str]:
    """Tables first, then the headline and, where the question was which setting, the setting to paste."""
    for table in exhibits.tables:
        yield from table_lines(table)
        yield ""
    yield f"Confirmed: {answer.headline}" if answer.conclusion == CONFIRMED else answer.headline
    yield from exhibits.notes
    if answer.candidate is not None and answer.offers:
        yield ""
        if doubt := doubt_about(answer, answer.candidate):
            yield doubt
        yield from paste_lines(answer.paste)


def doubt_about(answer: Answer, candidate: Candidate) -> str:
    """Why the setting that follows is not yet the answer; empty where it is."""
    if candidate.confirmed:
        return ""
    if answer.conclusion is None:
        return f"  {candidate.label} so far, not confirmed: a single look favours lucky runs"
    return f"  {candidate.label}, not shown to be better than {answer.reference.label}:"


def yaml_lines(candidate: Candidate) -> Iterable[str]:
    yield "as YAML:"
    yield from (f"  {name}: {yaml_text(value)}" for name, value in candidate.point.items())


def table_lines(table: TextTable) -> Iterable[str]:
    rows: Sequence[Sequence[str]] = (table.head, *table.rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    for row in rows:
        yield "  " + "   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from (f"  {note}" for note in table.notes)


def paste_lines(paste: str) -> list[str]:
    """Several lines stand at the margin: an indented here-document never ends in the shell that it is pasted into."""
    lines = paste.splitlines()
    return lines if len(lines) > 1 else [f"  {line}" for line in lines]
