"""Which cores a job gets, so that runs at the same time do not disturb each other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ridgeline.files import text_of

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
    """The book of free cores. `take` gives disjoint sets."""

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
    siblings = _numbers(_text(CPU / f"cpu{core}/topology/thread_siblings_list"))
    package = _text(CPU / f"cpu{core}/topology/physical_package_id")
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
    quota, period = "", ""
    for line in _text(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        inner = path.lstrip("/")
        if not controllers:
            fields = (_text(CGROUP / inner / "cpu.max") or _text(CGROUP / "cpu.max")).split()
            quota, period = (fields[0], fields[1]) if len(fields) == 2 else (quota, period)
        elif "cpu" in controllers.split(","):
            home = CGROUP / "cpu" / inner
            quota, period = _text(home / "cpu.cfs_quota_us"), _text(home / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit()):  # "max" and -1 mean no quota
        return None
    return max(1, int(quota) // int(period))


def _text(path: Path) -> str:
    return text_of(path).strip()
