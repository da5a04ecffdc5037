"""Servers in virtual time whose capacity is known, behind the methods of a `LoadStream`: no clock is read."""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from ridgeline.serving.load.bench import BenchPlan, summary_of
from ridgeline.serving.load.stream import StreamView, _ArrivalDraws
from ridgeline.serving.load.wire.exchange import Gaps
from ridgeline.serving.load.workers.assignment import UNDER_WAY
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traffic import Arrival, ClosedLoop, OpenLoop


@dataclass
class Served:
    """One request: when it was due and when its tokens come. `tokens` of them end it."""

    number: int
    at_s: float
    tokens: int
    times_s: list[float] = field(default_factory=list)

    def row(self, now_s: float) -> RequestRecord:
        here = bisect_right(self.times_s, now_s)
        times_s = self.times_s[:here]
        ended = here == self.tokens
        return RequestRecord(
            self.number,
            self.at_s,
            self.at_s,
            times_s[0] if times_s else None,
            times_s[-1] if ended else None,
            10,
            len(times_s),
            status="ok" if ended else UNDER_WAY,
            gaps_s=Gaps(times_s),
        )


class Running(Protocol):
    """A server that has been started: requests in order of time, then the time moves on."""

    def offer(self, request: Served) -> None: ...

    def run(self, until_s: float) -> list[Served]:
        """Those whose last token came by then, since the last call; each may be followed by another `offer`."""


class KnownServer(Protocol):
    def start(self) -> Running: ...

    def tokens_of(self, arrival: Arrival) -> int: ...


@dataclass(frozen=True)
class BatchServer:
    """Decodes one token of every request under way at a time; a step takes longer the more there are.

    At most `slots` are under way, the others wait in order. `slower(t)` stretches a step that begins at t: stalls, or a
    machine that slows down. `tokens` None: as many as each request asks for.
    """

    step_s: float
    per_request_s: float = 0.0
    slots: int = 1 << 30
    tokens: int | None = 32
    slower: Callable[[float], float] = lambda _: 1.0

    @property
    def capacity_s(self) -> float:
        """Requests a second with every slot taken."""
        assert self.tokens is not None
        return self.slots / (self.tokens * (self.step_s + self.per_request_s * self.slots))

    def rate_at_gap_s(self, gap_s: float) -> float:
        """The rate of evenly spaced requests at which a step takes so long: so many are then under way, for so long."""
        assert self.tokens is not None
        return (gap_s - self.step_s) / self.per_request_s / (self.tokens * gap_s)

    def serve(self, arrivals: list[Arrival]) -> list[RequestRecord]:
        """All of them, to the end."""
        return served_to_the_end(self, arrivals)

    def start(self) -> Running:
        return _BatchRunning(self)

    def tokens_of(self, arrival: Arrival) -> int:
        return self.tokens or arrival.output_tokens


class _BatchRunning:
    def __init__(self, server: BatchServer) -> None:
        self._server = server
        self._now_s = 0.0
        self._waiting: deque[Served] = deque()
        self._active: list[Served] = []

    def offer(self, request: Served) -> None:
        self._waiting.append(request)

    def run(self, until_s: float) -> list[Served]:
        server, waiting = self._server, self._waiting
        done: list[Served] = []
        while self._now_s < until_s and not done:
            if not self._active:
                if not waiting or waiting[0].at_s >= until_s:
                    self._now_s = until_s
                    break
                self._now_s = max(self._now_s, waiting[0].at_s)
            while waiting and waiting[0].at_s <= self._now_s and len(self._active) < server.slots:
                self._active.append(waiting.popleft())
            count = len(self._active)
            self._now_s += (server.step_s + server.per_request_s * count) * server.slower(self._now_s)
            for request in self._active:
                request.times_s.append(self._now_s)
            done = [r for r in self._active if len(r.times_s) == r.tokens]
            if done:
                self._active = [r for r in self._active if len(r.times_s) < r.tokens]
        return done


@dataclass(frozen=True)
class SlotServer:
    """So many places, each of which takes as long for a request as `service_s` draws: two tokens, at its start and end.

    A `tail` above zero makes the times log-normal with that sigma and the same mean.
    """

    slots: int
    service_s: float
    tail: float = 0.0

    @property
    def capacity_s(self) -> float:
        return self.slots / self.service_s

    def start(self) -> Running:
        return _SlotsRunning(self)

    def tokens_of(self, arrival: Arrival) -> int:
        return 2


class _SlotsRunning:
    def __init__(self, server: SlotServer) -> None:
        self._server, self._rng = server, random.Random(7)
        self._free_s = [0.0] * server.slots
        self._waiting: deque[Served] = deque()
        self._ending: list[tuple[float, int, Served]] = []

    def offer(self, request: Served) -> None:
        self._waiting.append(request)

    def run(self, until_s: float) -> list[Served]:
        server = self._server
        while self._waiting and max(self._waiting[0].at_s, self._free_s[0]) < until_s:
            request = self._waiting.popleft()
            began_s = max(request.at_s, self._free_s[0])
            service_s = server.service_s
            if server.tail:
                service_s *= self._rng.lognormvariate(-(server.tail**2) / 2, server.tail)
            heapq.heapreplace(self._free_s, began_s + service_s)
            request.times_s = [began_s + 0.1 * service_s, began_s + service_s]
            heapq.heappush(self._ending, (request.times_s[1], request.number, request))
            if self._ending[0][0] <= request.at_s:
                break  # in a closed loop this may be followed by another
        if self._ending and self._ending[0][0] <= until_s:
            return [heapq.heappop(self._ending)[2]]
        return []


class VirtualStream:
    """A `LoadStream` to a server in virtual time. `void(load, seconds)` says which looks are void."""

    def __init__(
        self,
        plan: BenchPlan,
        server: KnownServer,
        void: Callable[[float, float], bool] = lambda _load, _seconds: False,
        fails: Callable[[float], bool] = lambda _load: False,
    ) -> None:
        self._server, self._running, self._void, self._fails = server, server.start(), void, fails
        self._draws = _ArrivalDraws(plan.traffic)
        self._pace: ClosedLoop | OpenLoop | None = None
        self._list: tuple[Arrival, ...] = ()
        self._ahead: deque[Served] = deque()  # drawn and not due yet
        self._active: dict[int, Served] = {}
        self._ended: list[RequestRecord] = []
        self._since_s, self._turn = 0.0, 0
        self.now_s = 0.0
        self.loads: list[float] = []
        self.idle_s = 0.0
        self.closed = False

    @property
    def load(self) -> float:
        pace = self._pace
        return 0.0 if pace is None else pace.concurrency if isinstance(pace, ClosedLoop) else pace.rate_s

    def begin(self, pace: ClosedLoop | OpenLoop | None) -> None:
        self._pace, self._since_s = pace, self.now_s
        self._ended, self._ahead = [], deque()
        self._draws.begin(pace, self.now_s)
        if isinstance(pace, ClosedLoop):
            self._list = self._draws.more()
        if pace is not None:
            self.loads.append(self.load)

    def advance(self, seconds: float) -> StreamView:
        until_s = self.now_s + seconds
        if self._pace is None:
            self.idle_s += seconds
        while self._draws.until_s < until_s:
            self._ahead += [self._request(a, a.at_s) for a in self._draws.more()]
        self._fill_slots(self.now_s)
        while self._ahead and self._ahead[0].at_s < until_s:
            self._offer(self._ahead.popleft())
        while done := self._running.run(until_s):
            for request in done:
                self._active.pop(request.number)
                row = request.row(math.inf)
                self._ended.append(replace(row, status="http-500") if self._fails(self.load) else row)
            self._fill_slots(done[-1].times_s[-1])
        self.now_s = until_s
        return StreamView(self._since_s, until_s, [*self._ended, *(r.row(until_s) for r in self._active.values())])

    def why_void(self) -> tuple[str, ...]:
        void = self._void(self.load, self.now_s - self._since_s)
        return ("requests were sent 9 ms after their time",) if void else ()

    def close(self) -> str:
        self.closed = True
        return ""

    def _request(self, arrival: Arrival, at_s: float) -> Served:
        return Served(arrival.number, at_s, self._server.tokens_of(arrival))

    def _offer(self, request: Served) -> None:
        self._active[request.number] = request
        self._running.offer(request)

    def _fill_slots(self, at_s: float) -> None:
        if isinstance(self._pace, ClosedLoop):
            while len(self._active) < self._pace.concurrency:
                self._turn += 1
                again = self._list[self._turn % len(self._list)]
                self._offer(replace(self._request(again, at_s), number=-self._turn))


def served_to_the_end(server: KnownServer, arrivals: list[Arrival]) -> list[RequestRecord]:
    """What becomes of these requests, in order of their number."""
    running, rows = server.start(), []
    for arrival in arrivals:
        running.offer(Served(arrival.number, arrival.at_s, server.tokens_of(arrival)))
    while done := running.run(math.inf):
        rows += [r.row(math.inf) for r in done]
    return sorted(rows, key=lambda r: r.number)


def stalls(seed: int, every_s: float, stall_s: float, step_s: float) -> Callable[[float], float]:
    """Steps that take `stall_s` longer, at random, once every so many seconds."""
    rng = random.Random(seed)
    return lambda _: 1.0 + (stall_s / step_s if rng.random() < step_s / every_s else 0.0)


def holds_in_a_long_run(plan: BenchPlan, server: KnownServer, rate_s: float, window_s: float = 900.0) -> bool:
    """Whether all limits are kept at this rate in a run so long that chance has little say."""
    pace = plan.traffic.pace
    assert isinstance(pace, OpenLoop)
    traffic = replace(plan.traffic, requests=math.ceil(rate_s * window_s), pace=replace(pace, rate_s=rate_s), seed=77)
    rows = served_to_the_end(server, traffic.arrivals())
    due = [r for r in rows if 0.1 * window_s < r.scheduled_s < 0.95 * window_s]
    return all(map(summary_of(due, plan.slos).holds, plan.slos))
