"""A server on 127.0.0.1 that says exactly what a test tells it to, byte by byte."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    number: int
    arrived_s: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """One accepted connection, as the behaviour of a test sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def write(self, *parts: bytes, pause_s: float = 0.0) -> None:
        for part in parts:
            self.sock.sendall(part)
            if pause_s:
                time.sleep(pause_s)

    def head(self, status: str = "200 OK", **fields: str) -> None:
        lines = [f"HTTP/1.1 {status}", *(f"{k.replace('_', '-')}: {v}" for k, v in fields.items()), "", ""]
        self.write("\r\n".join(lines).encode())

    def stream_head(self) -> None:
        self.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")

    def chunk(self, body: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(body), body))

    def end(self) -> None:
        self.write(b"0\r\n\r\n")

    def document(self, value: object, status: str = "200 OK", **fields: str) -> None:
        body = json.dumps(value).encode()
        self.head(status, Content_Type="application/json", Content_Length=str(len(body)), **fields)
        self.write(body)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


Behaviour = Callable[[Line, Request], object]


@dataclass
class Scripted:
    """Start with `with Scripted(behaviour) as server`; the model list and /metrics are answered for the behaviour."""

    behaviour: Behaviour
    tls: ssl.SSLContext | None = None
    models: list[str] | None = field(default_factory=lambda: ["toy"])
    metrics: Callable[[], str] = str  # the text of /metrics; there is none where it is empty
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> Scripted:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._listener.close()
        for sock in self._open:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def posts(self) -> list[Request]:
        return [r for r in self.requests if r.method == "POST"]

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
                self._open.append(sock)
            line, buffer = Line(sock), b""
            while True:
                request, buffer = self._read(sock, buffer)
                if request is None:
                    return
                self.requests.append(request)
                if request.method == "GET" and request.path.endswith("/models") and self.models is not None:
                    line.document({"data": [{"id": name} for name in self.models]})
                elif request.method == "GET" and request.path.endswith("/metrics"):
                    page = self.metrics().encode()
                    line.head("200 OK" if page else "404 Not Found", Content_Length=str(len(page)))
                    line.write(page)
                elif self.behaviour(line, request) == "close":
                    sock.close()
                    return
        except OSError:
            return

    def _read(self, sock: socket.socket, buffer: bytes) -> tuple[Request | None, bytes]:
        while b"\r\n\r\n" not in buffer:
            more = sock.recv(65536)
            if not more:
                return None, b""
            buffer += more
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        size = int(headers.get("content-length", 0))
        while len(buffer) < size:
            buffer += sock.recv(65536)
        method, path, _ = first.split(" ")
        now_s = time.monotonic()
        return Request(method, path, headers, buffer[:size], len(self.requests), now_s), buffer[size:]


def delta(text: str | None = None, finish: str | None = None, **more: object) -> dict[str, Any]:
    content = {} if text is None else {"content": text}
    return {"id": "x", "choices": [{"index": 0, "delta": {**content, **more}, "finish_reason": finish}]}


def event(value: object, newline: bytes = b"\n", prefix: bytes = b"data: ") -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return prefix + text + newline + newline


def usage(prompt: int, completion: int, **details: object) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    return {"id": "x", "choices": [], "usage": counts}


def tokens(count: int, gap_s: float = 0.0, first_s: float = 0.0) -> Behaviour:
    """The plain server: so many tokens, usage, [DONE]; before all that were asked for, its text has come to its end."""

    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        time.sleep(first_s)
        reason = "stop" if count < request.json["max_tokens"] else "length"
        for k in range(count):
            line.chunk(event(delta(f" t{k}", reason if k == count - 1 else None)))
            time.sleep(gap_s)
        line.chunk(event(usage(7, count)))
        line.chunk(event(b"[DONE]"))
        line.end()

    return behave
