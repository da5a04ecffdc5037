"""Makes a connection of the kind a server needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.connection import Connection
from ridgeline.serving.load.wire.exchange import Exchange
from ridgeline.serving.load.wire.loop import Loop

if TYPE_CHECKING:
    import ssl


def new_connection(
    loop: Loop,
    address: tuple[int, tuple[str, int]],
    stats: ClientStats,
    on_end: Callable[[Connection, Exchange], None],
    tls: tuple[ssl.SSLContext, str] | None,
) -> Connection:
    """A plain connection, or one through TLS to the server of the given name."""
    if tls is None:
        return Connection(loop, address, stats, on_end)
    # most servers under test need no ssl, which is slow to load
    from ridgeline.serving.load.wire.tls import TlsConnection

    return TlsConnection(loop, address, stats, on_end, *tls)
