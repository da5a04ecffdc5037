"""A socket that says when the kernel received what it reads.

On Linux each read asks the kernel when the bytes reached this host (SO_TIMESTAMPNS), so a token's time does not depend
on how busy this process is: even a client that lags reads the right times, and the lag itself becomes a measured
figure. Other systems fall back to the moment of reading.

A read has the stamp of the last segment it touched. Where several may have piled up, reads are therefore kept
shorter than a segment, so that each segment still gives its own stamp.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
import time

from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.loop import Loop

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


class StampedSocket:
    """Opens, writes and reads. What arrives, and what breaks, is handed to the methods at its end."""

    def __init__(self, loop: Loop, address: tuple[int, tuple[str, int]], stats: ClientStats) -> None:
        self._loop = loop
        self._family, self._address = address
        self._stats = stats
        self._ages = stats.ages
        self._sock: socket.socket | None = None
        self._connecting = False
        self._unsent = b""
        self._shortest = _READ_BYTES
        self.at_s = 0.0  # when something last happened here

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
            self._loop.watch_writing(self._sock.fileno(), self._write_more)
        elif self._unsent:
            self._unsent = b""
            self._loop.forget_writing(self._sock.fileno())

    def _write_more(self) -> None:
        self._write(self._unsent)

    # receiving: this runs once per token of every stream

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
        if at_s - loop.since_s > _TOGETHER_S:
            self._read_late(loop.since_s)
        self._take_in(received)
        # taking it in may have ended the answer, and the answer the connection
        return len(received) if self._sock is sock else 0

    # for those that build on this

    def _ready(self) -> None:
        """The connection is open."""
        raise NotImplementedError

    def _take_in(self, received: bytes) -> None:
        """Bytes came, at `at_s`."""
        raise NotImplementedError

    def _read_late(self, since_s: float) -> None:
        """What is about to be taken in waited for a while; none of it came before `since_s`."""
        raise NotImplementedError

    def _ended_by_peer(self) -> None:
        raise NotImplementedError

    def _broken(self, bad: OSError) -> None:
        raise NotImplementedError

    def fail(self, kind: str, message: str) -> None:
        raise NotImplementedError
