"""`perf report --stdio`, with or without call graphs: the own time of each function. Call chains are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ridgeline.diagnose.profilers.profile import Function, Profile, sampled_profile
from ridgeline.readers.lines import number

# with call graphs there are two percentages, children and self: the second counts
_ROW = re.compile(
    r"^\s{1,9}(\d{1,3}\.\d\d)%(?:\s{1,9}(\d{1,3}\.\d\d)%)?\s{1,9}(\S{1,40})\s{1,60}(\S{1,400})"
    r"\s{1,80}\[[.kguH]\] (\S.{0,400})$",
    re.ASCII,
)
# of `perf report --sort dso`
_LIBRARIES_ONLY = re.compile(r"^# (?:Overhead|Children\s{1,9}Self)\s{1,20}Shared Object\s*$")
_LIBRARY = re.compile(r"^\s{1,9}(\d{1,3}\.\d\d)%(?:\s{1,9}(\d{1,3}\.\d\d)%)?\s{1,9}(\S{1,400})$", re.ASCII)


def read_perf_report(lines: Iterable[str]) -> Profile:
    """Shares are of all samples in the report, whichever process they fell in."""
    functions: list[Function] = []
    by_library = False
    for line_number, raw in enumerate(lines, 1):
        text = raw[:1200].rstrip()
        if by_library and (row := _LIBRARY.match(text)):
            name, module = row.group(3), row.group(3)
        elif row := _ROW.match(text):
            name, module = row.group(5).strip(), row.group(4)
        else:
            by_library = by_library or _LIBRARIES_ONLY.match(text) is not None
            continue
        percent = number(row.group(2) or row.group(1))
        if percent is not None and 0 <= percent <= 100:
            functions.append(Function(name, module, percent / 100, None, line_number))
    return sampled_profile("perf", functions)
