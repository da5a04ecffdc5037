"""The seam: an analyzer knows one kind of file, tells it by a mark, and turns its lines into findings.

To add one, write a function `(source, lines) -> list[Finding]`, wrap it in an `Analyzer` and register it under its
kind, in the catalog or as an entry point of the group `ridgeline.analyzers`. Promises an analyzer keeps:
it never fails on torn or foreign text (fewer findings, not an error), it reads `lines` as a stream, each finding quotes
the lines that show it, and it gives the same findings when called again.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol

from ridgeline.diagnose.readers.lines import TextFile, Watch, plain
from ridgeline.errors import InputError, ReadError
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.records.expression import Value
from ridgeline.records.finding import Finding, KnobToTry, Severity, most_at_stake_first
from ridgeline.records.json_form import JsonForm, also_in_json, in_json
from ridgeline.records.outcome import Evidence
from ridgeline.records.secrets import masked

_QUOTE_CHARS = 220
_LEAST_SHARE = 0.005  # of the time: less is shown as 0%
_HEAD_LINES, _TAIL_LINES, _MARK_CHARS = 5000, 1000, 2000


@dataclass(frozen=True, slots=True)
class SummaryFigure:
    """One number of a log or profile that can be held against the same number of another."""

    name: str
    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What a file says in numbers: figures, and the settings that ran. All of it is plain data."""

    figures: tuple[SummaryFigure, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure of two files, or of only one of them; `ratio` is second over first where that makes sense."""

    name: str
    unit: str
    first: float | None
    second: float | None

    @property
    @also_in_json()
    def ratio(self) -> float | None:
        return self.second / self.first if self.first and self.second is not None else None

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Name, both amounts and the change, as people read them."""
        return self.name, _amount(self.first, self.unit), _amount(self.second, self.unit), self._change

    @property
    def _change(self) -> str:
        if self.first is None or self.second is None:
            return ""
        if self.unit == "share":
            points = 100 * (self.second - self.first)
            return f"{points:+.1f} points" if abs(points) >= 0.05 else "same"
        ratio = self.ratio
        return "" if ratio is None else "same" if ratio == 1 else f"{100 * (ratio - 1):+.1f}%"


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "share":
        return f"{value:.1%}"
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{shown} {unit}".strip()


def figure_changes(first: LogSummary, second: LogSummary) -> tuple[FigureChange, ...]:
    """Every figure of either, in the order of the first."""
    one, other = ({f.name: f for f in p.figures} for p in (first, second))
    changes = []
    for name in dict.fromkeys((*one, *other)):
        a, b = one.get(name), other.get(name)
        unit = (a or b or SummaryFigure("", 0.0)).unit
        changes.append(FigureChange(name, unit, a.value if a else None, b.value if b else None))
    return tuple(changes)


class LineMark(Protocol):
    """What a kind of file is recognised by: a pattern, or anything that searches a line as a pattern does."""

    def search(self, text: str, /) -> re.Match[str] | None: ...


@dataclass(frozen=True, slots=True)
class Analyzer:
    """`mark` matches in at least one line of every file of this kind, and in no line of other kinds.

    `portray` is optional: it gives the numbers that `diagnose --compare` holds side by side. `failures` says whose
    failures it explains: its own program's; any program's (then it is left out where another knows its own); those that
    shells, launchers and batch systems report; or none.
    """

    kind: str
    what: str
    mark: LineMark
    analyze: Callable[[str, Iterable[str]], list[Finding]]
    portray: Callable[[Iterable[str]], LogSummary] | None = None
    failures: Literal["none", "own", "any", "outside"] = "none"


@dataclass(frozen=True, slots=True)
class Quote:
    """A line to show as evidence; of a long line, the part around `about`. `text` where it is known already."""

    line: int
    about: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class RawFinding:
    """A finding whose evidence is still only line numbers."""

    claim: str
    quotes: tuple[Quote, ...]
    advice: str
    severity: Severity = "advice"
    share: float | None = None
    knobs: tuple[KnobToTry, ...] = ()
    key: str = ""
    echo: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(JsonForm, Shown):
    """What is known of one file. `kinds` is empty when no analyzer recognised it; a file can be of several kinds.

    `notes` say what kept parts of the file from being read.
    """

    path: Path = field(metadata=in_json("file"))
    kinds: tuple[str, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    def shown(self) -> TextTable:
        rows = tuple((each.severity, each.claim, each.advice) for each in self.findings[:20])
        kinds = ", ".join(self.kinds) or "of no known kind"
        return TextTable(f"{self.path} ({kinds})", ("", "what it shows", "what to do"), rows, notes=self.notes)


def knob(program: str, name: str, current: Value, others: Iterable[Value]) -> tuple[KnobToTry, ...]:
    """The value that ran and those to try beside it; nothing where no other is left or the current one is unknown."""
    values = tuple(dict.fromkeys((current, *(v for v in others if v is not None))))
    return () if current is None or len(values) < 2 else (KnobToTry(program, name, values, current),)


def rereadable(lines: Iterable[str]) -> Iterable[str]:
    """Lines that can be read a second time, for the quotes; only a one-shot iterator is held in memory."""
    return list(lines) if isinstance(lines, Iterator) else lines


def cited(source: str, lines: Iterable[str] | Mapping[int, str], claims: Sequence[RawFinding]) -> list[Finding]:
    """Claims with their lines quoted, most at stake first. Without a line to show, in a torn file, a claim is dropped,
    and so is advice with no time at stake.

    `lines` are all lines of the file, or those to be quoted by their number.
    """
    texts = lines if isinstance(lines, Mapping) else _quoted(lines, claims)
    findings = []
    for claim in claims:
        said = ((q, q.text or texts.get(q.line, "")) for q in claim.quotes if q.text or q.line in texts)
        shown = [Evidence(source, q.line, _excerpt(plain(text), q.about)) for q, text in said]
        if shown:
            share = None if claim.share is None else min(1.0, max(0.0, claim.share))
            if share is not None and share < _LEAST_SHARE:
                if claim.severity == "advice":
                    continue  # nothing to gain by it
                share = None
            known = (claim.knobs, claim.key, claim.echo)
            findings.append(Finding(claim.claim, tuple(shown), claim.advice, claim.severity, share, *known))
    return most_at_stake_first(findings)


def _quoted(lines: Iterable[str], claims: Sequence[RawFinding]) -> dict[int, str]:
    wanted = {quote.line for claim in claims for quote in claim.quotes if not quote.text}
    last = max(wanted, default=0)
    texts: dict[int, str] = {}
    if wanted:
        for number, line in enumerate(lines, 1):
            if number in wanted:
                texts[number] = line
            if number >= last:
                break
    return texts


def diagnose(path: Path, analyzers: Sequence[Analyzer], watch: Watch | None = None) -> Diagnosis:
    """Find out what a file is and what it means; `watch` is called with how far into the file we are."""
    text = opened(path, watch)
    known = kinds_of(text, analyzers)
    findings: list[Finding] = []
    notes: dict[str, None] = {}
    kinds: list[str] = []
    for analyzer in known:
        try:
            new = _new(analyzer.analyze(str(path), text), findings)
            findings += new
            if new or analyzer.failures not in ("any", "outside") or len(known) == 1:
                kinds.append(analyzer.kind)
        except ReadError as error:
            kinds.append(analyzer.kind)
            notes[str(error)] = None
        if text.damage:
            notes[f"{path}: {text.damage}"] = None
    return Diagnosis(path, tuple(kinds), tuple(most_at_stake_first(findings)), tuple(notes))


def opened(path: Path, watch: Watch | None = None) -> TextFile:
    """InputError where there is no file of this name."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the files in it, for example {shlex.quote(str(path))}/*")
    return TextFile(path, watch)


def kinds_of(lines: Iterable[str], analyzers: Sequence[Analyzer]) -> list[Analyzer]:
    """The analyzers whose mark is in the text; a job's output often holds a program's log, a profile and a footer.

    Only the first and last lines of a long file are looked at: programs introduce themselves, profilers and batch
    systems write at the end.
    """
    found: set[str] = set()
    for line in _ends(lines):
        text = line[:_MARK_CHARS]
        found.update(a.kind for a in analyzers if a.kind not in found and a.mark.search(text))
    known = [a for a in analyzers if a.kind in found]
    if any(a.failures == "own" for a in known):
        known = [a for a in known if a.failures != "any"]
    return known


def _new(findings: Sequence[Finding], known: Sequence[Finding]) -> list[Finding]:
    """Without faults whose line another analyzer has already explained, and without the echo of a known fault."""
    faults = [finding for finding in known if finding.severity == "fault"]
    explained = {e.line_number for finding in faults for e in finding.evidence}

    def is_new(finding: Finding) -> bool:
        if finding.severity != "fault":
            return True
        return not (finding.echo and faults) and not explained & {e.line_number for e in finding.evidence}

    return [finding for finding in findings if is_new(finding)]


def _ends(lines: Iterable[str]) -> Iterator[str]:
    if isinstance(lines, TextFile):
        yield from lines.ends(_HEAD_LINES, _TAIL_LINES)
        return
    rest = iter(lines)
    yield from islice(rest, _HEAD_LINES)
    yield from deque(rest, maxlen=_TAIL_LINES)


def _excerpt(text: str, about: str) -> str:
    text = masked(text.strip())
    if len(text) <= _QUOTE_CHARS:
        return text
    start = max(0, text.find(about) - 40) if about else 0
    piece = text[start : start + _QUOTE_CHARS]
    return ("… " if start else "") + piece.strip() + (" …" if start + _QUOTE_CHARS < len(text) else "")
