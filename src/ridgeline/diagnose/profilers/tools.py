"""What profilers write: IPM 2.x, by its banner, mpiP 3.x, perf and VTune."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ridgeline.diagnose.profilers.profile import Call, Function, Profile, RankTime, busy_ratio, sampled_profile, summed
from ridgeline.diagnose.readers.lines import number, whole

_BANNER = re.compile(r"^##IPM")
_BANNER_END = re.compile(r"^#{20,}\s*$")
_TASKS = re.compile(
    r"^# mpi_tasks\s{0,9}:\s{0,9}(\d{1,9}) on \d{1,9} nodes\s{1,60}%comm\s{0,9}:\s{0,9}(\S{1,20})", re.ASCII
)
_WALL = re.compile(r"^# stop .{0,120}wallclock\s{0,9}:\s{0,9}(\S{1,20})", re.ASCII)
_STATISTIC = re.compile(r"^# {1,5}(wallclock|MPI|I/O)\s{0,12}:((?:\s{1,30}[\d.eE+-]{1,20}){3,4})\s*$", re.ASCII)
_ROW = re.compile(r"^# (\w{3,40})\s{1,40}([\d.eE+-]{1,20})\s{1,30}(\d{1,18})\s{1,30}([\d.eE+-]{1,20})\s*$", re.ASCII)


def read_ipm(lines: Iterable[str]) -> Profile:
    """From the banner at the end of a program's output; where a file holds several, from the last."""
    banner: list[tuple[int, str]] = []
    inside = False
    for line_number, raw in enumerate(lines, 1):
        line = raw[:4000]
        if _BANNER.match(line):
            banner, inside = [], True
        elif inside and line.startswith("#"):
            inside = _BANNER_END.match(line) is None
            banner.append((line_number, line))
    return _from_banner(banner)


def _from_banner(lines: Iterable[tuple[int, str]]) -> Profile:
    found: dict[str, Any] = {}
    seconds: dict[str, tuple[float, float]] = {}  # of wallclock, MPI and I/O: mean and least of all ranks
    calls: list[Call] = []
    percent = False
    for line_number, line in lines:
        if row := _TASKS.match(line):
            share = number(row.group(2))
            found |= {"ranks": whole(row.group(1)), "communication_line": line_number}
            found["communication_share"] = None if share is None else share / 100
        elif row := _WALL.match(line):
            found["wall_s"] = number(row.group(1))
        elif line.startswith(("# %wall", "# #calls")):
            percent = line.startswith("# %wall")
        elif row := _STATISTIC.match(line):
            name, values = row.group(1), [v for v in map(number, row.group(2).split()) if v is not None]
            if len(values) != len(row.group(2).split()):
                continue
            mean, least, _ = values[-3:]
            if percent and name == "I/O":
                found |= {"io_share": mean / 100, "io_line": line_number}
            elif not percent and len(values) == 4 and name not in seconds:
                # [total] <avg> min max, in seconds; the later block of the same names counts calls
                seconds[name] = (mean, least)
                found |= _balance(seconds, line_number)
        elif row := _ROW.match(line):
            name, in_s, of_wall = row.group(1), number(row.group(2)), number(row.group(4))
            if in_s is not None and of_wall is not None and name.startswith("MPI_"):
                total = seconds.get("MPI", (0.0, 0.0))[0] * (found.get("ranks") or 0)
                share = in_s / total if total > 0 else None
                calls.append(Call(name, in_s, share, of_wall / 100, whole(row.group(3)), line_number))
    return Profile(tool="IPM", calls=tuple(calls), **found)


def _balance(seconds: Mapping[str, tuple[float, float]], line_number: int) -> dict[str, Any]:
    if not {"wallclock", "MPI"} <= seconds.keys():
        return {}
    # the rank that is least in MPI is the busiest; wallclock is nearly the same for all
    (wall_s, _), (mpi_s, least_s) = seconds["wallclock"], seconds["MPI"]
    mean, busiest = wall_s - mpi_s, wall_s - least_s
    return {"busy_ratio": busiest / mean, "busy_line": line_number} if mean > 0 and busiest >= mean else {}


# mpiP's report. Per-callsite statistics at its end are not read: the aggregate sections hold the sums.

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


# `perf report --stdio`, with or without call graphs: the own time of each function. Call chains are skipped.

# with call graphs there are two percentages, children and self: the second counts
_PERF_ROW = re.compile(
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
        elif row := _PERF_ROW.match(text):
            name, module = row.group(5).strip(), row.group(4)
        else:
            by_library = by_library or _LIBRARIES_ONLY.match(text) is not None
            continue
        percent = number(row.group(2) or row.group(1))
        if percent is not None and 0 <= percent <= 100:
            functions.append(Function(name, module, percent / 100, None, line_number))
    return sampled_profile("perf", functions)


# VTune's `vtune -report hotspots -format csv`, with any of its delimiters (tab unless asked otherwise).

_HEADER = re.compile(r'^"?(?:Process|Thread|Function)(?: Stack)?"?([\t,;|])')
_SECONDS = re.compile(r"^([\d.eE+-]{1,24})s?$", re.ASCII)


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
    found = _SECONDS.match(text) if text else None
    return number(found.group(1)) if found else None
