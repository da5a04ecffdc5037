"""One poll of a folder for everyone who watches it: only while someone watches, drawn only when something changed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

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
    """`pulse` is cheap and changes when the picture would; `draw` may take long and runs beside the loop."""

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
