"""Where requests go and what they carry: URL, headers, key, TLS, and the kind of interface behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ridgeline import __version__
from ridgeline.errors import InputError
from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.connection import Connection
from ridgeline.serving.load.wire.exchange import Exchange
from ridgeline.serving.load.wire.loop import Loop

if TYPE_CHECKING:
    import ssl

# interface -> the path it has under a server's base URL
_INTERFACES = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "generate": "/generate"}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. The key is kept out of `repr`, so it cannot reach a log by way of a traceback or a record."""

    host: str
    port: int
    path: str
    interface: str
    tls: bool = False
    base_path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    @property
    def url(self) -> str:
        """What may be shown: no user name, password, query or key."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{shown}:{self.port}{self.path.partition('?')[0]}"

    def head(self, method: str, path: str, body_bytes: int | None = None) -> bytes:
        """The request line and headers, ready to send."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        standard = self.port == (443 if self.tls else 80)
        fields = {
            "Host": host if standard else f"{host}:{self.port}",
            "User-Agent": f"ridgeline/{__version__}",
            "Accept": "*/*",
        }
        if self.key:
            fields["Authorization"] = f"Bearer {self.key}"
        if body_bytes is not None:
            fields["Content-Type"] = "application/json"
        given = {name.lower() for name in self.headers}
        lines = [f"{n}: {v}" for n, v in fields.items() if n.lower() not in given]
        lines += [f"{n}: {v}" for n, v in self.headers.items()]
        if body_bytes is not None:
            lines.append(f"Content-Length: {body_bytes}")
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        import ssl  # slow to load, and most servers under test do without

        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as bad:
            raise InputError(f"--ca {self.ca_file}: not a readable PEM file of certificates ({bad})") from None

    def connection(
        self,
        loop: Loop,
        address: tuple[int, tuple[str, int]],
        stats: ClientStats,
        on_end: Callable[[Connection, Exchange], None],
        context: ssl.SSLContext | None,
    ) -> Connection:
        """A plain connection to this server, or with the context of `tls_context` one through TLS."""
        if context is None:
            return Connection(loop, address, stats, on_end)
        # most servers under test need no ssl, which is slow to load
        from ridgeline.serving.load.wire.tls import TlsConnection

        return TlsConnection(loop, address, stats, on_end, context, self.host)

    def without_secrets(self, text: str) -> str:
        """`text` with the key and every header value the user gave blotted out; a server may echo them in an error."""
        for secret in (self.key, *self.headers.values()):
            for part in (secret or "", *(secret or "").split()):
                if len(part) >= 4:
                    text = text.replace(part, "***").replace(json.dumps(part)[1:-1], "***")
        # servers mask a key in the middle and print its ends; that is still part of a secret
        return re.sub(r"\b(sk|hf|key|nvapi)-[^\s\"',]{4,}", "***", text)


def parse_endpoint(
    url: str,
    *,
    interface: str | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    ca_file: Path | None = None,
) -> Endpoint:
    """An endpoint from a base URL (http://host:8000, with or without /v1) or a full endpoint URL."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        raise InputError(f"{_shown(url)}: the port is not a number from 1 to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{_shown(url)} is not an http:// or https:// URL, for example http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise InputError("the URL holds a user name or password; give --key or --header instead, so it is never logged")
    if interface is not None and interface not in _INTERFACES:
        raise InputError(f"--api {interface!r} is not one of {', '.join(_INTERFACES)}")
    path, kind, base = _path_of(parts.path.rstrip("/"), interface)
    tls = parts.scheme == "https"
    return Endpoint(
        host=parts.hostname,
        port=port or (443 if tls else 80),
        path=path + (f"?{parts.query}" if parts.query else ""),
        interface=kind,
        tls=tls,
        base_path=base,
        headers=_checked(headers or {}),
        key=_clean("--key", key) if key else None,
        ca_file=str(ca_file) if ca_file else None,
    )


def _path_of(path: str, interface: str | None) -> tuple[str, str, str]:
    """(path to post to, interface, base path of the server)"""
    for kind, ending in _INTERFACES.items():
        if path.endswith(ending.removeprefix("/v1")):
            base = path.removesuffix(ending.removeprefix("/v1")).removesuffix("/v1")
            # a gateway may serve the same interface under a name of its own, so a full path wins as it stands
            return path, interface or kind, base
    base = path.removesuffix("/v1")
    kind = interface or "chat"
    return base + _INTERFACES[kind], kind, base


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    for name in headers:
        if not _TOKEN.fullmatch(name):
            raise InputError(f"--header {name!r}: not a header name; write --header 'Name: value'")
    return {name: _clean(f"--header {name}", value) for name, value in headers.items()}


def _clean(where: str, value: str) -> str:
    # a line break would let a value smuggle in further headers, and the value itself may be a secret: never shown
    stripped = value.strip()
    if any(ord(c) < 32 or ord(c) == 127 for c in stripped) or not stripped.isascii():
        raise InputError(f"{where}: the value holds control or non-ASCII characters; check how it was quoted")
    return stripped


def _shown(url: str) -> str:
    return repr(re.sub(r"//[^/@]*@", "//***@", url))
