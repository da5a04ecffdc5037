"""The dashboard's server: from a port to its addresses, which are a page, its events, instructions to a campaign, its
report and its metrics."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from ridgeline.errors import InputError
from ridgeline.report.live.access import LOOPBACK, SHORTEST_TOKEN, Access, Guarded
from ridgeline.report.live.page import index_page, index_rows, sections, study_page
from ridgeline.report.live.snapshot import Folders, Watched
from ridgeline.report.page import asset
from ridgeline.report.prometheus import metrics_text
from ridgeline.study.instructions import LARGEST_BYTES, instruction_from, leave_instruction

_STATIC = {"page.js": "text/javascript", "watch.js": "text/javascript", "ridgeline.css": "text/css"}
# the report brings its own scripts: it may run them, as a stranger that cannot use our cookie
_REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads allow-modals; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)

_GONE_MS = 60_000  # without a sign of life of the other machine, which may be asleep or unplugged
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  refused without a token of one's own
_LOOK_S = 0.2  # between polls; a few stat calls each, which network file systems can take
CLOCK_S = 5.0  # clocks on the page move at least so often
_BEAT_S = 15.0  # a line that means nothing, so that no proxy takes the connection for dead
REST = 1.5  # times the drawing took, between two drawings: a huge study does not take the whole processor

Picture = Mapping[str, str]  # what a page consists of: the HTML of each place, by its id


@dataclass
class Feed:
    """One poll of a folder for everyone who watches it: only while someone watches, drawn only when something changed.

    `pulse` is cheap and changes when the picture would; `draw` may take long and runs beside the loop."""

    pulse: Callable[[], object]
    draw: Callable[[], Picture]
    _picture: Picture | None = field(default=None, init=False)
    _version: int = field(default=0, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _viewers: int = field(default=0, init=False)
    _over: bool = field(default=False, init=False)
    _looking: asyncio.Task[None] | None = field(default=None, init=False)

    async def listen(self) -> AsyncIterator[str]:
        """Server-sent events: everything once, then what changed, until the listener leaves."""
        self._viewers += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        sent: dict[str, str] = {}
        seen = -1
        try:
            yield "retry: 1000\n\n"
            while not self._over:
                if self._picture is not None and seen != self._version:
                    seen = self._version
                    changed = {name: html for name, html in self._picture.items() if sent.get(name) != html}
                    sent.update(changed)
                    yield f"event: sections\ndata: {json.dumps(changed)}\n\n"
                    continue
                try:
                    await asyncio.wait_for(self._news.wait(), _BEAT_S)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._viewers -= 1

    def end(self) -> None:
        """Everybody who listens is let go: the server is about to stop."""
        self._over = True
        self._news.set()

    async def _look(self) -> None:
        last: object = None
        drawn_s = took_s = 0.0
        while self._viewers and not self._over:
            now_s = time.monotonic()
            pulse = await asyncio.to_thread(self.pulse)
            due = pulse != last and now_s - drawn_s >= REST * took_s
            if due or self._picture is None or now_s - drawn_s >= max(CLOCK_S, REST * took_s):
                picture = await asyncio.to_thread(self.draw)
                last, drawn_s = pulse, time.monotonic()
                took_s = drawn_s - now_s
                if picture != self._picture:
                    self._picture, self._version = picture, self._version + 1
                    self._news.set()
                    self._news = asyncio.Event()
            await asyncio.sleep(_LOOK_S)


class Dashboard:
    """`look_around` gives the folders there are, by their name in the address; they may come and go."""

    def __init__(self, look_around: Callable[[], Folders], where: str, several: bool) -> None:
        self._look_around, self._where, self._several = look_around, where, several
        self._feeds: dict[str, Feed] = {}
        self._index = Feed(self._index_pulse, self._draw_index)

    def app(self, access: Access) -> Guarded:
        study = "/study/{slug}"
        routes = [
            Route("/", self.index),
            Route("/events", self.index_events),
            Route("/metrics", self.metrics),
            Route("/static/{name}", self.static),
            Route(f"{study}/", self.page),
            Route(f"{study}/events", self.events),
            Route(f"{study}/report", self.report),
            Route(f"{study}/metrics", self.metrics),
            Route(f"{study}/instructions", self.told, methods=["POST"]),
        ]
        return Guarded(Starlette(routes=routes), access)

    def end(self) -> None:
        for feed in (self._index, *self._feeds.values()):
            feed.end()

    # pages

    async def index(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._look_around)
        if not self._several and found:
            return await self._page(*next(iter(found.items())))
        shown = await asyncio.to_thread(lambda: {slug: folder.snapshot() for slug, folder in found.items()})
        return HTMLResponse(index_page(shown, self._where))

    async def page(self, request: Request) -> Response:
        return await self._page(request.path_params["slug"], await self._folder(request))

    async def _page(self, slug: str, folder: Watched) -> Response:
        now = await asyncio.to_thread(folder.snapshot)
        knobs, start = await asyncio.to_thread(folder.knobs)
        return HTMLResponse(study_page(slug, now, tuple(knobs), start, self._several))

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return Response(asset(name), media_type=_STATIC[name])

    async def report(self, request: Request) -> Response:
        folder = await self._folder(request)
        page = await asyncio.to_thread(folder.report)
        if not page:
            return PlainTextResponse("there is no report of this folder yet\n", 404)
        return HTMLResponse(page, headers={"Content-Security-Policy": _REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN"})

    async def metrics(self, request: Request) -> Response:
        chosen = [await self._folder(request)] if "slug" in request.path_params else [*self._look_around().values()]
        known = await asyncio.to_thread(lambda: [said for folder in chosen if (said := folder.metrics()) is not None])
        return PlainTextResponse(metrics_text(*known), media_type="text/plain; version=0.0.4; charset=utf-8")

    # events

    async def events(self, request: Request) -> Response:
        slug, folder = request.path_params["slug"], await self._folder(request)
        return _stream(self._feeds.setdefault(slug, Feed(folder.pulse, lambda: sections(folder.snapshot()))))

    async def index_events(self, request: Request) -> Response:
        return _stream(self._index)

    def _index_pulse(self) -> object:
        return {slug: folder.pulse() for slug, folder in self._look_around().items()}

    def _draw_index(self) -> Picture:
        return index_rows({slug: folder.snapshot() for slug, folder in self._look_around().items()})

    # instructions

    async def told(self, request: Request) -> Response:
        folder = await self._folder(request)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _answer(415, "send JSON")
        try:
            told = instruction_from(json.loads(await _body(request)))
        except (ValueError, RecursionError) as error:
            return _answer(400, str(error))
        if why := await asyncio.to_thread(folder.refusal, told):
            return _answer(409, why)
        try:
            await asyncio.to_thread(leave_instruction, folder.path, told)
        except OSError as error:
            return _answer(507, f"{folder.path}: cannot be written ({error.strerror}); free space or check permissions")
        return _answer(202, f"{told.act}: left for the controller, which answers below")

    async def _folder(self, request: Request) -> Watched:
        found = (await asyncio.to_thread(self._look_around)).get(request.path_params["slug"])
        if found is None:
            raise HTTPException(404, "there is no such study; it may have been moved")
        return found


def _stream(feed: Feed) -> Response:
    return StreamingResponse(feed.listen(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BYTES:
            raise ValueError(f"an instruction has at most {LARGEST_BYTES} bytes")
    return body


def _answer(status: int, told: str) -> Response:
    return JSONResponse({"told": told}, status)


# from an address and a port to a server that runs until it is stopped


def _is_token(text: str) -> bool:
    return len(text) >= SHORTEST_TOKEN and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def token_from(file: Path | None, host: str) -> str:
    """The token in this file, or the user's own, which stays the same: bookmarks and open pages outlive a restart.

    InputError for an address that others reach without a token that somebody chose for it.
    """
    if file is None:
        if host not in LOOPBACK:
            raise InputError(
                f"--host {host}: others can reach that address; put a token of your own into a file (umask 077; "
                "openssl rand -hex 16 > FILE) and name it with --token-file. Or stay on 127.0.0.1 and use ssh -L"
            )
        return _kept_token(Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "ridgeline" / "watch-token")
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: the token cannot be read ({error}); name another --token-file") from None
    if not _is_token(token):
        raise InputError(f"{file}: a token has at least {SHORTEST_TOKEN} letters, digits, - or _ and nothing else")
    return token


def _kept_token(file: Path) -> str:
    """What an earlier page had, as long as nobody else can read it; else a new one, kept where that is possible."""
    token = secrets.token_urlsafe(24)
    try:
        file = file.expanduser()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.is_file() and not file.stat().st_mode & 0o077 and _is_token(kept := file.read_text().strip()):
            return kept
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(f"{token}\n")
    except (OSError, RuntimeError, UnicodeDecodeError):
        pass  # no home, or none that can be written: this page's token is good until it ends
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
