"""A service as Kubernetes manifests: LeaderWorkerSets of servers, or one DisaggregatedSet, and the router before them.

A LeaderWorkerSet keeps groups of pods, one group a server: a pod for each of its nodes, all of them made anew when one
fails. A DisaggregatedSet keeps one such set for each role and changes them together. Both are of the LWS project
(leaderworkerset.x-k8s.io/v1 and disaggregatedset.x-k8s.io/v1, the latter from its release 0.9 on).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import yaml

from ridgeline.errors import InputError
from ridgeline.service.kubernetes.pods import (
    COMPONENT,
    KEEP_FILE,
    PART_OF,
    Spec,
    follower_role,
    keep_pod,
    key_secret,
    labels_of,
    pod_port,
    router_pod,
    server_pod,
)
from ridgeline.service.kubernetes.progress import PROBE_FILE, progress_script
from ridgeline.service.quoting import in_comment, shell_line
from ridgeline.service.servers import server_of
from ridgeline.service.service import Service, ServiceUnit

_LONGEST_NAME = 40  # Kubernetes takes 63, and the sets append numbers, a revision and a role
SERVERS_FILE, ROUTER_FILE, KEEP_MANIFEST = "servers.yaml", "router.yaml", "keep.yaml"
_KEEP_HEADING = (
    "ridgeline keep, watching: a token through the front door every ten seconds, alerts as `notify` says, metrics at",
    "port 9400. It restarts, replaces and scales nothing: Kubernetes restarts pods by the probes of servers.yaml.",
    "It asks nothing of the Kubernetes API, so its account has no rights and no token.",
)


def manifests(service: Service) -> Iterator[tuple[str, str]]:
    """File names and their text."""
    name = _object_name(service)
    yield SERVERS_FILE, _text(_heading(service, name), _servers(service, name))
    if service.router is not None:
        yield ROUTER_FILE, _text("", _router(service, name))
    if service.pods.keep_image:
        yield KEEP_MANIFEST, _text("".join(f"# {line}\n" for line in _KEEP_HEADING), _keep(service, name))


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
        create = ["kubectl", "create", "secret", "generic", key_secret(service, name)]
        create += ["--namespace", service.pods.namespace, "--from-env-file=/dev/stdin"]
        lines.append(f"first the secrets, which are in no file: printf '%s\\n' {values} | {shell_line(create)}")
    if service.pods.devices and not service.pods.ipc_lock:
        lines.append(
            "where nodes do not let pods pin memory, RDMA needs `kubernetes: {ipc_lock: true}` and a namespace that "
            "allows it"
        )
    if service.pods.user and _on_the_node(service):
        lines.append(
            "`restricted` namespaces take no folders of nodes: there name a claim, `kubernetes: {model_claim: ...}`"
        )
    return "".join(f"# {in_comment(line)}\n" for line in lines)


def _servers(service: Service, name: str) -> Iterator[Spec]:
    if not server_of(service.engine).generate_path:
        probe = {PROBE_FILE: progress_script(service.engine, service.api_key_env)}
        yield _object(service, "v1", "ConfigMap", f"{name}-probe", data=probe)
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
        yield _front(service, name, service.units[0].role, pod_port(service))


def _disruption(service: Service, name: str, role: str) -> Spec:
    """Nodes are drained one server of a role at a time: a pod that is gone stands for its whole server."""
    chosen = {"key": COMPONENT, "operator": "In", "values": [role, follower_role(role)]}
    selector = {"matchLabels": {PART_OF: name}, "matchExpressions": [chosen]}
    full = f"{name}-{'server' if role == 'both' else role}"
    return _object(service, "policy/v1", "PodDisruptionBudget", full, spec={"maxUnavailable": 1, "selector": selector})


def _on_the_node(service: Service) -> bool:
    return server_of(service.engine).loads_model and service.model.startswith("/") and not service.pods.model_claim


def _group(service: Service, unit: ServiceUnit, name: str) -> Spec:
    """The pods of one server; a group of one has only the template that is asked for."""
    # what a server computes is spread over all of its pods, and lost with any of them
    own: Spec = {"size": unit.nodes, "restartPolicy": "RecreateGroupOnPodRestart"}
    leader = server_pod(service, unit, name, leads=True)
    if unit.nodes == 1:
        return {**own, "workerTemplate": leader}
    return {**own, "leaderTemplate": leader, "workerTemplate": server_pod(service, unit, name, leads=False)}


def _unit_names(units: tuple[ServiceUnit, ...]) -> list[str]:
    """server, or the role; numbered from the second one on."""
    names: list[str] = []
    for unit in units:
        role = "server" if unit.role == "both" else unit.role
        taken = sum(name == role or name.startswith(f"{role}-") for name in names)
        names.append(f"{role}-{taken}" if taken else role)
    return names


def _router(service: Service, name: str) -> Iterator[Spec]:
    """It looks for pods with our labels, and may do nothing else in its namespace."""
    assert service.router is not None
    account, groups = f"{name}-router", "rbac.authorization.k8s.io"
    yield _object(service, "v1", "ServiceAccount", account)
    may = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    yield _object(service, f"{groups}/v1", "Role", account, rules=may)
    yield _object(
        service,
        f"{groups}/v1",
        "RoleBinding",
        account,
        roleRef={"apiGroup": groups, "kind": "Role", "name": account},
        subjects=[{"kind": "ServiceAccount", "name": account, "namespace": service.pods.namespace}],
    )
    # one: a second router would not know what the first one has let through
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels_of(name, "router")},
        "template": router_pod(service, name),
    }
    yield _object(service, "apps/v1", "Deployment", account, spec=spec)
    yield _front(service, name, "router", service.router.port)


def _keep(service: Service, name: str) -> Iterator[Spec]:
    """One: two would tell everything twice; the old one ends before the next begins."""
    port = service.router.port if service.router is not None else pod_port(service)
    url = f"http://{name}-api.{service.pods.namespace}.svc:{port}"
    known: Spec = {"version": 1, "name": service.name, "model": service.model, "engine": {"kind": service.engine}}
    known |= {"engine": {"kind": service.engine, "gpu": service.gpu}} if service.gpu else {}
    known |= {"served_name": service.served_name} if service.served_name else {}
    known |= {"api_key_env": service.api_key_env} if service.api_key_env else {}
    if service.notify.ways:
        told = asdict(service.notify)
        known["notify"] = {key: value for key, value in told.items() if value}
    known["units"] = [{"replicas": 1}]
    yield _object(service, "v1", "ServiceAccount", f"{name}-keep")
    yield _object(service, "v1", "ConfigMap", f"{name}-keep", data={KEEP_FILE: yaml.safe_dump(known, sort_keys=False)})
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels_of(name, "keep")},
        "template": keep_pod(service, name, url),
    }
    yield _object(service, "apps/v1", "Deployment", f"{name}-keep", spec=spec)


def _front(service: Service, name: str, role: str, port: int) -> Spec:
    """Where users go, inside the cluster only."""
    ports = [{"name": "http", "port": port, "targetPort": "http"}]
    spec = {"type": "ClusterIP", "selector": labels_of(name, role), "ports": ports}
    return _object(service, "v1", "Service", f"{name}-api", spec=spec)


def _object(service: Service, version: str, kind: str, name: str, **parts: Any) -> Spec:
    metadata = {"name": name, "namespace": service.pods.namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


class _Plain(yaml.SafeDumper):
    """Without anchors: whoever edits one template must not change another."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(heading: str, objects: Iterator[Spec]) -> str:
    return heading + yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=110, explicit_start=True)
