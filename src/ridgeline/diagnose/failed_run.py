"""Why a run failed, from any program's output: readers/failures.py, read as findings.

Two kinds of file come of the one table. What a shell, a launcher, a batch system or the kernel says counts in every
file. What programs say of themselves counts only where no analyzer knows the program better.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ridgeline.diagnose.base import Analyzer, Quote, RawFinding, cited
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES, ProgramFailure, failure_in
from ridgeline.diagnose.readers.lines import plain
from ridgeline.records.finding import Finding, Severity
from ridgeline.records.outcome import filled

_SEARCHED_CHARS = 4096
_NEAR = 200  # lines, within which a launcher tells of the failure that a program has just printed
_AFTER_THE_END = 40  # lines that tracebacks, launchers and batch systems may still write after the failure


@dataclass(frozen=True, slots=True)
class _Seen:
    rank: int
    row: ProgramFailure
    match: re.Match[str]
    line: int
    text: str


def _analyzer(outside: bool) -> Callable[[str, Iterable[str]], list[Finding]]:
    def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
        seen: dict[str, _Seen] = {}
        total = 0
        for total, raw in enumerate(lines, 1):
            text = plain(raw[:_SEARCHED_CHARS])
            if (shown := failure_in(text)) is not None:
                found = _Seen(shown[0], PROGRAM_FAILURES[shown[0]], shown[1], total, text)
                known = seen.get(found.row.name)
                if known is None or found.row.last or _says_more(found, known):
                    seen[found.row.name] = found
        causes = [found for found in _causes(list(seen.values())) if found.row.outside is outside]
        return cited(source, {found.line: found.text for found in causes}, [_claimed(found, total) for found in causes])

    return analyze


@dataclass(frozen=True, slots=True)
class _Rows:
    """The mark of such a file: a line that shows a failure of the table, from the program itself or from outside."""

    outside: bool

    def search(self, text: str) -> re.Match[str] | None:
        shown = failure_in(text)
        return shown[1] if shown is not None and PROGRAM_FAILURES[shown[0]].outside is self.outside else None


def _says_more(found: _Seen, known: _Seen) -> bool:
    return bool(found.match.groupdict()) and not known.match.groupdict()


def _causes(seen: list[_Seen]) -> list[_Seen]:
    """What says what failed; where nothing near it does, the line that says most of those that only say that."""
    causes = [found for found in seen if not found.row.echo]
    echoes = sorted((found for found in seen if found.row.echo), key=lambda found: found.rank)
    left = [echo for echo in echoes if all(abs(echo.line - cause.line) > _NEAR for cause in causes)]
    return [*causes, *left[:1]]


def _claimed(found: _Seen, total: int) -> RawFinding:
    went_on = total - found.line > _AFTER_THE_END and not found.row.outside
    remedy = filled(found.row.remedy, found.match)
    advice = f"{remedy[0].upper()}{remedy[1:]}."
    if went_on:
        advice += f" The log continues for {total - found.line} lines: the program may have recovered."
    about = found.match[0][:40]
    claim = filled(found.row.reason, found.match)
    severity: Severity = "warning" if went_on else "fault"
    key, echo = f"run.{found.row.name}", found.row.echo
    return RawFinding(claim, (Quote(found.line, about),), advice, severity, key=key, echo=echo)


OUTSIDE = Analyzer(
    "failed-job",
    "output of a job that a shell, launcher (Open MPI, MPICH, Intel MPI, srun), Slurm or the kernel says failed",
    _Rows(outside=True),
    _analyzer(outside=True),
    failures="outside",
)
OWN = Analyzer(
    "failed-program",
    "output of any program that says itself why it failed (Python, C++, MPI, CUDA, NCCL, UCX)",
    _Rows(outside=False),
    _analyzer(outside=False),
    failures="any",
)
