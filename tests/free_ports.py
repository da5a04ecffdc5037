"""Ports for servers that tests start: below those the kernel hands out, and never another worker's."""

from __future__ import annotations

import os
import socket

FIRST, WINDOW, WORKERS = 20000, 3000, 4  # up to where the kernel's own begin

_begin = FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS * WINDOW
_next = os.getpid() * 61 % WINDOW  # runs of the suite side by side begin at different places


def free_row(count: int) -> int:
    """The first of so many neighbouring ports that nobody uses and that no test of this worker was given before."""
    global _next
    for _ in range(WINDOW):
        at = _next if _next + count <= WINDOW else 0
        _next = at + count
        if all(map(_is_free, range(_begin + at, _begin + at + count))):
            return _begin + at
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
