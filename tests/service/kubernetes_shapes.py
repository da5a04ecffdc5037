"""What Kubernetes takes, as JSON schemas of the fields that we write: any other key is refused.

Field names, types and limits of LeaderWorkerSet and DisaggregatedSet are those of the published definitions of
kubernetes-sigs/lws (config/crd/bases at 060ab4d, August 2026; Apache-2.0), those of pods, Deployment, Service and
roles those of Kubernetes' own API reference. With RIDGELINE_LWS_CRDS naming a folder that holds the published
definitions themselves, manifests are held against these as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
QUANTITY: Schema = {"type": "string", "pattern": r"^\d+[A-Za-z]*$"}
QUANTITIES: Schema = {"type": "object", "additionalProperties": QUANTITY}
NAME: Schema = {"type": "string", "pattern": r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}
PORT: Schema = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string", "maxLength": 15}]}


def fields(*required: str, **known: Schema) -> Schema:
    return {"type": "object", "properties": known, "required": list(required), "additionalProperties": False}


def rows(item: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": item, **limits}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


SELECTOR = fields(
    matchLabels=LABELS,
    matchExpressions=rows(
        fields("key", "operator", key=TEXT, operator=one_of("In", "NotIn", "Exists"), values=rows(TEXT))
    ),
)
PROBE = fields(
    httpGet=fields("port", path=TEXT, port=PORT),
    exec=fields(command=rows(TEXT)),
    initialDelaySeconds=COUNT,
    periodSeconds=COUNT,
    timeoutSeconds=COUNT,
    failureThreshold=COUNT,
)
SOURCE = fields(
    fieldRef=fields("fieldPath", fieldPath=TEXT),
    secretKeyRef=fields("key", name=TEXT, key=TEXT),
)
CONTAINER = fields(
    "name",
    name=NAME,
    image=TEXT,
    command=rows(TEXT),
    env=rows(fields("name", name=TEXT, value=TEXT, valueFrom=SOURCE)),
    ports=rows(fields("containerPort", name=TEXT, containerPort=PORT)),
    resources=fields(limits=QUANTITIES, requests=QUANTITIES),
    securityContext=fields(allowPrivilegeEscalation=FLAG, capabilities=fields(add=rows(TEXT), drop=rows(TEXT))),
    volumeMounts=rows(fields("name", "mountPath", name=TEXT, mountPath=TEXT, subPath=TEXT, readOnly=FLAG)),
    startupProbe=PROBE,
    readinessProbe=PROBE,
    livenessProbe=PROBE,
)
VOLUME = fields(
    "name",
    name=NAME,
    emptyDir=fields(medium=TEXT),
    hostPath=fields("path", path=TEXT, type=TEXT),
    persistentVolumeClaim=fields("claimName", claimName=TEXT, readOnly=FLAG),
    configMap=fields(name=TEXT),
)
TERM = fields("topologyKey", labelSelector=SELECTOR, topologyKey=TEXT)
WEIGHTED = fields(
    "weight", "podAffinityTerm", weight={"type": "integer", "minimum": 1, "maximum": 100}, podAffinityTerm=TERM
)
NEAR = fields(preferredDuringSchedulingIgnoredDuringExecution=rows(WEIGHTED))
POD = fields(
    metadata=fields(labels=LABELS, annotations=LABELS),
    spec=fields(
        "containers",
        containers=rows(CONTAINER, minItems=1),
        volumes=rows(VOLUME),
        serviceAccountName=TEXT,
        automountServiceAccountToken=FLAG,
        affinity=fields(podAffinity=NEAR, podAntiAffinity=NEAR),
        securityContext=fields(
            runAsNonRoot=FLAG,
            runAsUser=COUNT,
            runAsGroup=COUNT,
            fsGroup=COUNT,
            seccompProfile=fields("type", type=one_of("RuntimeDefault", "Unconfined", "Localhost")),
        ),
        terminationGracePeriodSeconds=COUNT,
    ),
)
GROUP_SET = fields(
    "leaderWorkerTemplate",
    replicas=COUNT,
    leaderWorkerTemplate=fields(
        "workerTemplate",
        size=COUNT,
        restartPolicy=one_of("Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"),
        leaderTemplate=POD,
        workerTemplate=POD,
    ),
)
RULE = fields("verbs", apiGroups=rows(TEXT), resources=rows(TEXT), verbs=rows(TEXT))
REFERENCE = fields("kind", "name", apiGroup=TEXT, kind=TEXT, name=TEXT, namespace=TEXT)
SERVICE_PORT = fields("port", name=TEXT, port=PORT, targetPort=PORT)

PARTS: dict[tuple[str, str], dict[str, Schema]] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {"spec": GROUP_SET},
    ("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet"): {
        "spec": fields("roles", roles=rows(fields("name", name=NAME, spec=GROUP_SET), minItems=2, maxItems=10))
    },
    ("apps/v1", "Deployment"): {
        "spec": fields(
            "selector",
            "template",
            replicas=COUNT,
            strategy=fields(type=one_of("Recreate", "RollingUpdate")),
            selector=fields(matchLabels=LABELS),
            template=POD,
        )
    },
    ("v1", "Service"): {
        "spec": fields(type=one_of("ClusterIP"), selector=LABELS, ports=rows(SERVICE_PORT, minItems=1))
    },
    ("policy/v1", "PodDisruptionBudget"): {"spec": fields(maxUnavailable=COUNT, minAvailable=COUNT, selector=SELECTOR)},
    ("v1", "ConfigMap"): {"data": LABELS},
    ("v1", "ServiceAccount"): {},
    ("rbac.authorization.k8s.io/v1", "Role"): {"rules": rows(RULE)},
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): {"roleRef": REFERENCE, "subjects": rows(REFERENCE)},
}


def schema_of(version: str, kind: str) -> Schema:
    parts = PARTS[version, kind]
    head = {"apiVersion": TEXT, "kind": TEXT, "metadata": fields("name", name=NAME, namespace=NAME)}
    return fields("apiVersion", "kind", "metadata", *parts, **head, **parts)


def published(kind: str) -> Iterator[Schema]:
    """The definition of this kind where somebody has it here."""
    folder = os.environ.get("RIDGELINE_LWS_CRDS")
    for path in sorted(Path(folder).glob("*.yaml")) if folder else ():
        found = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if found.get("spec", {}).get("names", {}).get("kind") == kind:
            schema: Schema = _closed(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            yield schema


def _closed(node: Any) -> Any:
    """No key but the known ones, as the API server would warn of them; its own way to say `number or text` as types."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _closed(value) for key, value in node.items()}
    if found.get("type") == "object" and isinstance(found.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    if found.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    return found
