"""Two logs or profiles side by side: settings that differ, figures that moved, findings that came and went."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.diagnose.base import (
    Analyzer,
    Diagnosis,
    FigureChange,
    LogSummary,
    SummaryFigure,
    diagnose,
    figure_changes,
    opened,
)
from ridgeline.diagnose.readers.lines import Watch
from ridgeline.errors import InputError, ReadError
from ridgeline.records.finding import Finding
from ridgeline.records.json_form import plain

_NUMBERS = re.compile(r"\d[\d.,]*")
# what differs from run to run without meaning anything
_INCIDENTAL = re.compile(r"port|seed|_path$|^host$|addr|time_stamp|api_key|served_model_name|^node_rank$")


@dataclass(frozen=True, slots=True)
class FindingChange:
    """The same finding in both files, or in one of them."""

    first: Finding | None
    second: Finding | None


@dataclass(frozen=True, slots=True)
class LogComparison:
    """What changed from the first file to the second."""

    first: Diagnosis
    second: Diagnosis
    settings: tuple[tuple[str, object, object], ...]
    figures: tuple[FigureChange, ...]
    findings: tuple[FindingChange, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "first": str(self.first.path),
            "second": str(self.second.path),
            "kinds": [list(self.first.kinds), list(self.second.kinds)],
            "settings": [{"name": n, "first": _plain(a), "second": _plain(b)} for n, a, b in self.settings],
            "figures": plain(self.figures),
            "findings": plain(self.findings),
            "notes": [*self.first.notes, *self.second.notes],
        }


def compare_files(
    first: Path, second: Path, analyzers: Sequence[Analyzer], watch: tuple[Watch | None, Watch | None] = (None, None)
) -> LogComparison:
    """InputError where the two are not of the same kind."""
    one, other = diagnose(first, analyzers, watch[0]), diagnose(second, analyzers, watch[1])
    strange = [str(d.path) for d in (one, other) if not d.kinds]
    if strange:
        raise InputError(f"{', '.join(strange)}: not recognised; `ridgeline diagnose --help` names the kinds of file")
    shared = [a for a in analyzers if a.kind in one.kinds and a.kind in other.kinds]
    if not shared:
        raise InputError(
            f"{first} is {' and '.join(one.kinds)}, {second} is {' and '.join(other.kinds)}: compare files of one kind"
        )
    summaries = [_summary(path, shared) for path in (first, second)]
    return LogComparison(
        one, other, _settings(*summaries), figure_changes(*summaries), _findings(one.findings, other.findings)
    )


def _summary(path: Path, analyzers: Iterable[Analyzer]) -> LogSummary:
    figures: list[SummaryFigure] = []
    settings: dict[str, object] = {}
    for analyzer in analyzers:
        if analyzer.portray is not None:
            try:
                found = analyzer.portray(opened(path))
            except ReadError:
                continue  # the diagnosis has said it
            figures += found.figures
            settings.update(found.settings)
    return LogSummary(tuple(figures), settings)


def _settings(first: LogSummary, second: LogSummary) -> tuple[tuple[str, object, object], ...]:
    one, other = dict(_flat(first.settings)), dict(_flat(second.settings))
    names = (n for n in dict.fromkeys((*one, *other)) if not _INCIDENTAL.search(n))
    return tuple((n, one.get(n), other.get(n)) for n in names if one.get(n) != other.get(n))


def _flat(settings: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _findings(first: Sequence[Finding], second: Sequence[Finding]) -> tuple[FindingChange, ...]:
    one, other = ({f.key or _NUMBERS.sub("#", f.claim): f for f in findings} for findings in (first, second))
    changes = [FindingChange(one.get(key), other.get(key)) for key in dict.fromkeys((*other, *one))]
    return tuple(sorted(changes, key=lambda c: (c.first is not None, c.second is not None)))


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
