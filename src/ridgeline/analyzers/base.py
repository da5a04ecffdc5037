"""The seam: an analyzer knows one kind of file, tells it by a mark, and turns its lines into findings.

To add one, write a function `(source, lines) -> list[Finding]`, wrap it in an `Analyzer` and register it under its
kind, in the catalog or as an entry point of the group `ridgeline.analyzers`. Promises an analyzer keeps:
it never fails on torn or foreign text (fewer findings, not an error), it reads `lines` as a stream, each finding quotes
the lines that show it, and it gives the same findings when called again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.readers.lines import TextFile, plain
from ridgeline.records.finding import Finding, Severity
from ridgeline.records.outcome import Evidence
from ridgeline.records.secrets import masked

_QUOTE_CHARS = 220
_HEAD_LINES, _TAIL_LINES, _MARK_CHARS = 5000, 1000, 2000
_ORDER: dict[Severity, int] = {"fault": 0, "warning": 1, "advice": 2, "note": 3}


@dataclass(frozen=True, slots=True)
class Analyzer:
    """`mark` matches in at least one line of every file of this kind, and in no line of other kinds."""

    kind: str
    what: str
    mark: re.Pattern[str]
    analyze: Callable[[str, Iterable[str]], list[Finding]]


@dataclass(frozen=True, slots=True)
class Quote:
    """A line to show as evidence; of a long line, the part around `about`."""

    line: int
    about: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A finding whose evidence is still only line numbers."""

    claim: str
    quotes: tuple[Quote, ...]
    advice: str
    severity: Severity = "advice"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known of one file. `kinds` is empty when no analyzer recognised it; a file can be of several kinds."""

    path: Path
    kinds: tuple[str, ...]
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, object]:
        findings = [
            {
                "severity": f.severity,
                "claim": f.claim,
                "evidence": [{"file": e.source, "line": e.line_number, "text": e.text} for e in f.evidence],
                "advice": f.advice,
            }
            for f in self.findings
        ]
        return {"file": str(self.path), "kinds": list(self.kinds), "findings": findings}


def rereadable(lines: Iterable[str]) -> Iterable[str]:
    """Lines that can be read a second time, for the quotes; only a one-shot iterator is held in memory."""
    return list(lines) if isinstance(lines, Iterator) else lines


def cited(source: str, lines: Iterable[str], claims: Sequence[Claimed]) -> list[Finding]:
    """Claims with their lines quoted, gravest first. Without a line to show, in a torn file, a claim is dropped."""
    wanted = {quote.line for claim in claims for quote in claim.quotes}
    last = max(wanted, default=0)
    texts: dict[int, str] = {}
    if wanted:
        for number, line in enumerate(lines, 1):
            if number in wanted:
                texts[number] = plain(line)
            if number >= last:
                break
    findings = []
    for claim in claims:
        shown = [Evidence(source, q.line, _excerpt(texts[q.line], q.about)) for q in claim.quotes if q.line in texts]
        if shown:
            findings.append(Finding(claim.claim, tuple(shown), claim.advice, claim.severity))
    return sorted(findings, key=lambda f: _ORDER[f.severity])


def diagnose(path: Path, analyzers: Sequence[Analyzer]) -> Diagnosis:
    """Find out what a file is and what it means."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the files in it, for example {path}/*")
    text = TextFile(path)
    known = kinds_of(text, analyzers)
    findings = [finding for analyzer in known for finding in analyzer.analyze(str(path), text)]
    findings.sort(key=lambda f: _ORDER[f.severity])
    return Diagnosis(path, tuple(a.kind for a in known), tuple(findings))


def kinds_of(lines: Iterable[str], analyzers: Sequence[Analyzer]) -> list[Analyzer]:
    """The analyzers whose mark is in the text; a job's output often holds a program's log, a profile and a footer.

    Only the first and last lines of a long file are looked at: programs introduce themselves, profilers and batch
    systems write at the end.
    """
    found: set[str] = set()
    for line in _ends(lines):
        text = line[:_MARK_CHARS]
        found.update(a.kind for a in analyzers if a.kind not in found and a.mark.search(text))
    return [a for a in analyzers if a.kind in found]


def _ends(lines: Iterable[str]) -> Iterator[str]:
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    for number, line in enumerate(lines):
        if number < _HEAD_LINES:
            yield line
        else:
            tail.append(line[:_MARK_CHARS])
    yield from tail


def _excerpt(text: str, about: str) -> str:
    text = masked(text.strip())
    if len(text) <= _QUOTE_CHARS:
        return text
    start = max(0, text.find(about) - 40) if about else 0
    piece = text[start : start + _QUOTE_CHARS]
    return ("… " if start else "") + piece.strip() + (" …" if start + _QUOTE_CHARS < len(text) else "")
