"""Finds the server before the clock starts: which address answers, and what the model is called."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ridgeline import catalog
from ridgeline.errors import InputError, SiteError
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.endpoint import Endpoint, parse_endpoint
from ridgeline.serving.load.wire.exchange import Exchange
from ridgeline.serving.load.wire.loop import Loop
from ridgeline.serving.load.wire.reply import Reply
from ridgeline.serving.load.workers.assignment import Address
from ridgeline.serving.traffic.traffic import Arrival

if TYPE_CHECKING:
    from ridgeline.serving.engines.base import ServingEngine

_NAMELESS = "unknown"  # what sglang-router calls the model of a server that is no SGLang


@dataclass(frozen=True, slots=True)
class Server:
    """Where to send requests. `model` is "" where the server did not name one; `note` then says why.

    `settings` is what the server says of itself: engine, version, model_path, and what it was started with.
    """

    address: Address
    model: str
    note: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)


def discover(endpoint: Endpoint, model: str | None, timeout_s: float = 10.0) -> Server:
    """The first of the host's addresses that answers, and the served model unless one was given.

    Asks for the list of models only when no name was given; a server that is down is not an error here.
    """
    addresses = _addresses(endpoint)
    if model is None and endpoint.interface != "generate":
        for address in addresses:
            exchange = _get(endpoint, address, "/v1/models", timeout_s)
            if exchange.status not in ("refused", "unreachable"):
                found = _model_from(endpoint, address, exchange)
                if found.model == _NAMELESS:
                    found = _model_behind(endpoint, address, found, timeout_s)
                return replace(found, settings=_settings(endpoint, address, exchange, timeout_s))
        return Server(addresses[0], "", f"{endpoint.host}:{endpoint.port} refuses connections")
    for address in addresses:
        if len(addresses) > 1 and _listens(address, timeout_s):
            return Server(address, model or "")
    return Server(addresses[0], model or "")


def _addresses(endpoint: Endpoint) -> list[Address]:
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as bad:
        reason = bad.strerror if isinstance(bad, socket.gaierror) else "not a host name"
        raise SiteError(f"{endpoint.host}: {reason}; check the host name in the URL", transient=True) from None
    return [(int(family), (str(where[0]), int(where[1]))) for family, _, _, _, where in found]


def _listens(address: Address, timeout_s: float) -> bool:
    with socket.socket(address[0], socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        return sock.connect_ex(address[1]) == 0


def asked(endpoint: Endpoint, address: Address, path: str, timeout_s: float) -> bytes:
    """What the server answers to a GET; empty where that is an error."""
    exchange = _get(endpoint, address, path, timeout_s)
    return exchange.reply.text if 200 <= exchange.http_status < 300 else b""


def _get(endpoint: Endpoint, address: Address, path: str, timeout_s: float) -> Exchange:
    loop = Loop()
    wire = endpoint.head("GET", f"{endpoint.base_path}{path}")
    exchange = Exchange(Arrival(0, 0.0, 0, 0), wire, time.monotonic(), Reply("", streamed=False))
    ended = lambda _connection, _exchange: loop.stop()  # noqa: E731
    connection = endpoint.connection(loop, address, ClientStats(), ended, endpoint.tls_context())
    loop.at(time.monotonic() + timeout_s, lambda: connection.fail("timeout", f"nothing came for {timeout_s:g} s"))
    connection.start(exchange)
    loop.run()
    connection.close()
    loop.close()
    exchange.settle()
    return exchange


def _model_from(endpoint: Endpoint, address: Address, exchange: Exchange) -> Server:
    if exchange.status.startswith("http-") or not exchange.reply.text:
        why = endpoint.without_secrets(exchange.error or exchange.status or "no list")
        return Server(
            address, "", f"/v1/models gave no name ({exchange.status or 'empty'}: {why[:120]}); requests name no model"
        )
    try:
        names = [entry["id"] for entry in json.loads(exchange.reply.text)["data"]]
    except (ValueError, KeyError, TypeError):
        return Server(address, "", "/v1/models is not a list of models; requests name no model")
    if not names:
        return Server(address, "", "/v1/models lists no model; requests name no model")
    note = (
        f"the server lists {len(names)} models; the first was asked (--model names another)" if len(names) > 1 else ""
    )
    return Server(address, str(names[0]), note)


def _model_behind(endpoint: Endpoint, address: Address, found: Server, timeout_s: float) -> Server:
    """The name that the first server behind a router gives its model, as the router has none."""
    asked = _get(endpoint, address, "/workers", timeout_s)
    try:
        worker = parse_endpoint(str(json.loads(asked.reply.text)["workers"][0]["url"]), key=endpoint.key)
        if endpoint.tls and not worker.tls:
            worker = replace(worker, key=None)  # it was meant for an encrypted connection
        listed = _get(worker, _addresses(worker)[0], "/v1/models", timeout_s)
        name = str(json.loads(listed.reply.text)["data"][0]["id"])
    except (ValueError, KeyError, TypeError, IndexError, SiteError, InputError):
        why = "and none of its servers can be asked from here"
        return replace(found, note=f"/v1/models lists the model as `{_NAMELESS}`, {why}; name it with --model")
    note = f"/v1/models lists the model as `{_NAMELESS}`; {worker.host}:{worker.port} behind it serves `{name}`"
    return replace(found, model=name, note=note)


_TWIN_OWNER, _TWIN_API = "ridgeline", USUAL_ENGINE  # who owns the models of `twin serve`, and the API that it has
_KEPT = ("model_path", "version", "nnodes", "disaggregation_mode")


def _settings(endpoint: Endpoint, address: Address, models: Exchange, timeout_s: float) -> dict[str, object]:
    """Engine, release and what it was started with, as far as the server tells; no other server is asked."""
    try:
        owner = str(json.loads(models.reply.text)["data"][0]["owned_by"])
        engine = _engine_of(owner)
    except (ValueError, KeyError, TypeError, IndexError):
        return {}
    if engine is None:
        return {}
    exchange = _get(endpoint, address, engine.info_path, timeout_s)
    try:
        said = json.loads(exchange.reply.text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return {"engine": engine.name}
    # a twin answers as one engine and may compute as another
    name = str(said.get("engine", engine.name)) if owner == _TWIN_OWNER else engine.name
    return {"engine": name, **_known_settings(engine, said)}


def _engine_of(owner: str) -> ServingEngine | None:
    """The engine whose servers say that they own their models by this name."""
    from ridgeline.serving.engines.base import engine_named

    homes = map(engine_named, catalog.names("engines"))
    return next((home for home in homes if home.owned_by == (_TWIN_API if owner == _TWIN_OWNER else owner)), None)


def _known_settings(engine: ServingEngine, said: Mapping[str, object]) -> dict[str, object]:
    """Our names for what we know; the rest may hold keys and passwords and is not kept."""
    from ridgeline.serving.engines.knobs import ROWS

    values = engine.flags.from_echo(said)
    plain = {name: said[name] for name in _KEPT if isinstance(said.get(name), str | int)}
    if values.get("attn_dp", 1) != 1:
        values.pop("dp", None)  # the same ranks under their older name
    return plain | {name: value for name, value in values.items() if name in ROWS}
