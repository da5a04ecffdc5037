"""The one home of ports: below what an engine derives from them, free with all of those, claimed while in use."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.errors import SiteError
from ridgeline.serving import ports
from ridgeline.serving.engines.base import ServingEngine, engine_named
from ridgeline.serving.engines.sglang.engine import SGLANG

ENGINES = [engine_named(name) for name in catalog.shipped("engines")]
SRC = Path(__file__).resolve().parent.parent / "src" / "ridgeline"


@pytest.fixture(autouse=True)
def unclaimed() -> None:
    ports.release()


def ephemeral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = tmp_path / "ip_local_port_range"
    file.write_text(text)
    monkeypatch.setattr(ports, "EPHEMERAL_FILE", file)


@pytest.mark.parametrize("offsets", [e.port_offsets for e in ENGINES] + [e.rendezvous_offsets for e in ENGINES])
def test_a_picked_port_and_all_that_follow_from_it_are_free_and_in_range(offsets: tuple[int, ...]) -> None:
    for _ in range(50):
        first = ports.claim(offsets, "an engine")
        for offset in offsets:
            assert 1024 < first + offset <= ports.LAST_PORT
            socket.create_server(("127.0.0.1", first + offset)).close()


def test_sglangs_grpc_port_never_passes_the_last_port() -> None:
    assert 10_000 in SGLANG.port_offsets
    assert all(ports.claim(SGLANG.port_offsets, "sglang") + 10_000 <= 65_535 for _ in range(100))


def test_picked_ports_lie_outside_those_that_outgoing_connections_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ephemeral(tmp_path, monkeypatch, "32768\t60999\n")
    assert all(ports.claim((0,), "vllm") < 32_768 for _ in range(50))
    ephemeral(tmp_path, monkeypatch, "10000\t25000\n")
    assert all(ports.claim((0,), "vllm") > 25_000 for _ in range(50))


@pytest.mark.parametrize("text", ["1024\t65535\n", "", "nonsense"])
def test_a_kernel_that_gives_out_every_port_still_leaves_one_for_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    ephemeral(tmp_path, monkeypatch, text)
    assert ports.claim(SGLANG.port_offsets, "sglang") <= 55_535


def test_a_port_whose_derived_port_is_taken_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "FIRST_PICKED", 50_001)
    monkeypatch.setattr(ports, "LAST_PICKED", 50_002)
    monkeypatch.setattr(ports, "EPHEMERAL_FILE", Path("/nowhere"))
    monkeypatch.setattr(ports, "is_free", lambda port: port != 60_001)  # the gRPC port of 50001
    assert ports.claim(SGLANG.port_offsets, "sglang") == 50_002
    with pytest.raises(SiteError, match=r"no free port for sglang .*50001 to 50002.*`ss -ltnp`"):
        ports.claim(SGLANG.port_offsets, "sglang")


def test_nobody_is_given_the_usual_port_of_another_program() -> None:
    known = ports.USUAL
    assert {30000, 8000, 8998, 20000, 29000, 29500, 29550} <= known
    for _ in range(100):
        first = ports.claim(SGLANG.port_offsets, "sglang")
        assert not known & {first + offset for offset in SGLANG.port_offsets}


def test_two_processes_never_hold_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice and the engine's own bind lie minutes of loading: the bind test alone would let both pass."""
    monkeypatch.setattr(ports, "FIRST_PICKED", 64_001)
    monkeypatch.setattr(ports, "LAST_PICKED", 64_002)
    monkeypatch.setattr(ports, "EPHEMERAL_FILE", Path("/nowhere"))
    code = (
        "import sys; from pathlib import Path; from ridgeline.serving import ports\n"
        "ports.FIRST_PICKED, ports.LAST_PICKED, ports.EPHEMERAL_FILE = 64_001, 64_002, Path('/nowhere')\n"
        "print(ports.claim((0,), 'vllm'), flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=SRC.parent
    )
    assert other.stdout is not None
    try:
        theirs = int(other.stdout.readline())
        assert {theirs, ports.claim((0,), "vllm")} == {64_001, 64_002}
    finally:
        other.communicate()
    ports.release()
    assert ports.claim((0,), "vllm") in (64_001, 64_002), "given back when its process ended"


def test_ports_in_a_row_are_neighbours() -> None:
    first = ports.claim_row(12)
    with ExitStack() as held:
        for offset in range(12):
            held.enter_context(socket.create_server(("127.0.0.1", first + offset)))


def test_a_port_is_free_unless_somebody_listens_on_any_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
        assert ports.why_not_free(port) == "Address already in use"
    assert ports.is_free(port)
    assert not ports.is_free(70_000)


def test_every_row_says_where_it_comes_from() -> None:
    rows = [row for engine in ENGINES for row in (*engine.derived_ports, *engine.rendezvous_ports)]
    assert rows and all(row.source and row.what for row in rows)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_servers_that_talk_through_ports_are_placed_apart(engine: ServingEngine) -> None:
    rows = ((engine.port_offsets, engine.port_spacing), (engine.rendezvous_offsets, engine.rendezvous_spacing))
    for offsets, spacing in rows:
        derived = set(offsets) - {10_000}
        taken = [30_000 + n * spacing + offset for n in range(16) for offset in derived]
        assert len(set(taken)) == len(taken)


def test_only_the_home_of_ports_knows_them() -> None:
    """No other module binds to try a port, nor writes a usual port as a number."""
    usual = ports.USUAL - {8000, 20000}  # also counts and lengths
    found = []
    either = usual | {str(port) for port in usual}
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text()
        if path == SRC / "serving" / "ports.py" or not re.search(r"bind|\d(_?\d){3}", text):
            continue  # in which there is nothing to find
        for node in ast.walk(ast.parse(text)):
            number = isinstance(node, ast.Constant) and type(node.value) in (int, str) and node.value in either
            if number:
                found.append(f"{path.relative_to(SRC)}:{node.lineno}: {node.value}")  # type: ignore[attr-defined]
            bind = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "bind"
            # the dashboard listens there itself; the probe runs in the engine's environment, without ours
            if bind and path.name not in ("server.py", "serve.py", "gpu_probe.py"):
                found.append(f"{path.relative_to(SRC)}:{node.lineno}: bind")
    assert found == []
