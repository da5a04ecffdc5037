"""A dashboard on a port of its own, for tests: started in this process and ended with the test."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.cli.campaign.watch import FoundFolders
from ridgeline.report.live.access import Access
from ridgeline.report.live.server import ConnectionLimits, Dashboard, listening, server_of

TOKEN = "a-token-of-the-tests"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={TOKEN}"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"ridgeline-{self.port}={TOKEN}"}

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """`headers` with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        text = body if body is None or isinstance(body, str) else json.dumps(body)
        connection.request(method, path, text, named)
        got = connection.getresponse()
        answer = Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read().decode())
        connection.close()
        return answer

    def tell(self, slug: str, document: Any, **headers: str) -> Answer:
        own = {"Content_Type": "application/json", "Origin": self.origin, **self.cookie, **headers}
        return self.ask(f"/study/{slug}/instructions", "POST", document, **own)


@contextmanager
def served(folder: Path, limits: ConnectionLimits | None = None) -> Iterator[Served]:
    bound = listening("127.0.0.1", 0)
    port = bound.getsockname()[1]
    found = FoundFolders(folder)
    dashboard = Dashboard(found.look_around, str(folder), found.several)
    server = server_of(dashboard, Access(TOKEN, f"ridgeline-{port}"), limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield Served(port)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
