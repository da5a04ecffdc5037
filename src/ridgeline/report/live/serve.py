"""From an address and a port to a server that runs until it is stopped."""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ridgeline.errors import InputError
from ridgeline.report.live.access import LOOPBACK, SHORTEST_TOKEN, Access
from ridgeline.report.live.server import Dashboard

_GONE_MS = 60_000  # without a sign of life of the other machine, which may be asleep or unplugged
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  refused without a token of one's own


def token_from(file: Path | None, host: str) -> str:
    """The token in this file, or a new one. InputError for an address that others reach without a token of your own."""
    if file is None:
        if host not in LOOPBACK:
            raise InputError(
                f"--host {host}: others can reach that address; put a token of your own into a file (umask 077; "
                "openssl rand -hex 16 > FILE) and name it with --token-file. Or stay on 127.0.0.1 and use ssh -L"
            )
        return secrets.token_urlsafe(24)
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: the token cannot be read ({error}); name another --token-file") from None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"{file}: a token has at least {SHORTEST_TOKEN} letters, digits, - or _ and nothing else")
    return token


def listening(host: str, port: int) -> socket.socket:
    """InputError where the port is taken or the address is not of this machine."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit these
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MS)
        found.bind(address)
        found.listen(128)  # whoever follows the printed address at once waits for the server instead of being refused
    except OSError as error:
        hint = "choose another with --port; --port 0 takes any free one"
        raise InputError(f"{host} port {port} cannot be used ({error.strerror or error}); {hint}") from None
    return found


def serve(dashboard: Dashboard, host: str, port: int, token: str, say: Callable[[str], None]) -> None:
    """Until SIGINT or SIGTERM. `say` gets the address, with its token, as the first line."""
    bound = listening(host, port)
    port = bound.getsockname()[1]
    own = (host.lower(), socket.gethostname().lower(), socket.getfqdn().lower())
    names = LOOPBACK if host in LOOPBACK else None if host in _EVERYWHERE else (*LOOPBACK, *own)
    access = Access(token, f"ridgeline-{port}", names)
    shown = socket.getfqdn() if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
    say(f"http://{shown}:{port}/?token={token}")
    if host in LOOPBACK:
        login = quote(f"{getpass.getuser()}@{socket.gethostname()}")
        say(f"from another machine: ssh -L {port}:127.0.0.1:{port} {login}   and open the same address there")
    say(f"process {os.getpid()}; Ctrl-C stops this page, not the study")
    server_of(dashboard, access).run(sockets=[bound])


class _Server(uvicorn.Server):
    """Lets those go who listen to events: uvicorn would wait for them, and then say so with a stack of calls."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.end()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a connection may keep us waiting, and how many there may be at once."""

    request_s: float = 10.0  # from its first byte, or from the connection, until a request is whole
    idle_s: float = 5.0  # between two requests
    unread_s: float = 60.0  # with answers that the other side does not take
    connections: int = 128  # each page that is open holds one


class _LimitedConnection(H11Protocol):
    """Closes connections that send nothing, send a byte at a time, or don't read the answer: uvicorn would wait."""

    limits = ConnectionLimits()
    _request_due: asyncio.TimerHandle | None = None
    _answer_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
        else:
            self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()

    def _await_request(self) -> None:
        whole = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if whole and self._request_due is not None:
            self._request_due.cancel()
            self._request_due = None
        elif not whole and self._request_due is None:
            self._request_due = self.loop.call_later(self.limits.request_s, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_due is None:
            self._answer_due = self.loop.call_later(self.limits.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_due is not None:
            self._answer_due.cancel()
            self._answer_due = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for due in (self._request_due, self._answer_due):
            if due is not None:
                due.cancel()


def server_of(dashboard: Dashboard, access: Access, limits: ConnectionLimits | None = None) -> uvicorn.Server:
    limits = limits or ConnectionLimits()
    config = uvicorn.Config(
        dashboard.app(access),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http=type("LimitedConnection", (_LimitedConnection,), {"limits": limits}),
        timeout_keep_alive=limits.idle_s,  # type: ignore[arg-type]  # seconds for a timer, also parts of one
        timeout_graceful_shutdown=1,
    )
    return _Server(config, dashboard)
