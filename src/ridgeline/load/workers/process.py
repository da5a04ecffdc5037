"""One worker that sends its assignment: event loop, signals, limits, file of records."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import threading
from collections.abc import Callable, Iterator

from ridgeline.load.records_file import RecordsFile
from ridgeline.load.wire.loop import Loop
from ridgeline.load.workers.assignment import Assignment, LoadResult
from ridgeline.load.workers.driver import Driver
from ridgeline.load.workers.priority import short_time_slices
from ridgeline.traffic.traffic import Arrival

# a load that grows until something gives way wants as many connections as may be had
_OPEN_FILES = 1 << 16


def run_worker(assignment: Assignment) -> LoadResult:
    """Sends the assignment and returns what came of it. Ctrl-C ends it early with the results so far."""
    loop = Loop()
    records_file = RecordsFile(assignment.records_path) if assignment.records_path is not None else None
    driver = Driver(assignment, loop, records_file)
    _allow_files(max([n for _, n in assignment.slots], default=assignment.most_at_once or 4096) + 64)
    try:
        with _no_collections(), _stopped_by_signals(driver.interrupt), short_time_slices() as time_slices:
            out = driver.run()
    finally:
        loop.close()
        if records_file is not None:
            records_file.close()
    out.time_slices = time_slices
    if records_file is not None:
        out.records_problem = records_file.problem
    return out


class OpenWorker:
    """One worker whose load goes on and is changed on the way, until it is closed."""

    def __init__(self, assignment: Assignment, start_s: float) -> None:
        self._loop = Loop()
        self._file = RecordsFile(assignment.records_path) if assignment.records_path is not None else None
        self._driver = Driver(assignment, self._loop, self._file)
        self._around = contextlib.ExitStack()
        _allow_files(_OPEN_FILES)
        self._around.enter_context(_no_collections())
        self._around.enter_context(_stopped_by_signals(self._driver.interrupt))
        self._time_slices = self._around.enter_context(short_time_slices())
        self._driver.begin(start_s)

    def change(self, assignment: Assignment) -> None:
        self._driver.change(assignment)

    def extend(self, arrivals: tuple[Arrival, ...]) -> None:
        self._driver.extend(arrivals)

    def run_until(self, at_s: float) -> LoadResult:
        done = self._driver.run_until(at_s)
        done.time_slices = self._time_slices
        return done

    def close(self) -> str:
        """Drops what is under way; what went wrong with the file of records, if anything."""
        self._driver.close()
        self._around.close()
        self._loop.close()
        if self._file is None:
            return ""
        self._file.close()
        return self._file.problem


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
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
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
