"""VTune's `vtune -report hotspots -format csv`, with any of its delimiters (tab unless asked otherwise)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable

from ridgeline.diagnose.profilers.profile import Function, Profile, sampled_profile
from ridgeline.readers.lines import number

_HEADER = re.compile(r'^"?(?:Process|Thread|Function)(?: Stack)?"?([\t,;|])')
_NUMBER = re.compile(r"^([\d.eE+-]{1,24})s?$", re.ASCII)


def read_vtune(lines: Iterable[str]) -> Profile:
    """Messages around the table are skipped; without a table the profile is empty."""
    columns: list[str] = []
    delimiter = "\t"
    rows: list[tuple[int, dict[str, str]]] = []
    for line_number, raw in enumerate(lines, 1):
        line = raw[:8000]
        header = _HEADER.match(line)
        if header and "CPU Time" in line:
            delimiter = header.group(1)
            columns = [c.removesuffix(":Self") for c in _cells(line, delimiter)]
        elif columns:
            cells = _cells(line, delimiter)
            if len(cells) >= 2:
                rows.append((line_number, dict(zip(columns, cells, strict=False))))
    timed = [(line, row, t) for line, row in rows if (t := _seconds(row.get("CPU Time"))) is not None and t >= 0]
    total = sum(t for _, _, t in timed)
    if total <= 0:
        return Profile(tool="VTune")
    functions = [
        Function(row.get("Function", row.get("Function Stack", "")), row.get("Module", ""), t / total, t, line)
        for line, row, t in timed
    ]
    spin = sum(_seconds(row.get("CPU Time:Spin Time")) or 0.0 for _, row, _ in timed)
    return sampled_profile("VTune", functions, spin_share=spin / total)


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [c.strip() for c in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _seconds(text: str | None) -> float | None:
    found = _NUMBER.match(text) if text else None
    return number(found.group(1)) if found else None
