"""Wake-ups at exact times. Event loops round to milliseconds; a Linux timer descriptor does not."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _Spec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class Alarm:
    """Calls `ring()` once, at the time last given to `set` (seconds of time.monotonic)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            # TFD_NONBLOCK and TFD_CLOEXEC have the values of the open() flags
            self._fd = int(self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self._fd >= 0:
            loop.add_reader(self._fd, self._expired)

    def set(self, at_s: float) -> None:
        if self._fd < 0:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, at_s - time.monotonic()), self._ring)
            return
        # a zero time would disarm it; one nanosecond after the epoch is long past and rings at once
        at_ns = max(1, int(at_s * 1e9))
        spec = _Spec(0, 0, at_ns // 1_000_000_000, at_ns % 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)

    def _expired(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._ring()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
