"""Deployment files: what is wrong is said with its line, and what is right becomes command lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ridgeline.errors import InputError, StudyError
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.render import render
from ridgeline.serving.service.scripts import start_script

SPLIT = """\
version: 1
model: /models/deepseek-r1
engine: {kind: sglang, release: 0.5.15, python: /opt/sglang/bin/python}
units:
  - {role: prefill, replicas: 2, nodes: 1, gpus: 8, settings: {tp: 8}}
  - {role: decode, nodes: 2, gpus: 8, settings: {tp: 16, attn_dp: 16, max_running_requests: 512}}
router: {kind: sglang-router, policy: cache_aware, most_running: 600, most_waiting: 50}
site: {name: cluster, batch: slurm, nodes: 4, gpus_per_node: 8, launcher: srun}
api_key_env: SERVICE_KEY
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text)
    return path


def test_split_roles_become_servers_and_a_router_that_pairs_them(tmp_path: Path) -> None:
    service = load_service(written(tmp_path, SPLIT))
    prefill, second, decode, router = members_of(service)
    assert [m.name for m in (prefill, second, decode, router)] == ["prefill-0", "prefill-1", "decode-0", "router"]
    assert prefill.argv[0] == "/opt/sglang/bin/python"
    assert prefill.argv[3:5] == ("SERVICE_KEY", "sglang.launch_server"), "the process puts the key in by itself"
    assert "--disaggregation-mode prefill --disaggregation-bootstrap-port 8998" in prefill.line
    assert "--nnodes" not in prefill.line
    assert '--nnodes 2 --node-rank "$rank" --dist-init-addr "$head:20028"' in decode.line
    assert "--max-running-requests 512" in decode.line
    assert decode.resources.nodes == 2
    assert router.after == ("prefill-0", "prefill-1", "decode-0")
    assert '--prefill "http://$at_prefill_0:30000" 8998' in router.line
    assert '--decode "http://$at_decode_0:30002"' in router.line
    assert "--max-concurrent-requests 600 --rate-limit-tokens-per-second 1 --queue-size 50" in router.line
    assert router.argv[3:5] == ("SERVICE_KEY", "sglang_router.launch_router")


@pytest.mark.parametrize(
    "said", ["--load-format dummy --note 'two words'", "[--load-format, dummy, --note, two words]"]
)
def test_further_arguments_are_words_however_they_are_written(tmp_path: Path, said: str) -> None:
    text = SPLIT.replace(
        "settings: {tp: 8}", f"settings: {{tp: 8}}, arguments: {said if said[0] == '[' else repr(said)}"
    )
    prefill = members_of(load_service(written(tmp_path, text)))[0]
    assert prefill.argv[-4:] == ("--load-format", "dummy", "--note", "two words")


def test_an_open_quote_in_the_arguments_is_named(tmp_path: Path) -> None:
    text = SPLIT.replace("settings: {tp: 8}", 'settings: {tp: 8}, arguments: "--note \'open"')
    with pytest.raises(StudyError, match="close the quote, or write a list"):
        load_service(written(tmp_path, text))


def test_servers_on_one_machine_share_neither_ports_nor_gpus(tmp_path: Path) -> None:
    text = SPLIT.replace("site: {name: cluster, batch: slurm, nodes: 4, gpus_per_node: 8, launcher: srun}\n", "")
    text = text.replace("nodes: 2, gpus: 8, settings: {tp: 16, attn_dp: 16", "gpus: 8, settings: {tp: 8, attn_dp: 8")
    first, second, third, _ = members_of(load_service(written(tmp_path, text)))
    assert [m.port for m in (first, second, third)] == [30000, 30008, 30016], "apart by what attention DP derives"
    assert "--base-gpu-id" not in first.line
    assert "--base-gpu-id 8" in second.line
    assert "--disaggregation-bootstrap-port 8999" in second.line


def test_units_of_different_sizes_share_a_machine_without_overlap(tmp_path: Path) -> None:
    text = (
        "version: 1\nmodel: /m\nengine: {kind: KIND}\nrouter: {kind: sglang-router}\n"
        "units: [{replicas: 2, gpus: 1, settings: {tp: 1}}, {gpus: 4, settings: {tp: 4}}]\n"
    )
    lines = [m.line for m in members_of(load_service(written(tmp_path, text.replace("KIND", "sglang"))))]
    assert ["--base-gpu-id" in line for line in lines[:3]] == [False, True, True]
    assert "--base-gpu-id 2" in lines[2]
    lines = [m.line for m in members_of(load_service(written(tmp_path, text.replace("KIND", "vllm"))))]
    seen = [line.partition("CUDA_VISIBLE_DEVICES=")[2].split()[0] for line in lines[:3]]
    assert seen == ["0", "1", "2,3,4,5"], "vLLM would take the first ones for all of them"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("version: 1\n", "", "version"),
        ("kind: sglang,", "kind: sglan,", "service.yaml:3"),
        ("release: 0.5.15", "release: new", "is not a release"),
        ("role: decode", "role: prefill", "none for decode"),
        ("role: decode", "role: both", "mixes servers"),
        ("attn_dp: 16", "attention_dp_sizes: 16", "service.yaml:6: units[1].settings.attention_dp_sizes"),
        ("replicas: 2", "replicas: 0", "service.yaml:5"),
        ("policy:", "polcy:", "service.yaml:7"),
        ("router: {kind: sglang-router, policy: cache_aware, most_running: 600, most_waiting: 50}\n", "", "no router"),
        ("batch: slurm", "batch: slum", "slum"),
        ("engine: {kind: sglang, release: 0.5.15, python: /opt/sglang/bin/python}", "engine: {kind: twin}", "its GPU"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in SPLIT
    with pytest.raises((StudyError, InputError)) as error:
        load_service(written(tmp_path, SPLIT.replace(old, new)))
    assert what in str(error.value)


def test_paths_are_meant_from_where_the_file_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "r1").mkdir(parents=True)
    text = SPLIT.replace("/opt/sglang/bin/python", ".venv/bin/python").replace("/models/deepseek-r1", "models/r1")
    path = written(tmp_path, text)
    monkeypatch.chdir(tmp_path.parent)
    service = load_service(path.relative_to(tmp_path.parent))
    assert service.python == str(tmp_path / ".venv" / "bin" / "python")
    assert service.model == str(tmp_path / "models" / "r1")
    assert service.router is not None
    assert service.router.python == "python3", "a plain name is looked up on the node"
    assert load_service(written(tmp_path, SPLIT.replace("/models/deepseek-r1", "org/r1"))).model == "org/r1"


def test_start_scripts_are_shell_and_wait_for_the_addresses_they_need(tmp_path: Path) -> None:
    service = load_service(written(tmp_path, SPLIT))
    for member in members_of(service):
        folder = tmp_path / member.name
        folder.mkdir()
        path = folder / "start.sh"
        path.write_text(start_script(service, member))
        subprocess.run(["sh", "-n", path], check=True)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_nodes_of_a_server_find_their_head_through_the_folder(tmp_path: Path, rank: int) -> None:
    text = SPLIT.replace("release: 0.5.15, python: /opt/sglang/bin/python", "python: echo").replace(
        "site: {name", "host: 10.0.0.7\nsite: {name"
    )
    text = text.replace("/models/deepseek-r1", str(tmp_path))
    service = load_service(written(tmp_path, text))
    decode = members_of(service)[2]
    (tmp_path / "start.sh").write_text(start_script(service, decode))
    if rank == 1:
        (tmp_path / "address").write_text("10.0.0.5\n")
    environment = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": str(rank), "SERVICE_KEY": "k"}
    run = subprocess.run(
        ["sh", tmp_path / "start.sh"], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    head = "10.0.0.7" if rank == 0 else "10.0.0.5"
    assert f"--node-rank {rank} --dist-init-addr {head}:20028" in run.stdout
    assert "--host 10.0.0.7" in run.stdout
    assert (tmp_path / "address").read_text() == f"{head}\n", "only the first node says where the server is"


def test_a_node_without_the_model_says_so_and_gives_no_address(tmp_path: Path) -> None:
    service = load_service(written(tmp_path, SPLIT.replace("/models/deepseek-r1", "/no/such model")))
    (tmp_path / "start.sh").write_text(start_script(service, members_of(service)[0]))
    run = subprocess.run(["sh", tmp_path / "start.sh"], capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 66
    assert "/no/such model is not there" in run.stderr
    assert not (tmp_path / "address").exists(), "nobody shall poll for a server here"


def test_rendered_jobs_are_what_slurm_and_pbs_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = load_service(written(tmp_path, SPLIT))
    monkeypatch.chdir(tmp_path)
    files = [str(path) for path in render(service, Path("slurm"))]
    assert files[0] == "slurm/members/prefill-0/start.sh"
    assert files[-1] == "slurm/start-all.sh"
    job = (tmp_path / "slurm/members/decode-0/job.sh").read_text()
    assert "#SBATCH --nodes=2\n" in job
    assert "srun --nodes=2 --ntasks=2 sh " in job
    list(render(service, tmp_path / "pbs", "pbs"))
    assert "#PBS -l select=2:" in (tmp_path / "pbs/members/decode-0/job.sh").read_text()
    everything = (tmp_path / "pbs/start-all.sh").read_text().splitlines()
    assert everything[4:] == [
        f"qsub members/{name}/job.sh" for name in ("prefill-0", "prefill-1", "decode-0", "router")
    ]
    with pytest.raises(InputError, match="local, slurm, pbs, kubernetes"):
        list(render(service, tmp_path / "none", "mesos"))


def test_without_a_host_servers_and_router_listen_on_loopback_only(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("version: 1\nmodel: m\nengine: {kind: sglang}\nunits: [{replicas: 2}]\nrouter: {}\n")
    for host, address in (("", "127.0.0.1"), ("host: 10.0.0.5\n", "10.0.0.5")):
        path.write_text(
            f"version: 1\nmodel: m\nengine: {{kind: sglang}}\nunits: [{{replicas: 2}}]\nrouter: {{}}\n{host}"
        )
        service = load_service(path)
        assert all(f"\naddress={address}\n" in start_script(service, member) for member in members_of(service))


def test_servers_under_attention_dp_that_share_a_machine_share_no_port(tmp_path: Path) -> None:
    text = (
        "version: 1\nmodel: /models/r1\nengine: {kind: sglang, release: 0.5.15}\n"
        "units: [{replicas: 2, gpus: 4, settings: {tp: 4, attn_dp: 4}}]\nrouter: {kind: sglang-router}\n"
    )
    first, second, router = members_of(load_service(written(tmp_path, text)))
    assert {30000, 30233, 30239, 40000} <= set(first.ports), "what SGLang derives is looked at before it starts"
    assert not set(first.ports) & set(second.ports)
    assert f"http://$at_server_1:{second.port}" in router.line


def test_two_units_of_one_role_have_servers_of_different_names(tmp_path: Path) -> None:
    text = (
        "version: 1\nmodel: llama-8b\nengine: {kind: twin, gpu: h200}\nrouter: {kind: smg}\n"
        "units: [{replicas: 2, settings: {tp: 1}}, {replicas: 1, settings: {tp: 2}}]\n"
    )
    members = members_of(load_service(written(tmp_path, text)), ("server-2",))
    assert [member.name for member in members] == ["server-0", "server-1", "server-2-b", "router"]
    assert "--tp 2" in members[2].line
