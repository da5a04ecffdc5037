"""mpiP's report (3.x). Per-callsite statistics at its end are not read: the aggregate sections hold the sums."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ridgeline.diagnose.profilers.profile import Call, Profile, RankTime, busy_ratio, summed
from ridgeline.readers.lines import number, whole

_SECTION = re.compile(r"^@--- ([A-Za-z /]{3,60})")
_TASK = re.compile(r"^\s{0,12}(\*|\d{1,9})\s{1,12}(\S{1,20})\s{1,12}(\S{1,20})\s{1,12}(\S{1,20})\s*$", re.ASCII)


def read_mpip(lines: Iterable[str]) -> Profile:
    """A report that is cut gives what it still holds; text that is no report gives an empty profile."""
    section = ""
    columns: list[str] = []
    ranks: list[RankTime] = []
    calls: list[Call] = []
    share, share_line = None, 0
    for line_number, raw in enumerate(lines, 1):
        line = raw[:1000]
        if found := _SECTION.match(line):
            section, columns = found.group(1).strip(), []
        elif section.startswith("MPI Time"):
            row = _TASK.match(line)
            app_s, mpi_s = (number(row.group(2)), number(row.group(3))) if row else (None, None)
            if row is None or app_s is None or mpi_s is None:
                continue
            if row.group(1) != "*":
                ranks.append(RankTime(int(row.group(1)), app_s, mpi_s, line_number))
            elif app_s > 0:
                share, share_line = mpi_s / app_s, line_number
        elif section.startswith("Aggregate Time"):
            words = line.split()
            if words[:2] == ["Call", "Site"]:
                columns = words
            elif columns and (call := _call(columns, words, line_number)) is not None:
                calls.append(call)
    times = tuple(ranks)
    return Profile(
        tool="mpiP",
        ranks=len(times) or None,
        wall_s=max((t.time_s for t in times), default=None),
        communication_share=share if share is not None else _share(times),
        communication_line=share_line or (times[0].line if times else 0),
        calls=summed(calls),
        rank_times=times,
        busy_ratio=busy_ratio(times),
    )


def _call(columns: list[str], words: list[str], line_number: int) -> Call | None:
    """Columns moved between versions (3.5 added Count), so a row is read by its header."""
    row = dict(zip(columns, words, strict=False))
    milliseconds = number(row.get("Time"))
    if len(words) < 5 or milliseconds is None or whole(row.get("Site")) is None:
        return None
    app, mpi = number(row.get("App%")), number(row.get("MPI%"))
    return Call(
        name=words[0] if words[0].startswith("MPI_") else f"MPI_{words[0]}",
        seconds=milliseconds / 1000,
        share_of_communication=None if mpi is None else mpi / 100,
        share_of_time=None if app is None else app / 100,
        count=whole(row.get("Count")),
        line=line_number,
    )


def _share(times: tuple[RankTime, ...]) -> float | None:
    total = sum(t.time_s for t in times)
    return sum(t.communication_s for t in times) / total if total > 0 else None
