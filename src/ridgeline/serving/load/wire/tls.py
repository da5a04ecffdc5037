"""The same connection through TLS. A token has the kernel's stamp of the read that completed its record."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.connection import Connection
from ridgeline.serving.load.wire.exchange import Exchange
from ridgeline.serving.load.wire.loop import Loop

_RECORD_BYTES = 16_384


class TlsConnection(Connection):
    def __init__(
        self,
        loop: Loop,
        address: tuple[int, tuple[str, int]],
        stats: ClientStats,
        on_end: Callable[[Connection, Exchange], None],
        context: ssl.SSLContext,
        server_name: str,
    ) -> None:
        super().__init__(loop, address, stats, on_end)
        self._context = context
        self._server_name = server_name

    def _ready(self) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_hostname=self._server_name)
        self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as bad:
            self._flush()  # the alert that tells the server why
            self.fail("tls", getattr(bad, "verify_message", "") or str(bad.reason or bad))
            return
        self._flush()
        super()._ready()

    def _transmit(self, wire: bytes) -> None:
        self._tls.write(wire)
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._write(self._unsent + self._outgoing.read())

    # Reads shorter than a segment would not help: a record can be read only when it is whole.
    def _read_by_segment(self) -> None:
        self._read_all()

    def _take_in(self, received: bytes) -> None:
        # also without a request under way: the handshake, and session tickets after it
        self._incoming.write(received)
        if self._connecting:
            self._shake_hands()
            if self._connecting or self._parser is None:
                return
        plain, ended = self._decrypted()
        if plain:
            super()._take_in(plain)
        if ended and self._sock is not None:
            self._ended_by_peer()

    def _decrypted(self) -> tuple[bytes, bool]:
        """What can be read now, and whether the server has closed the session."""
        parts = []
        while True:
            try:
                parts.append(self._tls.read(_RECORD_BYTES))
            except ssl.SSLWantReadError:
                return b"".join(parts), False
            except ssl.SSLError:
                # a close_notify, or a record that cannot be trusted: either way nothing more will come
                return b"".join(parts), True
