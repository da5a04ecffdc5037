"""What a deployment file describes: servers in units, the router in front of them, and where all of it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ridgeline.records.expression import Value
from ridgeline.records.site import LOCAL, Site
from ridgeline.records.study import NOBODY, NotifyChoice
from ridgeline.serving.ports import BOOTSTRAP_PORT, ROUTER_PORT, SGLANG_PORT

_DAY_S = 86400.0
ROLES = ("both", "prefill", "decode")
# Beside sglang-router it adds 0.6 ms to a first token instead of 42, keeps its limits, lets waiting requests in,
# refuses with Retry-After, and lists the model of a vLLM by its name (docs/guides/deploy.md).
USUAL_ROUTER: Final = "smg"


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """Equal servers. `settings` are knobs under any of their names; `arguments` are passed on as they stand."""

    role: str = "both"
    replicas: int = 1
    nodes: int = 1
    gpus: int = 0  # of each node
    settings: Mapping[str, Value] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None  # of each node; None: the share of its GPUs
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RouterChoice:
    """Which router, and what it may let through. None leaves a limit to the router's own default."""

    kind: str = USUAL_ROUTER
    policy: str = ""
    port: int = ROUTER_PORT
    most_running: int | None = None
    most_waiting: int | None = None
    python: str = "python3"
    arguments: tuple[str, ...] = ()
    longest_wait_s: float | None = None
    cores: int | None = None  # of its job on a cluster; None: a small share of a node
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PodChoice:
    """What Kubernetes needs beyond the servers themselves."""

    image: str = ""  # empty: the engine's published one of this release
    router_image: str = ""
    namespace: str = "default"
    model_claim: str = ""  # the volume claim with the model; empty: its folder lies on every node
    secret: str = ""  # that holds the API key, under the name of its variable; empty: named after the service
    devices: Mapping[str, int] = field(default_factory=dict)  # of each pod, beside its GPUs
    user: int = 1000  # whom pods run as; 0: the image decides
    ipc_lock: bool = False


_WEEK_MIN, DAY_MIN = 7 * 24 * 60, 24 * 60


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """Limits of a role that hold from one time of the day to another, on some days; past midnight where `ends_min`
    comes before `begins_min`."""

    begins_min: int  # of the day
    ends_min: int
    days: tuple[int, ...]  # on which it begins; 0 is Monday
    least: int | None = None
    most: int | None = None
    text: str = ""  # as a person would say it

    def spans(self) -> list[tuple[int, int]]:
        """Where it begins, in minutes of the week, and how long it lasts; once for each day."""
        length = (self.ends_min - self.begins_min) % DAY_MIN or DAY_MIN
        return [(day * DAY_MIN + self.begins_min, length) for day in self.days]

    def holds_at(self, minute: int) -> bool:
        """In this minute of the week."""
        return any((minute - begins) % _WEEK_MIN < length for begins, length in self.spans())

    def overlaps(self, other: ScheduleEntry) -> bool:
        return any(other.holds_at(begins) for begins, _ in self.spans()) or any(
            self.holds_at(begins) for begins, _ in other.spans()
        )


@dataclass(frozen=True, slots=True)
class RoleScale:
    """How many servers of a role there may be, and the load at which there should be more. None: it doesn't count."""

    least: int
    most: int
    running: float | None = None  # requests on each server, running or waiting
    waiting: float | None = None  # of these, those that wait
    kv: float | None = None  # share of each server's KV pool
    ttft_p95_ms: float | None = None
    schedule: tuple[ScheduleEntry, ...] = ()

    @property
    def by_load(self) -> bool:
        return any(target is not None for target in (self.running, self.waiting, self.kv, self.ttft_p95_ms))


@dataclass(frozen=True, slots=True)
class ScaleRules:
    """How `keep` scales a service: its `roles`, each within its limits."""

    roles: Mapping[str, RoleScale]
    down_after_s: float = 600.0  # of low load, and after any change, before a server is removed
    most_servers: int | None = None  # of all roles together
    timezone: str = ""  # of the schedule; empty: that of the machine


@dataclass(frozen=True, slots=True)
class Service:
    """`expected` are figures of the plan with their intervals, to hold what is seen against."""

    name: str
    model: str
    engine: str
    release: tuple[int, ...]
    units: tuple[ServiceUnit, ...]
    router: RouterChoice | None
    site: Site = LOCAL
    python: str = "python3"  # of the engine's environment
    gpu: str = ""
    served_name: str = ""
    secrets: tuple[str, ...] = ()  # variables of the servers, beside the key, whose values are written down nowhere
    first_port: int = SGLANG_PORT
    first_bootstrap_port: int = BOOTSTRAP_PORT  # of prefill servers, where decode servers fetch their KV
    in_turn: bool = False  # each server is started when the one before it is ready
    host: str = ""  # the address servers listen on; empty: loopback on this machine, the node's own on a cluster
    api_key_env: str = ""  # the variable that holds the key; never the key
    limit_s: float | None = None  # that a batch system is asked for; None: a day
    slo: Mapping[str, float] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    pods: PodChoice = PodChoice()
    notify: NotifyChoice = NOBODY
    scale: ScaleRules | None = None
    planned_release: str = ""  # what the file names; servers of another one do not start

    @property
    def split(self) -> bool:
        return any(unit.role != "both" for unit in self.units)

    def slots(self, unit: ServiceUnit) -> int:
        """The most servers of a unit that there may be at a time; each has ports of its own, whoever runs."""
        rule = self.scale.roles.get(unit.role) if self.scale is not None else None
        return unit.replicas if rule is None else max(unit.replicas, rule.most)

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """All of them, the key's first; what the site names as well."""
        named = (self.api_key_env, *self.secrets, *self.site.secrets)
        return tuple(dict.fromkeys(name for name in named if name))

    @property
    def on_this_machine(self) -> bool:
        return self.site.batch == "local"

    @property
    def job_limit_s(self) -> float:
        """After which a member's job is ended by the site. Nobody does that on this machine."""
        return math.inf if self.on_this_machine else self.limit_s or _DAY_S
