"""One worker that sends its assignment: event loop, signals, limits, file of records."""

from __future__ import annotations

import contextlib
import gc
import platform
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from ridgeline.load.wire.loop import Loop
from ridgeline.load.workers.assignment import Assignment, LoadResult
from ridgeline.load.workers.driver import Driver
from ridgeline.traffic.requests import RecordsFile
from ridgeline.traffic.traffic import Arrival

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
