"""What batch systems and launchers print among a program's own output.

PBS sites end it with a footer: NCI Gadi's and NSCC ASPIRE2A+'s resource usage. Labels are matched without case and in
any order, since columns moved between years. Launchers say where they bound each rank: Open MPI 4 and 5
(--report-bindings), MPICH's Hydra (HYDRA_TOPO_DEBUG=1), Intel MPI (I_MPI_DEBUG=4) and srun (--cpu-bind=verbose).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ridgeline.diagnose.readers.lines import number, whole

_STARTS = re.compile(r"Resource Usage on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)
_PAIR = re.compile(
    r"(exit status|service units|(?:ncpus|ngpus|memory|walltime) (?:requested|used)|cpu time used"
    r"|gpu utilisation|gpu memory used)\s{0,20}:\s{0,20}([^\s/]{1,80})",
    re.IGNORECASE | re.ASCII,
)
_BOTH = re.compile(
    r"(ncpus|ngpus|memory|walltime)\s{0,20}:\s{0,20}requested\(([^)]{0,40})\)[, ]{0,5}used\(([^)]{0,40})\)",
    re.IGNORECASE | re.ASCII,
)
_NODES = re.compile(r"execution nodes used:\s{0,20}(\S{1,4000})", re.IGNORECASE | re.ASCII)
_GPUS = re.compile(r"\bngpus=(\d{1,4})", re.ASCII)
_KILLED = re.compile(r"=>> PBS: job killed: (.{1,200})", re.ASCII)
_SIZE = re.compile(r"(\d[\d.]{0,20})\s?([kmgtp]?)i?b?$", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


@dataclass(frozen=True, slots=True)
class BatchFooter:
    """What the site says the job used; a field is None where the site does not print it.

    `killed` is PBS's own sentence when it ended the job for going over a limit; it can stand without a footer.
    """

    line: int
    exit_status: int | None = None
    service_units: float | None = None
    ncpus_requested: int | None = None
    ncpus_used: int | None = None
    cpu_s: float | None = None
    memory_requested_bytes: int | None = None
    memory_used_bytes: int | None = None
    wall_used_s: float | None = None
    ngpus_requested: int | None = None
    gpu_share: float | None = None
    gpu_memory_used_bytes: int | None = None
    killed: str | None = None
    killed_line: int = 0


def read_batch_footer(lines: Iterable[str]) -> BatchFooter | None:
    """The last footer, or None where neither a footer nor a PBS kill message was printed."""
    found: dict[str, str] = {}
    line, killed, killed_line = 0, None, 0
    for line_number, raw in enumerate(lines, 1):
        text = raw[:5000]
        if _STARTS.search(text):
            if killed_line < line:  # what was killed is the job of the footer before
                killed, killed_line = None, 0
            found, line = {}, line_number
        elif reason := _KILLED.search(text):
            killed, killed_line = reason.group(1).strip(), line_number
        elif line:
            for label, value in _PAIR.findall(text):
                found[label.lower().replace(" ", "")] = value
            for label, requested, used in _BOTH.findall(text):
                found[label.lower() + "requested"], found[label.lower() + "used"] = requested, used
            listed = _NODES.search(text)
            if listed and (gpus := sum(map(int, _GPUS.findall(listed.group(1))))):
                found.setdefault("ngpusrequested", str(gpus))
    if not found and killed is None:
        return None
    return replace(_footer(found, line or killed_line), killed=killed, killed_line=killed_line)


def _footer(found: dict[str, str], line: int) -> BatchFooter:
    percent = number(found.get("gpuutilisation", "").rstrip("%"))
    return BatchFooter(
        line=line,
        exit_status=whole(found.get("exitstatus")),
        service_units=number(found.get("serviceunits")),
        ncpus_requested=whole(found.get("ncpusrequested")),
        ncpus_used=whole(found.get("ncpusused")),
        cpu_s=clock_s(found.get("cputimeused")),
        memory_requested_bytes=size_bytes(found.get("memoryrequested")),
        memory_used_bytes=size_bytes(found.get("memoryused")),
        wall_used_s=clock_s(found.get("walltimeused")),
        ngpus_requested=whole(found.get("ngpusrequested")),
        gpu_share=None if percent is None else percent / 100,
        gpu_memory_used_bytes=size_bytes(found.get("gpumemoryused")),
    )


def clock_s(text: str | None) -> float | None:
    """Seconds from hours:minutes:seconds, where hours may exceed 24, or None."""
    parts = [whole(part) for part in (text or "").split(":")]
    if len(parts) != 3 or any(p is None or p < 0 for p in parts):
        return None
    hours, minutes, seconds = (p or 0 for p in parts)
    return float(hours * 3600 + minutes * 60 + seconds)


def size_bytes(text: str | None) -> int | None:
    """Bytes from PBS's 37195476kb or Gadi's 493.55GB; both mean powers of 1024."""
    found = _SIZE.match(text.strip()) if text else None
    value = number(found.group(1)) if found else None
    return None if found is None or value is None else round(value * 1024 ** _POWERS[found.group(2).lower()])


_OPENMPI4 = re.compile(r"\[([\w.-]{1,100}):\d{1,9}\] MCW rank (\d{1,7}) (is not bound|bound to (.{1,4000}))", re.ASCII)
_OPENMPI5 = re.compile(
    r"\[([\w.@,-]{1,100})(?::\d{1,9})?\] Rank (\d{1,7}) (is not bound|bound to (.{1,4000}))", re.ASCII
)
_HYDRA = re.compile(r"process (\d{1,7}) binding: ?([01]{1,4096})\b", re.ASCII)
_INTEL = re.compile(
    r"MPI startup\(\): (\d{1,7})\s{1,20}\d{1,9}\s{1,20}([\w.-]{1,100})\s{1,20}\{([\d,-]{1,4000})\}", re.ASCII
)
_SRUN = re.compile(
    r"cpu-bind[^-\n]{0,20}- ([\w.-]{1,100}), task\s{1,9}(\d{1,7})\s.{0,60}?mask (0x[0-9A-Fa-f]{1,1024})", re.ASCII
)
_CORE4 = re.compile(r"core (\d{1,6})\[", re.ASCII)
_CORE5 = re.compile(r"\[(?:core|hwt):([\d,-]{1,2000})\]", re.ASCII)
_MOST_CPUS = 8192


@dataclass(frozen=True, slots=True)
class RankBinding:
    """`cpus` are the numbers the launcher printed (cores for Open MPI, else CPUs); None when the rank is not bound."""

    rank: int
    host: str | None
    cpus: tuple[int, ...] | None
    line: int


def read_bindings(lines: Iterable[str]) -> tuple[RankBinding, ...]:
    """All bindings that were reported, in the order of the file."""
    bindings = []
    for line_number, line in enumerate(lines, 1):
        if "bound" in line or "binding:" in line or "MPI startup" in line or "cpu-bind" in line:
            binding = _binding(line[:6000], line_number)
            if binding is not None:
                bindings.append(binding)
    return tuple(bindings)


def _binding(line: str, line_number: int) -> RankBinding | None:
    if found := _OPENMPI4.search(line) or _OPENMPI5.search(line):
        host, rank, where, place = found.groups()
        if where == "is not bound":
            return RankBinding(int(rank), host, None, line_number)
        cores = {int(n) for n in _CORE4.findall(place)}
        for listed in _CORE5.findall(place):
            cores.update(_ranges(listed))
        return RankBinding(int(rank), host, tuple(sorted(cores)), line_number) if cores else None
    if found := _HYDRA.search(line):
        # the lowest CPU is the first character
        cpus = tuple(i for i, bit in enumerate(found.group(2)) if bit == "1")
        return RankBinding(int(found.group(1)), None, cpus, line_number)
    if found := _INTEL.search(line):
        return RankBinding(int(found.group(1)), found.group(2), tuple(sorted(_ranges(found.group(3)))), line_number)
    if found := _SRUN.search(line):
        mask = int(found.group(3), 16)
        cpus = tuple(i for i in range(mask.bit_length()) if mask >> i & 1)
        return RankBinding(int(found.group(2)), found.group(1), cpus, line_number)
    return None


def _ranges(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start = whole(first)
        end = whole(last) if last else start
        if start is not None and end is not None and start <= end < _MOST_CPUS:
            numbers.update(range(start, end + 1))
    return numbers
