"""How the faces write the answer of a campaign, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.cli.text.table import aligned
from ridgeline.cli.text.wording import setting_text, yaml_text
from ridgeline.errors import CannotJudge, NothingFound, ShownWorse
from ridgeline.records.answer import Answer, Candidate, Standing
from ridgeline.records.exhibit import Exhibits
from ridgeline.records.space import Point


def error_of(answer: Answer) -> type[NothingFound]:
    """As what a verb leaves with an answer that lacks something: scripts go by its exit code."""
    left_with: dict[Standing, type[NothingFound]] = {Standing.WORSE: ShownWorse, Standing.UNDECIDED: CannotJudge}
    return left_with.get(answer.standing, NothingFound)


def answer_lines(answer: Answer, exhibits: Exhibits) -> Iterable[str]:
    """Tables first, then the headline and, where the question was which setting, the setting to paste.

    What is to be pasted is never cut or wrapped, however narrow the terminal.
    """
    yield from _table_lines(exhibits)
    yield answer.statement
    yield from _remarks(answer, exhibits)
    if answer.keep:
        yield from _kept_lines(answer)
    elif answer.candidate is not None and answer.offers:
        yield ""
        yield from _doubts_about(answer, answer.candidate)
        yield from _measured_lines(answer)
        yield from paste_lines(answer.paste)


def details_lines(answer: Answer, exhibits: Exhibits) -> Iterable[str]:
    """What stands above the answer where that comes last: tables, what else there is to say, and doubts."""
    yield from _table_lines(exhibits)
    yield from _remarks(answer, exhibits)
    if answer.candidate is not None:
        yield from [_setting_line(answer.candidate)] if answer.keep else _doubts_about(answer, answer.candidate)
    if answer.paste:
        yield from _measured_lines(answer)


def _remarks(answer: Answer, exhibits: Exhibits) -> Iterable[str]:
    """Notes and doubts; the command that would give a verdict, on a line of its own, to be pasted."""
    yield from ([answer.refuted] if answer.refuted else [])
    yield from (*exhibits.notes, *exhibits.doubts)
    yield from ["to get a verdict:", f"  {answer.next_step}"] if answer.next_step else []


def _setting_line(candidate: Candidate) -> str:
    return f"  {candidate.label}: #{candidate.trial}  {setting_text(candidate.point)}"


def _kept_lines(answer: Answer) -> Iterable[str]:
    """The setting that the headline is about, and below it the one to use."""
    if answer.candidate is not None:
        yield _setting_line(answer.candidate)
    if answer.paste:
        yield from ("", f"  keep {answer.reference.label}:", *_measured_lines(answer), *paste_lines(answer.paste))


def _measured_lines(answer: Answer) -> Iterable[str]:
    """Where what is pasted is not what was measured: how to do that again, and what the pasted text is for."""
    if answer.pasted_as:
        yield from (["  to measure it again:", f"  {answer.repeat}"] if answer.repeat else [])
        yield f"  {answer.pasted_as}:"


def _doubts_about(answer: Answer, candidate: Candidate) -> Iterable[str]:
    """Why the setting that follows is not yet the answer."""
    if candidate.confirmed or not answer.offers:
        return
    figures = f": {answer.change}" if answer.change else ""
    if answer.conclusion is None:
        yield f"  {candidate.label} so far{figures}; not confirmed, and a single measurement favours lucky runs"
    else:
        yield f"  {candidate.label}, not shown to be better than {answer.reference.label}{figures}"


def yaml_lines(point: Point) -> Iterable[str]:
    yield "as YAML:"
    yield from (f"  {name}: {yaml_text(value)}" for name, value in point.items())


def _table_lines(exhibits: Exhibits) -> Iterable[str]:
    for table in exhibits.tables:
        yield from aligned((table.head, *table.rows), left=range(len(table.head)), gap="   ")
        yield from (f"  {note}" for note in table.notes)
        yield ""


def paste_lines(paste: str) -> list[str]:
    """Several lines stand at the margin: an indented here-document never ends in the shell that it is pasted into."""
    lines = paste.splitlines()
    return lines if len(lines) > 1 else [f"  {line}" for line in lines]
