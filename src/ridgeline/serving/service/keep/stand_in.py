"""What answers while a router has no server: 503 with Retry-After, which clients take for a reason to try again.

smg answers 404 when it knows no server, as if the model's name were wrong, and clients give up; sglang-router and
vllm-router answer 503 and do not say when to come back. So `keep` adds itself to such a router as a server that refuses
everything, and leaves when the first server is back. Nothing of ours is in the path of requests that can be served. If
`keep` ends meanwhile the router finds its address dead, and says 503 by itself.
"""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ridgeline.serving.service.router_admin import RouterAdmin

RETRY_AFTER_S = 5
_PRIORITY = 1  # of 50 that servers have: by it one of an earlier keeper is known
_ERROR = {"message": "no server is ready; try again", "type": "server_error", "param": None, "code": "no_server"}


class _Refusing(http.server.BaseHTTPRequestHandler):
    model = ""  # of the service, by which routers know what a server is for

    def do_GET(self) -> None:
        card = {"id": self.model, "object": "model", "owned_by": "ridgeline"}
        info = {"model_path": self.model, "served_model_name": self.model}
        self._answer(200, {"object": "list", "data": [card]} if self.path == "/v1/models" else info)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self._answer(503, {"error": _ERROR})

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if status == 503:
            self.send_header("retry-after", str(RETRY_AFTER_S))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class StandIn:
    """In the router while no server is."""

    def __init__(self) -> None:
        self._server: http.server.ThreadingHTTPServer | None = None
        self._url = ""

    def attend(self, admin: RouterAdmin, listed: Mapping[str, Mapping[str, Any]], model: str, serve: bool) -> None:
        """Comes where no server of the router serves, and goes, with those of earlier keepers, where one does."""
        if serve:
            for url in [url for url, row in listed.items() if row.get("priority") == _PRIORITY]:
                admin.take_away(url)
        elif self._url not in listed:
            admin.add(self._listen(admin.url, model), "both", priority=_PRIORITY)

    def _listen(self, router: str, model: str) -> str:
        """At the address by which this machine reaches the router, and so the router this machine."""
        if self._server is None:
            at = urlsplit(router)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
                towards.connect((at.hostname, at.port))
                address = towards.getsockname()[0]
            handler = type("_Refusing", (_Refusing,), {"model": model})
            self._server = http.server.ThreadingHTTPServer((address, 0), handler)
            self._url = f"http://{address}:{self._server.server_port}"
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self._url
