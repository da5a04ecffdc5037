"""A load that goes on while it is changed: no drain between one rate and the next, and the same connections throughout.

`LoadStream` is what a search needs of it. `LiveStream` loads a server; tests put servers in virtual time behind the
same methods.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ridgeline.serving.load.bench import BenchPlan, assignment_of, summary_of, warmed_up
from ridgeline.serving.load.fidelity import gaps_by_microsecond, judge
from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.workers.assignment import UNDER_WAY, LoadResult
from ridgeline.serving.load.workers.worker import OpenWorker
from ridgeline.serving.traffic.replay import repeated
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traffic import Arrival, ClosedLoop, OpenLoop, Replay, Traffic

if TYPE_CHECKING:
    from ridgeline.serving.load.workers.pool import OpenPool

# Arrivals are drawn for this long at least, and so many at least: a short draw would be more even than its law.
_DRAW_S = 20.0
_DRAW_REQUESTS = 256
_NUMBERS = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamView:
    """A load since it was last changed, in seconds since the stream began.

    `rows` are all requests that were under way at some time since then: those due before the change too, and those that
    have not ended, as far as they came (`under way`, without an end).
    """

    since_s: float
    now_s: float
    rows: Sequence[RequestRecord]
    interrupted: bool = False

    def due(self, start_s: float) -> list[RequestRecord]:
        return [r for r in self.rows if r.scheduled_s >= start_s]

    @property
    def under_way(self) -> int:
        return sum(r.status == UNDER_WAY for r in self.rows)


class LoadStream(Protocol):
    """Changed by `begin`, moved on by `advance`, which returns no sooner than the time is over."""

    @property
    def now_s(self) -> float: ...

    def begin(self, pace: ClosedLoop | OpenLoop | None) -> None:
        """Sends at this pace from now on; None sends nothing. What is under way stays under way."""

    def advance(self, seconds: float) -> StreamView: ...

    def why_void(self) -> tuple[str, ...]:
        """Why what was seen since `begin` can't be trusted; empty where it can."""

    def close(self) -> str:
        """Drops what is under way; what the user must know about the file of records, if anything."""


class LiveStream:
    """A stream of requests to the server of a plan, from one process or several."""

    def __init__(self, plan: BenchPlan) -> None:
        server, salt = warmed_up(plan)
        self._plan, self._start_s = plan, time.monotonic()
        self._assignment = replace(assignment_of(plan, server, salt), duration_s=None, give_up_s=None)
        # sessions go on while their number is changed, so they are drawn once
        arrivals = plan.traffic.arrivals() if isinstance(plan.traffic.pace, ClosedLoop) else []
        given = assignment_of(plan, server, salt, arrivals, endless=bool(arrivals))
        given = replace(given, duration_s=None, give_up_s=None)
        self._sessions = given if given.turns else None
        if plan.workers == 1:
            self._worker: OpenWorker | OpenPool = OpenWorker(self._assignment, self._start_s)
        else:
            # one worker runs in this process and need not pay for multiprocessing's start-up
            from ridgeline.serving.load.workers import pool

            self._worker = pool.OpenPool(plan.workers, self._assignment, self._start_s)
        self._draws = _ArrivalDraws(plan.traffic)
        self._pace: ClosedLoop | OpenLoop | None = None
        self._since_s = self._until_s = 0.0
        self._seen = LoadResult([], ClientStats(), self._start_s)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    def begin(self, pace: ClosedLoop | OpenLoop | None) -> None:
        self._pace, self._since_s = pace, self.now_s
        self._until_s = self._since_s
        self._seen = LoadResult([], ClientStats(), self._start_s)
        plain = replace(self._assignment, arrivals=(), slots=0, endless=False, numbers_from=self._draws.sent)
        self._draws.begin(pace, self._since_s)
        if isinstance(pace, ClosedLoop) and self._sessions is not None:
            self._worker.change(replace(self._sessions, slots=pace.concurrency))
            self._sessions = replace(self._sessions, arrivals=(), again=None)  # the workers have them now
        elif isinstance(pace, ClosedLoop):
            self._worker.change(replace(plain, arrivals=self._draws.more(), slots=pace.concurrency, endless=True))
        else:
            self._worker.change(plain)

    def advance(self, seconds: float) -> StreamView:
        self._until_s = max(self._until_s + seconds, self.now_s)
        while self._draws.until_s < self._until_s:
            self._worker.extend(self._draws.more())
        new = self._worker.run_until(self._start_s + self._until_s)
        seen = self._seen
        seen.records += new.records
        seen.lag_s += new.lag_s
        seen.coalesced += new.coalesced
        seen.under_way, seen.stats, seen.time_slices = new.under_way, new.stats, new.time_slices
        seen.interrupted |= new.interrupted
        seen.lost_workers = new.lost_workers
        return StreamView(self._since_s, self.now_s, [*seen.records, *seen.under_way], seen.interrupted)

    def why_void(self) -> tuple[str, ...]:
        seen, since_s = self._seen, self._since_s
        ours = [k for k, r in enumerate(seen.records) if r.scheduled_s >= since_s]
        records = [seen.records[k] for k in ours]
        numbers = {r.number for r in records}
        part = replace(
            seen,
            records=records,
            lag_s=array("d", (seen.lag_s[k] for k in ours)),
            coalesced=[c for c in seen.coalesced if c.number in numbers],
        )
        gaps_us = gaps_by_microsecond(records)
        summary = summary_of(records, self._plan.slos, gaps_us=gaps_us)
        return judge(part, summary, gaps_us, isinstance(self._pace, ClosedLoop), self._plan.slos).why

    def close(self) -> str:
        return self._worker.close()


class _ArrivalDraws:
    """Requests like those of a recipe at one pace after another, none of them twice.

    `until_s` is up to when those of an open loop have been drawn, `sent` how many numbers have been given out.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic, self._draws, self._drawn = traffic, 0, 0
        self._pace: ClosedLoop | OpenLoop | None = None
        self.until_s, self.sent = math.inf, 0

    def begin(self, pace: ClosedLoop | OpenLoop | None, at_s: float) -> None:
        self._pace = pace
        self.until_s = at_s if isinstance(pace, OpenLoop) else math.inf

    def more(self) -> tuple[Arrival, ...]:
        """The next of an open loop; for a closed one a list that is gone through again and again."""
        pace = self._pace
        assert pace is not None
        if isinstance(pace, ClosedLoop):
            first, arrivals = self.sent, self._traffic_of(pace, max(_DRAW_REQUESTS, 4 * pace.concurrency)).arrivals()
            self.sent += _NUMBERS
            from_s = 0.0
        else:
            count = max(_DRAW_REQUESTS, math.ceil(_DRAW_S * pace.rate_s))
            first, arrivals, from_s = self.sent, self._traffic_of(pace, count).arrivals(), self.until_s
            self.sent, self.until_s = self.sent + count, from_s + count / pace.rate_s
        self._draws += 1
        return tuple(replace(a, number=first + a.number, at_s=from_s + a.at_s) for a in arrivals)

    def _traffic_of(self, pace: ClosedLoop | OpenLoop, count: int) -> Traffic:
        lengths = self._traffic.lengths
        if isinstance(lengths, Replay):
            # a trace gone through again must not find its own prompts in the server's cache
            lengths = replace(lengths, rows=tuple(repeated(lengths.rows, self._drawn + count, self._drawn)))
        self._drawn += count
        seed = self._traffic.seed + self._draws
        return replace(self._traffic, lengths=lengths, requests=count, pace=pace, seed=seed)
