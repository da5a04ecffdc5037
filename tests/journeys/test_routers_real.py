"""Every router for real over servers of the twin: keys, metrics, a restart in turn, and split roles."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.serving.service import probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.routers import ROUTERS, RouterAdmin
from ridgeline.serving.service.steps import restart, undrain
from tests.free_ports import free_row
from tests.journeys.vllm_engine import HOME, READY_LIMIT_S, ROUTER, missing
from tests.service.test_keys import cmdlines

KINDS = {"sglang-router": ROUTER, "smg": HOME / "smg", "vllm-router": HOME / "vllm-router"}
OPTIONAL = ("vllm-router",)  # made only when it is named


def why_not(kind: str) -> str:
    if kind in OPTIONAL and not (KINDS[kind] / ".installed").is_file():
        return f"{KINDS[kind]} is not there; make it with scripts/engines {kind}"
    return missing(KINDS[kind])


EVERY = [
    pytest.param(kind, marks=[pytest.mark.engine, pytest.mark.skipif(bool(why_not(kind)), reason=why_not(kind) or "-")])
    for kind in KINDS
]
TOGETHER = "[{replicas: 2, settings: {tp: 1}}]"
SAID = [{"role": "user", "content": "hi"}]
SPLIT = "[{role: prefill, settings: {tp: 1}}, {role: decode, settings: {tp: 1}}]"


@contextlib.contextmanager
def served(folder: Path, kind: str, units: str, key: str = "") -> Iterator[Operator]:
    first, port = free_row(8), free_row(2)
    file = folder / "service.yaml"
    file.write_text(
        f"version: 1\nmodel: llama-8b\nfirst_port: {first}\nfirst_bootstrap_port: {free_row(2)}\n"
        f"engine: {{kind: twin, gpu: h200, python: {sys.executable}}}\n"
        f"units: {units}\n{f'api_key_env: {key}' if key else ''}\n"
        f"router: {{kind: {kind}, policy: round_robin, port: {port}, python: {KINDS[kind] / 'bin' / 'python'}}}\n"
    )
    operator = Operator(load_service(file), folder / "service")
    try:
        operator.up(READY_LIMIT_S)
        yield operator
    finally:
        operator.down()


def status_of(url: str, key: str) -> int:
    return asked(url, key)


def asked(url: str, key: str = "", **fields: object) -> int:
    """The status of a request that is as it should be, but for these fields."""
    body = json.dumps({"model": "llama-8b", "prompt": "hi", "max_tokens": 2, **fields}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("kind", EVERY)
def test_keys_metrics_and_a_restart_in_turn(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = "right-key-5e1f"
    monkeypatch.setenv("SERVICE_KEY", right)
    with served(tmp_path, kind, TOGETHER, "SERVICE_KEY") as operator:
        url = operator.folder.url(operator.front)
        assert [status_of(url, key) for key in (right, "wrong", "")] == [200, 401, 401]
        assert not [line for line in cmdlines().values() if right.encode() in line], "every user reads arguments"
        assert operator.router is not None
        assert probe.metrics(f"http://127.0.0.1:{operator.router.port + 1}"), "its metrics are on loopback"
        with operator.action():
            restart(operator, operator.servers, READY_LIMIT_S)
        assert [status_of(url, right) for _ in range(4)] == [200] * 4
        counts = [
            probe.metrics(operator.folder.url(server))["sglang:num_requests_total"] for server in operator.servers
        ]
        assert min(counts) > 0, "both serve again"


@pytest.mark.parametrize("kind", EVERY)
def test_without_a_server_clients_are_told_to_come_back(tmp_path: Path, kind: str) -> None:
    """smg says 404 when it knows no server, which OpenAI's clients do not try again; others 503 without a time."""
    with served(tmp_path, kind, TOGETHER) as operator:
        url = operator.folder.url(operator.front)
        for server in operator.servers:
            with operator.action():
                operator.folder.record({"event": "drained", "member": server.name})
        keeper = Keeper(operator, ready_s=READY_LIMIT_S)
        keeper.step()
        for path, body in (("completions", {"prompt": "hi"}), ("chat/completions", {"messages": SAID})):
            with pytest.raises(urllib.error.HTTPError) as caught:
                probe.ask(f"{url}/v1/{path}", {"model": "llama-8b", "max_tokens": 2, **body}, timeout_s=60)
            assert (caught.value.code, caught.value.headers["retry-after"]) == (503, "5")
        undrain(operator, operator.servers[0])
        keeper.step()
        assert RouterAdmin(url, "").workers().keys() == {operator.folder.url(operator.servers[0])}
        assert [status_of(url, "") for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("kind", EVERY)
def test_split_roles_are_paired(tmp_path: Path, kind: str) -> None:
    with served(tmp_path, kind, SPLIT) as operator:
        url = operator.folder.url(operator.front)
        assert [status_of(url, "") for _ in range(4)] == [200] * 4
        for server in operator.servers:
            # one more: that of `up`
            assert probe.metrics(operator.folder.url(server))["sglang:num_requests_total"] >= 5
        if ROUTERS[kind].checks_keys:  # vllm-router takes no server of a split role back
            with operator.action():
                restart(operator, operator.servers, READY_LIMIT_S)
            assert [status_of(url, "") for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("units", [TOGETHER, SPLIT], ids=["replicas", "split"])
@pytest.mark.parametrize("kind", EVERY)
def test_client_errors_do_not_take_the_service_down(tmp_path: Path, kind: str, units: str) -> None:
    """sglang-router's circuit breaker counts a 400 as a failure of the server: 20 of them were a minute of 503."""
    with served(tmp_path, kind, units) as operator:
        url = operator.folder.url(operator.front)
        assert [asked(url, max_tokens=10**7) for _ in range(50)] == [400] * 50
        assert [status_of(url, "") for _ in range(10)] == [200] * 10


@pytest.mark.parametrize("kind", EVERY)
def test_unknown_models_do_not_take_the_service_down(tmp_path: Path, kind: str) -> None:
    with served(tmp_path, kind, TOGETHER) as operator:
        url = operator.folder.url(operator.front)
        assert [asked(url, model="nobody") for _ in range(50)] == [404] * 50
        assert [status_of(url, "") for _ in range(10)] == [200] * 10
