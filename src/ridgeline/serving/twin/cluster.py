"""Several engines behind a router, and the one clock that joins them.

The engine whose own clock is furthest behind always moves next, so that whatever it does is decided on what was known
at that time. Requests that come due in the meantime are dealt out first.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from ridgeline.errors import InputError
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import Arrival
from ridgeline.serving.traffic.turns import Again, WaitingTurns
from ridgeline.serving.twin.front_end import NO_FRONT_END, FrontEnd, Tokenizers
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine

CACHE_AWARE = "cache-aware"
POLICIES = ("round-robin", "least-load", CACHE_AWARE)


# Of sglang-router and smg (--cache-threshold, --balance-abs-threshold, --balance-rel-threshold).
CACHE_THRESHOLD, BALANCE_ABS, BALANCE_REL = 0.3, 64, 1.5


class Router:
    """Chooses an engine for each request. Cache-aware does as sglang-router and smg do: a prompt goes to whoever was
    sent most of its beginning, if that is more than a threshold's share of it, else to the least loaded engine; and
    so does every prompt while loads are far apart. What engines have forgotten since, the router does not know."""

    def __init__(self, engines: Sequence[Engine], policy: str) -> None:
        if policy not in POLICIES:
            raise InputError(f"routing {policy!r} is not known; use one of {', '.join(POLICIES)}")
        self.engines, self.policy = engines, policy
        self._turn = 0
        self._sent: dict[Text, dict[Engine, int]] = {}  # how far each engine was sent a text, where it branches off

    @property
    def blind(self) -> bool:
        """Loads decide nothing."""
        return self.policy == "round-robin" or len(self.engines) == 1

    def choose(self, arrival: Arrival) -> Engine:
        if len(self.engines) == 1:
            return self.engines[0]
        if self.policy == "round-robin":
            self._turn += 1
            return self.engines[(self._turn - 1) % len(self.engines)]
        chosen = self.engines[0]
        for engine in self.engines:
            if engine.load < chosen.load:
                chosen = engine
        if self.policy == "least-load" or arrival.text is None:
            return chosen
        most = max(engine.load for engine in self.engines)
        if most - chosen.load <= BALANCE_ABS or most <= BALANCE_REL * chosen.load:
            known, of = self._known(arrival.text, arrival.input_tokens)
            if known > CACHE_THRESHOLD * arrival.input_tokens:
                chosen = min(of, key=lambda engine: engine.load)  # the router's own choice among these is arbitrary
        self._remember(chosen, arrival.text, arrival.input_tokens)
        return chosen

    def _known(self, text: Text, tokens: int) -> tuple[int, list[Engine]]:
        """How many tokens of a prompt some engine was sent before, and which ones."""
        end, node = tokens, text
        while True:
            reach = {engine: min(sent, end) for engine, sent in self._sent.get(node, {}).items()}
            known = max(reach.values(), default=0)
            if known > node.start or (known and node.parent is None):
                return known, [engine for engine, sent in reach.items() if sent == known]
            if node.parent is None:
                return 0, []
            end, node = min(end, node.start), node.parent

    def _remember(self, engine: Engine, text: Text, tokens: int) -> None:
        end, node = tokens, text
        while True:
            sent = self._sent.setdefault(node, {})
            if sent.get(engine, 0) >= end:
                return  # and so it was sent all before it
            if end > node.start:
                sent[engine] = end
            if node.parent is None:
                return
            end, node = min(end, node.start), node.parent


class Front(Protocol):
    """What stands between users and engines: takes requests, moves time on, and says who has ended.

    `endings_send`: whoever ends makes room for another, as in a closed loop.
    """

    endings_send: bool

    def send(self, request: Request, at_s: float) -> None: ...

    def advance(self, limit_s: float) -> list[Request]:
        """Moves the furthest-behind engine on, at most to the first step past `limit_s`; returns who ended. While that
        is nobody, it may go on with the next."""
        ...

    @property
    def now_s(self) -> float:
        """The clock of the engine that moves next; infinite when all are idle."""
        ...

    def backlog_s(self, at_s: float) -> float:
        """How long a request that is sent now waits behind tokens on their way to other users."""
        ...


class Replicas:
    """Equal engines that each do prefill and decode."""

    def __init__(self, engines: Sequence[Engine], policy: str) -> None:
        self.engines = engines
        self.router = Router(engines, policy)
        self._order: list[tuple[float, int]] = []
        self.endings_send = True

    @property
    def now_s(self) -> float:
        return self._order[0][0] if self._order else math.inf

    def backlog_s(self, at_s: float) -> float:
        return sum(max(0.0, engine.streamed_s - at_s) for engine in self.engines) / len(self.engines)

    def send(self, request: Request, at_s: float) -> None:
        engine = self.router.choose(request.arrival)
        was_idle = engine.idle
        engine.submit(request, at_s)
        if was_idle:
            heapq.heappush(self._order, (engine.clock, self.engines.index(engine)))

    def advance(self, limit_s: float) -> list[Request]:
        _, number = heapq.heappop(self._order)
        engine = self.engines[number]
        # an ending sends new work, perhaps to another engine: none may run ahead of the others
        ended = engine.advance(min(limit_s, self._order[0][0]) if self._order else limit_s)
        if not engine.idle:
            heapq.heappush(self._order, (engine.clock, number))
        return ended

    def serve_open_loop(self, due: Sequence[tuple[float, Arrival]]) -> list[Request]:
        """What `serve` does when no ending sends anything: each engine moves only when somebody must know its load.

        An engine that is decoding has the same load until its next ending, so it is left alone until then.
        """
        engines, choose = self.engines, self.router.choose
        requests = []
        # accepted, and behind tokens that are being sent to others: until when, at which engine
        held: deque[tuple[float, Request, Engine]] = deque()

        def submit(at_s: float, request: Request, engine: Engine) -> None:
            engine.advance_to(at_s)
            engine.submit(request, at_s)

        for at_s, arrival in due:
            while held and held[0][0] <= at_s:
                submit(*held.popleft())
            for engine in engines:
                if engine.quiet_until_s <= at_s:
                    engine.advance_to(at_s)
            request = Request(arrival, arrival.at_s, arrival.input_tokens)
            requests.append(request)
            engine = choose(arrival)
            engine.advance_to(at_s)
            if engine.streamed_s > at_s:
                free_s = max(engine.streamed_s, held[-1][0] if held else 0.0)
                held.append((free_s, request, engine))
            else:
                engine.submit(request, at_s)
        for at_s, request, engine in held:
            submit(at_s, request, engine)
        for engine in engines:
            engine.advance_to(math.inf)
        return requests


def serve(
    front: Front,
    arrivals: Sequence[Arrival],
    concurrency: int | None = None,
    front_end: FrontEnd | None = None,
    until_s: float = math.inf,
    again: Again | None = None,
) -> tuple[list[Request], dict[int, int]]:
    """Sends all arrivals that come before `until_s` through `front` and returns every one of these when the last has
    ended, in their own order; and of each session that was cut off, how many of its requests have no answer.

    `front_end` is what each passes before: its tokenizers on the way in, its streams on the way out. `again` follows
    when all have been sent.
    """
    due = sorted((a for a in arrivals if not a.after and a.at_s < until_s), key=lambda a: (a.at_s, a.number))
    tokenizers = Tokenizers(front_end or NO_FRONT_END)
    waits = concurrency is not None or any(a.after for a in arrivals)
    if isinstance(front, Replicas) and not waits:
        return sorted(front.serve_open_loop(tokenizers.all_ready(due)), key=lambda r: r.arrival.number), {}
    turns = WaitingTurns(arrivals, concurrency, again) if waits else None
    front.endings_send = waits
    done: list[Request] = []
    # when it is sent or, once that is known, when it reaches a scheduler; its number, itself, when it was sent
    first = [(a.at_s, a) for a in due] if turns is None else turns.first()
    coming = [(at_s, a.number, a, at_s, False) for at_s, a in first if at_s < until_s]
    heapq.heapify(coming)
    while True:
        now_s = front.now_s
        if not coming and now_s == math.inf:
            break
        while coming and coming[0][0] <= now_s:
            at_s, _, arrival, sent_s, ready = heapq.heappop(coming)
            if not ready:
                at_s = tokenizers.ready_s(at_s, arrival.input_tokens, arrival.text is not None) + front.backlog_s(at_s)
                heapq.heappush(coming, (at_s, arrival.number, arrival, sent_s, True))
                continue
            front.send(Request(arrival, sent_s, arrival.input_tokens), at_s)
            now_s = front.now_s
        ended = front.advance(coming[0][0] if coming else math.inf)
        done += ended
        if turns is None:
            continue
        for request in ended:
            for at_s, following in turns.after(request.arrival, request.seen_end_s, bool(request.failure)):
                if at_s < until_s:
                    heapq.heappush(coming, (at_s, following.number, following, at_s, False))
    return sorted(done, key=lambda r: r.arrival.number), {} if turns is None else turns.cut_off()
