"""SGLang's --scheduler-recv-interval: a busy engine looks for new requests once in so many decode steps.

Polling costs every rank a broadcast; published recipes ask for it every 10 or 30 steps, and new requests wait half of
that on average. A prefill round is always followed by a look.
"""

from __future__ import annotations

from collections import deque

from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine


class PolledEngine(Engine):
    """Continuous batching on one replica, with an inbox that is emptied now and then."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.inbox: deque[Request] = deque()
        self.next_look = 0

    @property
    def idle(self) -> bool:
        return super().idle and not self.inbox

    def submit(self, request: Request, at_s: float) -> None:
        if self.idle:
            super().submit(request, at_s)
            return
        request.worker = self.name
        self.inbox.append(request)
        self.take_in(at_s)
        self.load += 1
        self.quiet_until_s = self.clock

    def advance(self, limit_s: float) -> list[Request]:
        if not self.running:
            self._look()
        elif self.step_number >= self.next_look:
            # a run of steps without news may have passed several looks: the next one keeps to their rhythm
            late = (self.step_number - self.next_look) % self.applied.recv_interval
            if late == 0:
                self._look()
            else:
                self.next_look = self.step_number - late + self.applied.recv_interval
        if self.inbox and self.running and not self.chunked:
            batch, steps = len(self.running), self.next_look - self.step_number
            step_s = self.times.decode_s(batch, self.used_tokens + batch)
            limit_s = min(limit_s, self.clock + (steps - 0.5) * step_s)
        return super().advance(limit_s)

    def advance_to(self, limit_s: float) -> None:
        super().advance_to(limit_s)
        while self.inbox and self.clock < limit_s:
            self._look()
            super().advance_to(limit_s)

    def _look(self) -> None:
        self.next_look = self.step_number + self.applied.recv_interval
        if self.inbox:
            self.waiting.extend(self.inbox)
            self.inbox.clear()
            self.blocked_by_kv = False

    def _prefill(self, batch: list[tuple[Request, int]]) -> list[Request]:
        ended = super()._prefill(batch)
        self._look()
        return ended
