"""What goes wrong around a service: said clearly, and nothing is left running that nobody knows of."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.errors import SiteError, StoreError
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.routers import metrics_port
from tests.free_ports import free_row
from tests.slurm_cluster import SlurmCluster, plain_environment

from .test_operate import ask, operator, processes_of
from .test_operate import file as file  # a service of twins behind a stand-in router

INSIDE = "RIDGELINE_TESTS_IN_A_NAMESPACE"
SITE = "site: {name: virtual, batch: slurm, nodes: 4, cores_per_node: 2, launcher: srun, poll_s: 0.2}\n"


def deploy(action: str, file: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "ridgeline", "service", action, str(file), "--folder", str(file.parent / "service")]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
        sock.listen()
        yield


def test_a_taken_metrics_port_is_said_before_the_router_dies_of_it(file: Path) -> None:
    service = operator(file)
    assert service.service.router is not None
    port = metrics_port(service.service.router)
    with taken(port), pytest.raises(SiteError, match=rf"router: port {port} cannot be used"):
        service.up(600)
    assert service.folder.started.keys() == {"server-0", "server-1"}


def test_a_taken_bootstrap_port_is_said(tmp_path: Path) -> None:
    first = free_row(4)
    path = tmp_path / "pd.yaml"
    path.write_text(
        f"version: 1\nmodel: llama-8b\nengine: {{kind: twin, gpu: h200, python: {sys.executable}}}\n"
        f"first_port: {first}\nrouter: {{port: {first + 2}}}\n"
        "units: [{role: prefill, settings: {tp: 1}}, {role: decode, settings: {tp: 1}}]\n"
    )
    service = operator(path)
    (port,) = service.servers[0].more_ports
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # somebody else holds it: as good
            held.enter_context(taken(port))
        with pytest.raises(SiteError, match=rf"prefill-0: port {port} cannot be used"):
            service.up(60)
    assert processes_of(tmp_path / "service") == []


def test_of_two_ups_at_once_one_is_refused_and_the_other_serves(file: Path) -> None:
    first = deploy("up", file)
    assert first.stdout is not None
    assert first.stdout.readline().startswith("server-0: started")
    first.send_signal(signal.SIGSTOP)  # it holds on in the middle, however slow this machine is
    try:
        second = deploy("up", file)
        _, errors = second.communicate(timeout=600)
    finally:
        first.send_signal(signal.SIGCONT)
    assert second.returncode != 0
    assert f"is being run by process {first.pid}" in errors
    said, errors = first.communicate(timeout=600)
    assert first.returncode == 0, errors
    assert ask(said.splitlines()[-1]) == 2
    assert {start.generation for start in operator(file).folder.started.values()} == {1}


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_down_after_an_up_that_was_killed_leaves_nothing(file: Path, lines: int) -> None:
    process = deploy("up", file)
    assert process.stdout is not None
    for _ in range(lines):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    operator(file).down()
    assert processes_of(file.parent / "service") == []
    assert {state.state for state in operator(file).status()} == {"down"}


def test_what_was_planned_and_never_handed_over_is_no_obstacle(file: Path) -> None:
    service = operator(file)
    with service.action():
        service.folder.record({"event": "planned", "member": "server-0", "generation": 1})
    operator(file).down()
    with service.action():
        service.folder.record({"event": "planned", "member": "server-0", "generation": 2})
    assert ask(operator(file).up(120)) == 2


def test_a_killed_router_is_seen_and_started_again_alone(file: Path) -> None:
    service = operator(file)
    url = service.up(120)
    for pid in processes_of(file.parent / "service" / "members" / "router"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while {s.name: s.state for s in operator(file).status()}["router"] == "ready":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    again = operator(file)
    assert again.up(120) == url
    generations = {name: start.generation for name, start in again.folder.started.items()}
    assert generations == {"server-0": 1, "server-1": 1, "router": 2}
    assert ask(url) == 2


def test_what_the_file_no_longer_names_is_shown_and_ended(file: Path) -> None:
    operator(file).up(120)
    file.write_text(file.read_text().replace("replicas: 2", "replicas: 1"))
    smaller = operator(file)
    assert {state.name for state in smaller.status()} == {"server-0", "server-1", "router"}
    said: list[str] = []
    smaller.say = said.append
    smaller.up(120)
    assert "server-1: runs and is no longer in the file; `ridgeline service down` ends it too" in said
    assert any(line.startswith("router: runs already, as it was accepted before") for line in said)
    operator(file).down()
    assert processes_of(file.parent / "service") == []


def once_more_as_root_of_a_namespace(test: str, folder: Path) -> None:
    """An ordinary user may mount a disk of his own in one of these, where the kernel lets him make one."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if INSIDE in os.environ or shutil.which("unshare") is None:
        pytest.skip("a small disk is mounted by root only")
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a small disk is mounted by root only, and this kernel makes no user namespaces")
    argv = [sys.executable, "-m", "pytest", "-n", "0", "--basetemp", str(folder / "inside"), f"{__file__}::{test}"]
    root, env = Path(__file__).parents[2], {**os.environ, INSIDE: "1"}
    again = subprocess.run([*namespace, *argv], cwd=root, env=env, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout
    assert "1 passed" in again.stdout, "and was not skipped there"


def test_a_full_disk_is_said_and_what_runs_can_be_ended_when_there_is_room(file: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode:
        once_more_as_root_of_a_namespace(
            "test_a_full_disk_is_said_and_what_runs_can_be_ended_when_there_is_room", tmp_path
        )
        return
    service = Operator(load_service(file), disk / "service")
    try:
        with service.action():
            pass
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as out:
            while True:
                out.write(bytes(512))
        with pytest.raises((StoreError, SiteError), match=r"disk|space") as error:
            service.up(60)
        assert str(disk) in str(error.value)
        filler.unlink()
        Operator(load_service(file), disk / "service").down()
        assert processes_of(disk) == []
    finally:
        subprocess.run(["umount", disk], check=True)


# on a batch system


@pytest.fixture
def on_slurm(file: Path, slurm: SlurmCluster) -> Iterator[Path]:
    file.write_text(f"{file.read_text()}host: 127.0.0.1\nlimit: 30m\n{SITE}")
    yield file
    operator(file).down()
    assert jobs() == ""
    assert processes_of(file.parent / "service") == []


def jobs() -> str:
    asked = ["squeue", "--noheader"]
    return subprocess.run(asked, env=plain_environment(), capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_drained_nodes_are_the_reason_that_is_given(on_slurm: Path, slurm: SlurmCluster) -> None:
    slurm.run("scontrol", "update", "nodename=n[1-4]", "state=drain", "reason=test")
    said: list[str] = []
    service = operator(on_slurm)
    service.say = said.append
    try:
        with pytest.raises(SiteError, match=r"server-0, server-1 not ready after 15 s \(.+\); look at") as error:
            service.up(15)
        assert "`ridgeline service down`" in str(error.value)
        assert any("server-0: waits in the queue" in line for line in said)
        operator(on_slurm).down()
        assert jobs() == ""
    finally:
        slurm.run("scontrol", "update", "nodename=n[1-4]", "state=resume")
        slurm.await_idle()


@pytest.mark.slow
def test_a_job_that_others_cancel_is_restarted_by_keep(on_slurm: Path) -> None:
    service = operator(on_slurm)
    service.up(180)
    job_id = service.folder.started["server-1"].ticket.split()[0]
    subprocess.run(["scancel", job_id], env=plain_environment(), check=True)
    said: list[str] = []
    service.say = said.append
    keeper = Keeper(service, ready_s=120)
    deadline = time.monotonic() + 120
    while "server-1: serves again" not in said:
        assert time.monotonic() < deadline, said
        keeper.step()
        time.sleep(0.3)
    assert said[0].startswith("server-1: dead (")
    assert service.folder.started["server-1"].generation == 2


@pytest.mark.slow
def test_a_server_that_lost_a_rank_ends_at_once_and_says_which(tmp_path: Path, slurm: SlurmCluster) -> None:
    engine = tmp_path / "python"
    engine.write_text(
        '#!/bin/sh\n[ "$SLURM_PROCID" = 0 ] && exec sleep 600\n'
        'echo "rank $SLURM_PROCID: no GPU here" >&2\nsleep 3\nexit 1\n'
    )
    engine.chmod(0o755)
    path = tmp_path / "wide.yaml"
    path.write_text(
        f"version: 1\nmodel: llama-8b\nengine: {{kind: sglang, python: {engine}}}\nhost: 127.0.0.1\n"
        f"first_port: {free_row(3)}\nunits: [{{nodes: 2, settings: {{tp: 2}}}}]\nlimit: 30m\n{SITE}"
    )
    service = operator(path)
    began_s = time.monotonic()
    with pytest.raises(SiteError, match="server-0 ended before it was ready") as error:
        service.up(600)
    assert time.monotonic() - began_s < 500
    # srun drops what a task writes in the moment of its end; an engine takes longer than that to end
    assert "rank 1: no GPU here" in str(error.value)
    assert "task 1" in str(error.value)
    operator(path).down()
    assert jobs() == ""
    assert processes_of(tmp_path / "service") == []
