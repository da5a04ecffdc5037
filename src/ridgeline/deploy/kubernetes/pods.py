"""Pods of servers and of the router: containers, what they are given, and how Kubernetes sees that they work."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ridgeline.deploy.kubernetes.progress import PROBE_FOLDER, progress_command
from ridgeline.deploy.routers import ROUTERS, PodSelectors, discovering_words
from ridgeline.deploy.servers import SERVERS, ServerPlace, server_words
from ridgeline.deploy.service import Service, ServiceUnit
from ridgeline.errors import InputError
from ridgeline.serving.engine.knobs.releases import release_written

START_LIMIT_S = 3600  # weights are read and kernels compiled in that time
LOOK_S = 10
# a server that works answers /health_generate in far less, also when its queue is long: any new token counts
PROGRESS_LIMIT_S = 30
DRAIN_S = 300  # what is under way may finish when a pod is asked to end
PYTHON = "python3"  # of the images
_IMAGES = {"sglang": "lmsysorg/sglang:v{}", "vllm": "vllm/vllm-openai:v{}"}
# what a start script's shell variables are called in a pod
_VARIABLES = {"address": "POD_IP", "head": "LWS_LEADER_ADDRESS", "rank": "LWS_WORKER_INDEX"}

Spec = dict[str, Any]


def labels_of(name: str, role: str) -> dict[str, str]:
    """Of the pods that answer requests: a router, or its only Service, finds them by these."""
    return {"app.kubernetes.io/part-of": name, "app.kubernetes.io/component": role}


def pod_port(service: Service) -> int:
    """Every pod has an address of its own, so all servers listen on one port."""
    return service.first_port


def server_pod(service: Service, unit: ServiceUnit, name: str, leads: bool) -> Spec:
    """The template of a server's first pod (`leads`), or of its others, which answer nobody."""
    at = ServerPlace(pod_port(service), service.first_bootstrap_port, 0, 0)
    words = server_words(replace(service, python=PYTHON), unit, at)
    words += () if leads else SERVERS[service.engine].follower_words
    container: Spec = {
        "name": "server",
        "image": service.pods.image or _image(service),
        "command": in_pod(words, service),
        "env": [*_variables(service, name), *({"name": key, "value": value} for key, value in unit.env.items())],
        "resources": {"limits": _resources(service, unit)},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108  where NCCL looks for it
    }
    if service.pods.devices:
        # RDMA pins the memory that it sends from
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    volumes: list[Spec] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    _mount_model(service, container, volumes)
    if leads:
        container["ports"] = [{"name": "http", "containerPort": pod_port(service)}]
        container |= _server_probes(service)
        if service.engine == "vllm":
            container["volumeMounts"].append({"name": "probe", "mountPath": PROBE_FOLDER, "readOnly": True})
            volumes.append({"name": "probe", "configMap": {"name": f"{name}-probe"}})
    spec = {"terminationGracePeriodSeconds": DRAIN_S, "containers": [container], "volumes": volumes}
    if not leads:
        return {"spec": spec}
    metadata: Spec = {"labels": labels_of(name, unit.role)}
    if unit.role == "prefill" and service.router is not None:
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
    words = discovering_words(replace(service, router=replace(choice, python=PYTHON)), found)
    container: Spec = {
        "name": "router",
        "image": pods.router_image,
        "command": in_pod(words, service),
        "env": _variables(service, name),
        "ports": [{"name": "http", "containerPort": choice.port}],
        # it is ready when it knows a server, and lives as long as it answers
        "readinessProbe": _asked("/readiness", LOOK_S),
        "livenessProbe": {**_asked("/liveness", LOOK_S), "initialDelaySeconds": 60},
    }
    spec = {
        "serviceAccountName": f"{name}-router",
        "terminationGracePeriodSeconds": DRAIN_S,
        "containers": [container],
    }
    return {"metadata": {"labels": labels_of(name, "router")}, "spec": spec}


def in_pod(words: Sequence[str], service: Service) -> list[str]:
    """Our shell variables as Kubernetes fills them in; whatever else looks like one of its own is left as it is."""
    known = {**_VARIABLES, service.api_key_env: service.api_key_env} if service.api_key_env else _VARIABLES

    def filled(found: re.Match[str]) -> str:
        name = known.get(found["braced"] or found["bare"])
        return found[0] if name is None else f"$({name})"

    pattern = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>[A-Za-z_]\w*))")
    return [pattern.sub(filled, word.replace("$(", "$$(")) for word in words]


def key_secret(service: Service, name: str) -> str:
    return service.pods.secret or f"{name}-key"


def _image(service: Service) -> str:
    if (known := _IMAGES.get(service.engine)) is None:
        raise InputError(
            f"Kubernetes needs an image for {service.engine}; name it in the deployment file: "
            "`kubernetes: {image: ...}`"
        )
    return known.format(".".join(map(str, release_written(service.engine, service.release))))


def _variables(service: Service, name: str) -> list[Spec]:
    found: list[Spec] = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    if service.api_key_env:
        key = {"name": key_secret(service, name), "key": service.api_key_env}
        found.append({"name": service.api_key_env, "valueFrom": {"secretKeyRef": key}})
    return found


def _resources(service: Service, unit: ServiceUnit) -> dict[str, str]:
    if service.engine == "twin":
        return {"cpu": "1"}
    if not unit.gpus:
        raise InputError(f"Kubernetes must know the GPUs of a {unit.role} server; add `gpus:` to its unit, such as 8")
    return {"nvidia.com/gpu": str(unit.gpus), **{device: str(count) for device, count in service.pods.devices.items()}}


def _mount_model(service: Service, container: Spec, volumes: list[Spec]) -> None:
    """A folder comes from a claim or from the node; a name is left to the engine to find."""
    folder = PurePosixPath(service.model)
    if service.engine == "twin" or not folder.is_absolute():
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
    health = _asked("/health", LOOK_S)
    paced = {"periodSeconds": PROGRESS_LIMIT_S, "timeoutSeconds": PROGRESS_LIMIT_S}
    if service.engine == "vllm":
        ready: Spec = {"exec": {"command": progress_command(pod_port(service), "ready")}, **paced}
        alive: Spec = {"exec": {"command": progress_command(pod_port(service), "alive")}, **paced}
    else:
        ready = alive = {**_asked("/health_generate", PROGRESS_LIMIT_S), **paced}
    return {
        "startupProbe": {**health, "failureThreshold": START_LIMIT_S // LOOK_S},
        # one look without a token takes it from the router, three restart it
        "readinessProbe": {**ready, "failureThreshold": 1},
        "livenessProbe": {**alive, "failureThreshold": 3},
    }


def _asked(path: str, period_s: int) -> Spec:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period_s}
