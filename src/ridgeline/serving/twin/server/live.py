"""An engine of the twin that keeps time: every token is handed over when its step would have ended on real GPUs."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from ridgeline.errors import InputError
from ridgeline.serving.twin.disaggregation import PrefillEngine
from ridgeline.serving.twin.gaps import DecodeRuns
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine

# The event loop rounds its waits up to whole milliseconds; asked for this much earlier it is on time on average.
_EARLY_S = 0.0005
_LATE_S = 0.05
# After this many events without a pause the network is looked at, also when the engine is behind.
_EVENTS_IN_A_ROW = 16


# A step's tokens that are due within so much of each other are sent together: a wake of the event loop has its price.
_TOGETHER_S = 0.002
END = 0  # instead of a number of tokens


class TokenSink(Protocol):
    """Where one request's tokens go."""

    def tokens(self, count: int) -> None: ...

    def end(self, failure: str) -> None:
        """No more will come; `failure` is empty after the last token."""
        ...


@dataclass(slots=True, eq=False)
class LiveRequest(Request):
    """A request somebody is waiting for."""

    sink: TokenSink = field(kw_only=True)


_Parts = Sequence[tuple[LiveRequest, int]]


class Clock:
    """Seconds since the server began, as its engines count them: `speed` of them in a second of the wall clock."""

    def __init__(
        self, speed: float = 1.0, wall: Callable[[], float] = time.monotonic, early_s: float = _EARLY_S
    ) -> None:
        self.speed, self._wall, self._start, self._early_s = speed, wall, wall(), early_s

    def now_s(self) -> float:
        return (self._wall() - self._start) * self.speed

    async def until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, (at_s - self.now_s()) / self.speed - self._early_s))


class _NoRuns(DecodeRuns):
    """Remembers only what the next step needs: a server runs for days."""

    def __len__(self) -> int:
        return 0

    def add(self, start_s: float, step_s: float, steps: int, *_: object, **__: object) -> None:
        self.last_end = start_s + step_s * steps

    def wait(self, gap_s: float) -> None:
        pass


class LiveEngine:
    """Runs an engine against a clock. `hung` stops its steps and nothing else; `slowness` stretches them.

    `behind_s` is how late the last tokens were: above a few milliseconds this machine is too slow for the server it
    pretends to be, and its figures are not the twin's.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine, self.clock = engine, clock
        engine.runs = _NoRuns(engine.pace)
        self.hung = False
        self.slowness = 1.0
        self.behind_s = 0.0
        self.made = 0  # tokens so far
        self.late = 0  # those of them that came more than _LATE_S of real time late
        self.after_event: Callable[[list[LiveRequest]], None] = lambda ended: None
        self._work = asyncio.Event()
        # by how late the front end sends them; a queue, since a later part may be due before an earlier one
        self._sending: defaultdict[float, deque[_Parts]] = defaultdict(deque)

    def submit(self, request: LiveRequest) -> None:
        self.engine.submit(request, self.clock.now_s())
        self._work.set()

    def wake(self) -> None:
        """Something was put into the engine past `submit`."""
        self._work.set()

    def forget_prefixes(self) -> None:
        """As after a start."""
        engine = self.engine
        for cache in engine.caches if isinstance(engine, PrefillEngine) else [engine.cache]:
            if cache is not None:
                cache.clear()

    async def run(self) -> None:
        """For ever; ended by cancelling its task."""
        events = 0
        while True:
            if self.engine.idle or self.hung:
                self._work.clear()
                await self._work.wait()
                continue
            ended, tokens = self._event()
            events += 1
            late_s = self.clock.now_s() - self.engine.clock
            if late_s < 0 or events % _EVENTS_IN_A_ROW == 0:
                await self.clock.until(self.engine.clock)
            self.behind_s = max(0.0, self.clock.now_s() - self.engine.clock)
            if self.hung:  # began while the step was under way: its tokens never come
                continue
            made = sum(count for _, count in tokens)
            self.made += made
            self.late += made if self.behind_s > _LATE_S * self.clock.speed else 0
            self.hand_over([*tokens, *((request, END) for request in ended)])
            self.after_event(ended)

    def hand_over(self, parts: _Parts) -> None:
        """So many tokens of each request, or its `END`, when the server's front end would have sent them; in order."""
        together: dict[float, list[tuple[LiveRequest, int]]] = {}
        for part in parts:
            together.setdefault(round(part[0].late_s / _TOGETHER_S) * _TOGETHER_S, []).append(part)
        behind_s = self.engine.backlog_s
        for rounded_s, same in together.items():
            late_s, queue = rounded_s + behind_s, self._sending[rounded_s]
            queue.append(same)
            if late_s or len(queue) > 1:
                asyncio.get_running_loop().call_later(late_s / self.clock.speed, _send_next, queue)
            else:
                _send_next(queue)

    def _event(self) -> tuple[list[LiveRequest], list[tuple[LiveRequest, int]]]:
        """One prefill round or one decode step: who ended, and how many tokens each one gets of it."""
        engine, before_s, step, fresh = self.engine, self.engine.clock, self.engine.step_number, len(self.engine.fresh)
        each = engine.pace.tokens(step, 1)
        wanted = {} if engine.pace.single else {id(r): r.remaining - engine.decoded(r) for _, _, r in engine.running}
        ended = engine.advance(engine.clock)
        engine.clock = before_s + (engine.clock - before_s) * self.slowness
        del engine.usage[:-1]
        if engine.step_number > step:
            shares = [(r, each) for _, _, r in engine.running] + [(r, min(each, wanted.get(id(r), 1))) for r in ended]
        else:
            shares = [(r, 1) for r in [*engine.fresh[fresh:], *ended]]
        return cast(list[LiveRequest], ended), cast(list[tuple[LiveRequest, int]], shares)


def _send_next(queue: deque[_Parts]) -> None:
    for request, count in queue.popleft():
        if count == END:
            request.sink.end("")
        else:
            request.sink.tokens(count)


# Faults on demand: what operators meet at night, made to happen at a chosen moment.
#
# - `hang`: the engine stops, while /health goes on saying 200 and the gauges what they said last;
# - `spin`: the same, with a process of the engine that uses all of a core, as a deadlock does that polls;
# - `slow` or `slow:FACTOR`: every step takes that many times as long (default 3);
# - `oom`: from then on the engine dies of CUDA out of memory when its KV pool is `OOM_SHARE` full;
# - `kv-timeout`: KV sent between split roles never arrives;
# - `crash`: the process ends at once.
# Each may carry `@SECONDS`, counted from the server's start: `hang@30`.

KINDS = ("hang", "spin", "slow", "oom", "kv-timeout", "crash")
_SLOW_FACTOR = 3.0
OOM_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    at_s: float = 0.0
    factor: float = _SLOW_FACTOR


def parse_fault(text: str) -> Fault:
    """Raises InputError with the kinds there are."""
    name, _, at = text.partition("@")
    kind, colon, factor = name.partition(":")
    if kind not in KINDS or (colon and kind != "slow"):
        raise InputError(f"fault {text!r} is not known; use one of {', '.join(KINDS)}, such as hang@30 or slow:3")
    try:
        fault = Fault(kind, float(at or 0), float(factor or _SLOW_FACTOR))
    except ValueError:
        raise InputError(f"fault {text!r}: write a number of seconds after @, and a factor after slow:") from None
    if not (0 <= fault.at_s < 1e9 and 0 < fault.factor < 1e6):
        raise InputError(f"fault {text!r}: seconds from 0 on and a factor above 0 are wanted")
    return fault
