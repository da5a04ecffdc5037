"""This machine: which cores a job gets, so that runs at the same time do not disturb each other, and what others did.

Busy cores less the CPU time of the run and of this process are others'. So a program that keeps every core busy itself
does not look like a busy machine, as it would by the load average. What a hypervisor took for other guests (steal) is
among others', as far as it is counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ridgeline.executors.processes import now_s
from ridgeline.files import text_of

_STAT = Path("/proc/stat")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CPU = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def allowed_cores(most: int | None = None) -> list[int]:
    """The cores this process may use: its affinity, cut to the CPU quota of its control group and to `most`.

    Hardware threads of one core come last, so that jobs share a core only when there are no whole ones left.
    """
    cores = sorted(os.sched_getaffinity(0), key=_place)
    limits = [n for n in (quota_cores(), most) if n is not None]
    return cores[: max(1, min([len(cores), *limits]))]


class FreeCores:
    """Which cores are free. `take` gives disjoint sets."""

    def __init__(self, cores: Iterable[int]) -> None:
        self._order = list(cores)
        self._taken: set[int] = set()

    def __len__(self) -> int:
        return len(self._order)

    def take(self, count: int) -> frozenset[int] | None:
        """`count` free cores, or None while there are not so many. A job larger than the machine gets all of it."""
        free = [core for core in self._order if core not in self._taken]
        count = max(1, min(count, len(self._order)))
        if len(free) < count:
            return None
        chosen = frozenset(free[:count])
        self._taken |= chosen
        return chosen

    def note(self, cores: Iterable[int]) -> frozenset[int]:
        """Mark the cores of a job that already runs (started by a controller before us)."""
        ours = frozenset(self._order) & frozenset(cores)
        self._taken |= ours
        return ours

    def give_back(self, cores: Iterable[int]) -> None:
        self._taken -= set(cores)


@contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """What this thread starts inside runs on these cores: affinity is inherited, and per thread on Linux."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _place(core: int) -> tuple[int, int, int]:
    siblings = _numbers(text_of(CPU / f"cpu{core}/topology/thread_siblings_list").strip())
    package = text_of(CPU / f"cpu{core}/topology/physical_package_id").strip()
    rank = siblings.index(core) if core in siblings else 0
    return rank, int(package) if package.isdigit() else 0, core


def _numbers(text: str) -> list[int]:
    """0-3,8 -> 0 1 2 3 8"""
    result: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        result += range(int(low), int(high or low) + 1)
    return result


def quota_cores() -> int | None:
    """Whole cores of the CPU quota of this control group, version 2 or 1; None where there is no quota."""
    for version, folder in _groups():
        texts = (
            text_of(folder / "cpu.max").split()
            if version == 2
            else [text_of(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        )
        if len(texts) == 2 and all(texts):  # "max" and -1 mean no quota
            quota, period = texts
            return max(1, int(quota) // int(period)) if quota.isdigit() and period.isdigit() else None
    return None


def _groups() -> Iterator[tuple[int, Path]]:
    """The control group of this process, then the one above all, each with its version."""
    for line in text_of(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            home = CGROUP / "cpu" if controllers else CGROUP
            yield from ((1 if controllers else 2, folder) for folder in (home / path.strip().lstrip("/"), home))


@dataclass(frozen=True, slots=True)
class MachineCounters:
    """Seconds since boot, over all cores: idle, and taken by the hypervisor; throttled by the quota of this group;
    used by this process."""

    at_s: float
    cores: int
    idle_s: float
    stolen_s: float
    throttled_s: float
    own_s: float


def machine_counters() -> MachineCounters | None:
    """None where the machine does not count, as in some containers."""
    cores, idle_s, stolen_s = 0, None, 0.0
    for line in text_of(_STAT).splitlines():
        name, *ticks = line.split()
        if name == "cpu" and len(ticks) >= 8 and all(map(str.isdigit, ticks[:8])):
            idle_s, stolen_s = (int(ticks[3]) + int(ticks[4])) / _TICKS_PER_S, int(ticks[7]) / _TICKS_PER_S
        cores += name.startswith("cpu") and name != "cpu"
    if idle_s is None or not cores:
        return None
    return MachineCounters(now_s(), cores, idle_s, stolen_s, _throttled_s(), time.process_time())


def load_between(before: MachineCounters, after: MachineCounters, run_cpu_s: float) -> dict[str, float]:
    """As an ending keeps it: how long was looked, and the CPU time of others meanwhile; empty where that was no time,
    or the counters stood still."""
    took_s = after.at_s - before.at_s
    idle_s = after.idle_s - before.idle_s
    if took_s <= 0 or idle_s < 0 or before.cores != after.cores or (idle_s == 0 and after.idle_s == 0):
        return {}
    busy_s = max(0.0, took_s * after.cores - idle_s)
    others_s = busy_s - run_cpu_s - (after.own_s - before.own_s)
    return {
        "watched_s": round(took_s, 4),
        "others_cpu_s": round(others_s, 4),  # below 0 by a tick of a core: only the sum over many runs is exact
        "stolen_cpu_s": round(after.stolen_s - before.stolen_s, 4),
        "throttled_s": round(after.throttled_s - before.throttled_s, 4),
    }


def _throttled_s() -> float:
    """How long this control group was kept from its cores because its quota was used up, version 2 or 1."""
    for version, folder in _groups():
        fields = dict(row.split(None, 1) for row in text_of(folder / "cpu.stat").splitlines() if " " in row)
        name, unit = ("throttled_usec", 1e6) if version == 2 else ("throttled_time", 1e9)
        if fields.get(name, "").strip().isdigit():
            return int(fields[name]) / unit
    return 0.0
