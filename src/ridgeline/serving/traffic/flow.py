"""What went into a server and what came out of it while it was loaded, and whether the two kept up with each other.

The window is the time in which requests were due. What ends after it ended on a server that was offered nothing more,
so it counts as drained and not as completed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ridgeline.records.json_form import JsonForm, in_json
from ridgeline.serving.traffic.requests import RequestRecord, Spread

# Until a third of the window has gone the server fills up; requests due in the last sixth may end on an emptying one.
_RAMP_SHARE = 1 / 3
# Requests pile up when what is under way grows by more than this share of what is offered, and by more than chance:
# what is under way varies by about its root, more where requests come in bursts.
_GROWTH = 0.01
_CHANCE = 3.0
_LATEST_LOOK = 2 / 3
_STILL_RISING = 0.4
_AT_LEVEL = 0.1
_SHORTFALL = 0.015


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a run, in seconds since its start."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def part(self, start: float, end: float) -> Stretch:
        return Stretch(self.start_s + start * self.seconds, self.start_s + end * self.seconds)

    def holds(self, at_s: float | None) -> bool:
        return at_s is not None and self.start_s <= at_s < self.end_s

    def due(self, records: Sequence[RequestRecord]) -> list[RequestRecord]:
        return [r for r in records if self.holds(r.scheduled_s)]

    def ended(self, records: Sequence[RequestRecord]) -> list[RequestRecord]:
        """Those that left the server in it, well or not."""
        return [r for r in records if self.holds(r.end_s)]


@dataclass(frozen=True, slots=True)
class Flow(JsonForm):
    """Requests a second that were offered, that were completed meanwhile, and all of them over the whole run.

    `saturated` is None where the window is too short for its own latency to tell.
    """

    window_s: float
    offered_s: float = field(metadata=in_json("offered_requests_s"))
    completed_s: float = field(metadata=in_json("completed_requests_s"))
    drained_s: float = field(metadata=in_json("drained_requests_s"))
    drain_s: float
    saturated: bool | None

    def doubt(self, e2e_ms: Spread | None) -> str:
        """What it says against the run's latencies; empty where nothing."""
        if e2e_ms is None or self.saturated is False:
            return ""
        rates = f"{self.offered_s:.4g} requests/s were offered and {self.completed_s:.4g}/s completed"
        if self.saturated:
            return (
                f"saturated: {rates}, so the queue grew all through the run; its latencies would grow with its length"
            )
        return (
            f"{rates} in {self.window_s:.3g} s: too short for requests of {e2e_ms.p50 / 1e3:.3g} s to show "
            f"whether the server keeps up; send for {6 * e2e_ms.p90 / 1e3:.2g} s or longer"
        )


def flow_of(records: Sequence[RequestRecord], window_s: float, closed: bool = False) -> Flow:
    """`window_s` above zero, from the run's start. A closed loop waits for its server, so nothing piles up in it."""
    window = Stretch(0.0, window_s)
    backlog = None if closed else backlog_of(records, window.part(_RAMP_SHARE, 1.0))
    last_s = max((r.end_s for r in records if r.end_s is not None), default=0.0)
    whole_s = max(window_s, last_s)
    return Flow(
        window_s=window_s,
        offered_s=len(window.due(records)) / window_s,
        completed_s=sum(r.ok for r in window.ended(records)) / window_s,
        drained_s=sum(r.ok for r in records) / whole_s,
        drain_s=whole_s - window_s,
        saturated=False if closed else None if backlog is None else backlog.grows,
    )


@dataclass(frozen=True, slots=True)
class Backlog:
    """How a run's requests under way changed over the first, middle and last third of a look at it.

    `behind` is by how many more became due than ended, `variance` what chance does to what is under way.
    """

    due: int
    behind: int
    thirds: tuple[float, float, float]
    variance: float

    @property
    def grows(self) -> bool | None:
        """None: it rose, and only a longer look can tell whether it still does."""
        first, middle, last = self.thirds
        grown = last - first
        if self.behind <= _GROWTH * self.due or grown <= max(_GROWTH * 2 / 3 * self.due, self.chance):
            return False
        rising = (last - middle) / grown  # half of it where it rises steadily, nothing where it has found its level
        return True if rising > _STILL_RISING else None if rising > _AT_LEVEL else False

    @property
    def lags(self) -> bool:
        """Whether what ended fell short of what was due by more than chance, however it came about."""
        return self.behind > max(_SHORTFALL * self.due, self.chance)

    @property
    def chance(self) -> float:
        return _CHANCE * math.sqrt(self.variance)


def backlog_of(records: Sequence[RequestRecord], stretch: Stretch, began_s: float = 0.0) -> Backlog | None:
    """What piled up over `stretch`, a part of a load that began at `began_s`.

    Nothing can come back before the first requests have been served, so the look begins no sooner than that. None: they
    took so long that too little of the window is left to look at.
    """
    early = sorted(e for r in records if r.scheduled_s < stretch.start_s and (e := r.e2e_s) is not None)
    if not early:
        return None
    look = Stretch(max(stretch.start_s, began_s + early[len(early) // 2]), stretch.end_s)
    due = look.due(records)
    if look.start_s - began_s > _LATEST_LOOK * (stretch.end_s - began_s) or not due:
        return None
    first, middle, last = (_under_way(records, look.part(k / 3, (k + 1) / 3)) for k in range(3))
    return Backlog(
        due=len(due),
        behind=len(due) - len(look.ended(records)),
        thirds=(first, middle, last),
        variance=first * (1 + _burstiness(due)) / 2 + 1,
    )


def _under_way(records: Sequence[RequestRecord], span: Stretch) -> float:
    """How many requests were under way in it, on average."""
    total_s = 0.0
    for r in records:
        end_s = span.end_s if r.end_s is None else min(r.end_s, span.end_s)
        total_s += max(0.0, end_s - max(r.scheduled_s, span.start_s))
    return total_s / span.seconds


def _burstiness(due: Sequence[RequestRecord]) -> float:
    """The squared coefficient of variation of the gaps between them: 0 evenly spaced, 1 Poisson, more in bursts."""
    times_s = sorted(r.scheduled_s for r in due)
    gaps_s = [b - a for a, b in pairwise(times_s)]
    mean_s = sum(gaps_s) / max(1, len(gaps_s))
    return sum((g - mean_s) ** 2 for g in gaps_s) / len(gaps_s) / mean_s**2 if mean_s > 0 else 0.0
