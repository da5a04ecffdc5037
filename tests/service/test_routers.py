"""Routers' dialects: only flags and policies that each release has, and servers that come back whole."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from ridgeline.errors import SiteError, StudyError
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.router_admin import RouterAdmin
from ridgeline.serving.service.routers import ROUTERS, discovery_argv
from ridgeline.serving.service.service import Service
from ridgeline.serving.verbs.deploy import service_summary

# the head of what each router prints with --help
USAGES = Path(__file__).parents[1] / "samples" / "routers"
RELEASES = {"sglang-router": "0.3.2", "smg": "1.13.0", "vllm-router": "0.1.16"}
SPLIT = "[{role: prefill, settings: {tp: 1}}, {role: decode, settings: {tp: 1}}]"


def usage_of(kind: str) -> str:
    return (USAGES / f"{kind}-{RELEASES[kind]}.txt").read_text()


def service(folder: Path, kind: str, units: str, more: str = "", policy: str = "round_robin") -> Service:
    path = folder / "service.yaml"
    path.write_text(
        "version: 1\nmodel: llama-8b\nengine: {kind: twin, gpu: h200}\n"
        f"units: {units}\n{more}"
        f"router: {{kind: {kind}, policy: {policy}, most_running: 64, most_waiting: 8}}\n"
    )
    return load_service(path)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("units", ["[{replicas: 2, settings: {tp: 1}}]", SPLIT])
def test_every_flag_is_one_that_the_router_has(tmp_path: Path, kind: str, units: str) -> None:
    usage = usage_of(kind)
    key = "api_key_env: SERVICE_KEY\n" if units != SPLIT or ROUTERS[kind].checks_keys else ""
    found = service(tmp_path, kind, units, key)
    role = "prefill" if found.split else "both"
    in_pods = discovery_argv(found, {role: {"app": "x"}})
    for word in (*members_of(found)[-1].argv, *in_pods):
        if word.startswith("--"):
            assert re.search(rf"{re.escape(word)}\b(?!-)", usage), f"{kind} has no {word}"


@pytest.mark.parametrize("kind", ROUTERS)
def test_policies_are_those_that_the_router_knows(kind: str) -> None:
    def known(flag: str) -> set[str]:
        found = re.search(rf"\[{flag} \{{([^}}]*)\}}", usage_of(kind))
        assert found is not None
        return set(found[1].split(","))

    dialect = ROUTERS[kind]
    assert set(dialect.policies) == known("--policy") | known("--prefill-policy")
    assert set(dialect.prefill_policies) == known("--prefill-policy") - known("--policy")


@pytest.mark.parametrize("kind", ROUTERS)
def test_metrics_and_users_reach_it_at_the_same_address_only(tmp_path: Path, kind: str) -> None:
    argv = members_of(service(tmp_path, kind, "[{replicas: 2, settings: {tp: 1}}]"))[-1].argv
    assert argv[argv.index("--prometheus-host") + 1] == argv[argv.index("--host") + 1] == "$address"
    assert argv[argv.index("--prometheus-port") + 1] == "8001"


def test_a_policy_among_prefill_servers_is_given_to_them_alone(tmp_path: Path) -> None:
    line = members_of(service(tmp_path, "smg", SPLIT, policy="bucket"))[-1].line
    assert "--prefill-policy bucket" in line
    assert " --policy" not in line
    with pytest.raises(StudyError, match="no unit has `role: prefill`"):
        service(tmp_path, "smg", "[{replicas: 2, settings: {tp: 1}}]", policy="bucket")


def test_a_policy_of_another_router_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"sglang-router has no policy 'least_load'; it knows random, round_robin"):
        service(tmp_path, "sglang-router", SPLIT, policy="least_load")


@pytest.mark.parametrize(("engine", "kind"), [("sglang", "vllm-router"), ("vllm", "smg"), ("vllm", "sglang-router")])
def test_split_servers_that_a_router_cannot_pair_are_refused(tmp_path: Path, engine: str, kind: str) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(f"version: 1\nmodel: /m\nengine: {{kind: {engine}}}\nunits: {SPLIT}\nrouter: {{kind: {kind}}}\n")
    with pytest.raises(StudyError, match=f"cannot pair the prefill and decode servers of {engine}; use one of: "):
        load_service(path)


def test_vllm_roles_are_told_how_kv_travels_and_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(f"version: 1\nmodel: /m\nengine: {{kind: vllm}}\nunits: {SPLIT}\nrouter: {{kind: vllm-router}}\n")
    prefill, decode, router = members_of(load_service(path))
    assert prefill.line.startswith('env "VLLM_NIXL_SIDE_CHANNEL_HOST=$address" VLLM_NIXL_SIDE_CHANNEL_PORT=5600 ')
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT=5601" in decode.line, "they may share a node"
    assert '--kv-transfer-config \'{"kv_connector":"NixlConnector"' in decode.line
    assert '--prefill "http://$at_prefill_0:30000" --decode' in router.line, "vLLM has no bootstrap port"


def test_a_router_that_would_let_everybody_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="neither checks nor passes on the keys of users where roles are split"):
        service(tmp_path, "vllm-router", SPLIT, "api_key_env: SERVICE_KEY\n")
    found = service(tmp_path, "vllm-router", "[{replicas: 2, settings: {tp: 1}}]", "api_key_env: SERVICE_KEY\n")
    assert "changes its servers for anyone who can reach it" in service_summary(found, members_of(found))


class _Admin(http.server.BaseHTTPRequestHandler):
    """A router's admin API, and /server_info of the prefill server that it knows."""

    rows: list[dict[str, Any]]
    told: list[dict[str, Any]]
    refusals: int  # of POST /workers, with 409, as smg does while it takes a server away

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/server_info":
            self.answer(200, {"disaggregation_bootstrap_port": 9001})
        else:
            self.answer(200, {"workers": self.rows})

    def do_DELETE(self) -> None:
        gone = unquote(self.path.removeprefix("/workers/"))
        kept = [row for row in self.rows if row.get("id", row["url"]) != gone]
        self.answer(404 if kept == self.rows or "/" in self.path.removeprefix("/workers/") else 202, {})
        type(self).rows = kept

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if type(self).refusals:
            type(self).refusals -= 1
            self.answer(409, {"error": "already exists"})
            return
        self.told.append(body)
        self.rows.append({"id": "new", **body})
        self.answer(202, {})

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def admin_of(*rows: dict[str, Any], refusals: int = 0) -> Iterator[tuple[RouterAdmin, type[_Admin], str]]:
    own = type("Own", (_Admin,), {"rows": list(rows), "told": [], "refusals": refusals})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), own) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield RouterAdmin(url, "key"), own, url
        server.shutdown()


def test_a_server_comes_back_with_its_key_and_bootstrap_port() -> None:
    with admin_of(refusals=3) as (admin, router, url):
        admin.add(url, "prefill")
        assert router.told == [{"url": url, "worker_type": "prefill", "api_key": "key", "bootstrap_port": 9001}]
        admin.add(url, "prefill")
        assert len(router.told) == 1, "it is there already"


def test_a_server_without_an_id_is_taken_away_by_its_url() -> None:
    url = "http://10.0.0.1:30000"
    with admin_of({"url": url, "worker_type": "regular"}) as (admin, router, _):
        admin.take_away(url)
        assert router.rows == []


def test_a_server_that_could_not_come_back_is_not_taken_away() -> None:
    url = "http://10.0.0.1:30000"
    with admin_of({"url": url, "worker_type": "decode"}) as (admin, router, _):
        with pytest.raises(SiteError, match=r"could not take .* back"):
            admin.take_away(url)
        assert len(router.rows) == 1
