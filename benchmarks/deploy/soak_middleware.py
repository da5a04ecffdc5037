"""Faults inside a real vLLM, for soak.py: `vllm serve --middleware soak_middleware.Faulty` answers as a file says.

The file $SOAK_FAULTS/PORT holds `429 PID` or `empty PID`: completions of that process are refused, or answered without
a choice. A process that is started anew is well again.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ANSWERS = {"429": (429, b'{"error": {"message": "too many requests"}}'), "empty": (200, b'{"choices": []}')}


class Faulty:
    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[[dict[str, Any]], Any]) -> None:
        kind = self._fault(scope) if scope["type"] == "http" and scope["path"].endswith("/completions") else ""
        if kind not in ANSWERS:
            await self.app(scope, receive, send)
            return
        status, body = ANSWERS[kind]
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _fault(self, scope: dict[str, Any]) -> str:
        try:
            kind, _, pid = (Path(os.environ["SOAK_FAULTS"]) / str(scope["server"][1])).read_text().partition(" ")
        except OSError:
            return ""
        return kind if pid.strip() == str(os.getpid()) else ""
