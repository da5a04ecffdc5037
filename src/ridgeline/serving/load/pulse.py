"""What the load generator observes about itself while it measures a server."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field

# ages[k] counts reads taken up 8.2 us x 2^(k-1) to 8.2 us x 2^k after their bytes reached this host
_BUCKETS = 64
_BUCKET_S = 8192e-9


def _cpu_s() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


@dataclass(slots=True)
class Pulse:
    """Counters of one process. `merge` of several processes equals the counters of one that did all the work."""

    ages: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    delays: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    unstamped: int = 0
    reconnects: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    busiest_share: float = 0.0

    def begin(self) -> None:
        self.cpu_s, self.wall_s = -_cpu_s(), -time.monotonic()

    def finish(self) -> None:
        self.cpu_s += _cpu_s()
        self.wall_s += time.monotonic()
        self.busiest_share = self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0

    def delayed(self, late_s: float) -> None:
        """A wake-up of the event loop came this late."""
        self.delays[(int(max(late_s, 0.0) * 1e9) >> 13).bit_length()] += 1

    def merge(self, other: Pulse) -> None:
        self.ages = [a + b for a, b in zip(self.ages, other.ages, strict=True)]
        self.delays = [a + b for a, b in zip(self.delays, other.delays, strict=True)]
        self.unstamped += other.unstamped
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
