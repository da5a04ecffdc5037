"""What goes wrong with deployment files, keys and releases is said where it can be fixed, before anything runs."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.errors import SiteError, StudyError
from ridgeline.serving.service import probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.router_admin import RouterAdmin
from ridgeline.serving.service.scripts import start_script
from tests.command_line import ridgeline

GOOD = """\
version: 1
model: /models/r1
engine: {kind: sglang, release: 0.5.15, python: python3}
units:
  - {replicas: 2, nodes: 2, gpus: 8, settings: {tp: 16}}
router: {kind: sglang-router, port: 8000}
site: {name: cluster, batch: slurm, nodes: 4, gpus_per_node: 8, launcher: srun}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("port: 8000}", "port: 30001}", "service.yaml:6: router.port: the router would take port 30001"),
        ("units:\n", "first_port: 55535\nunits:\n", "start at 55534 or below"),
        ("port: 8000}", "port: 29999}", "the router's metrics would take port 30000, which is a server's"),
        (
            "nodes: 2, gpus",
            "nodes: 5, gpus",
            "service.yaml:5: units[0].nodes: a server of 5 nodes does not fit cluster",
        ),
        ("gpus: 8, settings", "gpus: 16, settings", "16 GPUs of a node are more than the 8 that nodes of cluster have"),
        ("settings: {tp: 16}", "settings: {tp: [8, 16]}", "service.yaml:5: units[0].settings.tp"),
        ("units:\n", "units:\nunits:\n", "service.yaml:5"),
        ("  - {replicas", "\t- {replicas", "service.yaml:5"),
        ("replicas: 2", "replicas: two", "service.yaml:5: units[0].replicas"),
        (
            "kind: sglang, release: 0.5.15",
            "kind: vllm, release: 0.11.0",
            "vllm before 0.12 spreads over nodes with Ray",
        ),
    ],
)
def test_an_edit_by_hand_that_went_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in GOOD
    load_service(written(tmp_path, GOOD))
    with pytest.raises(StudyError) as error:
        load_service(written(tmp_path, GOOD.replace(old, new, 1)))
    assert what in str(error.value)


@pytest.mark.parametrize(("installed", "code"), [("0.5.15", 0), ("0.5.15.post1", 0), ("0.5.150", 78), ("0.4.8", 78)])
def test_a_server_of_another_release_than_planned_does_not_start(tmp_path: Path, installed: str, code: int) -> None:
    about = tmp_path / "site" / f"sglang-{installed}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {installed}\n")
    module = tmp_path / "site" / "sglang"
    module.mkdir()
    (module / "__init__.py").touch()
    (module / "launch_server.py").write_text("print('started')\n")
    text = (
        GOOD.replace("python: python3", f"python: {sys.executable}")
        .replace("nodes: 2, ", "")
        .replace("16", "8")
        .partition("site:")[0]
    )
    text = text.replace("/models/r1", str(tmp_path))
    service = load_service(written(tmp_path, text))
    (tmp_path / "start.sh").write_text(start_script(service, members_of(service)[0]))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site")}
    run = subprocess.run(
        ["sh", tmp_path / "start.sh"], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == code, run.stderr
    assert ("started" in run.stdout) is (code == 0)
    if code:
        assert f"sglang {installed} is installed, and the deployment file is for 0.5.15" in run.stderr
        assert "plan again, or install 0.5.15" in run.stderr


def test_a_file_without_a_release_takes_what_is_there(tmp_path: Path) -> None:
    service = load_service(written(tmp_path, GOOD.replace("release: 0.5.15, ", "")))
    assert "is installed" not in start_script(service, members_of(service)[0])


@pytest.fixture
def locked() -> Iterator[str]:
    class Locked(http.server.BaseHTTPRequestHandler):
        def refuse(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST = refuse

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Locked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_wrong_key_is_said_at_once_and_not_waited_for(locked: str) -> None:
    with pytest.raises(SiteError, match=r"refuses our API key \(401\).*api_key_env"):
        probe.first_answer(locked, "model", "wrong")
    with pytest.raises(SiteError, match=r"refuses our API key \(401\)"):
        RouterAdmin(locked, "wrong").workers()


def test_a_server_of_several_nodes_is_refused_on_this_machine_and_rendered_for_a_cluster(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.partition("site:")[0])
    for action in ("check", "up"):
        run = deploy(action, path)
        assert run.returncode == 2
        assert "a server of 2 nodes, and site local is this machine alone" in run.stderr
        assert "service render FILE --for slurm" in run.stderr
    assert not (tmp_path / "service.service").exists()
    assert deploy("render", path, "--for", "slurm", "--out", tmp_path / "scripts").returncode == 0
    assert (tmp_path / "scripts" / "members" / "server-0" / "job.sh").exists()


def deploy(*argv: object) -> subprocess.CompletedProcess[str]:
    return ridgeline("service", *argv)


def test_vllm_over_several_nodes_has_an_api_on_its_first_one_only(tmp_path: Path) -> None:
    text = GOOD.replace("kind: sglang, release: 0.5.15, python: python3", f"kind: vllm, python: {tmp_path}/python")
    text = text.replace("model: /models/r1", "model: r1")
    service = load_service(written(tmp_path, text))
    server = members_of(service)[1]
    assert "vllm.entrypoints.cli.main serve r1 --tensor-parallel-size 16" in server.line
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "start.sh").write_text(start_script(service, server))
    (tmp_path / "address").write_text("10.0.0.1\n")
    for rank, headless in ((1, True), (0, False)):
        env = {"PATH": os.environ["PATH"], "SLURM_PROCID": str(rank)}
        run = subprocess.run(["sh", tmp_path / "start.sh"], capture_output=True, text=True, env=env, check=True)
        assert f"--nnodes 2 --node-rank {rank} --master-addr" in run.stdout
        assert "--master-port 20001" in run.stdout
        assert ("--headless" in run.stdout) is headless
