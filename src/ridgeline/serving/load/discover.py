"""Before the clock starts: which address answers, and what the model is called."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass

from ridgeline.errors import SiteError
from ridgeline.serving.load.wire.client_stats import Pulse
from ridgeline.serving.load.wire.connect import new_connection
from ridgeline.serving.load.wire.endpoint import Route
from ridgeline.serving.load.wire.exchange import Exchange
from ridgeline.serving.load.wire.loop import Loop
from ridgeline.serving.load.wire.reply import Reply
from ridgeline.serving.load.workers.assignment import Address
from ridgeline.serving.traffic.traffic import Arrival


@dataclass(frozen=True, slots=True)
class Found:
    """`model` is "" where the server would not say; `note` then says why, and the run itself will show the fault."""

    address: Address
    model: str
    note: str = ""


def discover(route: Route, model: str | None, timeout_s: float = 10.0) -> Found:
    """The first of the host's addresses that answers, and the served model unless one was given.

    Asks for the list of models only when no name was given; a server that is down is not an error here.
    """
    addresses = _addresses(route)
    if model is None and route.interface != "generate":
        for address in addresses:
            exchange = _ask(route, address, timeout_s)
            if exchange.status not in ("refused", "unreachable"):
                return _model_from(route, address, exchange)
        return Found(addresses[0], "", f"{route.host}:{route.port} refuses connections")
    for address in addresses:
        if len(addresses) > 1 and _listens(address, timeout_s):
            return Found(address, model or "")
    return Found(addresses[0], model or "")


def _addresses(route: Route) -> list[Address]:
    try:
        found = socket.getaddrinfo(route.host, route.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as bad:
        words = bad.strerror if isinstance(bad, socket.gaierror) else "not a host name"
        raise SiteError(f"{route.host}: {words}; check the host name in the URL", transient=True) from None
    return [(int(family), (str(where[0]), int(where[1]))) for family, _, _, _, where in found]


def _listens(address: Address, timeout_s: float) -> bool:
    with socket.socket(address[0], socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        return sock.connect_ex(address[1]) == 0


def _ask(route: Route, address: Address, timeout_s: float) -> Exchange:
    loop, context = Loop(), route.tls_context()
    wire = route.head("GET", f"{route.base_path}/v1/models")
    exchange = Exchange(Arrival(0, 0.0, 0, 0), wire, time.monotonic(), Reply("", streamed=False))
    tls = None if context is None else (context, route.host)
    connection = new_connection(loop, address, Pulse(), lambda _connection, _exchange: loop.stop(), tls)
    loop.at(time.monotonic() + timeout_s, lambda: connection.fail("timeout", f"nothing came for {timeout_s:g} s"))
    connection.start(exchange)
    loop.run()
    connection.close()
    loop.close()
    exchange.settle()
    return exchange


def _model_from(route: Route, address: Address, exchange: Exchange) -> Found:
    if exchange.status.startswith("http-") or not exchange.reply.text:
        why = route.without_secrets(exchange.error or exchange.status or "no list")
        return Found(
            address, "", f"/v1/models gave no name ({exchange.status or 'empty'}: {why[:120]}); requests name none"
        )
    try:
        names = [entry["id"] for entry in json.loads(exchange.reply.text)["data"]]
    except (ValueError, KeyError, TypeError):
        return Found(address, "", "/v1/models is not a list of models; requests name none")
    if not names:
        return Found(address, "", "/v1/models lists no model; requests name none")
    note = (
        f"the server lists {len(names)} models; the first was asked (--model names another)" if len(names) > 1 else ""
    )
    return Found(address, str(names[0]), note)
