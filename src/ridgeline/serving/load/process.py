"""One process that sends a share: its event loop, its signals, its limits, its file of records."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import threading

from ridgeline.serving.load.driver import Driver
from ridgeline.serving.load.keep import Keeper
from ridgeline.serving.load.share import Share, Yield


def drive(share: Share) -> Yield:
    """Sends the share and returns what came of it. Ctrl-C ends it early with the results so far."""
    loop = new_loop()
    keeper = Keeper(share.keep_path) if share.keep_path is not None else None
    driver = Driver(share, loop, keeper)
    _allow_files(max([n for _, n in share.places], default=share.most_at_once or 4096) + 64)
    in_main = threading.current_thread() is threading.main_thread()
    # a collection would stop every stream for some milliseconds; nothing here makes cycles per request
    collecting = gc.isenabled()
    gc.disable()
    try:
        if in_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, driver.interrupt)
        out = driver.run()
    finally:
        if collecting:
            gc.enable()
        if in_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        loop.close()
        if keeper is not None:
            keeper.close()
    if keeper is not None:
        out.keep_problem = keeper.problem
    return out


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
