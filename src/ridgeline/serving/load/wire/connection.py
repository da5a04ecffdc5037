"""One HTTP/1.1 connection: sends a request, keeps what comes back with its arrival times, and sees where it ends.

Parsing waits until an answer has ended or grown long: while it lasts next to nothing delays the next token, and most
of it can then be read in one go.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
import time
from collections.abc import Callable

import httptools

from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.exchange import Exchange
from ridgeline.serving.load.wire.loop import Loop
from ridgeline.serving.load.wire.reply import realigned

# A socket that says when the kernel received what it reads.
#
# On Linux each read asks the kernel when the bytes reached this host (SO_TIMESTAMPNS), so a token's time does not
# depend on how busy this process is: even a client that lags reads the right times, and the lag itself becomes a
# measured figure. Other systems fall back to the moment of reading.
#
# A read has the stamp of the last segment it touched. Where several may have piled up, reads are therefore kept
# shorter than a segment, so that each segment still gives its own stamp.

_SO_TIMESTAMPNS = 35 if sys.platform == "linux" else None
_STAMP = struct.Struct("@qq").unpack
_READ_BYTES = 8192
_NOTE_BYTES = 32
# No segment of a stream is expected to be shorter; and how many short reads in a row are worth their cost.
_SEGMENT_BYTES = 64
_SEGMENT_READS = 64
# Tokens read together within this time are taken to have been sent together.
_TOGETHER_S = 0.0005
_clock = time.monotonic

KINDS = {
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
_PENDING = 256
_SILENT_S = 0.5


def _nobody(_: bytes) -> None:
    raise AssertionError("bytes came before the connection was open")


def _kind_of(error: OSError) -> str:
    return KINDS.get(error.errno or 0, "connection")


class Connection:
    """Sends one exchange at a time and calls `on_end(connection, exchange)` when it has ended, well or not.

    After `on_end` the connection is either `idle` (may be started again) or closed. It never raises: every failure
    becomes the status of the exchange.
    """

    def __init__(
        self,
        loop: Loop,
        address: tuple[int, tuple[str, int]],
        stats: ClientStats,
        on_end: Callable[[Connection, Exchange], None],
    ) -> None:
        self._loop, self._stats, self._on_end = loop, stats, on_end
        self._family, self._address = address
        self._ages = stats.ages
        self._sock: socket.socket | None = None
        self._connecting = False
        self._unsent = b""
        self._shortest = _READ_BYTES
        self.at_s = 0.0  # when something last happened here
        self._parser: httptools.HttpResponseParser | None = None
        self._feed: Callable[[bytes], None] = _nobody
        self._times_s: list[float] = []  # what has been read and not yet parsed
        self._pieces: list[bytes] = []
        self._piece_s = 0.0
        self._body_times_s: list[float] = []
        self._bodies: list[bytes] = []
        self._deferring = False  # parsing can wait
        self._between = False  # the parser stands between two chunks
        self._uses = 0
        self._complete = False
        self._keep = False
        self.exchange: Exchange | None = None

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
                kind, message = _kind_of(bad), str(bad.strerror or bad)
                self._loop.soon(lambda: self.fail(kind, message))
                return
        if not self._connecting:
            self._send()

    def fail(self, kind: str, message: str) -> None:
        """Ends the exchange under way: a fault, a time limit, or the end of the run. What came before is kept."""
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        # what cannot be parsed now is lost with a request that is lost anyway
        with contextlib.suppress(httptools.HttpParserError):
            self._parse_kept()
        self.close()
        exchange.fail(kind, message, _clock())
        self.exchange = None
        self._on_end(self, exchange)

    @property
    def opening(self) -> bool:
        return self._connecting

    def close(self) -> None:
        if self._sock is not None:
            self._loop.forget(self._sock.fileno())
            self._sock.close()
        self._sock = None
        self._unsent = b""
        self._connecting = False
        self._parser, self._feed = None, _nobody
        self._times_s, self._pieces = [], []
        self._deferring = False
        self._uses = 0

    def catch_up(self, now_s: float) -> None:
        """Parses what lies unread: a long answer must not pile up, and one that fell silent may have ended oddly."""
        if len(self._pieces) > _PENDING or (self._pieces and now_s - self.at_s > _SILENT_S):
            self._parse()
        if self.exchange is not None and 200 <= self.exchange.http_status < 300:
            self.exchange.reply.shorten()

    def read_so_far(self) -> None:
        """Parses whatever has come, so that the answer's tokens up to now are known."""
        if self._pieces:
            self._parse()
        if self.exchange is not None and 200 <= self.exchange.http_status < 300:
            self.exchange.reply.read_so_far()

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
        self._loop.watch_writing(sock.fileno(), self._connected)

    def _connected(self) -> None:
        assert self._sock is not None
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._loop.forget_writing(self._sock.fileno())
        if code:
            self.fail(KINDS.get(code, "connection"), errno.errorcode.get(code, "connect failed"))
            return
        self._recvmsg = self._sock.recvmsg
        self._loop.watch(self._sock.fileno(), self._readable)
        self._ready()

    def _write(self, wire: bytes) -> None:
        assert self._sock is not None
        try:
            sent = self._sock.send(wire)
        except BlockingIOError:
            sent = 0
        except OSError as bad:
            self._broken(bad)
            return
        if sent < len(wire):
            self._unsent = wire[sent:]
            self._loop.watch_writing(self._sock.fileno(), lambda: self._write(self._unsent))
        elif self._unsent:
            self._unsent = b""
            self._loop.forget_writing(self._sock.fileno())

    # reading: this runs once per token of every stream

    def _readable(self) -> None:
        if self._loop.careful:
            self._read_by_segment()
        elif self._read(_READ_BYTES) == _READ_BYTES:
            self._read_all()

    def _read_by_segment(self) -> None:
        """Reads no more than one segment at a time, where segments that came apart may be waiting."""
        limit = max(_SEGMENT_BYTES, self._shortest) if self._shortest < _READ_BYTES else _SEGMENT_BYTES
        for _ in range(_SEGMENT_READS):
            if self._read(limit) < limit:
                return
            if not self._loop.careful:
                break
        self._read_all()

    def _read_all(self) -> None:
        while self._read(_READ_BYTES) == _READ_BYTES:
            pass

    def _read(self, limit: int) -> int:
        """How many bytes came; less than `limit` when no more are waiting here."""
        sock = self._sock
        try:
            received, notes, _, _ = self._recvmsg(limit, _NOTE_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as bad:
            self._broken(bad)
            return 0
        loop, at_s = self._loop, _clock()
        if notes:
            seconds, nanoseconds = _STAMP(notes[0][2])
            stamp_s = (seconds * 1_000_000_000 + nanoseconds - self._stats.offset_ns) * 1e-9
            # The stamp is on the wall clock: one that lies before the last event or ahead of now met a clock step.
            if self.at_s <= stamp_s <= at_s:
                self._ages[int((at_s - stamp_s) * 122070.3125).bit_length()] += 1
                at_s = stamp_s
            else:
                self._stats.unstamped += 1
        if loop.woken:
            loop.first_came(at_s)
        if not received:
            self._ended_by_peer()
            return 0
        self.at_s = at_s
        if at_s - loop.since_s > _TOGETHER_S and self.exchange is not None:
            self.exchange.since_s[at_s] = loop.since_s
        self._take_in(received)
        # taking it in may have ended the answer, and the answer the connection
        return len(received) if self._sock is sock else 0

    # sending

    def _ready(self) -> None:
        self._connecting = False
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        if self.exchange is not None:
            self._send()

    def _send(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        self._complete = self._deferring = self._between = False
        self._uses += 1
        self._body_times_s, self._bodies = exchange.reply.times_s, exchange.reply.bodies
        exchange.sent_s = self.at_s = _clock()
        self._transmit(exchange.wire)

    def _transmit(self, wire: bytes) -> None:
        self._write(wire)

    # receiving

    def _take_in(self, received: bytes) -> None:
        if self.exchange is None:
            self.close()  # bytes nobody asked for
            return
        at_s, times_s, size = self.at_s, self._times_s, len(received)
        if times_s and times_s[-1] == at_s:
            received = self._pieces[-1] = self._pieces[-1] + received  # more of the same segment
        else:
            times_s.append(at_s)
            self._pieces.append(received)
        # A chunked answer ends in an empty line, whatever its last chunk or trailer. Until one is seen, parsing waits.
        if not self._deferring or size < 4 or received.endswith(b"\r\n\r\n"):
            self._parse()
        elif size < self._shortest and not self._loop.careful:
            self._shortest = size

    def _parse(self) -> None:
        try:
            self._parse_kept()
        except httptools.HttpParserError as bad:
            self.fail("malformed-http", str(bad))
            return
        if self._complete:
            self._finish(self._keep)

    def _parse_kept(self) -> None:
        times_s, pieces = self._times_s, self._pieces
        self._times_s, self._pieces = [], []
        exchange, start, end = self.exchange, 0, 0
        if self._between and exchange is not None:
            # from one chunk's end to another's the parser can be spared what lies between: most of a stream
            times_s, pieces, whole = realigned(times_s, pieces)
            start, end = exchange.reply.plain(pieces[:whole])
        self._feed_each(times_s[:start], pieces[:start])
        if start < end and self._between and exchange is not None:
            exchange.reply.take_plain(times_s[start:end], pieces[start:end])
            start = end
        self._feed_each(times_s[start:], pieces[start:])

    def _feed_each(self, times_s: list[float], pieces: list[bytes]) -> None:
        for self._piece_s, piece in zip(times_s, pieces, strict=True):
            self._feed(piece)
            self._between = self._deferring and piece.endswith((b"\r\n\r\n", b"\n\n\r\n"))

    def _finish(self, keep: bool) -> None:
        exchange = self.exchange
        assert exchange is not None
        exchange.end(self.at_s)
        if not keep:
            self.close()
        self.exchange = None
        self._on_end(self, exchange)

    def _ended_by_peer(self) -> None:
        if self.exchange is not None:
            self._parse()
        exchange = self.exchange
        if exchange is None:
            self.close()  # hung up while idle, or sent bytes nobody asked for and is about to
        elif exchange.first_byte_s is None:
            self._broken(ConnectionResetError(errno.ECONNRESET, "closed before any answer"))
        elif exchange.ends_at_close:
            self._finish(False)
        else:
            self.fail("cut", "the connection closed in the middle of the answer")

    def _broken(self, bad: OSError) -> None:
        exchange = self.exchange
        if exchange is None:
            self.close()
        elif exchange.first_byte_s is None and self._uses > 1 and not exchange.resent:
            # The server dropped an idle connection just as we used it; HTTP/1.1 clients try once more on a new one.
            exchange.resent = True
            self._stats.reconnects += 1
            self.close()
            self.start(exchange)
        elif exchange.first_byte_s is not None:
            self.fail("cut", str(bad.strerror or bad))
        else:
            self.fail(_kind_of(bad), str(bad.strerror or bad))

    # called by the parser

    def on_message_begin(self) -> None:
        if self.exchange is not None and self.exchange.first_byte_s is None:
            self.exchange.first_byte_s = self._piece_s

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.exchange is not None:
            self.exchange.header(name, value)

    def on_headers_complete(self) -> None:
        if self.exchange is not None and self._parser is not None:
            self.exchange.http_status = self._parser.get_status_code()
            self._deferring = self.exchange.chunked and self.exchange.http_status >= 200

    def on_body(self, body: bytes) -> None:
        self._body_times_s.append(self._piece_s)
        self._bodies.append(body)

    def on_message_complete(self) -> None:
        if self.exchange is not None and self._parser is not None and self.exchange.http_status >= 200:
            self._complete = True
            # the parser forgets this as soon as it is ready for another message
            self._keep = self._parser.should_keep_alive()
