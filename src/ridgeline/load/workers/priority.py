"""Asks the kernel for short time slices.

Since 6.12 Linux lets any thread say how long its time slices should be, without a privilege: one that asks for short
ones runs sooner when it wakes, and gets no larger share of the processor. A load generator on a busy host
reads on time more often that way. Older kernels and other systems go on as they are.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator

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
