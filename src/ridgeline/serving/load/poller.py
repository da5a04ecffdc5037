"""Many sockets watched as one, and taken up in batches.

An event loop spends more on waking up for a token than on reading it. Arrival times come from the kernel, so reading
a fraction of a millisecond later moves no figure; a short nap before each batch then saves most of the wake-ups.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable


class Poller:
    """Calls each socket's function when it can be read. `nap_s` is how long a batch may gather before it is read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self.nap_s = 0.0
        self.hurry = False  # no naps while other work waits for its turn
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._take_up)

    def add(self, sock: socket.socket, call: Callable[[], None]) -> None:
        if self._epoll is None:
            self._loop.add_reader(sock, call)
            return
        self._calls[sock.fileno()] = call
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def remove(self, sock: socket.socket) -> None:
        if self._epoll is None:
            self._loop.remove_reader(sock)
        elif self._calls.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock.fileno())

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _take_up(self) -> None:
        assert self._epoll is not None
        if self.nap_s and not self.hurry:
            time.sleep(self.nap_s)
        calls = self._calls
        for fd, _ in self._epoll.poll(0):
            call = calls.get(fd)
            # closed by what an earlier one of this batch caused
            if call is not None:
                call()
