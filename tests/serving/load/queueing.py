"""Servers in virtual time whose capacity is known: a plan in, the records of a run out, and no clock is read."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ridgeline.serving.load.bench import BenchPlan, BenchResult, summary_of
from ridgeline.serving.load.fidelity import Fidelity
from ridgeline.serving.load.flow import Stretch
from ridgeline.serving.load.wire.exchange import Gaps
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traffic import Arrival, ClosedLoop, OpenLoop

BETWEEN_RUNS_S = 0.5


@dataclass(frozen=True)
class BatchServer:
    """Decodes one token of every request under way at a time; a step takes longer the more there are.

    At most `slots` are under way, the others wait in order. `slower(t)` stretches a step that begins t seconds into a
    run: stalls, or a machine that slows down under load.
    """

    step_s: float
    per_request_s: float = 0.0
    slots: int = 1 << 30
    tokens: int = 32
    slower: Callable[[float], float] = lambda _: 1.0

    @property
    def capacity_s(self) -> float:
        """Requests a second with every slot taken."""
        return self.slots / (self.tokens * (self.step_s + self.per_request_s * self.slots))

    def rate_at_gap_s(self, gap_s: float) -> float:
        """The rate of evenly spaced requests at which a step takes so long: so many are then under way, for so long."""
        return (gap_s - self.step_s) / self.per_request_s / (self.tokens * gap_s)

    def serve(self, arrivals: list[Arrival]) -> list[RequestRecord]:
        return self._serve([a.at_s for a in arrivals], lambda _: None)

    def serve_closed(self, at_once: int, window_s: float) -> list[RequestRecord]:
        return self._serve([0.0] * at_once, lambda now_s: now_s if now_s < window_s else None)

    def _serve(self, due_s: list[float], again: Callable[[float], float | None]) -> list[RequestRecord]:
        ends_s: list[float] = []  # of the steps
        began: list[int] = []  # each request's first step
        leaving: dict[int, int] = {}  # step -> how many requests it ends
        now_s, active = 0.0, 0
        while len(began) < len(due_s) or active:
            if not active and len(began) < len(due_s):
                now_s = max(now_s, due_s[len(began)])
            while len(began) < len(due_s) and due_s[len(began)] <= now_s and active < self.slots:
                began.append(len(ends_s))
                active += 1
                last = len(ends_s) + self.tokens - 1
                leaving[last] = leaving.get(last, 0) + 1
            now_s += (self.step_s + self.per_request_s * active) * self.slower(now_s)
            ended = leaving.pop(len(ends_s), 0)
            ends_s.append(now_s)
            active -= ended
            due_s += [at for _ in range(ended) if (at := again(now_s)) is not None]
        return [
            self._record(k, at, ends_s[s : s + self.tokens]) for k, (at, s) in enumerate(zip(due_s, began, strict=True))
        ]

    def _record(self, number: int, at_s: float, times_s: list[float]) -> RequestRecord:
        return RequestRecord(number, at_s, at_s, times_s[0], times_s[-1], 10, self.tokens, gaps_s=Gaps(times_s))


@dataclass
class VirtualBench:
    """Stands for `bench`: runs a plan on a server, advances `now_s` by what it took, and voids runs as told."""

    server: BatchServer
    void: Callable[[float, float], bool] = lambda _load, _window_s: False
    now_s: float = 0.0
    loads: list[float] = field(default_factory=list)
    windows_s: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def __call__(self, plan: BenchPlan) -> BenchResult:
        pace = plan.traffic.pace
        assert isinstance(pace, ClosedLoop | OpenLoop)
        if isinstance(pace, ClosedLoop):
            assert plan.duration_s is not None
            load, window_s = float(pace.concurrency), plan.duration_s
            records = self.server.serve_closed(pace.concurrency, window_s)
        else:
            load, window_s = pace.rate_s, plan.traffic.requests / pace.rate_s
            records = self.server.serve(plan.traffic.arrivals())
        void = self.void(load, window_s)
        self.loads.append(load)
        self.windows_s.append(window_s)
        self.now_s += max(r.end_s or 0.0 for r in records) + BETWEEN_RUNS_S
        why = ("requests were sent 9 ms after their time",) if void else ()
        summary = summary_of(records, plan.slos, Stretch(0.0, window_s))
        return BenchResult(plan, "m", summary, Fidelity(why, None, 0, 0, 0, 1, 0, 0.1, 0.1), records)


def stalls(seed: int, every_s: float, stall_s: float, step_s: float) -> Callable[[float], float]:
    """Steps that take `stall_s` longer, at random, once every so many seconds."""
    rng = random.Random(seed)
    return lambda _: 1.0 + (stall_s / step_s if rng.random() < step_s / every_s else 0.0)


def holds_in_a_long_run(plan: BenchPlan, server: BatchServer, rate_s: float, window_s: float = 900.0) -> bool:
    """Whether all limits are kept at this rate in a run so long that chance has little say."""
    pace = plan.traffic.pace
    assert isinstance(pace, OpenLoop)
    traffic = replace(plan.traffic, requests=math.ceil(rate_s * window_s), pace=replace(pace, rate_s=rate_s), seed=77)
    records = server.serve(traffic.arrivals())
    due = [r for r in records if 0.1 * window_s < r.scheduled_s < 0.95 * window_s]
    return all(map(summary_of(due, plan.slos).holds, plan.slos))
