"""One thread's event loop: sockets that can be read or written, times that have come, and work that can wait.

It is smaller than asyncio because nothing here is awaited, and it keeps what asyncio would not tell: the moment at
which every socket was last seen empty. Whatever a batch of reads brings arrived after that moment, so a process that
was put aside knows how much it may have missed.

Arrival times come from the kernel, so reading a fraction of a millisecond later moves no figure. In a crowd the loop
therefore naps between looks instead of waking up for every token, and writes up ended requests during the nap.
"""

from __future__ import annotations

import heapq
import itertools
import math
import select
import time
from collections import deque
from collections.abc import Callable

_clock = time.monotonic
# A batch that gathered for longer than this may hold tokens that came apart.
LATE_S = 0.0025
# select() takes microseconds but only small descriptor numbers
_SELECT_FILES = 1024
_EVENTS = 1024


class Loop:
    """Calls back; never raises what a callback did not raise. `nap_s` is how long a batch may gather while busy."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._sockets = self._epoll or select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._times: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()
        self.leisure: deque[Callable[[], None]] = deque()
        self.nap_s = 0.0
        self._running = False
        self._busy = False
        self._looked_s = _clock()
        # for the batch being read: nothing in it arrived before `since_s`; `careful` while that is long ago or unknown
        self.since_s = self._looked_s
        self.careful = False
        self.woken = False

    def watch(self, fd: int, call: Callable[[], None]) -> None:
        """`call` whenever there is something to read."""
        self._readers[fd] = call
        self._register(fd)

    def watch_writing(self, fd: int, call: Callable[[], None]) -> None:
        self._writers[fd] = call
        self._register(fd)

    def forget_writing(self, fd: int) -> None:
        if self._writers.pop(fd, None) is not None:
            self._register(fd)

    def forget(self, fd: int) -> None:
        known = (self._readers.pop(fd, None), self._writers.pop(fd, None))
        if any(known):
            self._sockets.unregister(fd)

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._times, (when_s, next(self._numbers), call))

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def first_came(self, stamp_s: float) -> None:
        """The earliest arrival of a batch after a wait, by the kernel's stamp: what woke this process, and when."""
        self.woken = False
        self.since_s = stamp_s
        self.careful = _clock() - stamp_s > LATE_S

    def run(self) -> None:
        self._running = True
        readers, poll, times = self._readers, self._poll, self._times
        while self._running:
            self._wait()
            self.since_s = self._looked_s
            self._looked_s = now_s = _clock()
            self.careful = self.woken or now_s - self.since_s > LATE_S
            ready = poll()
            self._busy = bool(ready)
            for fd, events in ready:
                if events == select.POLLIN:
                    call = readers.get(fd)
                    # None: closed by what an earlier one of this batch caused
                    if call is not None:
                        call()
                else:
                    self._unusual(fd, events)
            while times and times[0][0] <= _clock():
                heapq.heappop(times)[2]()
            for _ in range(len(self._soon)):
                self._soon.popleft()()

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()

    def _register(self, fd: int) -> None:
        wanted = (select.POLLIN if fd in self._readers else 0) | (select.POLLOUT if fd in self._writers else 0)
        try:
            self._sockets.modify(fd, wanted)
        except FileNotFoundError:
            self._sockets.register(fd, wanted)

    def _unusual(self, fd: int, events: int) -> None:
        """Writable, hung up or in error: whoever waits for either side learns of it by trying."""
        if events & ~select.POLLIN and fd in self._writers:
            self._writers[fd]()
        if events & ~select.POLLOUT and fd in self._readers:
            self._readers[fd]()

    def _poll(self) -> list[tuple[int, int]]:
        if self._epoll is not None:
            # all of them, or those left out would be taken for empty
            return self._epoll.poll(0, max(_EVENTS, len(self._readers)))
        return self._sockets.poll(0)

    def _wait(self) -> None:
        self.woken = False
        if self._soon:
            return
        now_s = _clock()
        due_s = self._times[0][0] if self._times else now_s + 1.0
        if self.leisure:
            until_s = min(now_s + self.nap_s, due_s)
            self.leisure.popleft()()
            while self.leisure and _clock() < until_s:
                self.leisure.popleft()()
        elif self._busy and self.nap_s:
            time.sleep(max(0.0, min(self.nap_s, due_s - now_s)))
        elif due_s > now_s:
            self.woken = True
            if self._block(due_s - now_s) and self.nap_s:
                time.sleep(self.nap_s)

    def _block(self, wait_s: float) -> bool:
        """Whether something came before the time was over."""
        if self._epoll is None:
            return bool(self._sockets.poll(math.ceil(wait_s * 1e3)))
        if self._epoll.fileno() < _SELECT_FILES:
            return bool(select.select((self._epoll,), (), (), wait_s)[0])
        return bool(self._epoll.poll(wait_s, 1))
