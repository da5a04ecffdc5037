"""A service of twin servers behind a stand-in router: up, looked at, restarted, killed in the middle, down."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.errors import InputError, SiteError, StoreError
from ridgeline.serving.service import probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.operate import Operator
from tests.free_ports import free_row
from tests.slurm_cluster import SlurmCluster

STANDIN = Path(__file__).with_name("router_standin.py")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    first = free_row(8)
    python = tmp_path / "router-python"
    # the router is started as `python -m module`; the stand-in takes the place of both. A start script may ask Python
    standin = shlex.join([sys.executable, str(STANDIN)])
    asked = f'case "$2" in *if_nameindex*) exec {shlex.quote(sys.executable)} "$@" ;; *find_spec*) exit 0 ;; esac'
    python.write_text(f'#!/bin/sh\n{asked}\nshift 2\nexec {standin} "$@"\n')
    python.chmod(0o755)
    path = tmp_path / "twins.yaml"
    path.write_text(
        f"""\
version: 1
model: llama-8b
engine: {{kind: twin, gpu: h200, python: {sys.executable}}}
first_port: {first}
units:
  - {{replicas: 2, settings: {{tp: 1}}}}
router: {{kind: sglang-router, port: {first + 4}, python: {python}}}
"""
    )
    yield path
    Operator(load_service(path), tmp_path / "service").down()


def operator(file: Path) -> Operator:
    return Operator(load_service(file), file.parent / "service")


def processes_of(folder: Path) -> list[int]:
    """Every process whose working folder or command line is in the service's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                cwd = str((entry / "cwd").readlink())
            except OSError:
                continue
            if str(folder) in line or cwd.startswith(str(folder)):
                found.append(int(entry.name))
    return found


def ask(url: str) -> int:
    body = json.dumps({"prompt": "one", "max_tokens": 2}).encode()
    with urllib.request.urlopen(f"{url}/v1/completions", body, timeout=60) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def test_up_serves_and_down_leaves_nothing(file: Path) -> None:
    service = operator(file)
    url = service.up(120)
    assert sum(state.tokens or 0 for state in service.status()) == 12, "one to warm each server up, and one through it"
    assert ask(url) == 2
    states = {state.name: state.state for state in operator(file).status()}
    assert states == {"server-0": "ready", "server-1": "ready", "router": "ready"}
    before = sorted(processes_of(file.parent / "service"))
    assert operator(file).up(120) == url
    assert sorted(processes_of(file.parent / "service")) == before, "what runs is left alone"

    operator(file).down()
    assert processes_of(file.parent / "service") == []
    assert {state.state for state in operator(file).status()} == {"down"}
    operator(file).down()  # again, with nothing there


def test_in_turn_each_server_waits_for_the_one_before(file: Path) -> None:
    file.write_text(f"{file.read_text()}start: in-turn\n")
    service = operator(file)
    said: list[str] = []
    service.say = said.append
    service.up(120)
    starts = [line.partition(",")[0].partition(" at ")[0] for line in said]
    assert starts[:4] == ["server-0: started", "server-0: ready", "server-1: started", "server-1: ready"]


def test_an_up_that_is_killed_is_finished_by_the_next(file: Path) -> None:
    command = [sys.executable, "-m", "ridgeline", "service", "up", str(file), "--folder", str(file.parent / "service")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("server-0: started")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    service = operator(file)
    assert ask(service.up(120)) == 2
    generations = {name: start.generation for name, start in service.folder.started.items()}
    assert generations["server-0"] == 1, "it was found and not started twice"
    servers = [pid for pid in processes_of(file.parent / "service") if b"twin\0serve" in _command(pid)]
    assert len({_port(pid) for pid in servers}) == 2


def test_a_start_that_was_submitted_and_not_written_down_is_found_by_the_next(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def dies(event: dict[str, object]) -> None:
        if event["event"] == "submitted":
            raise Killed
        record(event)

    first = operator(file)
    record = first.folder.record
    monkeypatch.setattr(first.folder, "record", dies)
    with pytest.raises(Killed):
        first.up(120)
    service = operator(file)
    assert ask(service.up(120)) == 2
    assert service.folder.started["server-0"].generation == 1, "it was found and not started twice"


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _port(pid: int) -> bytes:
    return _command(pid).partition(b"--port\0")[2].partition(b"\0")[0]


def test_a_restart_in_turn_keeps_serving(file: Path) -> None:
    from ridgeline.serving.service.rolling import restart

    service = operator(file)
    url = service.up(120)
    with service.action():
        service.say = lambda line: ask(url) and None  # a request at every step of it
        restart(service, service.servers, 120)
    assert {start.generation for name, start in service.folder.started.items() if name != "router"} == {2}
    assert service.folder.started["router"].generation == 1
    assert [ask(url) for _ in range(4)] == [2] * 4


def test_force_restarts_a_hung_server_at_once(file: Path) -> None:
    """It has a request that it will never finish, and its gauges will say so for ever."""
    from ridgeline.serving.service.rolling import restart

    service = operator(file)
    url = service.up(120)
    server = service.member("server-1")
    at, body = service.folder.url(server), json.dumps({"prompt": "one", "max_tokens": 100_000, "stream": True}).encode()
    with urllib.request.urlopen(f"{at}/v1/completions", body, timeout=60):
        deadline = time.monotonic() + 60
        while not probe.metrics(at).get("sglang:num_running_reqs"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        fault(at, "hang")
        with service.commanding():
            restart(service, [server], 120, force=True)
    assert service.folder.started["server-1"].generation == 2
    assert [ask(url) for _ in range(4)] == [2] * 4


def test_a_drained_server_is_put_back_as_it_is(file: Path) -> None:
    from ridgeline.serving.service.rolling import drain, undrain
    from ridgeline.serving.service.router_admin import RouterAdmin

    service = operator(file)
    url = service.up(120)
    with service.commanding():
        drain(service, service.member("server-1"))
        assert list(RouterAdmin(url, "").workers()) == [service.folder.url(service.member("server-0"))]
        undrain(service, service.member("server-1"))
    assert len(RouterAdmin(url, "").workers()) == 2
    assert service.folder.started["server-1"].generation == 1
    with pytest.raises(InputError, match="not behind a router"), service.commanding():
        undrain(service, service.member("router"))


def test_a_server_that_dies_is_seen_and_started_again_by_up(file: Path) -> None:
    service = operator(file)
    service.up(120)
    fault(service.folder.url(service.member("server-1")), "crash")
    deadline = time.monotonic() + 60
    # it is silent before it has ended, and `up` waits for a server that may still become ready
    while {s.name: s.state for s in operator(file).status()}["server-1"] in ("ready", "silent", "starting"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {s.name: s.state for s in operator(file).status()}["server-0"] == "ready"
    again = operator(file)
    again.up(120)
    assert again.folder.started["server-1"].generation == 2
    assert again.folder.started["server-0"].generation == 1


def test_a_server_that_does_not_start_says_why_in_its_engines_words(tmp_path: Path) -> None:
    engine = tmp_path / "python"
    pool = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    engine.write_text(f'#!/bin/sh\necho "[2026-11-15 02:47:48] {pool}" >&2\nexit 1\n')
    engine.chmod(0o755)
    path = tmp_path / "one.yaml"
    path.write_text(
        f"version: 1\nmodel: llama-8b\nengine: {{kind: sglang, python: {engine}}}\nhost: 127.0.0.1\n"
        f"first_port: {free_row(3)}\nunits: [{{settings: {{tp: 1}}}}]\n"
    )
    with pytest.raises(SiteError, match="server-0 ended before it was ready") as error:
        operator(path).up(60)
    said = str(error.value)
    assert pool in said
    assert "no room for the KV pool after the weights were loaded (stderr:1)" in said
    assert "Raise the memory fraction" in said
    operator(path).down()


def test_a_taken_port_is_said_and_nothing_is_started(file: Path) -> None:
    service = operator(file)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", service.servers[0].port))
        sock.listen()
        with pytest.raises(SiteError, match=rf"server-0: port {service.servers[0].port} cannot be used"):
            service.up(60)
    assert processes_of(file.parent / "service") == []


def test_a_server_that_cannot_start_says_why(file: Path) -> None:
    file.write_text(file.read_text().replace("{tp: 1}", "{tp: 1, mem_fraction_static: 0.01}"))
    with pytest.raises(SiteError, match=r"server-\d ended before it was ready") as error:
        operator(file).up(60)
    assert "does not fit" in str(error.value), "the last lines of its log"
    operator(file).down()
    assert processes_of(file.parent / "service") == []


def test_two_at_once_is_refused(file: Path) -> None:
    first, second = operator(file), operator(file)
    with first.commanding(), pytest.raises(StoreError, match="this service is being run by process"):
        second.down()


def test_a_member_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(InputError, match="server-0, server-1, router"):
        operator(file).member("server-7")


def fault(url: str, kind: str) -> None:
    with urllib.request.urlopen(f"{url}/fault", json.dumps({"kind": kind}).encode(), timeout=30):
        pass


@pytest.mark.slow
def test_before_a_real_slurm_ends_them_servers_are_replaced(
    file: Path, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacement begins five seconds into jobs of ten minutes, so that Slurm itself ends none, however slow this
    machine is; requests go on through all of it."""
    from ridgeline.serving.service.keep import keeper as keeping

    site = "site: {name: virtual, batch: slurm, nodes: 4, cores_per_node: 2, launcher: srun, poll_s: 0.2}\n"
    file.write_text(f"{file.read_text()}host: 127.0.0.1\nlimit: 10m\n{site}")
    service = operator(file)
    said: list[str] = []
    service.say = said.append
    try:
        url = service.up(180)
        keeper, deadline, asked = keeping.Keeper(service, ready_s=120), time.monotonic() + 400, 0
        as_always = keeping.renewal_lead_s
        monkeypatch.setattr(keeping, "renewal_lead_s", lambda limit_s, starting_s: limit_s - 5)
        while {member.name for member in service.servers} != {"server-0-b", "server-1-b"}:
            assert time.monotonic() < deadline, said
            keeper.step()
            assert ask(url) == 2
            asked += 1
            time.sleep(0.5)
        assert asked > 2
        monkeypatch.setattr(keeping, "renewal_lead_s", as_always)
        while service.folder.retiring:
            assert time.monotonic() < deadline, said
            keeper.step()
            time.sleep(0.5)
        assert {s.name for s in operator(file).status()} == {"server-0-b", "server-1-b", "router"}
    finally:
        operator(file).down()
    assert as_always(7200.0, 60.0) == 720.0, "a tenth of the limit"
    assert as_always(7200.0, 600.0) == 1800.0, "longer where starts are slow"
    assert as_always(7200.0, 3600.0) == 3600.0, "never more than half of it"
    assert slurm.run("squeue", "--noheader").stdout == ""


@pytest.mark.slow
def test_the_same_file_on_a_real_slurm(file: Path, slurm: SlurmCluster) -> None:
    """Four virtual nodes of one machine: servers and router are jobs, and their addresses come by the folder."""
    site = "site: {name: virtual, batch: slurm, nodes: 4, cores_per_node: 2, launcher: srun, poll_s: 0.2}\n"
    file.write_text(f"{file.read_text()}host: 127.0.0.1\nlimit: 30m\n{site}")
    service = operator(file)
    try:
        assert ask(service.up(180)) == 2
        assert {state.state for state in operator(file).status()} == {"ready"}
    finally:
        operator(file).down()
    assert slurm.run("squeue", "--noheader").stdout == ""
    assert processes_of(file.parent / "service") == []


def test_looking_at_a_service_on_this_machine_never_ends_it(file: Path) -> None:
    """`limit` is what a batch system is asked for; here nobody imposes one."""
    file.write_text(f"{file.read_text()}limit: 1s\n")
    service = operator(file)
    url = service.up(120)
    time.sleep(1.1)
    for _ in range(3):
        assert {state.state for state in operator(file).status()} == {"ready"}
        time.sleep(0.3)
    assert ask(url) == 2
    assert operator(file).up(120) == url
    assert {start.generation for start in operator(file).folder.started.values()} == {1}
