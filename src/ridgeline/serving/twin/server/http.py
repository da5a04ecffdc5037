"""HTTP/1.1 for a server of tokens: as little work for each of them as Python allows.

An answer of hundreds of tokens is hundreds of small writes, and a framework's cost for one of them is what the whole
server may spend (`docs/decisions/0012-the-twin-serves-http-itself.md`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools

_MOST_BODY_BYTES = 64 * 2**20


class HttpExchange:
    """One request and its answer: whole by `answer`, or `begin`, `write` …, `finish`.

    Without `keep` the client wants no more on this connection, which ends with the answer.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        method: str,
        path: str,
        headers: dict[bytes, bytes],
        body: bytes,
        keep: bool = True,
    ):
        self._transport, self._keep = transport, keep
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self.begun = self.done = False
        self.on_gone: Callable[[], None] = lambda: None  # the client left before the end

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.begun = self.done = True
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\n{self._last}"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self._end()

    @property
    def _last(self) -> str:
        return "" if self._keep else "connection: close\r\n"

    def _end(self) -> None:
        if not self._keep:
            self._transport.close()

    def answer_json(self, status: int, value: object) -> None:
        self.answer(status, json.dumps(value).encode())

    def begin(self) -> None:
        self.begun = True
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        self._transport.write(f"{head}{self._last}transfer-encoding: chunked\r\n\r\n".encode())

    def write(self, piece: bytes) -> None:
        """`piece` as `chunk` made it."""
        self._transport.write(piece)

    def finish(self) -> None:
        self.done = True
        self._transport.write(b"0\r\n\r\n")
        self._end()

    def drop(self) -> None:
        """Ends the connection in the middle of an answer, as a server that dies does."""
        self.done = True
        self._transport.abort()


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class HttpConnection(asyncio.Protocol):
    """Requests of one client, one after the other, each given to `handle`."""

    def __init__(self, handle: Callable[[HttpExchange], None]) -> None:
        self._handle = handle
        self._transport: asyncio.Transport | None = None
        self._exchange: HttpExchange | None = None
        self._begin_message()

    def _begin_message(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._exchange is not None and not self._exchange.done:
            self._exchange.done = True
            self._exchange.on_gone()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as bad:
            self._refuse(400, f"not HTTP: {bad}")

    # called by the parser

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        if name.lower() == b"expect" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= _MOST_BODY_BYTES:
            self._body.append(body)

    def on_message_complete(self) -> None:
        assert self._transport is not None
        method, keep = self._parser.get_method().decode(), self._parser.should_keep_alive()
        path = self._path.partition(b"?")[0].decode(errors="replace")
        exchange = HttpExchange(self._transport, method, path, self._headers, b"".join(self._body), keep)
        too_long = self._size > _MOST_BODY_BYTES
        self._exchange = exchange
        self._begin_message()
        if too_long:
            self._refuse(413, f"a body of more than {_MOST_BODY_BYTES} bytes")
            return
        self._handle(exchange)

    def _refuse(self, status: int, why: str) -> None:
        assert self._transport is not None
        exchange = HttpExchange(self._transport, "", "", {}, b"", keep=False)
        exchange.answer_json(status, {"error": {"message": why, "type": "BadRequest", "code": status}})
