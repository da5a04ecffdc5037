"""One worker: it sends the requests of its assignment, closed loop, on a schedule or as sessions, and keeps the record
of each.

Everything runs as callbacks of one event loop. Nothing is awaited per request and nothing is printed, so the time
between an answer's last byte and the next request is a fraction of a millisecond, and it is measured.
"""

from __future__ import annotations

import contextlib
import gc
import platform
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.connection import Connection
from ridgeline.serving.load.wire.exchange import Exchange, Wanted
from ridgeline.serving.load.wire.loop import Loop
from ridgeline.serving.load.wire.reply import Reply
from ridgeline.serving.load.workers.assignment import UNDER_WAY, Assignment, LoadResult
from ridgeline.serving.traffic.prompts import Prompts, RequestBodies
from ridgeline.serving.traffic.requests import RecordsFile
from ridgeline.serving.traffic.traffic import Arrival
from ridgeline.serving.traffic.turns import WaitingTurns

_TICK_S = 0.02
_SWEEP_TICKS = 5
_OPENING_S = 5.0
# A slot that is asked to come back later waits, but not so long that a wrong header stops the run.
_LONGEST_PAUSE_S = 5.0
# see Loop: how long a batch of arrivals may gather, as a share of a request and of the time between its tokens
_CROWD = 32
_LONGEST_NAP_S = 0.001
_NAP_SHARE = 0.008
_NAP_GAP_SHARE = 0.2


class Driver:
    def __init__(self, assignment: Assignment, loop: Loop, records_file: RecordsFile | None) -> None:
        self._assignment = assignment
        self._loop = loop
        self._records_file = records_file
        self._stats = ClientStats()
        self._bodies = RequestBodies(
            Prompts(assignment.salt, assignment.shared_prefix_tokens),
            assignment.endpoint.interface,
            assignment.model,
            assignment.stream,
            assignment.ignore_eos,
            assignment.extra,
        )
        answers = assignment.extra.get("n")  # to each prompt
        self._answers = answers if isinstance(answers, int) and answers > 1 else 1
        stops = assignment.extra.keys() & {"stop", "stop_token_ids", "stop_regex"}
        self._full_length = assignment.ignore_eos and not stops
        self._head = assignment.endpoint.head("POST", assignment.endpoint.path, 0).removesuffix(b"0\r\n\r\n")
        self._context = assignment.endpoint.tls_context()
        self._name = f"client-{assignment.worker}" if assignment.workers > 1 else ""
        self._active: set[Connection] = set()
        self._idle: list[Connection] = []  # a stack: the warmest connection is used again first
        # the first round of a closed loop goes out all at once, so it is written before the clock starts; prompts of
        # sessions may be too long for that
        first = () if assignment.turns else assignment.arrivals[: assignment.slots]
        self._ahead = {a.number: self._wire(a) for a in first}
        self._turns = _waiting_turns(assignment)
        self._thinking = 0  # turns of sessions whose time has not come
        self._settling = 0
        self._waiting: deque[tuple[Arrival, float]] = deque()
        self._position = 0
        self._pausing = 0
        self._ticks = 0
        self._stopped = False
        self._goes_on = False  # the load is changed on the way, and ends when its owner says so
        self._changes = 0
        self._out = LoadResult([], self._stats, 0.0)

    def run(self) -> LoadResult:
        assignment = self._assignment
        if assignment.slots:
            self._open_ahead(
                assignment.slots if assignment.endless else min(assignment.slots, len(assignment.arrivals))
            )
        start_s = assignment.start_at_s or time.monotonic() + 0.002
        self._out.start_s = start_s
        if self._turns is not None:
            self._await_turns(self._turns.first())
        else:
            self._loop.at(start_s, partial(self._fill_slots, start_s) if assignment.slots else self._send_due)
        self._next_tick()
        self._stats.compare_clocks()
        self._stats.begin()
        self._loop.run()
        while self._loop.leisure:
            self._loop.leisure.popleft()()
        if self._turns is not None:
            self._out.unsent = self._turns.cut_off()
        self._stats.finish()
        return self._out

    def interrupt(self) -> None:
        """Ctrl-C: what has ended stays, what is under way is dropped and counted."""
        if self._stopped:
            return
        self._out.interrupted = self._stopped = True
        self._out.unfinished = len(self._active)
        self._loop.stop()

    # a load that goes on and is changed on the way

    def begin(self, start_s: float) -> None:
        """Starts the clock. Nothing is sent before `change`, and only while `run_until` runs."""
        self._goes_on = True
        self._out.start_s = start_s
        self._next_tick()
        self._stats.compare_clocks()
        self._stats.begin()

    def change(self, assignment: Assignment) -> None:
        """From now on this is sent, and the counters start anew; what is under way stays under way, and sessions that
        have begun go on, as many as there are places.

        Arrival times count from `begin`.
        """
        self._assignment, self._ahead = assignment, {}
        self._position, self._changes = 0, self._changes + 1
        self._waiting.clear()
        self._stats.restart()
        if self._turns is None:
            self._turns = _waiting_turns(assignment)
        if self._turns is not None:
            self._await_turns(self._turns.resized(assignment.slots, time.monotonic() - self._out.start_s))
        elif assignment.slots:
            self._fill_slots(time.monotonic())
        else:
            self._send_due()

    def extend(self, arrivals: tuple[Arrival, ...]) -> None:
        left = self._assignment.arrivals[self._position :]
        self._assignment = replace(self._assignment, arrivals=left + arrivals)
        self._position, self._changes = 0, self._changes + 1
        self._send_due()

    def run_until(self, at_s: float) -> LoadResult:
        """Sends and reads until then. What has ended since the last call, and what is under way as far as it came."""
        self._loop.at(at_s, self._loop.stop)
        self._loop.run()
        for connection in list(self._active):
            connection.read_so_far()
        while self._loop.leisure:
            self._loop.leisure.popleft()()
        done, start_s = self._out, self._out.start_s
        self._out = LoadResult([], self._stats, start_s, interrupted=done.interrupted)
        exchanges = [c.exchange for c in self._active if c.exchange is not None]
        done.under_way = [replace(e.record(start_s, self._name), status=UNDER_WAY, end_s=None) for e in exchanges]
        done.stats = self._stats.so_far()
        return done

    def close(self) -> None:
        """Drops what is under way."""
        for connection in (*self._idle, *self._active):
            connection.close()

    # opening connections

    def _connection(self) -> Connection:
        endpoint, address = self._assignment.endpoint, self._assignment.address
        return endpoint.connection(self._loop, address, self._stats, self._ended, self._context)

    def _open_ahead(self, count: int) -> None:
        """Connects before the clock starts, so that the first requests do not pay for it."""
        self._idle = [self._connection() for _ in range(count)]
        for connection in self._idle:
            connection.connect()
        deadline_s = time.monotonic() + _OPENING_S

        def look() -> None:
            now_s = time.monotonic()
            if now_s < deadline_s and any(c.opening for c in self._idle):
                self._loop.at(now_s + 0.002, look)
            else:
                self._loop.stop()

        look()
        if any(c.opening for c in self._idle):
            self._loop.run()

    # closed loop

    def _fill_slots(self, scheduled_s: float) -> None:
        while len(self._active) + self._pausing < self._assignment.slots and self._more():
            self._start(self._idle.pop() if self._idle else self._connection(), self._take(), scheduled_s)
        self._stop_when_done()

    # open loop

    def _send_due(self) -> None:
        now_s, start_s = time.monotonic(), self._out.start_s
        while self._more():
            arrival = self._assignment.arrivals[self._position]
            due_s = start_s + arrival.at_s
            if due_s > now_s:
                self._loop.at(due_s, partial(self._send_unless_changed, self._changes))
                return
            self._position += 1
            self._stats.delayed(now_s - due_s)
            most = self._assignment.most_at_once
            if most is not None and len(self._active) >= most:
                self._waiting.append((arrival, due_s))
            else:
                self._start(self._idle.pop() if self._idle else self._connection(), arrival, due_s)
        self._stop_when_done()

    def _send_unless_changed(self, changes: int) -> None:
        if changes == self._changes:
            self._send_due()

    # sessions

    def _await_turns(self, due: Iterable[tuple[float, Arrival]]) -> None:
        for at_s, arrival in due:
            due_s = self._out.start_s + at_s
            self._thinking += 1
            self._loop.at(due_s, partial(self._send_turn, arrival, due_s))

    def _send_turn(self, arrival: Arrival, due_s: float) -> None:
        self._thinking -= 1
        if self._turns is not None and self._turns.wants(arrival) and not self._is_over():
            self._start(self._idle.pop() if self._idle else self._connection(), arrival, due_s)
        self._stop_when_done()

    def _answered(self, exchange: Exchange, ok: bool) -> None:
        """Its session goes on, or is over where it failed; a place whose server asked for a pause takes it first."""
        if self._turns is None:
            return
        if over := self._is_over():
            self._turns.stop()
        at_s = (exchange.end_s or time.monotonic()) - self._out.start_s
        pause_s = _pause_s(exchange) if self._assignment.slots else 0.0
        self._out.paused += pause_s > 0
        due = self._turns.after(exchange.arrival, at_s + pause_s, failed=not ok)
        self._await_turns(() if over else due)

    # all

    def _more(self) -> bool:
        assignment = self._assignment
        if self._is_over():
            return False
        return assignment.endless or self._position < len(assignment.arrivals)

    def _is_over(self) -> bool:
        """Whether nothing more is to be sent, whatever waits for its turn."""
        limit_s = self._assignment.duration_s
        return self._stopped or (limit_s is not None and time.monotonic() - self._out.start_s >= limit_s)

    def _take(self) -> Arrival:
        assignment, position = self._assignment, self._position
        self._position += 1
        if position < len(assignment.arrivals):
            return assignment.arrivals[position]
        again = assignment.arrivals[position % len(assignment.arrivals)]
        number = assignment.numbers_from + position * assignment.workers + assignment.worker
        return replace(again, number=number)

    def _wire(self, arrival: Arrival) -> bytes:
        body = self._bodies.body(arrival)
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    def _start(self, connection: Connection, arrival: Arrival, scheduled_s: float) -> None:
        wire = self._ahead.pop(arrival.number, None) or self._wire(arrival)
        reply = Reply(self._assignment.endpoint.interface, self._assignment.stream)
        self._active.add(connection)
        wanted = Wanted(arrival.output_tokens * self._answers, self._full_length)
        connection.start(Exchange(arrival, wire, scheduled_s, reply, wanted))

    def _ended(self, connection: Connection, exchange: Exchange) -> None:
        self._active.discard(connection)
        end_s = exchange.end_s or time.monotonic()
        if not self._assignment.slots or self._turns is not None:
            self._idle.append(connection)
            if self._waiting:
                arrival, due_s = self._waiting.popleft()
                self._start(self._idle.pop(), arrival, due_s)
        elif pause_s := _pause_s(exchange):
            self._pause(connection, pause_s)
        elif self._more() and len(self._active) + self._pausing < self._assignment.slots:
            self._start(connection, self._take(), end_s)
        else:
            self._idle.append(connection)
        self._settling += 1
        self._loop.leisure.append(partial(self._note, exchange))

    def _note(self, exchange: Exchange) -> None:
        exchange.settle()
        self._answered(exchange, exchange.status == "ok")
        if exchange.error:
            exchange.error = self._assignment.endpoint.without_secrets(exchange.error)
        record = exchange.record(self._out.start_s, self._name)
        self._out.records.append(record)
        self._out.lag_s.append(exchange.taken_s - exchange.scheduled_s)
        self._out.cache_reports += exchange.reply.cached_tokens is not None
        if exchange.coalesced is not None and record.ok:
            self._out.coalesced.append(exchange.coalesced)
        if self._records_file is not None:
            self._records_file.write(record)
        self._settling -= 1
        if not self._settling:
            self._stop_when_done()

    def _pause(self, connection: Connection, pause_s: float) -> None:
        self._idle.append(connection)
        self._pausing += 1
        self._out.paused += 1

        def over() -> None:
            self._pausing -= 1
            if not self._stopped:
                self._fill_slots(time.monotonic())

        self._loop.at(time.monotonic() + pause_s, over)

    def _next_tick(self) -> None:
        self._tick_due_s = time.monotonic() + _TICK_S
        self._loop.at(self._tick_due_s, self._tick)

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._stats.delayed(now_s - self._tick_due_s)
        self._next_tick()
        self._stats.compare_clocks()
        self._ticks += 1
        if self._ticks % _SWEEP_TICKS == 0:
            self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        """Time limits and the end of the run."""
        self._set_nap()
        limit_s, last_s = self._assignment.timeout_s, self._assignment.give_up_s
        over = last_s is not None and now_s - self._out.start_s > last_s
        for connection in list(self._active):
            exchange = connection.exchange
            if exchange is not None and now_s - connection.at_s > limit_s:
                kind = "timeout" if exchange.first_byte_s is None else "stalled"
                connection.fail(kind, f"nothing came for {limit_s:g} s")
            elif exchange is not None and over:
                connection.fail("unfinished", f"the run ended after {last_s:g} s")
            else:
                connection.catch_up(now_s)
        if self._assignment.slots and self._turns is None and now_s >= self._out.start_s:
            self._fill_slots(now_s)
        elif now_s >= self._out.start_s:
            self._stop_when_done()
        if self._records_file is not None:
            self._records_file.flush()

    def _set_nap(self) -> None:
        """Batches gather for next to nothing of a request's time and of a gap between tokens, and only in a crowd."""
        if len(self._active) < _CROWD:
            self._loop.nap_s = 0.0
            return
        recent = [r for r in self._out.records[-_CROWD:] if r.ok and r.e2e_s is not None]
        gaps = [r.tpot_s for r in recent if r.tpot_s is not None]
        request_s = min((r.e2e_s or 0.0 for r in recent), default=0.0)
        self._loop.nap_s = min(_LONGEST_NAP_S, _NAP_SHARE * request_s, _NAP_GAP_SHARE * min(gaps, default=0.0))

    def _stop_when_done(self) -> None:
        if self._goes_on:
            return
        waiting = self._active or self._waiting or self._pausing or self._settling
        more = self._more() if self._turns is None else self._thinking and not self._is_over()
        if not waiting and not more:
            self._stopped = True
            self._loop.stop()


def _waiting_turns(assignment: Assignment) -> WaitingTurns | None:
    if not assignment.turns:
        return None
    closed = assignment.slots or assignment.endless
    return WaitingTurns(assignment.arrivals, assignment.slots if closed else None, assignment.again)


def _pause_s(exchange: Exchange) -> float:
    """For how long the server asks to be left alone."""
    asked_s = exchange.retry_after_s if exchange.http_status in (429, 503) else None
    return min(asked_s or 0.0, _LONGEST_PAUSE_S)


# Asks the kernel for short time slices.
#
# Since 6.12 Linux lets any thread say how long its time slices should be, without a privilege: one that asks for short
# ones runs sooner when it wakes, and gets no larger share of the processor. A load generator on a busy host
# reads on time more often that way. Older kernels and other systems go on as they are.

_SLICE_NS = 100_000
# numbers of sched_setattr and sched_getattr
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
_SHARED = (0, 3)  # SCHED_OTHER and SCHED_BATCH: policies under which time slices have a length to ask for


@contextlib.contextmanager
def short_time_slices() -> Iterator[str]:
    """Short time slices for this thread while the block lasts; yields what came of it, as text."""
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        yield "usual (this system has no call for it)"
        return
    import ctypes  # slow to load, and needed here only

    class Attributes(ctypes.Structure):
        _fields_ = [
            ("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64),
            ("nice", ctypes.c_int32), ("priority", ctypes.c_uint32), ("runtime_ns", ctypes.c_uint64),
            ("deadline_ns", ctypes.c_uint64), ("period_ns", ctypes.c_uint64),
        ]  # fmt: skip

    call, (set_number, get_number) = ctypes.CDLL(None).syscall, _CALLS[platform.machine()]

    def now() -> Attributes | None:
        found = Attributes()
        return found if call(get_number, 0, ctypes.byref(found), ctypes.sizeof(found), 0) == 0 else None

    before = now()
    if before is None or before.policy not in _SHARED:
        yield "usual (another scheduling policy is set)"
        return
    asked = Attributes.from_buffer_copy(before)
    asked.runtime_ns = _SLICE_NS
    call(set_number, 0, ctypes.byref(asked), 0)
    after = now()
    try:
        # an older kernel takes the call and forgets the length
        yield "short" if after is not None and after.runtime_ns == _SLICE_NS else "usual (needs Linux 6.12)"
    finally:
        call(set_number, 0, ctypes.byref(before), 0)


# a load that grows until something gives way wants as many connections as may be had
_OPEN_FILES = 1 << 16


class OpenWorker:
    """One worker whose load goes on and is changed on the way, until it is closed."""

    def __init__(self, assignment: Assignment, start_s: float | None = None, files: int = _OPEN_FILES) -> None:
        self._loop = Loop()
        self._file = RecordsFile(assignment.records_path) if assignment.records_path is not None else None
        self.driver = Driver(assignment, self._loop, self._file)
        self._around = contextlib.ExitStack()
        _allow_files(files)
        self._around.enter_context(_no_collections())
        self._around.enter_context(stopped_by_signals(self.driver.interrupt))
        self.time_slices = self._around.enter_context(short_time_slices())
        self.change, self.extend = self.driver.change, self.driver.extend
        if start_s is not None:
            self.driver.begin(start_s)

    def run_until(self, at_s: float) -> LoadResult:
        done = self.driver.run_until(at_s)
        done.time_slices = self.time_slices
        return done

    def close(self) -> str:
        """Drops what is under way; what went wrong with the file of records, if anything."""
        self.driver.close()
        self._around.close()
        self._loop.close()
        if self._file is None:
            return ""
        self._file.close()
        return self._file.problem


def run_worker(assignment: Assignment) -> LoadResult:
    """Sends the assignment and returns what came of it. Ctrl-C ends it early with the results so far."""
    files = assignment.slots or assignment.most_at_once or 4096
    if assignment.turns:
        files = max(files, 4096)  # a turn may have many sub-agents
    worker = OpenWorker(assignment, files=files + 64)
    problem = ""
    try:
        out = worker.driver.run()
    finally:
        problem = worker.close()
    out.time_slices, out.records_problem = worker.time_slices, problem
    return out


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """A collection would stop every stream for some milliseconds; nothing here makes cycles per request."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
