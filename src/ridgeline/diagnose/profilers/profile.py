"""One shape for what profilers say, whichever wrote it: mpiP, IPM, VTune, perf or Nsight Systems.

Communication means MPI, or NCCL where the profile is of a GPU. All shares are between 0 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_high
from typing import TypeVar

# Calls that do nothing but wait for another rank, and the polling loops that a sampler sees instead.
# Receives and reductions wait too, but they also move data.
_WAITS = re.compile(
    r"^P?(?:MPI_)?(?:I?barrier|I?m?probe|wait\w{0,10}|test(?:all|any|some)?|win_(?:wait|fence))_{0,2}$"
    r"|^(?:opal|ompi|ucp|uct|ucs|MPID|psm2)\w{0,40}progress\w{0,20}$",
    re.IGNORECASE,
)
_COLLECTIVES = re.compile(
    r"^P?(?:MPI_)?I?(?:all\w{2,14}|bcast|reduce(?:_scatter\w{0,6})?|gatherv?|scatterv?|e?x?scan)_{0,2}$", re.IGNORECASE
)
_IO = re.compile(
    r"^(?:MPI_)?file_\w{2,40}$|^(?:f?(?:read|write|open|close|sync)(?:64)?|p(?:read|write)(?:64)?)$", re.IGNORECASE
)
_MPI_NAME = re.compile(r"^P?MPI_\w{2,40}|^(?:ompi|opal|mca|orte|pmix|MPIDI?|MPIR|MPID|ucp|uct|ucs|psm2|fi)_\w{2,60}")
_MPI_MODULE = re.compile(
    r"^(?:libmpi|libpmpi|libmpich|libopen-(?:pal|rte)|mca_|libuc[pst]\b|libuct|libpsm|libfabric|libfi|libarmci|libcomex)"
)
_Number = TypeVar("_Number", int, float)
_MANAGING = 0.05  # of the usual rank's computing: less is no share of the work
_NCCL = re.compile(r"nccl(?:Dev)?Kernel|ncclKernel|all_reduce_kernel|allreduce_fusion|cross_device_reduce")


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of communication call, summed over its places in the program and over ranks."""

    name: str
    seconds: float
    share_of_communication: float | None
    share_of_time: float | None
    count: int | None
    line: int

    @property
    def waits(self) -> bool:
        return _WAITS.match(self.name) is not None

    @property
    def collective(self) -> bool:
        return _COLLECTIVES.match(self.name) is not None

    @property
    def io(self) -> bool:
        return _IO.match(self.name) is not None


@dataclass(frozen=True, slots=True)
class Function:
    """A function or kernel by its own time, without what it calls. `module` is its library, where known."""

    name: str
    module: str
    share: float
    seconds: float | None
    line: int


@dataclass(frozen=True, slots=True)
class RankTime:
    rank: int
    time_s: float
    communication_s: float
    line: int

    @property
    def busy_s(self) -> float:
        return max(0.0, self.time_s - self.communication_s)


@dataclass(frozen=True, slots=True)
class Profile:
    """`communication_share` is of all time; None where the profile does not tell.

    `busy_ratio` is the busiest rank's time outside communication over the mean: 1.0 is perfect balance.
    """

    tool: str
    ranks: int | None = None
    wall_s: float | None = None
    communication_share: float | None = None
    communication_line: int = 0
    io_share: float | None = None
    io_line: int = 0
    calls: tuple[Call, ...] = ()
    functions: tuple[Function, ...] = ()
    rank_times: tuple[RankTime, ...] = ()
    busy_ratio: float | None = None
    busy_line: int = 0

    @property
    def waiting_share(self) -> float | None:
        """Of communication time, the part spent in calls that only wait."""
        total = sum(c.seconds for c in self.calls)
        shares = [c.share_of_communication for c in self.calls if c.waits]
        if self.calls and all(s is not None for s in shares):
            return min(1.0, sum(s or 0.0 for s in shares))
        return sum(c.seconds for c in self.calls if c.waits) / total if total > 0 else None

    def modules(self) -> list[tuple[str, float]]:
        """Shares of libraries and programs, largest first; empty where functions have no module."""
        sums: dict[str, float] = {}
        for function in self.functions:
            if function.module:
                sums[function.module] = sums.get(function.module, 0.0) + function.share
        return sorted(sums.items(), key=lambda m: -m[1])

    @property
    def managers(self) -> tuple[RankTime, ...]:
        return _managers_among(self.rank_times)

    @property
    def working_share(self) -> float | None:
        """Communication's share of the time of ranks that compute; managers, which only communicate, are left out."""
        return self.communication_share if not self.managers else _shares(self)[0]

    @property
    def working_waiting_share(self) -> float | None:
        """`waiting_share` without the managers, all of whose waiting is by design."""
        return self.waiting_share if not self.managers else _shares(self)[1]


def _shares(profile: Profile) -> tuple[float | None, float | None]:
    idle = {t.rank for t in profile.managers}
    workers = [t for t in profile.rank_times if t.rank not in idle]
    time_s, communication_s = sum(t.time_s for t in workers), sum(t.communication_s for t in workers)
    managing_s = sum(t.communication_s for t in profile.managers)
    waits_s = (profile.waiting_share or 0.0) * (communication_s + managing_s) - managing_s
    return (
        communication_s / time_s if time_s > 0 else None,
        min(1.0, max(0.0, waits_s) / communication_s) if communication_s > 0 else None,
    )


def _managers_among(times: tuple[RankTime, ...]) -> tuple[RankTime, ...]:
    """Ranks that hand out work or make progress for others: they compute next to nothing while most ranks do."""
    usual = median_high([t.busy_s for t in times]) if times else 0.0
    found = tuple(t for t in times if t.busy_s < _MANAGING * usual)
    return found if len(times) >= 3 and len(found) <= len(times) // 3 else ()


def _is_mpi(name: str, module: str) -> bool:
    """Whether a sampled function belongs to MPI or the layers below it."""
    return _MPI_NAME.match(name) is not None or _MPI_MODULE.match(module.rpartition("/")[2]) is not None


def is_nccl(kernel: str) -> bool:
    return _NCCL.search(kernel) is not None


def busy_ratio(times: tuple[RankTime, ...]) -> float | None:
    """The busiest rank over the mean of those that compute: a manager is no imbalance."""
    managing = {t.rank for t in _managers_among(times)}
    busy = [t.busy_s for t in times if t.rank not in managing]
    mean = sum(busy) / len(busy) if busy else 0.0
    return max(busy) / mean if mean > 0 else None


def summed(calls: list[Call]) -> tuple[Call, ...]:
    """One Call per name, longest first; the line is of the longest part."""
    parts: dict[str, list[Call]] = {}
    for call in calls:
        parts.setdefault(call.name, []).append(call)
    merged = [
        Call(
            name,
            sum(c.seconds for c in group),
            _total(c.share_of_communication for c in group),
            _total(c.share_of_time for c in group),
            _total(c.count for c in group),
            max(group, key=lambda c: c.seconds).line,
        )
        for name, group in parts.items()
    ]
    return tuple(sorted(merged, key=lambda c: -c.seconds))


def _total(values: Iterable[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], start=known[0]) if known else None


def sampled_profile(tool: str, functions: list[Function], *, spin_share: float | None = None) -> Profile:
    """MPI's share is the sum over functions of MPI and the layers below it, or `spin_share` where that is larger.

    VTune counts MPI's busy waiting as spin time, also inside functions whose names do not tell.
    """
    ordered = sorted(functions, key=lambda f: -f.share)
    mpi = [f for f in ordered if _is_mpi(f.name, f.module)]
    share = sum(f.share for f in mpi)
    total = max(share, spin_share or 0.0)
    calls = tuple(
        Call(f.name, f.seconds or 0.0, f.share / total if total else None, f.share, None, f.line)
        for f in mpi
        if not f.name.startswith("0x")  # a stripped library gives addresses only
    )
    return Profile(
        tool=tool,
        communication_share=min(1.0, total) if ordered else None,
        communication_line=mpi[0].line if mpi else 0,
        calls=calls,
        functions=tuple(ordered),
    )
