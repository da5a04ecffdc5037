"""Kubernetes manifests: what the API takes, with every server told where its leader and its key are."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ridgeline.errors import InputError
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.kubernetes import _progress_script
from ridgeline.serving.service.render import render
from ridgeline.serving.service.service import Service
from tests.service.kubernetes_shapes import published, schema_of

HEAD = "version: 1\nname: Chat Service\n"
SGLANG = "model: /models/r1\nengine: {kind: sglang, release: 0.5.15, python: /home/me/.venv/bin/python}\n"
SPLIT_UNITS = """\
units:
  - {role: prefill, replicas: 2, gpus: 8, settings: {tp: 8}}
  - {role: decode, nodes: 2, gpus: 8, settings: {tp: 16, attn_dp: 16}, env: {NCCL_IB_HCA: "mlx5_0,mlx5_1"}}
"""
TOGETHER = "units:\n  - {replicas: 3, nodes: 2, gpus: 8, settings: {tp: 16}}\n"
ROUTER = "router: {kind: sglang-router, policy: cache_aware, most_running: 600, most_waiting: 50}\n"
PODS = "kubernetes: {router_image: 'example.org/router:1', namespace: chat, devices: {rdma/hca: 8}}\n"
VLLM = "model: org/model\nengine: {kind: vllm}\nunits: [{replicas: 2, gpus: 1, settings: {tp: 1}}]\n"
KEY = "api_key_env: SERVICE_KEY\n"

SERVICES = {
    "split": HEAD + SGLANG + SPLIT_UNITS + ROUTER + PODS + KEY,
    "together": HEAD + SGLANG + TOGETHER + ROUTER + PODS,
    "alone": HEAD + SGLANG + "units: [{gpus: 8, settings: {tp: 8}}]\nkubernetes: {model_claim: models}\n",
    "vllm": HEAD + VLLM + "router: {kind: vllm-router}\n" + PODS,
    "two kinds of servers": HEAD + SGLANG + TOGETHER + "  - {gpus: 8, settings: {tp: 8}}\n" + ROUTER + PODS,
}


def loaded(folder: Path, text: str) -> Service:
    path = folder / "service.yaml"
    path.write_text(text)
    return load_service(path)


def rendered(folder: Path, text: str) -> dict[str, list[dict[str, Any]]]:
    """Objects by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in render(loaded(folder, text), folder / "out", "kubernetes"):
        for item in yaml.safe_load_all(path.read_text()):
            found.setdefault(item["kind"], []).append(item)
    return found


def servers(item: dict[str, Any], template: str) -> Any:
    return item["leaderWorkerTemplate"][template]["spec"]["containers"][0]


@pytest.mark.parametrize("name", SERVICES)
def test_manifests_are_what_the_api_takes(tmp_path: Path, name: str) -> None:
    for kind, items in rendered(tmp_path, SERVICES[name]).items():
        for item in items:
            schemas = [schema_of(item["apiVersion"], kind), *published(kind)]
            for schema in schemas:
                problems = [e.message for e in jsonschema.Draft202012Validator(schema).iter_errors(item)]
                assert not problems, (kind, problems)


def test_the_schemas_would_catch_a_slip(tmp_path: Path) -> None:
    (item,) = rendered(tmp_path, SERVICES["together"])["LeaderWorkerSet"]
    schema = jsonschema.Draft202012Validator(schema_of(item["apiVersion"], item["kind"]))
    item["spec"]["leaderWorkerTemplate"]["restartPolicy"] = "Always"
    servers(item["spec"], "leaderTemplate")["resources"]["limits"]["nvidia.com/gpu"] = 8
    item["spec"]["replica"] = 1
    assert len(list(schema.iter_errors(item))) == 3


def test_nodes_of_a_server_find_their_leader(tmp_path: Path) -> None:
    (item,) = rendered(tmp_path, SERVICES["together"])["LeaderWorkerSet"]
    spec = item["spec"]
    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (3, 2)
    leader, worker = servers(spec, "leaderTemplate"), servers(spec, "workerTemplate")
    line = " ".join(worker["command"])
    assert line == " ".join(leader["command"]), "the pods of a server differ in what Kubernetes fills in"
    assert "--nnodes 2 --node-rank $(LWS_WORKER_INDEX) --dist-init-addr $(LWS_LEADER_ADDRESS):20000" in line
    assert line.startswith("python3 -m sglang.launch_server"), "the image's python, not that of this machine"
    assert "--host $(POD_IP)" in line
    assert leader["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "8"}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in worker["volumeMounts"]
    assert "livenessProbe" in leader
    assert "livenessProbe" not in worker, "only the first pod answers"


def test_split_roles_are_one_disaggregated_set_that_the_router_finds_by_labels(tmp_path: Path) -> None:
    found = rendered(tmp_path, SERVICES["split"])
    (item,) = found["DisaggregatedSet"]
    assert "LeaderWorkerSet" not in found
    prefill, decode = item["spec"]["roles"]
    assert [(r["name"], r["spec"]["replicas"]) for r in (prefill, decode)] == [("prefill", 2), ("decode", 1)]
    pods = {
        "prefill": prefill["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"],
        "decode": decode["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["metadata"],
    }
    assert pods["prefill"]["annotations"] == {"sglang.ai/bootstrap-port": "8998"}
    command = found["Deployment"][0]["spec"]["template"]["spec"]["containers"][0]["command"]
    for role, metadata in pods.items():
        place = command.index(f"--{role}-selector")
        assert command[place + 1 : place + 3] == [f"{key}={value}" for key, value in metadata["labels"].items()]
    assert command[command.index("--service-discovery-namespace") + 1] == "chat"
    assert command[command.index("--service-discovery-port") + 1] == "30000"
    assert "--pd-disaggregation" in command
    follower = decode["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
    assert follower["app.kubernetes.io/component"] == "decode-follower", "no request goes to it"
    assert {"name": "NCCL_IB_HCA", "value": "mlx5_0,mlx5_1"} in servers(decode["spec"], "workerTemplate")["env"]
    rules = found["Role"][0]["rules"]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]


def test_the_key_comes_from_a_secret_and_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", "very-secret")
    found = rendered(tmp_path, SERVICES["split"])
    router = found["Deployment"][0]["spec"]["template"]["spec"]["containers"][0]
    server = servers(found["DisaggregatedSet"][0]["spec"]["roles"][1]["spec"], "leaderTemplate")
    secret = {"secretKeyRef": {"name": "chat-service-key", "key": "SERVICE_KEY"}}
    for container in (router, server):
        assert {"name": "SERVICE_KEY", "valueFrom": secret} in container["env"]
        assert "--api-key" not in container["command"], "every user of the node could read it there"
    texts = [path.read_text() for path in (tmp_path / "out").iterdir()]
    assert not any("very-secret" in text for text in texts)
    assert any(
        "kubectl create secret generic chat-service-key --namespace chat --from-env-file=/dev/stdin" in text
        for text in texts
    )


def test_a_server_is_judged_by_its_tokens(tmp_path: Path) -> None:
    (item,) = rendered(tmp_path, SERVICES["together"])["LeaderWorkerSet"]
    sglang = servers(item["spec"], "leaderTemplate")
    assert sglang["livenessProbe"]["httpGet"]["path"] == "/health_generate"
    found = rendered(tmp_path, SERVICES["vllm"])
    vllm = servers(found["LeaderWorkerSet"][0]["spec"], "workerTemplate")
    script = vllm["livenessProbe"]["exec"]["command"][1]
    (mount,) = [m for m in vllm["volumeMounts"] if m["name"] == "probe"]
    folder, _, name = script.rpartition("/")
    assert folder == mount["mountPath"]
    assert name in found["ConfigMap"][0]["data"]
    assert vllm["startupProbe"]["failureThreshold"] * vllm["startupProbe"]["periodSeconds"] >= 3600


def test_the_progress_probe_tells_a_hung_server_from_an_idle_and_a_busy_one(tmp_path: Path) -> None:
    good = {"text": "x", "message": {"content": "x"}}
    told: dict[str, Any] = {"made": 5, "read": 100, "kv": 0.0, "status": 200, "chat": 200, "keys": [], "says": [good]}

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            counted = f'vllm:generation_tokens_total{{a="b"}} {told["made"]}\nvllm:prompt_tokens_total {told["read"]}\n'
            page = f"vllm:num_requests_running 0\n{counted}vllm:kv_cache_usage_perc {told['kv']}\n"
            models = json.dumps({"data": [{"id": "r1"}]})
            self.reply(200, page if self.path == "/metrics" else models)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert asked["model"] == "r1"
            told["keys"].append(self.headers["authorization"])
            said = told["says"] if isinstance(told["says"], str) else json.dumps({"choices": told["says"]})
            self.reply(told["chat"] if "chat" in self.path else told["status"], said)

        def reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    script = tmp_path / "progress.py"
    script.write_text(_progress_script("vllm", "SERVICE_KEY").replace("/tmp/ridgeline-", f"{tmp_path}/kept-"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def look(name: str = "alive") -> int:
            command = [sys.executable, str(script), str(server.server_port), name]
            env = {**os.environ, "SERVICE_KEY": "right"}
            return subprocess.run(command, capture_output=True, timeout=600, check=False, env=env).returncode

        assert [look(), look()] == [0, 0], "idle, and it makes a token when it is asked for one"
        assert set(told["keys"]) == {"Bearer right"}
        told.update(status=500)
        assert look() == 1, "gauges stand at 0, and no token comes"
        told.update(kv=0.1)
        assert look() == 0, "a piece of a long prompt was computed since"
        assert look("ready") == 1, "at its first try only a token counts"
        assert [look(), look("ready")] == [1, 1]
        told.update(made=9)
        assert look() == 0
        for made, says in enumerate(
            ([], [{"text": ""}], [{"text": None, "message": {}}], "<html>well</html>", "{}"), 10
        ):
            told.update(status=200, says=says, made=made)
            assert look() == 1, f"{says} is no token, whatever its counters do"
        told.update(says=[good])
        assert look("first") == 0
        for status in (400, 404):
            told.update(chat=status)
            assert look() == 0, "a model without a chat template serves completions"
        told.update(chat=500)
        assert look() == 1, "but a chat that fails is none that is not served"
        told.update(status=401, chat=200, made=99)
        assert look() == 1, "a wrong key"
        server.shutdown()
    assert look() == 1, "nobody answers"


def test_the_models_folder_comes_from_the_claim_or_from_the_node(tmp_path: Path) -> None:
    (alone,) = rendered(tmp_path, SERVICES["alone"])["LeaderWorkerSet"]
    pod = alone["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in pod["volumes"]
    (together,) = rendered(tmp_path, SERVICES["together"])["LeaderWorkerSet"]
    pod = together["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    # on a node that lacks it the pod names the folder and does not start
    assert {"name": "model", "hostPath": {"path": "/models/r1", "type": "Directory"}} in pod["volumes"]


def test_a_server_alone_has_its_service_and_no_router(tmp_path: Path) -> None:
    found = rendered(tmp_path, SERVICES["alone"])
    assert "Deployment" not in found
    (front,) = found["Service"]
    (item,) = found["LeaderWorkerSet"]
    assert front["spec"]["selector"] == item["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (HEAD + SGLANG + TOGETHER + ROUTER, "an image that has sglang-router"),
        ((HEAD + SGLANG + TOGETHER + ROUTER + PODS).replace("gpus: 8, ", ""), "add `gpus:` to its unit"),
        ((HEAD + SGLANG + TOGETHER + ROUTER + PODS).replace("Chat Service", "8"), "takes no object named '8'"),
        ((HEAD + SGLANG + TOGETHER + ROUTER + PODS).replace("Chat Service", "x" * 41), "at most 40"),
        (
            f"{HEAD}model: llama-8b\nengine: {{kind: twin, gpu: h200}}\nunits: [{{settings: {{tp: 1}}}}]\n",
            "needs an image that has twin",
        ),
    ],
)
def test_what_kubernetes_could_not_run_is_said_and_nothing_is_written(tmp_path: Path, text: str, what: str) -> None:
    service = loaded(tmp_path, text)
    with pytest.raises(InputError) as error:
        list(render(service, tmp_path / "out", "kubernetes"))
    assert what in str(error.value)
    assert not list(tmp_path.glob("out/*"))


def pods_of(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every pod template."""
    sets = [item["spec"] for item in found.get("LeaderWorkerSet", [])]
    sets += [role["spec"] for item in found.get("DisaggregatedSet", []) for role in item["spec"]["roles"]]
    groups = [spec["leaderWorkerTemplate"] for spec in sets]
    pods = [group[key] for group in groups for key in ("leaderTemplate", "workerTemplate") if key in group]
    return [*pods, *(item["spec"]["template"] for item in found.get("Deployment", []))]


@pytest.mark.parametrize("name", SERVICES)
def test_pods_are_as_the_standard_restricted_wants_them(tmp_path: Path, name: str) -> None:
    for pod in pods_of(rendered(tmp_path, SERVICES[name])):
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["spec"]["containers"]
        own = container["securityContext"]
        assert own == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        home = next(variable["value"] for variable in container["env"] if variable["name"] == "HOME")
        assert home in [mount["mountPath"] for mount in container["volumeMounts"]], "a user without a home of its own"


def test_memory_is_pinned_and_another_user_taken_only_where_the_file_says_so(tmp_path: Path) -> None:
    text = SERVICES["split"].replace("kubernetes: {", "kubernetes: {ipc_lock: true, user: 0, ")
    for pod in pods_of(rendered(tmp_path, text)):
        assert pod["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
        (container,) = pod["spec"]["containers"]
        added = container["securityContext"]["capabilities"].get("add")
        assert added == (None if container["name"] == "router" else ["IPC_LOCK"])


def test_cores_memory_and_gpus_are_asked_for(tmp_path: Path) -> None:
    found = rendered(tmp_path, SERVICES["split"])
    prefill = found["DisaggregatedSet"][0]["spec"]["roles"][0]["spec"]
    assert servers(prefill, "workerTemplate")["resources"] == {
        "requests": {"cpu": "32", "memory": "262144Mi", "nvidia.com/gpu": "8", "rdma/hca": "8"},
        "limits": {"nvidia.com/gpu": "8", "rdma/hca": "8"},
    }
    router = found["Deployment"][0]["spec"]["template"]["spec"]["containers"][0]
    assert router["resources"]["requests"] == {"cpu": "2", "memory": "4096Mi"}
    text = SERVICES["alone"].replace("gpus: 8,", "gpus: 8, cores: 100, memory: 1 TiB,")
    asked = servers(rendered(tmp_path, text)["LeaderWorkerSet"][0]["spec"], "workerTemplate")["resources"]
    assert (asked["requests"]["cpu"], asked["requests"]["memory"]) == ("100", "1048576Mi")
    assert asked["limits"]["memory"] == "1048576Mi", "what is said is also the most"


def test_replicas_are_spread_and_split_roles_kept_near(tmp_path: Path) -> None:
    found = rendered(tmp_path, SERVICES["split"])
    roles = [role["spec"]["leaderWorkerTemplate"] for role in found["DisaggregatedSet"][0]["spec"]["roles"]]
    prefill = roles[0]["workerTemplate"]
    (apart,) = prefill["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"] == prefill["metadata"]["labels"]
    for template in (prefill, roles[1]["leaderTemplate"], roles[1]["workerTemplate"]):
        (near,) = template["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert near["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
    assert "podAntiAffinity" not in roles[1]["leaderTemplate"]["spec"]["affinity"], "there is one of them"


def test_nodes_are_drained_one_server_of_a_role_at_a_time(tmp_path: Path) -> None:
    found = rendered(tmp_path, SERVICES["split"])
    budgets = {item["metadata"]["name"]: item["spec"] for item in found["PodDisruptionBudget"]}
    assert budgets.keys() == {"chat-service-prefill", "chat-service-decode"}
    for role, budget in zip(("prefill", "decode"), budgets.values(), strict=True):
        assert budget["maxUnavailable"] == 1
        (chosen,) = budget["selector"]["matchExpressions"]
        covered = {
            pod["metadata"]["labels"][chosen["key"]]
            for pod in pods_of(found)
            if pod["metadata"]["labels"][chosen["key"]] in chosen["values"]
        }
        assert covered == ({"decode", "decode-follower"} if role == "decode" else {"prefill"})


def test_what_a_file_says_is_not_filled_in_by_kubernetes(tmp_path: Path) -> None:
    text = SERVICES["alone"] + "served_name: 'a$(POD_IP)$$b'\n"
    text = text.replace("settings: {tp: 8}", "settings: {tp: 8}, env: {NOTE: '$(HOME)'}")
    container = servers(rendered(tmp_path, text)["LeaderWorkerSet"][0]["spec"], "workerTemplate")
    assert "a$$(POD_IP)$$$$b" in container["command"]
    assert {"name": "NOTE", "value": "$$(HOME)"} in container["env"]
    assert container["command"][container["command"].index("--host") + 1] == "$(POD_IP)"


def test_tokens_come_from_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "very-secret")
    found = rendered(tmp_path, SERVICES["vllm"] + KEY + "secrets: [HF_TOKEN]\n")
    server = servers(found["LeaderWorkerSet"][0]["spec"], "workerTemplate")
    given = {row["name"]: row.get("valueFrom", {}).get("secretKeyRef", {}).get("key") for row in server["env"]}
    assert given["HF_TOKEN"] == "HF_TOKEN"
    assert given["VLLM_API_KEY"] == "SERVICE_KEY", "vLLM polls for its key there"
    assert not any("very-secret" in path.read_text() for path in (tmp_path / "out").iterdir())
