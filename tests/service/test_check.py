"""`service check` refuses what cannot work, with file and line, what and what next; and says what is asked for."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from ridgeline.errors import InputError, StudyError
from ridgeline.serving.service.check import check_service, requests_of
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.steps import drain, refuse_last
from tests.command_line import ridgeline

from .test_operate import file as file  # a service of twins behind a stand-in router
from .test_operate import operator

HEADS_32 = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a model, and an interpreter that has an engine and a router: a package of each name suffices."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(HEADS_32))
    for package in ("sglang", "sglang_router"):
        (tmp_path / "site" / package).mkdir(parents=True)
        (tmp_path / "site" / package / "__init__.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    broken = tmp_path / "broken"  # as a virtual environment whose Python was removed
    broken.write_text("#!/bin/sh\necho \"No module named 'encodings'\" >&2\nexit 1\n")
    broken.chmod(0o755)
    gpus = tmp_path / "bin" / "nvidia-smi"
    gpus.parent.mkdir()
    gpus.write_text("#!/bin/sh\nfor n in 0 1 2 3; do echo 'NVIDIA H200, 143771, 0, 570.1'; done\n")
    gpus.chmod(0o755)
    return tmp_path


TEXT = """\
version: 1
model: small
engine: {kind: sglang, python: ./python}
units:
  - {replicas: 2, gpus: 2, settings: {tp: 2}}
router: {kind: sglang-router, port: 8000, python: ./python}
"""
CLUSTER = "site: {name: cluster, batch: slurm, queue: gpu, nodes: 2, gpus_per_node: 8, launcher: srun}\n"
SIZES = CLUSTER.replace("gpus_per_node", "cores_per_node: 112, memory_per_node: 1880 GiB, gpus_per_node")


def written(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def four_gpus(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    return here


def test_ranks_of_a_model_that_is_not_known_here_still_fill_their_gpus(here: Path) -> None:
    text = TEXT.replace("small", "org/unknown").replace("gpus: 2, settings: {tp: 2}", "gpus: 8, settings: {tp: 3}")
    for gpus in (8, 2):
        with pytest.raises(StudyError, match=rf":5: units\[0\].settings.tp: tp 3 is 3 GPUs, and 1 x {gpus} are given"):
            load_service(written(here, text.replace("gpus: 8", f"gpus: {gpus}")))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("settings: {tp: 2}", "settings: {tp: 3}", ":5: units[0].settings.tp: tp 3 x pp 1 x dp 1 is 3 GPUs, 1 x 2 are"),
        (
            "gpus: 2, settings: {tp: 2}",
            "gpus: 3, settings: {tp: 3}",
            ":5: units[0].settings.tp: 3 ranks cannot share 32 attention heads",
        ),
        ("model: small\nengine: {kind: sglang", "model: org/unknown\nengine: {kind: vllm", ":3: engine.python: "),
        ("model: small", "model: ./larger", ":2: model: "),
        ("model: small", "model: /no/such/model", ":2: model: /no/such/model is not on this machine; correct the path"),
        ("sglang, python: ./python", "sglang, python: ./pythom", ":3: engine.python: "),
        ("sglang, python: ./python", "sglang, python: pythom9", ":3: engine.python: pythom9 is not on the PATH; name"),
        (
            "sglang, python: ./python",
            f"sglang, python: {sys.executable}",
            f":3: engine.python: {sys.executable} has no sglang; name the interpreter",
        ),
        (
            "sglang, python: ./python",
            "sglang, python: ./broken",
            "broken could not be asked for sglang (No module named 'encodings'); correct it: `engine: {python: ...}`",
        ),
        ("8000, python: ./python", f"8000, python: {sys.executable}", ":6: router.python: "),
        (
            "replicas: 2, gpus: 2",
            "replicas: 64, gpus: 2",
            ":5: units[0].gpus: 128 GPUs are asked for in all, and this machine has 4; ask for fewer",
        ),
    ],
)
def test_what_cannot_work_here_is_refused_with_its_line(four_gpus: Path, old: str, new: str, what: str) -> None:
    service, _ = check_service(written(four_gpus, TEXT))
    assert service.model == str(four_gpus / "small"), "also a plain name is meant from where the file lies"
    assert old in TEXT
    with pytest.raises(StudyError) as error:
        check_service(written(four_gpus, TEXT.replace(old, new)))
    assert (f"service.yaml{what}" if what.startswith(":") else what) in str(error.value)


def test_gpus_of_a_host_without_any_are_refused_and_other_machines_may_have_them(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    path = written(here, TEXT)
    with pytest.raises(StudyError, match=r"units\[0\].gpus: 4 GPUs are asked for .* this machine has 0 \(nvidia-smi"):
        check_service(path)
    check_service(path, "slurm")
    with pytest.raises(InputError, match="an image that has sglang-router"):
        check_service(path, "kubernetes")
    check_service(written(here, f"{TEXT}kubernetes: {{router_image: 'r:1'}}\n"), "kubernetes")
    with pytest.raises(InputError, match="local, slurm, pbs, kubernetes"):
        check_service(path, "mesos")


def test_an_interpreter_that_a_module_brings_is_not_looked_for(four_gpus: Path) -> None:
    text = TEXT.replace("python: ./python", "python: pythom9")
    with pytest.raises(StudyError, match="pythom9 is not on the PATH"):
        check_service(written(four_gpus, text))
    check_service(written(four_gpus, f"{text}site: {{name: here, batch: local, modules: [sglang]}}\n"))


def test_the_verb_says_it_and_ends_with_2(here: Path) -> None:
    path = written(here, TEXT.replace("tp: 2", "tp: 3"))
    for action in ("check", "up", "render"):
        done = ridgeline("service", action, path)
        assert done.returncode == 2
        assert f"{path}:5: units[0].settings.tp" in done.stderr


def test_a_home_and_a_name_are_told_apart(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    service = load_service(written(here, TEXT.replace("small", "~/small").replace("./python", "~/python")))
    assert service.model == str(here / "small")
    assert service.python == str(here / "python")
    service, notes = check_service(written(here, TEXT.replace("small", "org/name").replace("gpus: 2, ", "")))
    assert service.model == "org/name"
    assert "org/name is no folder beside the file" in notes[0]


def test_what_slurm_is_asked_for_is_said(here: Path) -> None:
    text = TEXT.replace("gpus: 2, settings: {tp: 2}", "gpus: 4, settings: {tp: 4}")
    service, notes = check_service(written(here, text + SIZES))
    asked = requests_of(service, members_of(service))
    assert "--cpus-per-task=56 --gres=gpu:4 --mem=962560M" in asked["server-1"], "half of the GPUs, half of the node"
    assert "--cpus-per-task=52 --gres=gpu:4 --mem=954368M" in asked["server-0"], "both halves and the router: one node"
    assert "--cpus-per-task=4 --mem=8192M" in asked["router"]
    assert "--exclusive" not in "".join(asked.values())
    assert notes == []
    service, _ = check_service(written(here, text.replace("gpus: 4,", "gpus: 4, cores: 7, memory: 9 GiB,") + SIZES))
    assert "--cpus-per-task=7 --gres=gpu:4 --mem=9216M" in requests_of(service, members_of(service))["server-1"]


def test_cores_and_memory_that_would_be_slurms_default_are_said(here: Path) -> None:
    text = TEXT.replace("gpus: 2, settings: {tp: 2}", "gpus: 4, settings: {tp: 4}")
    path = written(here, text + CLUSTER)
    _, notes = check_service(path)
    assert "the site does not say cores_per_node or memory_per_node" in notes[0]
    said = ridgeline("service", "check", path).stdout
    assert "note: the site does not say cores_per_node" in said
    assert "asks slurm for --no-requeue --time=" in said


def test_servers_that_fill_their_nodes_leave_the_router_its_place(here: Path) -> None:
    text = TEXT.replace("gpus: 2, settings: {tp: 2}", "gpus: 8, settings: {tp: 8}")
    service, notes = check_service(written(here, text + SIZES))
    asked = requests_of(service, members_of(service))
    assert "--cpus-per-task=108 --gres=gpu:8 --mem=1916928M" in asked["server-0"]
    assert "--exclusive" not in asked["server-0"]
    assert "--mem=0 --exclusive" in asked["server-1"], "one place suffices"
    assert notes == []
    _, notes = check_service(written(here, text + CLUSTER))
    assert "the router needs a node beside the 2 of the servers: the servers take whole nodes" in notes[-1]
    _, notes = check_service(written(here, text + SIZES.replace("launcher", "options: {exclusive: true}, launcher")))
    assert "gives out whole nodes" in notes[-1]


def test_the_last_server_of_a_role_is_not_drained(file: Path) -> None:
    service = operator(file)
    service.up(120)
    words = ("service", "drain", file, "--folder", file.parent / "service")
    done = ridgeline(*words, "server-0")
    assert done.returncode == 0, done.stderr
    done = ridgeline(*words, "server-1")
    assert done.returncode == 2
    assert "server-1 is the last server in the router" in done.stderr
    assert "restart FILE NAME" in done.stderr
    again = operator(file)
    with again.action(), pytest.raises(InputError, match="last server"):
        refuse_last(again, again.member("server-1"))
    with again.action():
        refuse_last(again, again.member("server-0"))  # it is out already
        drain(again, again.member("server-0"))


@pytest.mark.parametrize(
    ("engine", "settings", "flags"),
    [
        (
            "sglang",
            {"tp": 2, "enable_hierarchical_cache": True, "hicache_size": 300, "hicache_write_policy": "write_back"},
            "--enable-hierarchical-cache --hicache-size 300 --hicache-write-policy write_back",
        ),
        (
            "vllm",
            {"tp": 2, "kv_offloading_size": 600, "kv_offloading_backend": "lmcache"},
            "--kv-offloading-size 600 --kv-offloading-backend lmcache",
        ),
        (
            "vllm",
            {"tp": 2, "kv_transfer_config": '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'},
            """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'""",
        ),
    ],
)
def test_host_tiers_are_on_the_printed_command_lines(
    here: Path, engine: str, settings: dict[str, object], flags: str
) -> None:
    text = TEXT.replace("sglang, python", f"{engine}, python").replace("{tp: 2}", json.dumps(settings))
    members = members_of(load_service(written(here, text)))
    lines = [shlex.join(member.argv) for member in members if not member.is_router]
    assert len(lines) == 2
    assert all(flags in line for line in lines)
