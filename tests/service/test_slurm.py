"""A service on a cluster: what is asked for, who finds whom, and where users find it after it has moved."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.folder import ServiceFolder
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.render import render
from ridgeline.serving.service.rolling import restart
from ridgeline.serving.service.scripts import start_script
from tests.command_line import ridgeline
from tests.slurm_cluster import SlurmCluster, plain_environment

from .test_operate import ask, operator, processes_of
from .test_operate import file as file  # a service of twins behind a stand-in router

# the whole partition: two nodes of eight GPUs
GPU_SITE = (
    "site: {name: virtual, batch: slurm, queue: gpu, nodes: 2, cores_per_node: 112, memory_per_node: 1880 GiB, "
    "gpus_per_node: 8, launcher: srun, poll_s: 0.2, interface: lo}\n"
)
TWO_NODES = """\
version: 1
model: org/m
engine: {kind: sglang, python: ./python}
units:
  - {nodes: 2, gpus: 8, cores: 6, settings: {tp: 16}}
"""


def program(folder: Path, text: str) -> None:
    """In the place of an engine's interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def written(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text)
    return path


def until(true: object, limit_s: float = 60) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if true():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_router_starts_on_two_nodes_that_the_servers_fill(file: Path, slurm: SlurmCluster) -> None:
    text = file.read_text().replace("settings: {tp: 1}", "gpus: 8, settings: {tp: 8}")
    file.write_text(f"{text}limit: 30m\n{GPU_SITE}")
    service = operator(file)
    url_file = file.parent / "service" / "url"
    try:
        url = service.up(180)
        assert url.startswith("http://127.0.0.1:"), "the address of the interface that the site names"
        assert ask(url) == 2
        assert url_file.read_text() == f"{url}\n"
        jobs = slurm.run("squeue", "-h", "-o", "%j %N %C").stdout.split("\n")
        placed = {line.split()[0].rpartition("-")[0].partition("-")[2]: line.split()[1:] for line in jobs if line}
        assert {placed["server-0"][0], placed["server-1"][0]} == {"g1", "g2"}
        assert placed["router"][0] == placed["server-0"][0], "the place that it left"
        assert (placed["server-0"][1], placed["router"][1]) == ("108", "4")

        url_file.write_text("http://10.9.9.9:1\n")
        again = operator(file)
        with again.action():
            restart(again, [again.member("router")], 120)
        assert url_file.read_text() == f"{url}\n", "whoever listens says so itself"
        said = ridgeline("service", "status", file, "--folder", url_file.parent).stdout
        assert f"users: {url} (always in {url_file})" in said
    finally:
        operator(file).down()
    assert not url_file.exists(), "nobody is sent where nobody listens"
    assert slurm.run("squeue", "-h").stdout == ""
    assert processes_of(file.parent / "service") == []


@pytest.mark.slow
def test_each_rank_has_the_cores_that_were_asked_for(tmp_path: Path, slurm: SlurmCluster) -> None:
    """From 22.05 on srun does not take them from the job around it."""
    program(tmp_path, 'echo "$SLURM_PROCID $SLURM_CPUS_PER_TASK $SLURM_CPU_BIND_TYPE" > "$OUT/cores-$SLURM_PROCID"')
    path = written(tmp_path, f"{TWO_NODES}limit: 10m\n{GPU_SITE}")
    service = load_service(path)
    files = list(render(service, tmp_path / "out"))
    environment = {**plain_environment(), "OUT": str(tmp_path)}  # a person runs it, in a shell of their own
    for time_of in ("first", "second"):
        for old in tmp_path.glob("cores-*"):
            old.unlink()
        subprocess.run(["sh", files[-1]], check=True, env=environment, capture_output=True)
        found = [tmp_path / "cores-0", tmp_path / "cores-1"]
        assert until(lambda: all(each.exists() for each in found)), time_of  # noqa: B023  used at once
        assert [each.read_text().split()[:2] for each in found] == [["0", "6"], ["1", "6"]]
        assert until(lambda: slurm.run("squeue", "-h").stdout == "")


def test_a_node_that_is_quicker_than_the_first_does_not_take_the_last_starts_address(tmp_path: Path) -> None:
    program(tmp_path, 'printf "%s " "$@"')
    text = TWO_NODES + GPU_SITE.replace("lo}", "''}")
    service = load_service(written(tmp_path, text))
    (server,) = members_of(service)
    folder = tmp_path / "members" / "server-0"
    folder.mkdir(parents=True)
    for name, host in (("before.sh", "10.9.9.9"), ("start.sh", "10.0.0.1")):
        other = load_service(written(tmp_path, f"{text}host: {host}\n"))
        (folder / name).write_text(start_script(other, server))

    def start(script: str, rank: int, job: int) -> subprocess.Popen[str]:
        env = {"PATH": os.environ["PATH"], "SLURM_PROCID": str(rank), "SLURM_JOB_ID": str(job)}
        return subprocess.Popen(["sh", folder / script], env=env, stdout=subprocess.PIPE, text=True)

    assert start("before.sh", 0, 7).wait(60) == 0
    assert (folder / "address").read_text() == "10.9.9.9\n"
    quick = start("start.sh", 1, 8)
    with pytest.raises(subprocess.TimeoutExpired):
        quick.wait(2)
    first = start("start.sh", 0, 8)
    for process, rank in ((first, 0), (quick, 1)):
        said, _ = process.communicate(timeout=600)
        assert f"--node-rank {rank} --dist-init-addr 10.0.0.1:" in said
    assert sorted(each.name for each in folder.glob("address*")) == ["address", "address.8"]


def test_a_second_start_of_all_scripts_forgets_the_addresses_of_the_first(tmp_path: Path) -> None:
    program(tmp_path, 'echo started >> "$OUT"')
    text = "version: 1\nmodel: org/m\nengine: {kind: sglang, python: ./python}\nunits: [{replicas: 2}]\n"
    service = load_service(written(tmp_path, f"{text}router: {{python: ./python}}\n"))
    *_, everything = render(service, tmp_path / "out", "local")
    members = tmp_path / "out" / "members"
    stale = [members / "server-0" / "address", members / "server-1" / "address"]
    for path in stale:
        path.write_text("10.9.9.9\n")
    for name in ("server-0", "server-1"):  # one that takes its time
        (members / name / "start.sh").write_text("exit 0\n")
    subprocess.run(["sh", everything], check=True, env={**os.environ, "OUT": str(tmp_path / "said")}, timeout=600)
    try:
        assert [path for path in stale if path.exists()] == []
        assert until(lambda: (members / "router" / "address").exists())
        assert not (tmp_path / "said").exists(), "the router waits for servers that are there"
    finally:
        for pid in processes_of(tmp_path / "out"):
            os.kill(pid, 15)


def test_an_interface_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    text = f"{TWO_NODES}{GPU_SITE.replace('lo}', 'ib7}')}".replace("./python", sys.executable)
    service = load_service(written(tmp_path, text))
    (tmp_path / "start.sh").write_text(start_script(service, members_of(service)[0]))
    done = subprocess.run(["sh", tmp_path / "start.sh"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 78
    assert "there is no interface ib7; the interface of the site must be one of: lo" in done.stderr
    assert not (tmp_path / "address").exists()


@pytest.mark.parametrize(("kind", "variable"), [("sglang", "SGLANG_HOST_IP"), ("vllm", "VLLM_HOST_IP")])
def test_engines_on_several_nodes_meet_on_the_sites_interface(tmp_path: Path, kind: str, variable: str) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$2" in *if_nameindex*) exec {shlex.quote(sys.executable)} "$@" ;; esac\nenv\necho "$@"\n'
    )
    python.chmod(0o755)
    service = load_service(written(tmp_path, f"{TWO_NODES}{GPU_SITE}".replace("sglang", kind)))
    (tmp_path / "start.sh").write_text(start_script(service, members_of(service)[0]))
    for own in ({}, {"NCCL_SOCKET_IFNAME": "ib9"}):
        env = {"PATH": os.environ["PATH"], **own}
        done = subprocess.run(["sh", tmp_path / "start.sh"], capture_output=True, text=True, env=env, check=True)
        assert "--host 127.0.0.1" in done.stdout
        said = done.stdout.splitlines()
        assert f"{variable}=127.0.0.1" in said
        assert "GLOO_SOCKET_IFNAME=lo" in said
        assert f"NCCL_SOCKET_IFNAME={own.get('NCCL_SOCKET_IFNAME', 'lo')}" in said, "what is set stays"


@pytest.mark.parametrize(
    ("runtime", "begins"),
    [("apptainer", "exec $(command -v apptainer || echo singularity) exec --nv --bind "), ("pyxis", "exec srun ")],
)
def test_members_of_one_node_run_in_the_sites_container(tmp_path: Path, runtime: str, begins: str) -> None:
    """With the folders of all members, where their addresses are."""
    path = tmp_path / "service.yaml"
    path.write_text(
        "version: 1\nmodel: /models/m\nengine: {kind: sglang}\nunits: [{gpus: 4, replicas: 2, settings: {tp: 4}}]\n"
        f"router: {{}}\nsite: {{name: c, batch: slurm, nodes: 2, container: /images/sglang.sif, launcher: srun, "
        f"container_runtime: {runtime}}}\n"
    )
    service = load_service(path)
    root = tmp_path / "my service"
    for member in members_of(service):
        command = ServiceFolder(root, service).job(member, 1).command
        expected = begins if member.resources.gpus else begins.replace(" --nv", "")
        assert command.startswith(expected)
        assert "/images/sglang.sif" in command
        assert str(root) in command.partition("/images/sglang.sif")[0] or runtime == "pyxis"
        assert command.endswith(f"sh '{root}/members/{member.name}/start.sh'")
