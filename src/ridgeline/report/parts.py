"""What a page consists of, before it is HTML or Markdown: sections of paragraphs, code, tables and figures."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.records.answer import OVER_LIMIT
from ridgeline.records.exhibit import TextTable
from ridgeline.report.figures.shapes import Figure, FigureGroup
from ridgeline.report.table import RunRows

_LONGEST_LEAD = 60  # of a statement in large letters
# a broken limit of the question is never left out of it
_LEAD = re.compile(
    rf".{{0,60}}?{OVER_LIMIT}.+?(?=; )|(?:Simulated: |Confirmed(?: in simulation)?: )?.{{12,}}?(?= \(|, |; |: )"
)

_BRACKETED = re.compile(r"\(([^()]*)\)[,;]? ?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """`look` is empty, `sub` for what matters less, `note` for something the reader must not overlook."""

    text: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class CodeText:
    """Something to paste or to read as it stands."""

    text: str
    copy: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FactTiles:
    """A few numbers that a reader should see first: (what, value, beside it)."""

    facts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class AnswerCard:
    """The first screen: what was found, how sure that is, what it cost, what to do now, and the proof beside it.

    `ratio` is empty where the answer is no ratio: then `statement` is what stands there in large.
    """

    statement: str
    ratio: str = ""
    than: str = ""  # what it is a ratio to: 'the baseline'
    interval: str = ""  # '95% interval 2.52 to 2.64'
    before: str = ""
    after: str = ""
    unit: str = ""
    moved: str = ""  # what the setting changes: 'tp 16 → 8, pp 1 → 2'
    facts: tuple[tuple[str, str, str], ...] = ()  # what, value, beside it
    command: str = ""
    command_title: str = ""  # what to do with it
    command_note: str = ""
    doubts: tuple[str, ...] = ()  # reasons to trust it less, which stand with how sure it is
    notes: tuple[str, ...] = ()
    figure: Figure | None = None

    @property
    def lead(self) -> str:
        """The part of a long statement that says it; `details` is what it rests on."""
        found = _LEAD.match(self.statement) if len(self.statement) > _LONGEST_LEAD else None
        return self.statement if found is None else found[0]

    @property
    def details(self) -> str:
        rest = self.statement.removeprefix(self.lead).lstrip(" ,;:")
        if (inside := _BRACKETED.match(rest)) is not None:
            rest = ". ".join(_capitalised(part) for part in inside.groups() if part)
        return _capitalised(rest)


def _capitalised(text: str) -> str:
    """As a sentence begins; the name of a metric stays as it is."""
    return text if "_" in text.partition(" ")[0] else f"{text[:1].upper()}{text[1:]}"


@dataclass(frozen=True, slots=True)
class Fold:
    """Closed until opened. Printed in full, unless `on_paper` is false: what one would only copy from a screen."""

    title: str
    parts: tuple[Part, ...]
    on_paper: bool = True


Part = Paragraph | CodeText | Bullets | FactTiles | AnswerCard | RunRows | TextTable | Figure | FigureGroup | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """`key` is its anchor. One without a title is part of the page's head."""

    key: str
    title: str
    parts: tuple[Part, ...]
