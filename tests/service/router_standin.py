"""A router that forwards in turn and has the admin paths of sglang-router, for tests without the real one.

python router_standin.py … --host H --port P --worker-urls U1 U2

Without a server it answers 404, as smg does; after POST /refuse every request gets 503, until POST /accept.
"""

from __future__ import annotations

import http.server
import itertools
import json
import sys
import urllib.error
import urllib.request


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


class Router(http.server.BaseHTTPRequestHandler):
    workers: list[str] = []  # noqa: RUF012  one router a process
    priorities: dict[str, int] = {}  # noqa: RUF012
    turn = itertools.count()
    refuses = False

    def answer(self, status: int, value: object) -> None:
        self.pass_on(status, json.dumps(value).encode(), "application/json")

    def pass_on(self, status: int, body: bytes, kind: str, retry_after: str = "") -> None:
        self.send_response(status)
        if retry_after:
            self.send_header("retry-after", retry_after)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/workers":
            rows = [{"id": str(hash(u)), "url": u, "priority": self.priorities.get(u, 50)} for u in self.workers]
            self.answer(200, {"workers": rows})
        else:
            self.answer(200, {})

    def do_DELETE(self) -> None:
        gone = self.path.rpartition("/")[2]
        Router.workers = [u for u in self.workers if str(hash(u)) != gone]
        self.answer(202, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/workers":
            row = json.loads(body)
            Router.workers = [*self.workers, row["url"]]
            Router.priorities[row["url"]] = row.get("priority", 50)
            self.answer(202, {})
            return
        if self.path in ("/refuse", "/accept"):
            Router.refuses = self.path == "/refuse"
            self.answer(200, {})
            return
        if not Router.workers or Router.refuses:
            self.answer(503 if Router.refuses else 404, {"error": "no workers"})
            return
        worker = self.workers[next(self.turn) % len(self.workers)]
        try:
            with urllib.request.urlopen(f"{worker}{self.path}", body, timeout=60) as answer:
                self.pass_on(200, answer.read(), answer.headers["content-type"])
        except urllib.error.HTTPError as error:
            self.pass_on(error.code, error.read(), "application/json", error.headers.get("retry-after", ""))

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    start = sys.argv.index("--worker-urls") + 1
    Router.workers = list(itertools.takewhile(lambda word: not word.startswith("--"), sys.argv[start:]))
    server = http.server.ThreadingHTTPServer((option("--host"), int(option("--port"))), Router)
    server.serve_forever()
