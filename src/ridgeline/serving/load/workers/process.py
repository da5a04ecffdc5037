"""One process that sends a share: its event loop, its signals, its limits, its file of records."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import threading
from collections.abc import Callable, Iterator

from ridgeline.serving.load.records_file import Keeper
from ridgeline.serving.load.wire.loop import Loop
from ridgeline.serving.load.workers.assignment import Share, Yield
from ridgeline.serving.load.workers.driver import Driver
from ridgeline.serving.load.workers.priority import short_turns


def drive(share: Share) -> Yield:
    """Sends the share and returns what came of it. Ctrl-C ends it early with the results so far."""
    loop = Loop()
    keeper = Keeper(share.keep_path) if share.keep_path is not None else None
    driver = Driver(share, loop, keeper)
    _allow_files(max([n for _, n in share.places], default=share.most_at_once or 4096) + 64)
    try:
        with _no_collections(), _stopped_by_signals(driver.interrupt), short_turns() as turns:
            out = driver.run()
    finally:
        loop.close()
        if keeper is not None:
            keeper.close()
    out.turns = turns
    if keeper is not None:
        out.keep_problem = keeper.problem
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
