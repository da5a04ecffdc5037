"""Canaries: requests for one token, straight to a server, that tell whether its engine still works.

/health and the gauges of a server whose engine stands still go on saying what they said last. An answer to a canary
takes an engine that works. No answer takes time to mean something: a canary waits behind whatever the engine is at.
What that can be, and for how long, is judged in `watch.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.service import probe
from ridgeline.service.servers import server_of

_LIMIT_S = 120.0  # after which a canary is given up and another one sent
IDLE_EVERY_S = 5.0  # while nothing else shows that the engine works
CONFIRM_S = 4.0  # at least so long before a verdict a second one is sent, on a connection of its own
_AGAIN_S = 1.0
# Prompts that show how long prompts take: a longer one where the last took less than _QUICK_S, as each further token of
# a prompt takes longer. Measured again after _AGAIN_PACE_S where a server seems slow: others may have had its cores.
PACE_TOKENS, _QUICK_S, _AGAIN_PACE_S = (512, 2048, 8192), 0.5, 60.0
_LEAST_PACE_TOKENS = 16
FRONT_EVERY_S, FRONT_LIMIT_S = 10.0, 20.0  # requests through the router, while nobody else sends any
REFUSALS = 2  # in a row, before a router is said to refuse


@dataclass
class Canaries:
    """Those of one start of a server. None of them is waited for: each flies in a thread of its own."""

    engine: str
    role: str
    url: str
    model: str
    key: str
    clock: Callable[[], float] = time.monotonic
    send: Callable[..., bool] = probe.makes_token
    answers: int = 0  # so far
    refused: str = ""  # why the server takes none: then they say nothing
    _sent_s: float = -1e9  # the last one
    _since_s: float | None = None  # the first one since an answer
    _second_s: float | None = None  # the next one after it
    _under_way: int = 0
    _took_s: dict[int, float] = field(default_factory=dict)  # prompts of so many tokens, at best
    _idle_took: set[int] = field(default_factory=set)  # those of them that waited for no other request
    _context: int | None = None  # 0: no prompts are measured
    _paced_s: float = -1e9  # the last such prompt
    _pacing: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def waiting(self) -> bool:
        """One was sent, and no answer came since."""
        return self._since_s is not None and not self.refused

    @property
    def confirmed(self) -> bool:
        """A second one waits too, and for long enough."""
        second_s = self._second_s
        return second_s is not None and self.clock() - second_s >= CONFIRM_S - 0.5

    @property
    def measurable(self) -> bool:
        """Whether it takes prompts that show its pace, as far as is known."""
        return self._context != 0 and not self.refused

    @property
    def pace_s(self) -> float | None:
        """Seconds for each token at the end of the longest prompt that the server takes; None: not measured yet."""
        with self._lock:
            rows = sorted((tokens, took_s / tokens) for tokens, took_s in self._took_s.items())
        if not rows:
            return None
        (least, first_s), (most, last_s) = rows[0], rows[-1]
        slope = max(0.0, (last_s - first_s) / (most - least)) if most > least else 0.0
        return last_s + 2 * slope * (self._context or 0)

    def poll(self, quiet: bool, busy: bool, verdict_in_s: float, slow: bool = False) -> None:
        """Sends one where it is due: at once when a busy server falls quiet, now and then to an idle one.

        A second one is sent before a verdict, and another one when all that were sent have come back without a token.
        Prompts that show its pace are sent while it is idle, and one of them to a server that has been busy ever since;
        again where it seems `slow`.
        """
        now_s = self.clock()
        self._measure(busy, slow, now_s)
        with self._lock:
            since_s = now_s - self._sent_s
            first = not self.waiting and quiet and not self._under_way and (busy or since_s >= IDLE_EVERY_S)
            # polls are seconds apart: with no more time than CONFIRM_S the verdict would wait for the next one
            second = self.waiting and self._second_s is None and verdict_in_s <= 2 * CONFIRM_S
            lost = self.waiting and not self._under_way
            if self.refused or not (first or second or lost) or since_s < _AGAIN_S:
                return
            if first:
                self._since_s = now_s
            elif self._second_s is None:
                self._second_s = now_s
            self._sent_s, self._under_way = now_s, self._under_way + 1
        threading.Thread(target=self._fly, daemon=True).start()

    def _fly(self) -> None:
        refused, good = "", False
        try:
            good = self.send(self.url, self.model, self.key, _LIMIT_S, engine=self.engine, role=self.role)
        except OSError as error:
            refused = str(error)
        with self._lock:
            self._under_way -= 1
            if good:
                self._answered()
            elif refused:
                self.refused = refused

    def _answered(self) -> None:
        self.answers += 1
        self._since_s = self._second_s = None

    def _measure(self, busy: bool, slow: bool, now_s: float) -> None:
        if self._pacing or self.waiting or self.refused or self._context == 0:
            return
        if busy and self._took_s:
            return
        if len(self._idle_took) == len(PACE_TOKENS) or not self._quick():
            if not slow or now_s - self._paced_s < _AGAIN_PACE_S:
                return
            self._idle_took.clear()
        self._pacing, self._paced_s = True, now_s
        threading.Thread(target=self._time_prompt, args=(busy,), daemon=True).start()

    def _quick(self) -> bool:
        """Whether a longer prompt than the last one may be sent."""
        return not self._idle_took or self._took_s[max(self._idle_took)] < _QUICK_S

    def _time_prompt(self, busy: bool) -> None:
        good, tokens = False, self._next_tokens()
        began_s = self.clock()
        try:
            if tokens:
                more = {"engine": self.engine, "role": self.role, "tokens": tokens}
                good = self.send(self.url, self.model, self.key, _LIMIT_S, **more)
        except OSError:
            self._context = 0  # a prompt that it does not take is no reason to doubt it
        took_s = self.clock() - began_s
        with self._lock:
            if good:
                self._answered()
                self._took_s[tokens] = min(took_s, self._took_s.get(tokens, took_s))
            if good and not busy:
                self._idle_took.add(tokens)
            elif not tokens:
                self._idle_took.update(PACE_TOKENS)
            self._pacing = False

    def _next_tokens(self) -> int:
        """The next longer prompt, far below the context of the model; 0 where there is none."""
        if self._context is None:
            plain = not (server_of(self.engine).generate_path and self.role in ("prefill", "decode"))
            self._context = probe.context_tokens(self.url, self.key) if plain else 0
        most = self._context // 4
        first = min(PACE_TOKENS[0], most)
        lengths = [first, *(tokens for tokens in PACE_TOKENS[1:] if tokens <= most)]
        return next((n for n in lengths if n not in self._idle_took and n >= _LEAST_PACE_TOKENS), 0)


@dataclass
class RouterCanary:
    """Requests for one token through the router, while its servers are idle: would a user be served?"""

    url: str
    model: str
    key: str
    clock: Callable[[], float] = time.monotonic
    ask: Callable[[str, str, str, float], str] = probe.why_refused
    refusals: int = 0  # in a row
    why: str = ""
    _sent_s: float = -1e9
    _under_way: bool = False

    def poll(self, servers_idle: bool) -> None:
        """What users send says enough while servers are busy; what was seen before is then forgotten."""
        if not servers_idle:
            self.refusals = 0
        elif not self._under_way and self.clock() - self._sent_s >= FRONT_EVERY_S:
            self._sent_s, self._under_way = self.clock(), True
            threading.Thread(target=self._fly, daemon=True).start()

    @property
    def refuses(self) -> bool:
        return self.refusals >= REFUSALS

    def _fly(self) -> None:
        why = self.ask(self.url, self.model, self.key, FRONT_LIMIT_S)
        self.refusals = self.refusals + 1 if why else 0
        self.why, self._under_way = why, False
