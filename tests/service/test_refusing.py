"""A router that lets nobody through to servers that are well, and a server that makes no token: said by both verbs."""

from __future__ import annotations

import json
import time
import urllib.error
from pathlib import Path

import pytest

from ridgeline.serving.service import probe
from ridgeline.serving.service.keep import canary
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.routers import RouterAdmin
from ridgeline.serving.service.steps import undrain
from ridgeline.serving.verbs.deploy import _status_text

from .test_keep import until
from .test_operate import ask, fault, operator
from .test_operate import file as file  # a service of twins behind a stand-in router


def test_status_names_a_router_that_refuses_and_a_server_that_makes_no_token(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline.serving.service.operate.TOKEN_S", 2.0)
    service = operator(file)
    url = service.up(120)
    probe.ask(f"{url}/refuse", {})
    found = {state.name: (state.state, state.detail) for state in operator(file).status()}
    assert found["server-0"] == found["server-1"] == ("ready", "")
    assert found["router"][0] == "refuses"
    assert found["router"][1].startswith("503:")
    assert "503:" in _status_text(operator(file).status())
    probe.ask(f"{url}/accept", {})
    assert {state.state for state in operator(file).status()} == {"ready"}

    fault(service.folder.url(service.member("server-1")), "hang")
    found = {state.name: (state.state, state.detail) for state in operator(file).status()}
    assert found["server-0"][0] == "ready"
    assert found["server-1"] == ("stalled", "no token within 2 s: busy with long prompts, or hung")


def test_keep_reports_a_router_that_refuses_and_starts_it_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "FRONT_EVERY_S", 0.5)
    service = operator(file)
    url = service.up(120)
    probe.ask(f"{url}/refuse", {})
    said, told = list[str](), list[tuple[str, str]]()
    service.say = said.append
    keeper = Keeper(service, ready_s=120, alert=lambda kind, member, text: told.append((kind, member)))
    until(keeper, lambda: "router: serves again" in said)
    assert said[0].startswith("router: refuses (503:")
    assert "though server-0, server-1 make tokens" in said[0]
    assert told == [("refuses", "router"), ("serves-again", "router")]
    assert ask(url) == 2
    assert {name: s.generation for name, s in service.folder.started.items()} == {
        "server-0": 1, "server-1": 1, "router": 2,
    }  # fmt: skip


def test_a_router_without_servers_is_given_them_back_before_it_is_blamed(file: Path) -> None:
    service = operator(file)
    url = service.up(120)
    admin = RouterAdmin(url, "")
    for server in service.servers:
        admin.take_away(service.folder.url(server))
    keeper = Keeper(service, ready_s=120)
    until(keeper, lambda: {service.folder.url(server) for server in service.servers} == admin.workers().keys())
    assert ask(url) == 2


def test_a_busy_service_is_not_asked_through_its_router() -> None:
    """What users send shows whether it serves, and one more request may be the one that is too many."""
    now_s, asked = [0.0], list[float]()

    def refuse(url: str, model: str, key: str, limit_s: float) -> str:
        asked.append(now_s[0])
        return "503: no"

    door = canary.RouterCanary("http://x", "m", "", lambda: now_s[0], refuse)
    for n in range(12):
        now_s[0] = 5.0 * n
        door.poll(servers_idle=n not in (5, 6))
        deadline = time.monotonic() + 30
        while door._under_way:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert door.refuses == (n in (2, 3, 4, 9, 10, 11)), n
    assert asked == [0.0, 10.0, 20.0, 35.0, 45.0, 55.0]


def refused(url: str) -> tuple[int, str | None, str]:
    """Status, Retry-After and the error's code of a request; 200 where it is served."""
    try:
        ask(url)
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("retry-after"), json.load(error)["error"]["code"]
    return 200, None, ""


def test_without_a_server_clients_are_told_to_come_back(file: Path) -> None:
    """404, which a router without servers answers, is final to them."""
    service = operator(file)
    url = service.up(120)
    admin = RouterAdmin(url, "")
    keeper = Keeper(service, ready_s=120)
    keeper.step()
    servers = {service.folder.url(server) for server in service.servers}
    assert admin.workers().keys() == servers, "nobody stands in while a server is there"
    for server in service.servers:
        with service.action():
            service.folder.record({"event": "drained", "member": server.name})
    keeper.step()
    assert len(admin.workers()) == 1 and not admin.workers().keys() & servers
    assert [refused(url) for _ in range(3)] == [(503, "5", "no_server")] * 3
    keeper.step()
    assert len(admin.workers()) == 1, "one is enough"
    undrain(service, service.member("server-1"))
    Keeper(service, ready_s=120).step()  # another keeper: that of the first one is known as what it is
    assert admin.workers().keys() == {service.folder.url(service.member("server-1"))}
    assert [refused(url) for _ in range(3)] == [(200, None, "")] * 3
