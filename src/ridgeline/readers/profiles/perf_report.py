"""`perf report --stdio`, with or without call graphs: the own time of each function. Call chains are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ridgeline.readers.lines import number
from ridgeline.readers.profiles.profile import Function, Profile
from ridgeline.readers.profiles.sampled import sampled_profile

# with call graphs there are two percentages, children and self: the second counts
_ROW = re.compile(
    r"^\s{1,9}(\d{1,3}\.\d\d)%(?:\s{1,9}(\d{1,3}\.\d\d)%)?\s{1,9}(\S{1,40})\s{1,60}(\S{1,400})"
    r"\s{1,80}\[[.kguH]\] (\S.{0,400})$",
    re.ASCII,
)


def read_perf_report(lines: Iterable[str]) -> Profile:
    """Shares are of all samples in the report, whichever process they fell in."""
    functions = []
    for line_number, raw in enumerate(lines, 1):
        row = _ROW.match(raw[:1200].rstrip())
        if row is None:
            continue
        percent = number(row.group(2) or row.group(1))
        if percent is not None and 0 <= percent <= 100:
            functions.append(Function(row.group(5).strip(), row.group(4), percent / 100, None, line_number))
    return sampled_profile("perf", functions)
