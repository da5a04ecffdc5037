"""Pods of servers and of the router: containers, what they are given, and how Kubernetes sees that they work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ridgeline.engines.knobs.releases import release_written
from ridgeline.errors import InputError
from ridgeline.service.kubernetes.progress import PROBE_FOLDER, progress_command
from ridgeline.service.quoting import in_pod
from ridgeline.service.routers import ROUTERS, PodSelectors, discovery_argv
from ridgeline.service.servers import ServerPlace, server_argv, server_of
from ridgeline.service.service import RouterChoice, Service, ServiceUnit

_START_LIMIT_S = 3600  # weights are read and kernels compiled in that time
POLL_S = 10
# a server that works answers /health_generate in far less, also when its queue is long: any new token counts
_PROGRESS_LIMIT_S = 30
DRAIN_S = 300  # what is under way may finish when a pod is asked to end
PYTHON = "python3"  # of the images
HOME = "/home/server"
KEEP_FOLDER, KEEP_FILE, KEEP_PORT = "/etc/ridgeline", "service.yaml", 9400
PART_OF, COMPONENT = "app.kubernetes.io/part-of", "app.kubernetes.io/component"
# asked for where the file says nothing: tokenizers, schedulers and a process for each GPU; staged weights
CORES_PER_GPU, MEMORY_BYTES_PER_GPU = 4, 32 * 2**30
ROUTER_CORES, ROUTER_MEMORY_BYTES = 2, 4 * 2**30
# what a start script's shell variables are called in a pod
_VARIABLES = {"address": "POD_IP", "head": "LWS_LEADER_ADDRESS", "rank": "LWS_WORKER_INDEX"}

Spec = dict[str, Any]


def labels_of(name: str, role: str) -> dict[str, str]:
    """Of the pods that answer requests: a router, or its only Service, finds them by these."""
    return {PART_OF: name, COMPONENT: role}


def follower_role(role: str) -> str:
    """The component of a server's other pods: no request goes to it."""
    return f"{role}-follower"


def pod_port(service: Service) -> int:
    """Every pod has an address of its own, so all servers listen on one port."""
    return service.first_port


def server_pod(service: Service, unit: ServiceUnit, name: str, leads: bool) -> Spec:
    """The template of a server's first pod (`leads`), or of its others, which answer nobody."""
    at = ServerPlace(pod_port(service), service.first_bootstrap_port, 0, 0)
    argv = server_argv(replace(service, python=PYTHON), unit, at)
    argv += () if leads else server_of(service.engine).follower_argv
    container: Spec = {
        "name": "server",
        "image": service.pods.image or _image(service),
        "command": [in_pod(word, _VARIABLES) for word in argv],
        "env": [*_server_variables(service, name), *_plain(unit.env)],
        "resources": _resources(service, unit),
        "securityContext": _own_security(service, ipc_lock=service.pods.ipc_lock),
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108  where NCCL looks for it
    }
    volumes: list[Spec] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    _give_home(service, container, volumes)
    _mount_model(service, container, volumes)
    if leads:
        container["ports"] = [{"name": "http", "containerPort": pod_port(service)}]
        container |= _server_probes(service)
        if not server_of(service.engine).generate_path:
            container["volumeMounts"].append({"name": "probe", "mountPath": PROBE_FOLDER, "readOnly": True})
            volumes.append({"name": "probe", "configMap": {"name": f"{name}-probe"}})
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": _pod_security(service),
        "affinity": _affinity(service, unit, name),
        "terminationGracePeriodSeconds": DRAIN_S,
        "containers": [container],
        "volumes": volumes,
    }
    metadata: Spec = {"labels": labels_of(name, unit.role if leads else follower_role(unit.role))}
    if leads and unit.role == "prefill" and service.router is not None:
        metadata["annotations"] = {ROUTERS[service.router.kind].port_annotation: str(service.first_bootstrap_port)}
    return {"metadata": metadata, "spec": spec}


def router_pod(service: Service, name: str) -> Spec:
    choice, pods = service.router, service.pods
    assert choice is not None
    if not pods.router_image:
        raise InputError(
            f"Kubernetes needs an image that has {choice.kind}; name it in the deployment file: "
            "`kubernetes: {router_image: ...}`"
        )
    roles = dict.fromkeys(unit.role for unit in service.units)
    found = PodSelectors({role: labels_of(name, role) for role in roles}, pod_port(service), pods.namespace)
    argv = discovery_argv(replace(service, router=replace(choice, python=PYTHON)), found)
    container: Spec = {
        "name": "router",
        "image": pods.router_image,
        "command": [in_pod(word, _VARIABLES) for word in argv],
        "env": [*_address_variable(), *_secret_variables(service, name, (service.api_key_env,))],
        "resources": _router_resources(choice),
        "securityContext": _own_security(service),
        "ports": [{"name": "http", "containerPort": choice.port}],
        # it is ready when it knows a server, and lives as long as it answers
        "readinessProbe": _asked("/readiness", POLL_S),
        "livenessProbe": {**_asked("/liveness", POLL_S), "initialDelaySeconds": 60},
    }
    volumes: list[Spec] = []
    _give_home(service, container, volumes)
    spec = {
        "serviceAccountName": f"{name}-router",
        "securityContext": _pod_security(service),
        "terminationGracePeriodSeconds": DRAIN_S,
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {"labels": labels_of(name, "router")}, "spec": spec}


def keep_pod(service: Service, name: str, url: str) -> Spec:
    """`keep`, which asks the service for a token as a user would. It asks nothing of Kubernetes: it has no rights."""
    argv = [PYTHON, "-m", "ridgeline", "keep", f"{KEEP_FOLDER}/{KEEP_FILE}", "--front", url]
    argv += ["--metrics", str(KEEP_PORT), "--metrics-host", "$(POD_IP)"]
    variables = (service.api_key_env, service.notify.webhook_env)
    container: Spec = {
        "name": "keep",
        "image": service.pods.keep_image,
        "command": argv,
        "env": [*_address_variable(), *_secret_variables(service, name, variables)],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": _own_security(service),
        "ports": [{"name": "http", "containerPort": KEEP_PORT}],
        "volumeMounts": [{"name": "service", "mountPath": KEEP_FOLDER, "readOnly": True}],
        "readinessProbe": _asked("/metrics", POLL_S),
        "livenessProbe": {**_asked("/metrics", POLL_S), "initialDelaySeconds": 60},
    }
    volumes: list[Spec] = [{"name": "service", "configMap": {"name": f"{name}-keep"}}]
    _give_home(service, container, volumes)
    spec = {
        "serviceAccountName": f"{name}-keep",
        "automountServiceAccountToken": False,
        "securityContext": _pod_security(service),
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {"labels": labels_of(name, "keep")}, "spec": spec}


def key_secret(service: Service, name: str) -> str:
    return service.pods.secret or f"{name}-key"


def _image(service: Service) -> str:
    if not (known := server_of(service.engine).image):
        raise InputError(
            f"Kubernetes needs an image for {service.engine}; name it in the deployment file: "
            "`kubernetes: {image: ...}`"
        )
    return known.format(".".join(map(str, release_written(service.engine, service.release))))


def _address_variable() -> list[Spec]:
    return [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def _server_variables(service: Service, name: str) -> list[Spec]:
    """Its address, its secrets by reference, and its key under the name that the engine looks for."""
    found = [*_address_variable(), *_secret_variables(service, name, service.secret_variables)]
    if (own := server_of(service.engine).key_variable) and service.api_key_env:
        found.append({"name": own, "valueFrom": _from_secret(service, name, service.api_key_env)})
    return found


def _secret_variables(service: Service, name: str, variables: Sequence[str]) -> list[Spec]:
    return [
        {"name": variable, "valueFrom": _from_secret(service, name, variable)} for variable in variables if variable
    ]


def _from_secret(service: Service, name: str, variable: str) -> Spec:
    return {"secretKeyRef": {"name": key_secret(service, name), "key": variable}}


def _plain(env: Mapping[str, str]) -> list[Spec]:
    return [{"name": key, "value": in_pod(value, _VARIABLES)} for key, value in env.items()]


def _resources(service: Service, unit: ServiceUnit) -> Spec:
    """Asked for, so that no neighbour takes them; limits only where going beyond would harm, or the unit says so."""
    if not server_of(service.engine).loads_model:
        return {"requests": {"cpu": "1", "memory": "1Gi"}}
    if not unit.gpus:
        raise InputError(f"Kubernetes must know the GPUs of a {unit.role} server; add `gpus:` to its unit, such as 8")
    cores = unit.cores or CORES_PER_GPU * unit.gpus
    memory = unit.memory_bytes or MEMORY_BYTES_PER_GPU * unit.gpus
    devices = {"nvidia.com/gpu": str(unit.gpus)}
    devices |= {device: str(count) for device, count in service.pods.devices.items()}
    limit = {"memory": _quantity(memory)} if unit.memory_bytes else {}
    return {"requests": {"cpu": str(cores), "memory": _quantity(memory), **devices}, "limits": {**devices, **limit}}


def _router_resources(choice: RouterChoice) -> Spec:
    cores, memory = choice.cores or ROUTER_CORES, choice.memory_bytes or ROUTER_MEMORY_BYTES
    return {"requests": {"cpu": str(cores), "memory": _quantity(memory)}}


def _quantity(size: int) -> str:
    return f"{-(-size // 2**20)}Mi"


def _pod_security(service: Service) -> Spec:
    """What the Pod Security Standard `restricted` asks of a pod; user 0 leaves whom to run as to the image."""
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    if not (user := service.pods.user):
        return profile
    return {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user, **profile}


def _own_security(service: Service, *, ipc_lock: bool = False) -> Spec:
    """And of a container. RDMA pins the memory that it sends from: IPC_LOCK, which `restricted` does not allow."""
    capabilities = {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if ipc_lock else {})}
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def _give_home(service: Service, container: Spec, volumes: list[Spec]) -> None:
    """Engines keep compiled kernels and downloads at home, and ask for their user's name, which images don't know."""
    if not service.pods.user:
        return
    names = {"HOME": HOME, "USER": "server", "LOGNAME": "server"}
    container["env"] = [*({"name": key, "value": value} for key, value in names.items()), *container["env"]]
    container.setdefault("volumeMounts", []).append({"name": "home", "mountPath": HOME})
    volumes.append({"name": "home", "emptyDir": {}})


def _affinity(service: Service, unit: ServiceUnit, name: str) -> Spec:
    """Replicas rather on different nodes, so that one lost node is one lost replica; all of them rather in one zone."""
    apart = _preferred("kubernetes.io/hostname", {"matchLabels": labels_of(name, unit.role)})
    found: Spec = {"podAntiAffinity": apart} if unit.replicas > 1 else {}
    if service.split or unit.nodes > 1:  # KV, or partial sums, travel between them
        together = {"matchLabels": {PART_OF: name}}
        found["podAffinity"] = _preferred("topology.kubernetes.io/zone", together)
    return found


def _preferred(topology: str, selector: Spec) -> Spec:
    term = {"labelSelector": selector, "topologyKey": topology}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def _mount_model(service: Service, container: Spec, volumes: list[Spec]) -> None:
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


def _server_probes(service: Service) -> Spec:
    """Ready and alive by a token that it makes on request; /health says 200 for hours on a server that hangs."""
    health = _asked("/health", POLL_S)
    paced = {"periodSeconds": _PROGRESS_LIMIT_S, "timeoutSeconds": _PROGRESS_LIMIT_S}
    if not (path := server_of(service.engine).generate_path):
        ready: Spec = {"exec": {"command": progress_command(pod_port(service), "ready")}, **paced}
        alive: Spec = {"exec": {"command": progress_command(pod_port(service), "alive")}, **paced}
    else:
        ready = alive = {**_asked(path, _PROGRESS_LIMIT_S), **paced}
    return {
        "startupProbe": {**health, "failureThreshold": _START_LIMIT_S // POLL_S},
        # one poll without a token takes it from the router, three restart it
        "readinessProbe": {**ready, "failureThreshold": 1},
        "livenessProbe": {**alive, "failureThreshold": 3},
    }


def _asked(path: str, period_s: int) -> Spec:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period_s}
