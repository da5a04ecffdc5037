"""The same connection through TLS. Times are those of reading: the kernel's stamps belong to ciphertext."""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from collections.abc import Callable

import httptools

from ridgeline.serving.load.connection import Connection, kind_of
from ridgeline.serving.load.exchange import Exchange
from ridgeline.serving.load.poller import Poller
from ridgeline.serving.load.pulse import Pulse

_HANDSHAKE_S = 30.0


class TlsConnection(Connection):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        address: tuple[int, tuple[str, int]],
        pulse: Pulse,
        on_end: Callable[[Connection, Exchange], None],
        context: ssl.SSLContext,
        server_name: str,
    ) -> None:
        super().__init__(loop, poller, address, pulse, on_end)
        self._context = context
        self._server_name = server_name
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        return self._transport is not None or self._opening is not None

    def close(self) -> None:
        transport, opening = self._transport, self._opening
        self._transport = self._opening = self._parser = None
        self._connecting = False
        self._uses = 0
        if opening is not None:
            opening.cancel()
        if transport is not None:
            transport.abort()

    def _open(self) -> None:
        self._connecting = True
        self._opening = self._loop.create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        try:
            transport, _ = await self._loop.create_connection(
                lambda: _Bytes(self),
                self._address[0],
                self._address[1],
                ssl=self._context,
                server_hostname=self._server_name,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
        except OSError as bad:
            self._opening = None
            self._fail(kind_of(bad), getattr(bad, "verify_message", "") or str(bad.strerror or bad))
            return
        self._opening = None
        self._transport = transport
        self._connecting = False
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        if self.exchange is not None:
            self._send()

    def _send(self) -> None:
        exchange, transport = self.exchange, self._transport
        assert exchange is not None
        if transport is None:
            return  # the handshake sends when it is done
        self._complete = False
        self._uses += 1
        self._times_s, self._bodies = exchange.reply.times_s, exchange.reply.bodies
        exchange.sent_s = self.at_s = time.monotonic()
        transport.write(exchange.wire)

    def arrived(self, received: bytes) -> None:
        if self.exchange is None:
            self.close()
            return
        self.at_s = time.monotonic()
        self._take_in(received)

    def hung_up(self, transport: asyncio.BaseTransport | None, error: Exception | None) -> None:
        if transport is None or transport is not self._transport:
            return  # one we closed ourselves, or that never got through its handshake
        self._transport = None
        if isinstance(error, OSError):
            self._broken(error)
        elif self.exchange is not None and self.exchange.first_byte_s is None:
            self._broken(ConnectionResetError(errno.ECONNRESET, "closed before any answer"))
        else:
            self._ended_by_peer()


class _Bytes(asyncio.Protocol):
    def __init__(self, owner: TlsConnection) -> None:
        self._owner = owner
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, received: bytes) -> None:
        self._owner.arrived(received)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.hung_up(self._transport, error)
