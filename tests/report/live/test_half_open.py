"""Nobody keeps a connection to the dashboard by sending nothing, or a byte at a time, or by reading nothing."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from ridgeline.report.live.server import ConnectionLimits
from tests.report.live.served import TOKEN, served
from tests.report.live.test_access import quick

WAIT_S = 60.0


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick(tmp_path_factory.mktemp("open"), finish=False)


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(WAIT_S)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
        b"POST /study/quick/instructions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        + f"Authorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n\r\n{{".encode(),
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\nHost: ",
    ],
    ids=["nothing", "half a line", "half a header", "half a body", "half a second request"],
)
def test_half_a_request_is_not_waited_for(study: Path, sent: bytes) -> None:
    with served(study, ConnectionLimits(request_s=0.5, idle_s=0.5)) as there:
        with socket.create_connection(("127.0.0.1", there.port)) as connection:
            connection.sendall(sent)
            assert is_closed(connection)
        assert there.ask("/", **there.cookie).status == 200


def test_a_byte_now_and_then_does_not_help(study: Path) -> None:
    with (
        served(study, ConnectionLimits(request_s=1.0)) as there,
        socket.create_connection(("127.0.0.1", there.port)) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nX-A: ")
        until_s = time.monotonic() + WAIT_S
        closed = False
        while not closed and time.monotonic() < until_s:
            time.sleep(0.1)
            try:
                connection.sendall(b"a")
            except (BrokenPipeError, ConnectionResetError):
                closed = True
        assert closed


def test_those_above_the_cap_are_refused_and_the_others_served(study: Path) -> None:
    with served(study, ConnectionLimits(request_s=WAIT_S, connections=3)) as there:
        kept = [socket.create_connection(("127.0.0.1", there.port)) for _ in range(3)]
        with socket.create_connection(("127.0.0.1", there.port)) as one_more:
            assert is_closed(one_more)
        kept.pop().close()
        until_s = time.monotonic() + WAIT_S
        status = 0
        while status != 200 and time.monotonic() < until_s:
            try:
                status = there.ask("/", **there.cookie).status
            except OSError:
                time.sleep(0.1)
        assert status == 200
        for connection in kept:
            connection.close()


def test_a_page_that_listens_is_kept(study: Path) -> None:
    """The limit is for requests, not for the stream of events that answers one."""
    with (
        served(study, ConnectionLimits(request_s=0.3, idle_s=0.3)) as there,
        socket.create_connection(("127.0.0.1", there.port), timeout=WAIT_S) as connection,
    ):
        cookie = there.cookie["Cookie"]
        connection.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n".encode())
        text = b""
        while b"event: sections" not in text:
            text += connection.recv(4096)
        time.sleep(1.0)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):  # open, with nothing more to say
            while piece := connection.recv(1 << 20):
                assert piece
