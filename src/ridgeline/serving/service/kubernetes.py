"""A service as Kubernetes manifests: LeaderWorkerSets of servers, or one DisaggregatedSet, and the router before them.

A LeaderWorkerSet keeps groups of pods, one group a server: a pod for each of its nodes, all of them made again when one
fails. A DisaggregatedSet keeps one such set for each role and changes them together. Both are of the LWS project
(leaderworkerset.x-k8s.io/v1 and disaggregatedset.x-k8s.io/v1, the latter from its release 0.9 on).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import yaml

from ridgeline.errors import InputError
from ridgeline.serving.engines.releases import release_written
from ridgeline.serving.service import probe
from ridgeline.serving.service.members import ServerPlace, server_argv
from ridgeline.serving.service.quoting import in_comment, in_pod, shell_line
from ridgeline.serving.service.routers import ROUTERS, discovery_argv
from ridgeline.serving.service.service import Service, ServiceUnit, server_of

# Pods of servers and of the router: containers, what they are given, and how Kubernetes sees that they work.

# Probes for engines that have none of their own: a request for one token, and what the engine counts.

_PROBE_FOLDER = "/opt/ridgeline"
_PROBE_FILE = "progress.py"


def _progress_script(engine: str, key_variable: str = "") -> str:
    """Python that runs in the server's own container and imports nothing of ours; exit code 1: it hangs.

    Good is who makes a token within 10 s, in a completion and, where it serves that, in a chat; or who has moved one of
    its counters since the last poll: the request may wait behind long prompts. At its first poll only a token counts.
    A server that cannot say what it counts fails: it answers nobody.
    """
    metrics = server_of(engine).metrics
    counted = (metrics.output_tokens, metrics.prompt_tokens, metrics.kv_share)
    return f'''\
"""python3 {_PROBE_FILE} PORT NAME: fails when no token is made and nothing has moved since NAME looked last."""
import json, os, re, sys, urllib.error, urllib.request

address, port = os.environ.get("POD_IP", "127.0.0.1"), sys.argv[1]
kept = "/tmp/ridgeline-%s.json" % sys.argv[2]
key = os.environ.get("{key_variable}", "")


def ask(path, body=None, limit_s=5):
    headers = {{"content-type": "application/json"}}
    if key:
        headers["authorization"] = "Bearer " + key
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request("http://%s:%s%s" % (address, port, path), data, headers)
    return urllib.request.urlopen(request, timeout=limit_s).read().decode(errors="replace")


def token(path, **asked):
    """LookupError where the answer holds none."""
    more = {{"max_tokens": {probe.CANARY_TOKENS}, "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}}
    choice = json.loads(ask(path, dict(more, model=model, **asked), 10))["choices"][0]
    message = choice.get("message") or {{}}
    if not (choice.get("text") or any(message.get(n) for n in ("content", "reasoning_content", "reasoning"))):
        raise LookupError("an answer with an empty text")


text = ask("/metrics")
now = [re.findall(r"^%s(?:\\{{[^}}]*\\}})? (\\S+)$" % re.escape(name), text, re.MULTILINE) for name in {counted!r}]
try:
    with open(kept) as file:
        before = json.load(file)
except (OSError, ValueError):
    before = None
with open(kept, "w") as file:
    json.dump(now, file)
try:
    model = json.loads(ask("/v1/models"))["data"][0]["id"]
    token("/v1/completions", prompt="Hi")
    try:
        token("/v1/chat/completions", messages=[{{"role": "user", "content": "Hi"}}])
    except urllib.error.HTTPError as error:
        if error.code not in {probe.NO_CHAT!r}:
            raise
except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    waits = isinstance(error, OSError) and not (isinstance(error, urllib.error.HTTPError) and error.code in (401, 403))
    if before is None or now == before or not waits:
        sys.exit("no token (%s), and nothing shows that it waits behind others" % error)
'''


_START_LIMIT_S = 3600  # weights are read and kernels compiled in that time
_POLL_S = 10
# a server that works answers /health_generate in far less, also when its queue is long: any new token counts
_PROGRESS_LIMIT_S = 30
_DRAIN_S = 300  # what is under way may finish when a pod is asked to end
_PYTHON = "python3"  # of the images
HOME = "/home/server"
_PART_OF, _COMPONENT = "app.kubernetes.io/part-of", "app.kubernetes.io/component"
# asked for where the file says nothing: tokenizers, schedulers and a process for each GPU; staged weights
_CORES_PER_GPU, _MEMORY_BYTES_PER_GPU = 4, 32 * 2**30
ROUTER_CORES, ROUTER_MEMORY_BYTES = 2, 4 * 2**30
# what a start script's shell variables are called in a pod
_VARIABLES = {"address": "POD_IP", "head": "LWS_LEADER_ADDRESS", "rank": "LWS_WORKER_INDEX"}

_Spec = dict[str, Any]


def _labels_of(name: str, role: str) -> dict[str, str]:
    """Of the pods that answer requests: a router, or its only Service, finds them by these."""
    return {_PART_OF: name, _COMPONENT: role}


def _follower_role(role: str) -> str:
    """The component of a server's other pods: no request goes to it."""
    return f"{role}-follower"


def _server_pod(service: Service, unit: ServiceUnit, name: str, leads: bool) -> _Spec:
    """The template of a server's first pod (`leads`), or of its others, which answer nobody."""
    # every pod has an address of its own, so all servers listen on one port
    at = ServerPlace(service.first_port, service.first_bootstrap_port, 0, 0)
    argv = server_argv(replace(service, python=_PYTHON), unit, at)
    argv += () if leads else server_of(service.engine).follower_argv
    container: _Spec = {
        "name": "server",
        "image": _image(service),
        "command": [in_pod(word, _VARIABLES) for word in argv],
        "env": _server_variables(service, unit, name),
        "resources": _resources(service, unit),
        "securityContext": _own_security(ipc_lock=service.pods.ipc_lock),
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108  where NCCL looks for it
    }
    volumes: list[_Spec] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    _mount_model(service, container, volumes)
    if leads:
        container["ports"] = [{"name": "http", "containerPort": service.first_port}]
        container |= _server_probes(service)
        if not server_of(service.engine).generate_path:
            container["volumeMounts"].append({"name": "probe", "mountPath": _PROBE_FOLDER, "readOnly": True})
            volumes.append({"name": "probe", "configMap": {"name": f"{name}-probe"}})
    more: _Spec = {"automountServiceAccountToken": False, "affinity": _affinity(service, unit, name)}
    role = unit.role if leads else _follower_role(unit.role)
    pod = _pod(service, _labels_of(name, role), container, volumes, **more)
    if leads and unit.role == "prefill" and service.router is not None:
        port = str(service.first_bootstrap_port)
        pod["metadata"]["annotations"] = {ROUTERS[service.router.kind].port_annotation: port}
    return pod


def _pod(service: Service, labels: _Spec, container: _Spec, volumes: list[_Spec], **more: Any) -> _Spec:
    """A template of one container, as all of them are made."""
    _give_home(service, container, volumes)
    spec = {**more, "securityContext": _pod_security(service), "terminationGracePeriodSeconds": _DRAIN_S}
    return {"metadata": {"labels": labels}, "spec": {**spec, "containers": [container], "volumes": volumes}}


def _router_pod(service: Service, name: str) -> _Spec:
    choice, pods = service.router, service.pods
    assert choice is not None
    if not pods.router_image:
        raise _no_image(choice.kind, "router_image")
    cores, memory = choice.cores or ROUTER_CORES, choice.memory_bytes or ROUTER_MEMORY_BYTES
    roles = dict.fromkeys(unit.role for unit in service.units)
    selectors: dict[str, dict[str, str]] = {role: _labels_of(name, role) for role in roles}
    argv = discovery_argv(replace(service, router=choice.model_copy(update={"python": _PYTHON})), selectors)
    container: _Spec = {
        "name": "router",
        "image": pods.router_image,
        "command": [in_pod(word, _VARIABLES) for word in argv],
        "env": [_ADDRESS, *([_from_secret(service, name, service.api_key_env)] if service.api_key_env else [])],
        "resources": {"requests": {"cpu": str(cores), "memory": _quantity(memory)}},
        "securityContext": _own_security(),
        "ports": [{"name": "http", "containerPort": choice.port}],
        # it is ready when it knows a server, and lives as long as it answers
        "readinessProbe": _asked("/readiness", _POLL_S),
        "livenessProbe": {**_asked("/liveness", _POLL_S), "initialDelaySeconds": 60},
    }
    return _pod(service, _labels_of(name, "router"), container, [], serviceAccountName=f"{name}-router")


def _key_secret(service: Service, name: str) -> str:
    return service.pods.secret or f"{name}-key"


def _image(service: Service) -> str:
    if service.pods.image:
        return service.pods.image
    if not (known := server_of(service.engine).image):
        raise _no_image(service.engine, "image")
    return known.format(".".join(map(str, release_written(service.engine, service.release))))


def _no_image(what: str, key: str) -> InputError:
    return InputError(
        f"Kubernetes needs an image that has {what}; name it in the deployment file: `kubernetes: {{{key}: ...}}`"
    )


_ADDRESS = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _server_variables(service: Service, unit: ServiceUnit, name: str) -> list[_Spec]:
    """Its address, its secrets by reference, its key under the name that the engine looks for, and its unit's own."""
    found = [_ADDRESS, *(_from_secret(service, name, variable) for variable in service.secret_variables)]
    if (own := server_of(service.engine).key_variable) and service.api_key_env:
        found.append({**_from_secret(service, name, service.api_key_env), "name": own})
    return [*found, *({"name": key, "value": in_pod(value, _VARIABLES)} for key, value in unit.env.items())]


def _from_secret(service: Service, name: str, variable: str) -> _Spec:
    held = {"name": _key_secret(service, name), "key": variable}
    return {"name": variable, "valueFrom": {"secretKeyRef": held}}


def _resources(service: Service, unit: ServiceUnit) -> _Spec:
    """Asked for, so that no neighbour takes them; limits only where going beyond would harm, or the unit says so."""
    if not server_of(service.engine).loads_model:
        return {"requests": {"cpu": "1", "memory": "1Gi"}}
    if not unit.gpus:
        raise InputError(f"Kubernetes must know the GPUs of a {unit.role} server; add `gpus:` to its unit, such as 8")
    cores = unit.cores or _CORES_PER_GPU * unit.gpus
    memory = unit.memory_bytes or _MEMORY_BYTES_PER_GPU * unit.gpus
    devices = {"nvidia.com/gpu": str(unit.gpus)}
    devices |= {device: str(count) for device, count in service.pods.devices.items()}
    limit = {"memory": _quantity(memory)} if unit.memory_bytes else {}
    return {"requests": {"cpu": str(cores), "memory": _quantity(memory), **devices}, "limits": {**devices, **limit}}


def _quantity(size: int) -> str:
    return f"{-(-size // 2**20)}Mi"


def _pod_security(service: Service) -> _Spec:
    """What the Pod Security Standard `restricted` asks of a pod; user 0 leaves whom to run as to the image."""
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    if not (user := service.pods.user):
        return profile
    return {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user, **profile}


def _own_security(*, ipc_lock: bool = False) -> _Spec:
    """And of a container. RDMA pins the memory that it sends from: IPC_LOCK, which `restricted` does not allow."""
    capabilities = {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if ipc_lock else {})}
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def _give_home(service: Service, container: _Spec, volumes: list[_Spec]) -> None:
    """Engines keep compiled kernels and downloads at home, and ask for their user's name, which images don't know."""
    if not service.pods.user:
        return
    names = {"HOME": HOME, "USER": "server", "LOGNAME": "server"}
    container["env"] = [*({"name": key, "value": value} for key, value in names.items()), *container["env"]]
    container.setdefault("volumeMounts", []).append({"name": "home", "mountPath": HOME})
    volumes.append({"name": "home", "emptyDir": {}})


def _affinity(service: Service, unit: ServiceUnit, name: str) -> _Spec:
    """Replicas rather on different nodes, so that one lost node is one lost replica; all of them rather in one zone."""
    apart = _preferred("kubernetes.io/hostname", {"matchLabels": _labels_of(name, unit.role)})
    found: _Spec = {"podAntiAffinity": apart} if unit.replicas > 1 else {}
    if service.split or unit.nodes > 1:  # KV, or partial sums, travel between them
        together = {"matchLabels": {_PART_OF: name}}
        found["podAffinity"] = _preferred("topology.kubernetes.io/zone", together)
    return found


def _preferred(topology: str, selector: _Spec) -> _Spec:
    term = {"labelSelector": selector, "topologyKey": topology}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def _mount_model(service: Service, container: _Spec, volumes: list[_Spec]) -> None:
    """A folder comes from a claim or from the node; a name is left to the engine to find."""
    folder = PurePosixPath(service.model)
    if not server_of(service.engine).loads_model or not folder.is_absolute():
        return
    container["volumeMounts"].append({"name": "model", "mountPath": str(folder), "readOnly": True})
    if service.pods.model_claim:
        source: Mapping[str, Any] = {"persistentVolumeClaim": {"claimName": service.pods.model_claim, "readOnly": True}}
        container["volumeMounts"][-1]["subPath"] = folder.name
    else:
        # `Directory`: on a node without it the pod says so, and does not start
        source = {"hostPath": {"path": str(folder), "type": "Directory"}}
    volumes.append({"name": "model", **source})


def _server_probes(service: Service) -> _Spec:
    """Ready and alive by a token that it makes on request; /health says 200 for hours on a server that hangs."""
    health = _asked("/health", _POLL_S)
    paced = {"periodSeconds": _PROGRESS_LIMIT_S, "timeoutSeconds": _PROGRESS_LIMIT_S}
    if path := server_of(service.engine).generate_path:
        ready = alive = {**_asked(path, _PROGRESS_LIMIT_S), **paced}
    else:
        command = ["python3", f"{_PROBE_FOLDER}/{_PROBE_FILE}", str(service.first_port)]
        # each remembers its own last poll
        ready, alive = ({"exec": {"command": [*command, name]}, **paced} for name in ("ready", "alive"))
    return {
        "startupProbe": {**health, "failureThreshold": _START_LIMIT_S // _POLL_S},
        # one poll without a token takes it from the router, three restart it
        "readinessProbe": {**ready, "failureThreshold": 1},
        "livenessProbe": {**alive, "failureThreshold": 3},
    }


def _asked(path: str, period_s: int) -> _Spec:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period_s}


_LONGEST_NAME = 40  # Kubernetes takes 63, and the sets append numbers, a revision and a role


def manifests(service: Service) -> Iterator[tuple[str, str]]:
    """File names and their text."""
    name = _object_name(service)
    yield "servers.yaml", _text(_heading(service, name), _servers(service, name))
    if service.router is not None:
        yield "router.yaml", _text("", _router(service, name))


def _object_name(service: Service) -> str:
    """What Kubernetes takes as a name: small letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", service.name.lower()).strip("-")
    if not re.match(r"[a-z]", name) or len(name) > _LONGEST_NAME:
        raise InputError(
            f"Kubernetes takes no object named {name!r}; set `name:` in the deployment file to at most {_LONGEST_NAME} "
            "small letters, digits and dashes that begin with a letter"
        )
    return name


def _heading(service: Service, name: str) -> str:
    lines = ["kubectl apply -f . makes all of it, kubectl delete -f . ends it; the LWS controller must be installed"]
    if variables := service.secret_variables:
        # through a pipe: the arguments of kubectl could be read by everybody
        values = " ".join(f'"{variable}=${variable}"' for variable in variables)
        create = ["kubectl", "create", "secret", "generic", _key_secret(service, name)]
        create += ["--namespace", service.pods.namespace, "--from-env-file=/dev/stdin"]
        lines.append(f"first the secrets, which are in no file: printf '%s\\n' {values} | {shell_line(create)}")
    if service.pods.devices and not service.pods.ipc_lock:
        lines.append(
            "where nodes do not let pods pin memory, RDMA needs `kubernetes: {ipc_lock: true}` and a namespace that "
            "allows it"
        )
    on_the_node = server_of(service.engine).loads_model and service.model.startswith("/")
    if service.pods.user and on_the_node and not service.pods.model_claim:
        lines.append(
            "`restricted` namespaces take no folders of nodes: there name a claim, `kubernetes: {model_claim: ...}`"
        )
    return "".join(f"# {in_comment(line)}\n" for line in lines)


def _servers(service: Service, name: str) -> Iterator[_Spec]:
    if not server_of(service.engine).generate_path:
        script = {_PROBE_FILE: _progress_script(service.engine, service.api_key_env)}
        yield _object(service, "v1", "ConfigMap", f"{name}-probe", data=script)
    sets = [{"replicas": u.replicas, "leaderWorkerTemplate": _group(service, u, name)} for u in service.units]
    names = _unit_names(service.units)
    if service.split:
        roles = [{"name": role, "spec": spec} for role, spec in zip(names, sets, strict=True)]
        yield _object(service, "disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", name, spec={"roles": roles})
    else:
        for own, spec in zip(names, sets, strict=True):
            full = name if len(sets) == 1 else f"{name}-{own}"
            yield _object(service, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", full, spec=spec)
    for role in dict.fromkeys(unit.role for unit in service.units):
        yield _disruption(service, name, role)
    if service.router is None:
        yield _front(service, name, service.units[0].role, service.first_port)


def _disruption(service: Service, name: str, role: str) -> _Spec:
    """Nodes are drained one server of a role at a time: a pod that is gone stands for its whole server."""
    chosen = {"key": _COMPONENT, "operator": "In", "values": [role, _follower_role(role)]}
    selector = {"matchLabels": {_PART_OF: name}, "matchExpressions": [chosen]}
    full = f"{name}-{'server' if role == 'both' else role}"
    return _object(service, "policy/v1", "PodDisruptionBudget", full, spec={"maxUnavailable": 1, "selector": selector})


def _group(service: Service, unit: ServiceUnit, name: str) -> _Spec:
    """The pods of one server; a group of one has only the template that is asked for."""
    # what a server computes is spread over all of its pods, and lost with any of them
    own: _Spec = {"size": unit.nodes, "restartPolicy": "RecreateGroupOnPodRestart"}
    leader = _server_pod(service, unit, name, leads=True)
    if unit.nodes == 1:
        return {**own, "workerTemplate": leader}
    return {**own, "leaderTemplate": leader, "workerTemplate": _server_pod(service, unit, name, leads=False)}


def _unit_names(units: tuple[ServiceUnit, ...]) -> list[str]:
    """server, or the role; numbered from the second one on."""
    names: list[str] = []
    for unit in units:
        role = "server" if unit.role == "both" else unit.role
        taken = sum(name == role or name.startswith(f"{role}-") for name in names)
        names.append(f"{role}-{taken}" if taken else role)
    return names


def _router(service: Service, name: str) -> Iterator[_Spec]:
    """It looks for pods with our labels, and may do nothing else in its namespace."""
    assert service.router is not None
    account, groups = f"{name}-router", "rbac.authorization.k8s.io"
    yield _object(service, "v1", "ServiceAccount", account)
    may = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    yield _object(service, f"{groups}/v1", "Role", account, rules=may)
    role = {"apiGroup": groups, "kind": "Role", "name": account}
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": service.pods.namespace}]
    yield _object(service, f"{groups}/v1", "RoleBinding", account, roleRef=role, subjects=subjects)
    pod = _router_pod(service, name)
    # one: a second router would not know what the first one has let through
    spec = {"replicas": 1, "selector": {"matchLabels": pod["metadata"]["labels"]}, "template": pod}
    yield _object(service, "apps/v1", "Deployment", account, spec=spec)
    yield _front(service, name, "router", service.router.port)


def _front(service: Service, name: str, role: str, port: int) -> _Spec:
    """Where users go, inside the cluster only."""
    ports = [{"name": "http", "port": port, "targetPort": "http"}]
    spec = {"type": "ClusterIP", "selector": _labels_of(name, role), "ports": ports}
    return _object(service, "v1", "Service", f"{name}-api", spec=spec)


def _object(service: Service, version: str, kind: str, name: str, **parts: Any) -> _Spec:
    metadata = {"name": name, "namespace": service.pods.namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


class _Plain(yaml.SafeDumper):
    """Without anchors: whoever edits one template must not change another."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(heading: str, objects: Iterator[_Spec]) -> str:
    return heading + yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=110, explicit_start=True)
