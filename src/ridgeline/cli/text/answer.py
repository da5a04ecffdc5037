"""How the faces write the answer of a campaign, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ridgeline.cli.text.wording import setting_text, yaml_text
from ridgeline.errors import CannotJudge, NothingFound, ShownWorse
from ridgeline.records.answer import Answer, Candidate, Standing
from ridgeline.records.exhibit import Exhibits, TextTable
from ridgeline.records.space import Point


def error_of(answer: Answer) -> type[NothingFound]:
    """As what a verb leaves with an answer that lacks something: scripts go by its exit code."""
    left_with: dict[Standing, type[NothingFound]] = {Standing.WORSE: ShownWorse, Standing.UNDECIDED: CannotJudge}
    return left_with.get(answer.standing, NothingFound)


def details_lines(answer: Answer, exhibits: Exhibits) -> Iterable[str]:
    """What stands above the answer where that comes last: tables, what else there is to say, and doubts."""
    for table in exhibits.tables:
        yield from _table_lines(table)
        yield ""
    if answer.refuted:
        yield answer.refuted
    yield from (*exhibits.notes, *exhibits.doubts)
    if answer.keep and answer.candidate is not None:
        yield f"  {answer.candidate.label}: #{answer.candidate.trial}  {setting_text(answer.candidate.point)}"
    elif answer.candidate is not None and answer.offers and (doubt := _doubt_about(answer, answer.candidate)):
        yield doubt
    yield from _next_lines(answer)
    if answer.paste:
        yield from _measured_lines(answer)


def _next_lines(answer: Answer) -> Iterable[str]:
    """The command that would give a verdict, on a line of its own, to be pasted."""
    if answer.next_step:
        yield from ("to get a verdict:", f"  {answer.next_step}")


def answer_lines(answer: Answer, exhibits: Exhibits) -> Iterable[str]:
    """Tables first, then the headline and, where the question was which setting, the setting to paste.

    What is to be pasted is never cut or wrapped, however narrow the terminal.
    """
    for table in exhibits.tables:
        yield from _table_lines(table)
        yield ""
    yield answer.statement
    if answer.refuted:
        yield answer.refuted
    yield from (*exhibits.notes, *exhibits.doubts, *_next_lines(answer))
    if answer.keep:
        yield from _kept_lines(answer)
    elif answer.candidate is not None and answer.offers:
        yield ""
        if doubt := _doubt_about(answer, answer.candidate):
            yield doubt
        yield from _measured_lines(answer)
        yield from paste_lines(answer.paste)


def _kept_lines(answer: Answer) -> Iterable[str]:
    """The setting that the headline is about, and below it the one to use."""
    if answer.candidate is not None:
        yield f"  {answer.candidate.label}: #{answer.candidate.trial}  {setting_text(answer.candidate.point)}"
    if answer.paste:
        yield from ("", f"  keep {answer.reference.label}:", *_measured_lines(answer), *paste_lines(answer.paste))


def _measured_lines(answer: Answer) -> Iterable[str]:
    """Where what is pasted is not what was measured: how to do that again, and what the pasted text is for."""
    if answer.pasted_as:
        yield from (["  to measure it again:", f"  {answer.repeat}"] if answer.repeat else [])
        yield f"  {answer.pasted_as}:"


def _doubt_about(answer: Answer, candidate: Candidate) -> str:
    """Why the setting that follows is not yet the answer; empty where it is."""
    if candidate.confirmed:
        return ""
    figures = f": {answer.change}" if answer.change else ""
    if answer.conclusion is None:
        return f"  {candidate.label} so far{figures}; not confirmed, and a single measurement favours lucky runs"
    return f"  {candidate.label}, not shown to be better than {answer.reference.label}{figures}"


def yaml_lines(point: Point) -> Iterable[str]:
    yield "as YAML:"
    yield from (f"  {name}: {yaml_text(value)}" for name, value in point.items())


def _table_lines(table: TextTable) -> Iterable[str]:
    rows: Sequence[Sequence[str]] = (table.head, *table.rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    for row in rows:
        yield "  " + "   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from (f"  {note}" for note in table.notes)


def paste_lines(paste: str) -> list[str]:
    """Several lines stand at the margin: an indented here-document never ends in the shell that it is pasted into."""
    lines = paste.splitlines()
    return lines if len(lines) > 1 else [f"  {line}" for line in lines]
