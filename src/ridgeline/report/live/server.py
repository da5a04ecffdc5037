"""The dashboard's addresses: a page, its events, instructions to a campaign, its report and its metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ridgeline.report.live.access import Access, Guarded
from ridgeline.report.live.page import index_page, index_rows, sections, study_page
from ridgeline.report.live.snapshot import Folders, Watched
from ridgeline.study.instructions import LARGEST_BYTES, instruction_from, leave_instruction

_STATIC = {"page.js": "text/javascript", "watch.js": "text/javascript", "ridgeline.css": "text/css"}
# the report brings its own scripts: it may run them, as a stranger that cannot use our cookie
_REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads allow-modals; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)

_LOOK_S = 0.2  # between polls; a few stat calls each, which network file systems can take
CLOCK_S = 5.0  # clocks on the page move at least so often
_BEAT_S = 15.0  # a line that means nothing, so that no proxy takes the connection for dead
REST = 1.5  # times the drawing took, between two drawings: a huge study does not take the whole processor

Sections = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Picture:
    """What a page consists of, by the id of each place; `steerable` says whether its buttons do anything."""

    sections: Sections
    steerable: bool = False


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
        seen, steerable = -1, None
        try:
            yield "retry: 1000\n\n"
            while not self._over:
                if self._picture is not None and seen != self._version:
                    seen, picture = self._version, self._picture
                    changed = {name: html for name, html in picture.sections.items() if sent.get(name) != html}
                    sent.update(changed)
                    if changed:
                        yield f"event: sections\ndata: {json.dumps(changed)}\n\n"
                    if picture.steerable != steerable:
                        steerable = picture.steerable
                        yield f"event: steerable\ndata: {json.dumps(steerable)}\n\n"
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
        return Response(files("ridgeline.report").joinpath("assets", name).read_bytes(), media_type=_STATIC[name])

    async def report(self, request: Request) -> Response:
        folder = await self._folder(request)
        page = await asyncio.to_thread(folder.report)
        if not page:
            return PlainTextResponse("there is no report of this folder yet\n", 404)
        return HTMLResponse(page, headers={"Content-Security-Policy": _REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN"})

    async def metrics(self, request: Request) -> Response:
        chosen = [await self._folder(request)] if "slug" in request.path_params else [*self._look_around().values()]
        texts = await asyncio.to_thread(lambda: [folder.metrics() for folder in chosen])
        return PlainTextResponse(joined(texts), media_type="text/plain; version=0.0.4; charset=utf-8")

    # events

    async def events(self, request: Request) -> Response:
        slug, folder = request.path_params["slug"], await self._folder(request)
        return _stream(self._feeds.setdefault(slug, Feed(folder.pulse, lambda: _drawn(folder))))

    async def index_events(self, request: Request) -> Response:
        return _stream(self._index)

    def _index_pulse(self) -> object:
        return {slug: folder.pulse() for slug, folder in self._look_around().items()}

    def _draw_index(self) -> Picture:
        return Picture(index_rows({slug: folder.snapshot() for slug, folder in self._look_around().items()}))

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


def _drawn(folder: Watched) -> Picture:
    now = folder.snapshot()
    return Picture(sections(now), now.steerable)


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
    document: dict[str, Any] = {"told": told}
    return JSONResponse(document, status)


def joined(texts: list[str]) -> str:
    """Several texts of metrics as one: Prometheus wants what a name means once, before all its values."""
    heads: dict[str, list[str]] = {}
    for text in texts:
        name = ""
        for line in text.splitlines():
            if line.startswith("# "):
                name = line.split()[2]
                if line not in heads.setdefault(name, []) and all(
                    not each.startswith(line[:7]) for each in heads[name]
                ):
                    heads[name].append(line)
            else:
                heads[name].append(line)
    return "".join(f"{line}\n" for lines in heads.values() for line in lines)
