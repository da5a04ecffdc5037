"""Who may ask: the token, the address that was asked for, and where a request to change something comes from.

A page of another site can make a browser send anything here, but it cannot read the answer, has no token, and is named
by the browser in Origin. A name of its own that leads to this address (DNS rebinding) shows in Host.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST_TOKEN = 16
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Access:
    """`hosts` are the names under which this server may be asked; None: any, for a server on all addresses."""

    token: str
    cookie: str
    hosts: Collection[str] | None = LOOPBACK

    def refusal(self, method: str, headers: Headers, query: QueryParams) -> tuple[int, str] | None:
        """Why a request is not answered, with its status."""
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            return (403, f"this server is not called {host}; use the address that `ridgeline watch` printed")
        by_hand = self._fits(query.get("token")) or self._fits(_bearer(headers))
        if not by_hand and not self._fits(_cookie(headers, self.cookie)):
            return (401, "the token is missing or wrong; open the address that `ridgeline watch` printed")
        if method in ("GET", "HEAD"):
            return None
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return (403, "requests from other sites are refused")
        origin = headers.get("origin")
        if origin is None and by_hand and not _cookie(headers, self.cookie):
            return None  # no browser: those name the origin of whatever changes something
        if origin not in (f"http://{host}", f"https://{host}"):
            return (403, "requests from other sites are refused")
        return None

    def _fits(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self.token.encode())

    def cookie_for(self, query: QueryParams) -> str:
        """To be set where the token came with the address; else empty."""
        return (
            f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict" if self._fits(query.get("token")) else ""
        )


def _name(host: str) -> str:
    """Without the port: through `ssh -L` it is another one."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _bearer(headers: Headers) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _cookie(headers: Headers, name: str) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if found is None else found.value


class Guarded:
    """An application behind the access; every answer carries the headers that keep a browser strict."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = QueryParams(scope["query_string"])
        refused = self.access.refusal(scope["method"], Headers(scope=scope), query)

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if refused is None and (cookie := self.access.cookie_for(query)):
                    headers.append("Set-Cookie", cookie)
            await send(message)

        answer = self.app if refused is None else PlainTextResponse(f"{refused[1]}\n", refused[0])
        await answer(scope, receive, send_strict)
