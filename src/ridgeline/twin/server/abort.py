"""A client that leaves: its request is forgotten and its KV given back, wherever it is by then."""

from __future__ import annotations

import heapq
from collections import deque

from ridgeline.twin.prefill import PrefillEngine
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Engine


def abort(engine: Engine, request: Request) -> None:
    """Nothing happens where the request is not in this engine."""
    if isinstance(engine, PrefillEngine):
        queue = engine.queues[engine.rank_of(request)]
        if request in queue:
            queue.remove(request)
            _forget(engine, request)
    elif request in engine.waiting or request in engine.chunked:
        engine.waiting = deque(r for r in engine.waiting if r is not request)
        engine.chunked = [r for r in engine.chunked if r is not request]
        _forget(engine, request)
    else:
        _abort_running(engine, request)


def _forget(engine: Engine, request: Request) -> None:
    engine.used_tokens -= request.held
    engine.load -= 1


def _abort_running(engine: Engine, request: Request) -> None:
    for entry in engine.running:
        if entry[2] is request:
            engine.running.remove(entry)
            heapq.heapify(engine.running)
            engine.finish_sum -= entry[0]
            engine.fresh = [r for r in engine.fresh if r is not request]
            engine.leave(request)
            engine.release(request)
            engine.load -= 1
            return
