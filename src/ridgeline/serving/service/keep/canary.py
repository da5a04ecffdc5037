"""Canaries: requests for a few tokens, straight to a server, that tell whether its engine works, and how fast.

/health and the gauges of a server whose engine stands still go on saying what they said last. An answer to a canary
takes an engine that works. No answer takes time to mean something: a canary waits behind whatever the engine is at.
What that can be, and for how long, is judged in `watch.py`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.serving.service import probe
from ridgeline.serving.service.probe import TokenAnswer

_LIMIT_S = 120.0  # after which a canary is given up and another one sent
IDLE_EVERY_S = 5.0  # unless prompts are in the way, whose requests show that the engine works
_LATE_EVERY_S = 2.0  # after one that was late: whether the server is slow should be known soon
CONFIRM_S = 4.0  # at least so long before a verdict a second one is sent, on a connection of its own
_AGAIN_S = 1.0
_LONGEST_REFUSED_S = 8.0  # between two that are refused: a hang behind the refusals is still found in time
_CHAT_EVERY = 3  # of them, and each after one without a token: both take twice as long, and a slow server's longest
_OWN_PROMPT_S = 3.0
_LEAST_BROKEN = 3  # answers without a token in a row, before they mean anything
_KEPT_TIMES = 200
OUTCOMES = ("answered", "refused", "broken", "unanswered")
# Prompts that show how long prompts take: a longer one where the last took less than _QUICK_S, as each further token of
# a prompt takes longer. Measured again after _AGAIN_PACE_S where a server seems slow: others may have had its cores.
PACE_TOKENS, _QUICK_S, _AGAIN_PACE_S = (512, 2048, 8192), 0.5, 60.0
_LEAST_PACE_TOKENS = 16
FRONT_EVERY_S, FRONT_LIMIT_S = 10.0, 20.0  # requests through the router, while nobody else sends any
REFUSALS = 2  # in a row, before a router is said to refuse


@dataclass
class Canaries:
    """Those of one start of a server. None of them is waited for: each flies in a thread of its own.

    A refusal is an answer and no token: it says neither that the engine works nor that it hangs, so the next one is
    sent after a wait, ever longer up to `_LONGEST_REFUSED_S`.
    """

    engine: str
    role: str
    url: str
    model: str
    key: str
    clock: Callable[[], float] = time.monotonic
    send: Callable[..., TokenAnswer] = probe.ask_for_token
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    refusals: int = 0  # in a row
    why: str = ""  # the last one had no token
    wrong_key: bool = False
    # when, how long for each request that ran, its own among them, and how long in all
    took: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT_TIMES))
    _broken: int = 0  # answers without a token, in a row
    _broken_s: float | None = None  # since when
    _chat: bool | None = None  # whether the server serves it
    _turn: int = 0
    _asks_chat: bool = True  # the one that is under way, and whatever is sent until it is answered
    _sent_s: float = -1e9  # the last one
    _since_s: float | None = None  # the first one since an answer
    _second_s: float | None = None  # the next one after it
    _under_way: int = 0
    _clean: bool = False  # no prompt of somebody else was in the way of the one that is under way
    _prompts_s: float | None = None  # what all prompts before it may have taken
    _came: list[tuple[float, float]] = field(default_factory=list)  # answers since the last poll that were clean
    _beside: float = 0.0  # requests that ran beside it, at most: on a CPU they may share its speed
    _took_s: dict[int, float] = field(default_factory=dict)  # prompts of so many tokens, at best
    _idle_took: set[int] = field(default_factory=set)  # those of them that waited for no other request
    _context: int | None = None  # 0: no prompts are measured
    _paced_s: float = -1e9  # the last such prompt
    _pacing: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def _path(self) -> str:
        return probe.split_path(self.engine, self.role)

    @property
    def answers(self) -> int:
        return self.counts["answered"]

    @property
    def good(self) -> bool:
        """The last one that came back had a token."""
        return not self.why

    @property
    def waiting(self) -> bool:
        """One was sent, and no token came since."""
        return self._since_s is not None

    @property
    def confirmed(self) -> bool:
        """A second one waits too, and for long enough."""
        second_s = self._second_s
        return second_s is not None and self.clock() - second_s >= CONFIRM_S - 0.5

    @property
    def at_prompt(self) -> int:
        """How many may be at their own prompts: one, for the length of a poll."""
        return int(self._under_way > 0 and self.clock() - self._sent_s <= _OWN_PROMPT_S)

    @property
    def flies_s(self) -> float:
        """How long one has been under way that has no prompt in its way."""
        since_s = self._since_s
        return (self.clock() - since_s) / (1 + self._beside) if since_s is not None and self._clean else 0.0

    @property
    def broken_for_s(self) -> float:
        """How long every answer, of at least three, has been one without a token."""
        since_s = self._broken_s
        return self.clock() - since_s if since_s is not None and self._broken >= _LEAST_BROKEN else 0.0

    @property
    def measurable(self) -> bool:
        """Whether it takes prompts that show its pace, as far as is known."""
        return self._context != 0 and not self.refusals

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

    def poll(
        self,
        quiet: bool,
        on_it: float,
        verdict_in_s: float,
        slow: bool = False,
        clean: bool = False,
        prompts_s: float | None = 0.0,
        late: bool = False,
    ) -> None:
        """Sends one where it is due: at once when a busy server falls quiet, now and then otherwise.

        A second one is sent before a verdict, and another one when all that were sent have come back without a token.
        `clean`: no prompt is in the way of one, so that how long it takes says how fast the server is; `prompts_s` is
        what all prompts so far may have taken, for engines show one only when a step of it is done. Prompts that
        show its pace are sent while it is idle, and one of them to a server that has been busy ever since; again where
        it seems `slow`. `late`: the last one was, so the next one is due sooner.
        """
        now_s, busy = self.clock(), on_it > 0
        self._measure(busy, slow, now_s)
        clean = clean and not self._pacing
        self._time_answers(prompts_s)
        with self._lock:
            since_s = now_s - self._sent_s
            self._clean &= clean
            self._beside = max(self._beside, on_it - self._under_way)
            due = since_s >= (_LATE_EVERY_S if late else IDLE_EVERY_S) and (quiet or clean)
            first = not self.waiting and not self._under_way and (due or (quiet and busy and not self.refusals))
            # polls are seconds apart: with no more time than CONFIRM_S the verdict would wait for the next one
            second = self.waiting and self._second_s is None and verdict_in_s <= 2 * CONFIRM_S
            lost = (self.waiting or self.refusals) and not self._under_way
            least_s = min(_AGAIN_S * 2 ** max(0, self.refusals - 1), _LONGEST_REFUSED_S)
            if not (first or second or lost) or since_s < least_s:
                return
            if self._since_s is None:
                self._since_s = now_s
                self._turn += 1
                self._asks_chat = self._chat is not False and (self._turn % _CHAT_EVERY == 1 or bool(self.why))
            elif self._second_s is None:
                self._second_s = now_s
            self._sent_s, self._under_way, self._clean, self._beside = now_s, self._under_way + 1, clean, on_it
            self._prompts_s = prompts_s
        threading.Thread(target=self._fly, daemon=True).start()

    def _time_answers(self, prompts_s: float | None) -> None:
        with self._lock:
            came, self._came = self._came, []
            if prompts_s is not None and self._prompts_s is not None:
                behind_s = max(0.0, prompts_s - self._prompts_s)
                self.took.extend((at, max(0.0, s - behind_s) / (1 + self._beside), s) for at, s in came)

    def _fly(self) -> None:
        more = {"path": self._path, "chat": self._chat if self._asks_chat else False}
        self._take(self.send(self.url, self.model, self.key, _LIMIT_S, **more))

    def _take(self, answer: TokenAnswer) -> None:
        with self._lock:
            self._under_way -= 1
            self.why, self.wrong_key = answer.why, answer.wrong_key
            self.refusals = self.refusals + 1 if answer.refused else 0
            self._broken = self._broken + 1 if answer.broken else 0
            if not answer.broken:
                self._broken_s = None
            elif self._broken_s is None:
                self._broken_s = self.clock()
            if answer.good:
                self._chat = answer.chat if self._asks_chat else self._chat
                self._answered()
                if self._clean:
                    self._came.append((self.clock(), answer.took_s))
            elif answer.refused:
                self.counts["refused"] += 1
                if not self._under_way:  # what is under way may still be what hangs
                    self._since_s = self._second_s = None
            else:
                self.counts["broken" if answer.broken else "unanswered"] += 1

    def _answered(self) -> None:
        self.counts["answered"] += 1
        self._since_s = self._second_s = None

    def _measure(self, busy: bool, slow: bool, now_s: float) -> None:
        if self._pacing or self.waiting or self.refusals or self._context == 0:
            return
        if busy and self._took_s:
            return
        # a longer prompt only where the last one was quick
        quick = not self._idle_took or self._took_s[max(self._idle_took)] < _QUICK_S
        if len(self._idle_took) == len(PACE_TOKENS) or not quick:
            if not slow or now_s - self._paced_s < _AGAIN_PACE_S:
                return
            self._idle_took.clear()
        self._pacing, self._paced_s = True, now_s
        threading.Thread(target=self._time_prompt, args=(busy,), daemon=True).start()

    def _time_prompt(self, busy: bool) -> None:
        good, tokens = False, self._next_tokens()
        began_s = self.clock()
        if tokens:
            more = {"path": self._path, "tokens": tokens}
            answer = self.send(self.url, self.model, self.key, _LIMIT_S, **more)
            good = answer.good
            if answer.refused and not answer.wrong_key and not answer.why.startswith("429"):
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
            self._context = 0 if self._path else probe.context_tokens(self.url, self.key)
        most = self._context // 4
        first = min(PACE_TOKENS[0], most)
        lengths = [first, *(tokens for tokens in PACE_TOKENS[1:] if tokens <= most)]
        return next((n for n in lengths if n not in self._idle_took and n >= _LEAST_PACE_TOKENS), 0)


@dataclass
class RouterCanary:
    """Requests through the router, while its servers are idle: would a user be served?"""

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
