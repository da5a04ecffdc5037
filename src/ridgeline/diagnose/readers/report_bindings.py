"""Where a launcher says it bound each rank: Open MPI 4 and 5 (--report-bindings), MPICH's Hydra (HYDRA_TOPO_DEBUG=1),
Intel MPI (I_MPI_DEBUG=4) and srun (--cpu-bind=verbose). These lines stand among a program's own output."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.diagnose.readers.lines import whole

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
