"""One HTTP/1.1 connection that stamps what it receives with the kernel's arrival time.

On Linux each read asks the kernel when the bytes reached this host (SO_TIMESTAMPNS), so a token's time does not depend
on how busy this process is: even a client that lags reads the right times, and the lag itself becomes a measured
figure. Encrypted connections and other systems fall back to the moment of reading.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable

import httptools

from ridgeline.serving.load.exchange import Exchange
from ridgeline.serving.load.poller import Poller
from ridgeline.serving.load.pulse import Pulse

_SO_TIMESTAMPNS = 35 if sys.platform == "linux" else None
_STAMP = struct.Struct("@qq").unpack
_READ_BYTES = 8192
_NOTE_BYTES = 32
_LATE_S = 0.001
_clock = time.monotonic

_KINDS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EMFILE: "no-files",
    errno.ENFILE: "no-files",
    errno.EADDRNOTAVAIL: "no-ports",
}


def kind_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "tls"
    return _KINDS.get(error.errno or 0, "connection")


class Connection:
    """Sends one exchange at a time and calls `on_end(connection, exchange)` when it has ended, well or not.

    After `on_end` the connection is either `idle` (may be started again) or closed. It never raises: every failure
    becomes the status of the exchange.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        address: tuple[int, tuple[str, int]],
        pulse: Pulse,
        on_end: Callable[[Connection, Exchange], None],
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._family, self._address = address
        self._pulse = pulse
        self._ages = pulse.ages
        self._times_s: list[float] = []
        self._bodies: list[bytes] = []
        self._on_end = on_end
        self._sock: socket.socket | None = None
        self._connecting = False
        self._unsent: memoryview | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._uses = 0
        self._complete = False
        self._keep = False
        self.exchange: Exchange | None = None
        self.at_s = 0.0  # when something last happened here

    @property
    def open(self) -> bool:
        return self._sock is not None

    @property
    def opening(self) -> bool:
        return self._connecting

    def connect(self) -> None:
        """Opens the connection ahead of its first use; a failure shows when it is used."""
        try:
            self._open()
        except OSError:
            self.close()

    def start(self, exchange: Exchange) -> None:
        self.exchange = exchange
        exchange.taken_s = self.at_s = _clock()
        if self._sock is None:
            try:
                self._open()
            except OSError as bad:
                # through the loop: a thousand refusals in a row must not become a thousand nested calls
                self._loop.call_soon(self._fail, kind_of(bad), str(bad.strerror or bad))
                return
        if not self._connecting:
            self._send()

    def fail(self, kind: str, words: str) -> None:
        """Ends the exchange under way from outside: a time limit, or the end of the run."""
        self._fail(kind, words)

    def close(self) -> None:
        if self._sock is not None:
            self._poller.remove(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()
        self._sock = self._parser = self._unsent = None
        self._connecting = False
        self._uses = 0

    # connecting and sending

    def _open(self) -> None:
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        self._sock = sock
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _SO_TIMESTAMPNS is not None:
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        code = sock.connect_ex(self._address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, errno.errorcode.get(code, "connect failed"))
        self._connecting = True
        self._loop.add_writer(sock, self._connected)

    def _connected(self) -> None:
        assert self._sock is not None
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._loop.remove_writer(self._sock)
        if code:
            self._fail(_KINDS.get(code, "connection"), errno.errorcode.get(code, "connect failed"))
            return
        self._ready()

    def _ready(self) -> None:
        assert self._sock is not None
        self._connecting = False
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._recvmsg = self._sock.recvmsg
        self._poller.add(self._sock, self._readable)
        if self.exchange is not None:
            self._send()

    def _send(self) -> None:
        exchange, sock = self.exchange, self._sock
        assert exchange is not None and sock is not None
        self._complete = False
        self._uses += 1
        self._times_s, self._bodies = exchange.reply.times_s, exchange.reply.bodies
        exchange.sent_s = self.at_s = _clock()
        try:
            sent = sock.send(exchange.wire)
        except BlockingIOError:
            sent = 0
        except OSError as bad:
            self._broken(bad)
            return
        if sent < len(exchange.wire):
            self._unsent = memoryview(exchange.wire)[sent:]
            self._loop.add_writer(sock, self._send_more)

    def _send_more(self) -> None:
        assert self._sock is not None and self._unsent is not None
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as bad:
            self._broken(bad)
            return
        if not self._unsent:
            self._unsent = None
            self._loop.remove_writer(self._sock)

    # receiving: this runs once per token of every stream, so it is written flat

    def _readable(self) -> None:
        try:
            received, notes, _, _ = self._recvmsg(_READ_BYTES, _NOTE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as bad:
            self._broken(bad)
            return
        at_s = _clock()
        if notes:
            seconds, nanoseconds = _STAMP(notes[0][2])
            stamp_s = (seconds * 1_000_000_000 + nanoseconds - self._pulse.offset_ns) * 1e-9
            # The stamp is on the wall clock: one that lies before the last event or ahead of now met a clock step.
            if self.at_s <= stamp_s <= at_s:
                late_s = at_s - stamp_s
                self._ages[int(late_s * 122070.3125).bit_length()] += 1
                at_s = stamp_s
                if late_s > _LATE_S and self.exchange is not None:
                    self.exchange.late_s[at_s] = late_s
            else:
                self._pulse.unstamped += 1
        if not received or self.exchange is None:
            self._ended_by_peer()
            return
        self.at_s = at_s
        self._take_in(received)

    def _take_in(self, received: bytes) -> None:
        try:
            self._feed(received)
        except httptools.HttpParserError as bad:
            self._fail("malformed-http", str(bad))
            return
        if self._complete:
            self._finish(self._keep)

    def _finish(self, keep: bool) -> None:
        exchange = self.exchange
        assert exchange is not None
        exchange.end(self.at_s)
        if not keep:
            self.close()
        self.exchange = None
        self._on_end(self, exchange)

    def _ended_by_peer(self) -> None:
        exchange = self.exchange
        if exchange is None:
            self.close()  # hung up while idle, or sent bytes nobody asked for and is about to
        elif exchange.first_byte_s is None:
            self._broken(ConnectionResetError(errno.ECONNRESET, "closed before any answer"))
        elif exchange.ends_at_close:
            self._finish(False)
        else:
            self._fail("cut", "the connection closed in the middle of the answer")

    def _broken(self, bad: OSError) -> None:
        exchange = self.exchange
        if exchange is None:
            self.close()
        elif exchange.first_byte_s is None and self._uses > 1 and not exchange.resent:
            # The server dropped an idle connection just as we used it; HTTP/1.1 clients try once more on a new one.
            exchange.resent = True
            self._pulse.reconnects += 1
            self.close()
            self.start(exchange)
        elif exchange.first_byte_s is not None:
            self._fail("cut", str(bad.strerror or bad))
        else:
            self._fail(kind_of(bad), str(bad.strerror or bad))

    def _fail(self, kind: str, words: str) -> None:
        exchange = self.exchange
        self.close()
        if exchange is None:
            return
        exchange.fail(kind, words, _clock())
        self.exchange = None
        self._on_end(self, exchange)

    # called by the parser

    def on_message_begin(self) -> None:
        if self.exchange is not None and self.exchange.first_byte_s is None:
            self.exchange.first_byte_s = self.at_s

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.exchange is not None:
            self.exchange.header(name, value)

    def on_headers_complete(self) -> None:
        if self.exchange is not None and self._parser is not None:
            self.exchange.http_status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._times_s.append(self.at_s)
        self._bodies.append(body)

    def on_message_complete(self) -> None:
        if self.exchange is not None and self._parser is not None and self.exchange.http_status >= 200:
            self._complete = True
            # the parser forgets this as soon as it is ready for another message
            self._keep = self._parser.should_keep_alive()
