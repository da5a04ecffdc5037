"""What a server does with a request by its role: both at once, prompts only, or answers only."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from ridgeline.serving.engines.sglang.failures import BOOTSTRAP_LIMIT_S, KV_TRANSFER
from ridgeline.serving.twin.cluster import Router
from ridgeline.serving.twin.disaggregation import HANDSHAKE_S, DecodeEngine, KvTransfer, PrefillEngine
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.serving.twin.server.live import END, LiveEngine, LiveRequest
from ridgeline.serving.twin.server.prompt import ParsedPrompt


class _RoomServer:
    """The prefill side. `wanted(room)` is called when a decode server is ready; `sent(room)` answers it."""

    def __init__(self, wanted: Callable[[int], None]) -> None:
        self._wanted = wanted
        self._waiting: dict[int, asyncio.StreamWriter] = {}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line.strip().isdigit():
                    room = int(line)
                    self._waiting[room] = writer
                    self._wanted(room)
        for room in [room for room, waits in self._waiting.items() if waits is writer]:
            del self._waiting[room]
        writer.close()

    def sent(self, room: int, ok: bool = True) -> None:
        writer = self._waiting.pop(room, None)
        if writer is not None and not writer.is_closing():
            writer.write(b"%d %b\n" % (room, b"ok" if ok else b"failed"))


class _RoomClient:
    """The decode side: `fetch` returns when the KV of a room has arrived; ConnectionError if it never will."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, int], asyncio.Task[_Link]] = {}

    async def fetch(self, address: tuple[str, int], room: int) -> None:
        task = self._links.get(address)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().closed)):
            task = self._links[address] = asyncio.create_task(_Link.open(*address))
        link = await asyncio.shield(task)
        await link.ask(room)


class _Link:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._asked: dict[int, asyncio.Future[None]] = {}
        self.closed = False
        self._task = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, host: str, port: int) -> _Link:
        try:
            return cls(*await asyncio.open_connection(host, port))
        except OSError as error:
            raise ConnectionError(f"prefill server at {host}:{port}: {error}") from error

    async def ask(self, room: int) -> None:
        answer = self._asked[room] = asyncio.get_running_loop().create_future()
        self._writer.write(b"%d\n" % room)
        try:
            await answer
        finally:
            self._asked.pop(room, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                room, _, said = line.decode().strip().partition(" ")
                answer = self._asked.get(int(room))
                if answer is None or answer.done():
                    continue
                if said == "ok":
                    answer.set_result(None)
                else:
                    answer.set_exception(ConnectionError("the prefill server gave the request up"))
        self.closed = True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the prefill server went away"))


def abort(engine: Engine, request: Request) -> None:
    """Nothing happens where the request is not in this engine."""
    if isinstance(engine, PrefillEngine):
        queue = engine.queues[request.rank]
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
    engine.read_no_more(request)
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


_KV_FAILED = f"{KV_TRANSFER}: the KV of this request did not arrive within its time limit"
_FAKE_HOST = "2.2.2.2"  # SGLang's `fake` transfer back end: decode alone, as if every prompt's KV were there


# What a server is: each can `take` a request that was found good, and `abort` one whose client left.


class ColocatedEngines:
    """Prefill and decode in each engine. `engines` are copies, dealt out to as the routing says."""

    def __init__(self, engines: Sequence[LiveEngine], routing: str) -> None:
        self.engines = engines
        self._router = Router([live.engine for live in engines], routing)
        self._by_engine = {id(live.engine): live for live in engines}

    def take(self, request: LiveRequest, asked: ParsedPrompt) -> None:
        self._by_engine[id(self._router.choose(request.arrival))].submit(request)

    def abort(self, request: LiveRequest) -> None:
        for live in self.engines:
            abort(live.engine, request)


class PrefillRole:
    """Computes a prompt when the decode server of its room is ready, and tells it when the KV would be there."""

    def __init__(
        self, engine: LiveEngine, transfer: KvTransfer, address: tuple[str, int], limit_s: float = BOOTSTRAP_LIMIT_S
    ) -> None:
        self.engines: Sequence[LiveEngine] = (engine,)
        self._limit_s = limit_s  # for the decode server of a room to say that it is ready
        self.rooms = _RoomServer(self._wanted)
        self.kv_lost = False
        self._live, self._transfer, self._address = engine, transfer, address
        self._held: dict[int, LiveRequest] = {}  # came, and no decode server is ready yet
        self._ready: set[int] = set()  # decode servers that were quicker than the request
        self._room_of: dict[int, int] = {}
        self._ports: dict[int, float] = {}
        self._id = uuid.uuid4().hex
        engine.after_event = self._done

    def take(self, request: LiveRequest, asked: ParsedPrompt) -> None:
        # vLLM's way needs no room: the prompt first, then the router tells the decode server
        if asked.kv_transfer is None and asked.room is not None:
            self._room_of[request.arrival.number] = asked.room
            if asked.room not in self._ready:
                self._held[asked.room] = request
                wait_s = self._limit_s / self._live.clock.speed
                asyncio.get_running_loop().call_later(wait_s, self._expire, request, asked.room)
                return
            self._ready.discard(asked.room)
        self._live.submit(request)

    def abort(self, request: LiveRequest) -> None:
        room = self._room_of.pop(request.arrival.number, None)
        if room is None or self._held.pop(room, None) is None:
            abort(self._live.engine, request)
        if room is not None:
            self.rooms.sent(room, ok=False)

    def _expire(self, request: LiveRequest, room: int) -> None:
        if self._held.get(room) is request:
            self.abort(request)
            request.sink.end(_KV_FAILED)

    def kv_parameters(self, request: LiveRequest) -> dict[str, object]:
        """What a vLLM prefill server returns for the decode server."""
        host, port = self._address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(range(-(-request.arrival.input_tokens // 16))),
            "remote_engine_id": self._id,
            "remote_host": host,
            "remote_port": port,
        }

    def _wanted(self, room: int) -> None:
        if (request := self._held.pop(room, None)) is not None:
            self._live.submit(request)
        else:
            self._ready.add(room)

    def _done(self, ended: list[LiveRequest]) -> None:
        engine, loop = cast(PrefillEngine, self._live.engine), asyncio.get_running_loop()
        for request in ended:
            room = self._room_of.pop(request.arrival.number, None)
            if room is None or self.kv_lost:
                continue
            port = request.rank
            sent = request.arrival.input_tokens - request.cached
            whole_s = max(self._ports.get(port, 0.0), engine.round_start_s) + self._transfer.seconds(sent)
            done_s = self._ports[port] = max(whole_s, engine.clock + self._transfer.seconds(request.last_piece))
            clock = self._live.clock
            loop.call_later(max(0.0, (done_s - clock.now_s()) / clock.speed), self.rooms.sent, room)


class DecodeRole:
    """Sets a slot and KV room aside, fetches the KV from the prefill server of the room, then decodes."""

    def __init__(self, engine: LiveEngine, transfer: KvTransfer) -> None:
        self.engines: Sequence[LiveEngine] = (engine,)
        self.kv_lost = False
        self._live, self._transfer = engine, transfer
        self._rooms = _RoomClient()
        self._asked: dict[int, ParsedPrompt] = {}  # by number, from arrival until the KV is there
        self._tasks: dict[int, asyncio.Task[None]] = {}
        engine.after_event = lambda ended: self._reserve()

    @property
    def _engine(self) -> DecodeEngine:
        return cast(DecodeEngine, self._live.engine)

    def take(self, request: LiveRequest, asked: ParsedPrompt) -> None:
        request.generated = 1  # the first token is the prefill server's
        self._asked[request.arrival.number] = asked
        self._engine.bootstrapping.append((request, self._live.clock.now_s(), None))
        self._engine.load += 1
        limit_s = BOOTSTRAP_LIMIT_S / self._live.clock.speed
        asyncio.get_running_loop().call_later(limit_s, self._expire, request)
        self._reserve()

    def abort(self, request: LiveRequest) -> None:
        if self._leave_queue(request):
            return
        if (task := self._tasks.get(request.arrival.number)) is not None:
            task.cancel()
            self._give_back(request)
        else:
            abort(self._engine, request)
        self._reserve()

    def _leave_queue(self, request: LiveRequest) -> bool:
        waiting = self._engine.bootstrapping
        for entry in waiting:
            if entry[0] is request:
                waiting.remove(entry)
                self._engine.load -= 1
                self._asked.pop(request.arrival.number, None)
                return True
        return False

    def _expire(self, request: LiveRequest) -> None:
        if self._leave_queue(request):
            request.sink.end(_KV_FAILED)

    def _reserve(self) -> None:
        while not self._live.hung and (found := self._engine.reserve()) is not None:
            request = cast(LiveRequest, found[0])
            task = asyncio.create_task(self._receive(request, self._asked.pop(request.arrival.number)))
            self._tasks[request.arrival.number] = task

    async def _receive(self, request: LiveRequest, asked: ParsedPrompt) -> None:
        clock = self._live.clock
        try:
            await asyncio.wait_for(self._fetch(request, asked), BOOTSTRAP_LIMIT_S / clock.speed)
        except (ConnectionError, TimeoutError) as error:
            self._tasks.pop(request.arrival.number, None)
            self._give_back(request)
            request.sink.end(f"{KV_TRANSFER}: {error}" if str(error) else _KV_FAILED)
            self._reserve()
            return
        ended = self._engine.receive(request, clock.now_s())
        self._tasks.pop(request.arrival.number, None)
        self._live.wake()
        if (wait_s := (request.first_s or 0.0) - clock.now_s()) > 0:
            await asyncio.sleep(wait_s / clock.speed)
        self._live.hand_over([(request, 1), *([(request, END)] if ended else [])])
        if ended:
            self._reserve()

    async def _fetch(self, request: LiveRequest, asked: ParsedPrompt) -> None:
        clock, tokens = self._live.clock, request.arrival.input_tokens
        if self.kv_lost:
            await asyncio.Event().wait()
        if asked.room is not None and asked.bootstrap is not None and asked.bootstrap[0] != _FAKE_HOST:
            await asyncio.sleep(HANDSHAKE_S / clock.speed)
            await self._rooms.fetch(asked.bootstrap, asked.room)
        elif asked.kv_transfer is not None:
            await asyncio.sleep(self._transfer.seconds(tokens) / clock.speed)

    def _give_back(self, request: LiveRequest) -> None:
        engine = self._engine
        engine.expected -= 1
        engine.promised_tokens -= request.arrival.input_tokens
        engine.load -= 1


Role = ColocatedEngines | PrefillRole | DecodeRole
