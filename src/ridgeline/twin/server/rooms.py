"""How the servers of split roles find each other: by the bootstrap room that the router put into both bodies.

The decode server sets a slot and KV room aside, then asks the prefill server at the bootstrap address for the room;
the prompt is computed only then, and the prefill server answers when its KV would have been sent. One connection for
each pair of servers, a line each way: `ROOM` and `ROOM ok` or `ROOM failed`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class RoomServer:
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


class RoomClient:
    """The decode side: `fetch` returns when the KV of a room has arrived; ConnectionError if it never will."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, int], asyncio.Task[_Link]] = {}

    async def fetch(self, address: tuple[str, int], room: int) -> None:
        if address not in self._links or (self._links[address].done() and self._dead(address)):
            self._links[address] = asyncio.create_task(_Link.open(*address))
        link = await asyncio.shield(self._links[address])
        await link.ask(room)

    def _dead(self, address: tuple[str, int]) -> bool:
        task = self._links[address]
        return task.cancelled() or task.exception() is not None or task.result().closed


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
