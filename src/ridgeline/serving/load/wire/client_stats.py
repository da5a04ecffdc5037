"""What the load generator measures of itself while it measures a server."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field, replace

# ages[k] counts reads taken up 8.2 us x 2^(k-1) to 8.2 us x 2^k after their bytes reached this host
_BUCKETS = 64
_BUCKET_S = 8192e-9
_STEP_NS = 1_000_000


def _cpu_s() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


@dataclass(slots=True)
class ClientStats:
    """Counters of one process. `merge` of several processes equals the counters of one that did all the work."""

    ages: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    delays: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    unstamped: int = 0
    clock_steps: int = 0
    reconnects: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    busiest_share: float = 0.0
    offset_ns: int = 0  # wall clock minus monotonic clock

    def compare_clocks(self) -> None:
        """Reads both clocks again; kernel stamps are on the wall clock, everything else is not."""
        best_ns, offset_ns = 1 << 62, 0
        for _ in range(4):
            before_ns = time.monotonic_ns()
            wall_ns = time.time_ns()
            after_ns = time.monotonic_ns()
            # the tightest of a few readings: a process put aside between two of them would see a false offset
            if after_ns - before_ns < best_ns:
                best_ns, offset_ns = after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2
            if best_ns < 2000:
                break
        if self.offset_ns and abs(offset_ns - self.offset_ns) > _STEP_NS:
            self.clock_steps += 1
        self.offset_ns = offset_ns

    def begin(self) -> None:
        self.cpu_s, self.wall_s = -_cpu_s(), -time.monotonic()

    def finish(self) -> None:
        self.cpu_s += _cpu_s()
        self.wall_s += time.monotonic()
        self.busiest_share = self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0

    def restart(self) -> None:
        """Counts from now on, in the same lists: connections hold on to this object."""
        self.ages[:], self.delays[:] = [0] * _BUCKETS, [0] * _BUCKETS
        self.unstamped = self.clock_steps = self.reconnects = 0
        self.begin()

    def so_far(self) -> ClientStats:
        """A copy of what was counted, with counting going on."""
        taken = replace(self, ages=self.ages[:], delays=self.delays[:])
        taken.finish()
        return taken

    def delayed(self, late_s: float) -> None:
        """A wake-up of the event loop came this late."""
        self.delays[(int(max(late_s, 0.0) * 1e9) >> 13).bit_length()] += 1

    def merge(self, other: ClientStats) -> None:
        self.ages = [a + b for a, b in zip(self.ages, other.ages, strict=True)]
        self.delays = [a + b for a, b in zip(self.delays, other.delays, strict=True)]
        self.unstamped += other.unstamped
        self.clock_steps = max(self.clock_steps, other.clock_steps)
        self.reconnects += other.reconnects
        self.cpu_s += other.cpu_s
        self.wall_s = max(self.wall_s, other.wall_s)
        self.busiest_share = max(self.busiest_share, other.busiest_share)

    @property
    def stamped(self) -> int:
        return sum(self.ages)


def quantile_s(buckets: list[int], share: float) -> float:
    """Upper edge of the bucket that holds this quantile; 0 when nothing was counted."""
    total, seen = sum(buckets), 0
    for k, count in enumerate(buckets):
        seen += count
        if count and seen >= share * total:
            return _BUCKET_S * float(1 << k)
    return 0.0
