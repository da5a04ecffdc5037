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

LIMIT_S = 120.0  # after which a canary is given up and another one sent
IDLE_EVERY_S = 8.0  # while nothing else shows that the engine works
CONFIRM_S = 4.0  # before a verdict a second one is sent, on a connection of its own
AGAIN_S = 1.0
RULER_TOKENS = 512  # of the prompt that tells how long prompts take
LEAST_RULER_TOKENS = 16
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
    pace_s: float | None = None  # for each token of a prompt, where that was measured
    _ruled: bool = False  # it was tried
    _sent_s: float = -1e9  # the last one
    _since_s: float | None = None  # the first one since an answer
    _second_s: float | None = None  # the next one after it
    _under_way: int = 0
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

    def tend(self, quiet: bool, busy: bool, verdict_in_s: float) -> None:
        """Sends one where it is due: at once when a busy server falls quiet, now and then to an idle one.

        A second one is sent before a verdict, and another one when all that were sent have come back without a token.
        """
        now_s = self.clock()
        with self._lock:
            since_s = now_s - self._sent_s
            first = not self.waiting and quiet and not self._under_way and (busy or since_s >= IDLE_EVERY_S)
            second = self.waiting and self._second_s is None and verdict_in_s <= CONFIRM_S
            lost = self.waiting and not self._under_way
            if self.refused or not (first or second or lost) or since_s < AGAIN_S:
                return
            if first:
                self._since_s = now_s
            elif self._second_s is None:
                self._second_s = now_s
            ruler = first and not busy and not self._ruled
            self._ruled |= ruler
            self._sent_s, self._under_way = now_s, self._under_way + 1
        threading.Thread(target=self._fly, args=(ruler,), daemon=True).start()

    def _fly(self, ruler: bool) -> None:
        tokens, refused, good = self._ruler_tokens() if ruler else 0, "", False
        began_s = self.clock()
        try:
            good = self.send(self.url, self.model, self.key, LIMIT_S, engine=self.engine, role=self.role, tokens=tokens)
        except OSError as error:
            refused = str(error)
        took_s = self.clock() - began_s
        with self._lock:
            self._under_way -= 1
            if good or (refused and tokens):  # a prompt that it does not take is no reason to doubt it
                self._since_s = self._second_s = None
            elif refused:
                self.refused = refused
            if good:
                self.answers += 1
                self.pace_s = took_s / tokens if tokens else self.pace_s

    def _ruler_tokens(self) -> int:
        """Far below the context of the model; 0 where the role takes no plain requests."""
        if server_of(self.engine).generate_path and self.role in ("prefill", "decode"):
            return 0
        tokens = min(RULER_TOKENS, probe.context_tokens(self.url, self.key) // 4)
        return tokens if tokens >= LEAST_RULER_TOKENS else 0


@dataclass
class FrontDoor:
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

    def tend(self, servers_idle: bool) -> None:
        """What users send says enough while servers are at work; what was seen before is then forgotten."""
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
