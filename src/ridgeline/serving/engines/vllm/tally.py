"""A vLLM log of any length, summed up in constant memory and in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ridgeline.diagnose.readers.lines import plain
from ridgeline.serving.engines.served import ServedSecond, ServedTally
from ridgeline.serving.engines.vllm.log import KvCache, Throughput, VllmFailure, VllmReader

_FULL, _ROOM = 0.95, 0.8
_STARVED_TOK_S = 1.0  # decoded tokens a second and running request, below which they practically stand still
_EPOCH = datetime(2000, 1, 1)  # a leap year: the log does not name one
# the processes of a server that was asked to stop print lines that otherwise mean a crash
_STOPS = (
    "[shutdown] API server: shutdown triggered",
    "INFO:     Shutting down",
    "Received SIGTERM",
    "Received signal 15",
)
_ECHOES_OF_A_STOP = ("child-died", "exception")


@dataclass(slots=True)
class VllmTally:
    """All that a log said. `quotes` are lines worth showing: name -> line number and text."""

    served: ServedTally = field(default_factory=ServedTally)
    quotes: dict[str, tuple[int, str]] = field(default_factory=dict)
    args: Mapping[str, object] = field(default_factory=dict)
    version: str = ""
    caches: list[KvCache] = field(default_factory=list)
    preempted: int = 0
    failures: dict[tuple[str, bool], int] = field(default_factory=dict)
    last_work_line: int = 0
    stop_line: int = 0
    prefix_hit_share: float = 0.0
    rows: int = 0

    @property
    def cap(self) -> int | None:
        cap = self.args.get("max_num_seqs")
        return cap if isinstance(cap, int) and not isinstance(cap, bool) else None

    def texts(self) -> dict[int, str]:
        return dict(self.quotes.values())

    def line(self, name: str) -> int:
        """The number of a quoted line; 0 where the log has none."""
        return self.quotes.get(name, (0, ""))[0]


def tally_vllm_log(lines: Iterable[str]) -> VllmTally:
    """Sum up a log; torn or foreign text gives less, never an error."""
    reader = _Tallying()
    for line_number, raw in enumerate(lines, 1):
        if '" 200 OK' not in raw:
            reader.take(line_number, plain(raw))
    reader.tally.preempted = reader.preempted
    return reader.tally


class _Tallying(VllmReader):
    def __init__(self) -> None:
        super().__init__()
        self.tally = VllmTally()
        self.text, self.number = "", 0

    def take(self, line_number: int, text: str) -> None:
        self.text, self.number = text[:20_000], line_number
        known_args, known_caches, known_preempted = "args" in self.single, len(self.caches), self.preempted_line
        if not self.tally.stop_line and any(stop in text for stop in _STOPS):
            self.tally.stop_line = line_number
            self._quote("stop")
        self.line(line_number, text)
        if not known_args and "args" in self.single:
            self.tally.version = str(self.single.get("version", ""))  # which comes before what it was started with
            self.tally.args = self.single["args"]
            self._quote("limits")
        if len(self.caches) > known_caches:
            self.tally.caches = self.caches
            self._quote("pool")
        if known_preempted is None and self.preempted_line is not None:
            self._quote("preemption")

    def row(self, row: Throughput) -> None:
        tally, totals = self.tally, self.tally.served.totals
        running, waiting, kv_share = row.running or 0, row.waiting or 0, row.kv_share or 0.0
        tally.last_work_line = row.line
        tally.rows += 1
        second = ServedSecond(lines=1)
        if not running and not waiting:
            second.from_idle = True
        else:
            second.decodes, second.running, second.queued = 1, running, waiting
            second.kv_share, second.decode_tok_s = kv_share, row.decode_tok_s or 0.0
            self._limits(second, running, waiting, kv_share)
            if row.prompt_tok_s and running and (row.decode_tok_s or 0.0) < _STARVED_TOK_S * running:
                second.starved = 1
                self._quote("starved")
        if kv_share > totals.peak_kv_share:
            totals.peak_kv_share = kv_share
            self._quote("peak", again=True)
        if running > totals.most_running:
            totals.most_running = running
            self._quote("busiest", again=True)
        if (hits := row.prefix_hit_share or 0.0) > tally.prefix_hit_share:
            tally.prefix_hit_share = hits
            self._quote("hits", again=True)
        tally.served.add(_seconds(row.time), second)

    def _limits(self, second: ServedSecond, running: int, waiting: int, kv_share: float) -> None:
        if not waiting:
            return
        second.waiting = 1
        self._quote("waiting")
        self._quote("last-waiting", again=True)
        cap = self.tally.cap
        if kv_share >= _FULL:
            second.full = 1
            self._quote("full")
        elif cap is not None and running >= cap and kv_share < _ROOM:
            second.capped = 1
            self._quote("capped")

    def failure(self, failure: VllmFailure) -> None:
        tally = self.tally
        if tally.stop_line and failure.kind in _ECHOES_OF_A_STOP:
            return
        known = tally.failures.get((failure.kind, failure.ready))
        # an exception after which the engine went on working was handled: the next one may not be
        if known is None or (failure.kind == "exception" and known <= tally.last_work_line):
            tally.failures[failure.kind, failure.ready] = failure.line
            self._quote(f"failure-{failure.kind}-{failure.ready}", again=True)

    def _quote(self, name: str, *, again: bool = False) -> None:
        if again or name not in self.tally.quotes:
            self.tally.quotes[name] = (self.number, self.text)


def _seconds(text: str) -> float | None:
    try:
        return (datetime.strptime(f"2000-{text}", "%Y-%m-%d %H:%M:%S") - _EPOCH).total_seconds() if text else None
    except ValueError:
        return None
