"""What a serving engine's log says over time, summed up in constant memory, whichever engine wrote it.

A log line of a batch tells what the engine just did. Lines that bear the same second share it evenly, so that the sums
below are times and not counts of lines. Gaps in front of a batch that found nothing running are time without work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import ClassVar

from ridgeline.serving.engines.failures import SURVIVED, LogFailure

_STRETCHES = 240  # of the log; two become one when the log outlasts them
_IDLE_GAP_S = 2.0


@dataclass(slots=True)
class _Sums:
    """Sums over batch lines."""

    lines: int = 0
    decodes: int = 0
    prefills: int = 0
    starved: int = 0  # prefill lines while requests that run got no token
    eager: int = 0  # decode lines without a CUDA graph
    beyond: int = 0  # of those, more requests than the largest graph
    full: int = 0  # decode lines with a full KV pool and requests waiting
    capped: int = 0  # decode lines at the cap with room in the pool and requests waiting
    waiting: int = 0  # decode lines with requests waiting
    running: int = 0
    queued: int = 0
    kv_share: float = 0.0
    decode_tok_s: float = 0.0


@dataclass(slots=True)
class ServedSecond(_Sums):
    """Those that bear one time stamp."""

    from_idle: bool = False


@dataclass(slots=True)
class ServedTotals(_Sums):
    """Those of a whole log. The names ending in _s are seconds spent in that way, of `span_s` altogether."""

    most_running: int = 0
    peak_kv_share: float = 0.0
    span_s: float = 0.0
    idle_s: float = 0.0
    decode_s: float = 0.0
    prefill_s: float = 0.0
    starved_s: float = 0.0
    eager_s: float = 0.0
    beyond_s: float = 0.0
    full_s: float = 0.0
    capped_s: float = 0.0
    waiting_s: float = 0.0

    @property
    def busy_s(self) -> float:
        return self.span_s - self.idle_s

    def share(self, seconds: float) -> float | None:
        """Of the time in which there was work; None where the log has no times, or too few."""
        return min(1.0, seconds / self.busy_s) if self.busy_s > 0 else None


@dataclass(slots=True)
class ServedTally:
    """Takes one `ServedSecond` after the other."""

    totals: ServedTotals = field(default_factory=ServedTotals)
    _decodes: Counter[int] = field(default_factory=Counter)  # by the stretch of the log, each of `_width_s`
    _queued: Counter[int] = field(default_factory=Counter)
    _width_s: float = 1.0
    _last_s: float | None = None
    _first_s: float = 0.0

    def add(self, time_s: float | None, second: ServedSecond) -> None:
        """`time_s` counts from anywhere; None for lines without a stamp, which have counts but no duration."""
        length = self._length(time_s)
        totals = self.totals
        for name in _SUMMED:
            setattr(totals, name, getattr(totals, name) + getattr(second, name))
        totals.span_s += length
        if second.from_idle and length >= _IDLE_GAP_S:
            totals.idle_s += length
        elif second.lines and length:
            each = length / second.lines
            for name, count in _TIMED:
                setattr(totals, name, getattr(totals, name) + each * getattr(second, count))
        if time_s is not None and second.decodes and time_s >= self._first_s:
            self._into_stretch(time_s - self._first_s, second)

    def _length(self, time_s: float | None) -> float:
        if time_s is None:
            return 0.0
        if self._last_s is None:
            self._first_s = self._last_s = time_s
            return 0.0
        length = max(0.0, time_s - self._last_s)
        self._last_s = max(self._last_s, time_s)
        return length

    def _into_stretch(self, since_s: float, second: ServedSecond) -> None:
        while since_s >= _STRETCHES * self._width_s:
            self._width_s *= 2
            self._decodes, self._queued = _halved(self._decodes), _halved(self._queued)
        at = int(since_s / self._width_s)
        self._decodes[at] += second.decodes
        self._queued[at] += second.queued

    def queue_over_time(self) -> list[float]:
        """Waiting requests, mean, over at most some hundred stretches of equal length; those without a decode line are
        left out."""
        return [self._queued[at] / self._decodes[at] for at in sorted(self._decodes)]


def _halved(counts: Counter[int]) -> Counter[int]:
    halved: Counter[int] = Counter()
    for at, count in counts.items():
        halved[at // 2] += count
    return halved


@dataclass(slots=True)
class LogTally:
    """What every engine's log is summed up in. `cap`: the running requests that one attention group may have. `quotes`
    are lines worth showing: name -> line number and text.

    `failures` are (kind, whether the engine was ready) -> line; `echoes` the kinds that an engine which was asked to
    stop prints on its way.
    """

    echoes: ClassVar[tuple[str, ...]] = ()

    served: ServedTally = field(default_factory=ServedTally)
    cap: int | None = None
    quotes: dict[str, tuple[int, str]] = field(default_factory=dict)
    failures: dict[tuple[str, bool], int] = field(default_factory=dict)
    last_work_line: int = 0
    stop_line: int = 0

    def texts(self) -> dict[int, str]:
        """The quoted lines by their number."""
        return dict(self.quotes.values())

    def line(self, name: str) -> int:
        """The number of a quoted line; 0 where the log has none."""
        return self.quotes.get(name, (0, ""))[0]

    def failed(self, failure: LogFailure) -> str:
        """The name under which the line of a failure is to be quoted; empty where it says nothing new."""
        if self.stop_line and failure.kind in self.echoes:
            return ""
        known = self.failures.get((failure.kind, failure.ready))
        # after some failures an engine goes on working: the next one of that kind may end it
        if known is not None and (failure.kind not in SURVIVED or known > self.last_work_line):
            return ""
        self.failures[failure.kind, failure.ready] = failure.line
        return f"failure-{failure.kind}-{failure.ready}"


_SUMMED = tuple(summed.name for summed in fields(_Sums))
_TIMED = (
    ("decode_s", "decodes"),
    ("prefill_s", "prefills"),
    ("starved_s", "starved"),
    ("eager_s", "eager"),
    ("beyond_s", "beyond"),
    ("full_s", "full"),
    ("capped_s", "capped"),
    ("waiting_s", "waiting"),
)
