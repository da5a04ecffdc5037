"""What a deployment file describes: servers in units, the router in front of them, and where all of it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from ridgeline.records.site import LOCAL, Site
from ridgeline.records.study import NOBODY, NotifyChoice
from ridgeline.serving.ports import BOOTSTRAP_PORT, LAST_PORT, ROUTER_PORT, SGLANG_PORT
from ridgeline.study.forms import (
    Accepts,
    DefaultText,
    Duration,
    Environment,
    Form,
    OneLine,
    Single,
    Size,
    ValueUnit,
    Words,
)

_DAY_S = 86400.0
ROLES = ("both", "prefill", "decode")
# Beside sglang-router it adds 0.6 ms to a first token instead of 42, keeps its limits, lets waiting requests in,
# refuses with Retry-After, and lists the model of a vLLM by its name (docs/guides/deploy.md).
USUAL_ROUTER: Final = "smg"


class ServiceUnit(Form):
    """Equal servers of one role."""

    whose = "a unit"

    role: Literal["both", "prefill", "decode"] = Field(default="both", description="What its servers do.")
    replicas: Annotated[int, ValueUnit("servers")] = Field(default=1, ge=1, le=512, description="How many of them.")
    nodes: Annotated[int, ValueUnit("nodes")] = Field(default=1, ge=1, description="Nodes of each server.")
    gpus: Annotated[int, ValueUnit("GPUs")] = Field(default=0, ge=0, description="GPUs of each of these nodes.")
    settings: dict[str, Single] = Field(default={}, description="Knobs of the engine, as in a study.")
    arguments: Annotated[Words, DefaultText("none")] = Field(
        default=[], description="Further words of the server's command line, as they are."
    )
    env: Environment = Field(default={}, description="Environment of these servers.")
    cores: Annotated[int | None, ValueUnit("cores"), DefaultText("the share of its GPUs")] = Field(
        default=None, ge=1, description="Cores of each node, where a batch system or Kubernetes is asked for them."
    )
    memory_bytes: Annotated[Size | None, DefaultText("the share of its GPUs")] = Field(
        default=None, alias="memory", description="Memory of each node, likewise."
    )


class RouterChoice(Form):
    """The router in front of the servers."""

    whose = "a router"

    kind: Literal["sglang-router", "smg", "vllm-router"] = Field(default=USUAL_ROUTER, description="Which one.")
    policy: Annotated[OneLine, DefaultText("the router's own")] = Field(
        default="", description="How it chooses a server: round_robin, power_of_two, cache_aware, ..."
    )
    port: Annotated[int, ValueUnit("")] = Field(
        default=ROUTER_PORT, ge=1, le=LAST_PORT, description="Where users reach it."
    )
    most_running: Annotated[int | None, ValueUnit("requests"), DefaultText("no limit")] = Field(
        default=None, ge=1, description="Requests under way at once; more wait."
    )
    most_waiting: Annotated[int | None, ValueUnit("requests"), DefaultText("the router's own")] = Field(
        default=None, ge=0, description="Requests that may wait; more are refused with 429."
    )
    longest_wait_s: Annotated[Duration | None, DefaultText("the router's own")] = Field(
        default=None, alias="longest_wait", description="How long a request may wait there before it is refused."
    )
    python: OneLine = Field(default="python3", description="The interpreter of the environment that has the router.")
    arguments: Annotated[Words, DefaultText("none")] = Field(
        default=[], description="Further words of the router's command line, as they are."
    )
    cores: Annotated[int | None, ValueUnit("cores"), DefaultText("an eighth of a node's, at most 4")] = Field(
        default=None, ge=1, description="Cores of the router's own small job."
    )
    memory_bytes: Annotated[Size | None, DefaultText("an eighth of a node's, at most 8 GiB")] = Field(
        default=None, alias="memory", description="Memory of the router's own small job."
    )


class PodChoice(Form):
    """What Kubernetes needs to know; read by `service render --for kubernetes`."""

    whose = "kubernetes"

    image: Annotated[OneLine, DefaultText("the engine's published one of this release")] = Field(
        default="", description="The image of the servers."
    )
    router_image: Annotated[OneLine, DefaultText("needed where there is a router")] = Field(
        default="", description="An image that has the router."
    )
    namespace: OneLine = Field(default="default", description="Where everything is made.")
    model_claim: Annotated[OneLine, DefaultText("the folder is on every node")] = Field(
        default="", description="The PersistentVolumeClaim that holds the model's folder."
    )
    secret: Annotated[OneLine, DefaultText("the service's name, then `-key`")] = Field(
        default="", description="The Secret that holds the API key, under the name that `api_key_env` gives."
    )
    devices: dict[str, Annotated[int, ValueUnit("")]] = Field(
        default={}, description="Further resources of each pod of a server, such as `rdma/hca: 8`."
    )
    user: Annotated[int, ValueUnit("")] = Field(
        default=1000, ge=0, description="Whom pods run as, as the standard `restricted` wants it; 0: the image decides."
    )
    ipc_lock: bool = Field(
        default=False, description="Let servers pin memory (IPC_LOCK) for RDMA; `restricted` does not allow it."
    )


_WEEK_MIN, DAY_MIN = 7 * 24 * 60, 24 * 60
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _day_numbers(text: str) -> list[int]:
    """`mon-fri`, `sat,sun`, `fri-mon`: numbers from Monday, 0. ValueError says what it is not."""
    found: set[int] = set()
    for part in text.replace(" ", "").lower().split(","):
        first, _, last = part.partition("-")
        if first not in _DAYS or (last or first) not in _DAYS:
            raise ValueError(f"{text!r} are no days; write such as mon-fri or sat,sun")
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, end + 1 if end >= begin else end + 8)}
    return sorted(found)


def _minute_of_day(text: str) -> int:
    """`08:00` to `24:00`."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
    minute = int(match[1]) * 60 + int(match[2]) if match else -1
    if match is None or int(match[2]) > 59 or minute > DAY_MIN:
        raise ValueError(f'{text!r} is not a time of the day; write such as "08:00"')
    return minute


def _read_by(read: Callable[[str], object]) -> AfterValidator:
    """Text that it reads, as it was written."""

    def accept(text: str) -> str:
        read(text)
        return text

    return AfterValidator(accept)


_TimeOfDay = Annotated[OneLine, _read_by(_minute_of_day), Accepts('a time of the day such as "08:00"')]


class ScheduleEntry(Form):
    """Limits that hold from one time of the day to another; past midnight where `to` comes before `from`."""

    whose = "a schedule"

    from_: _TimeOfDay = Field(alias="from", description="When it begins.", examples=['"08:00"'])
    to: _TimeOfDay = Field(description="When it ends.", examples=['"20:00"'])
    days: Annotated[
        OneLine, _read_by(_day_numbers), Accepts("days such as mon-fri or sat,sun"), DefaultText("every day")
    ] = Field(default="mon-sun", description="On which days it begins.")
    least: Annotated[int | None, ValueUnit("servers"), DefaultText("the role's")] = Field(
        default=None, ge=1, description="Never fewer meanwhile."
    )
    most: Annotated[int | None, ValueUnit("servers"), DefaultText("the role's")] = Field(
        default=None, ge=1, description="Never more meanwhile."
    )

    @property
    def text(self) -> str:
        return f"{self.from_} to {self.to}{'' if self.days == 'mon-sun' else f' {self.days}'}"

    def spans(self) -> list[tuple[int, int]]:
        """Where it begins, in minutes of the week, and how long it lasts; once for each day."""
        begins = _minute_of_day(self.from_)
        length = (_minute_of_day(self.to) - begins) % DAY_MIN or DAY_MIN
        return [(day * DAY_MIN + begins, length) for day in _day_numbers(self.days)]

    def holds_at(self, minute: int) -> bool:
        """In this minute of the week."""
        return any((minute - begins) % _WEEK_MIN < length for begins, length in self.spans())

    def overlaps(self, other: ScheduleEntry) -> bool:
        return any(other.holds_at(begins) for begins, _ in self.spans()) or any(
            self.holds_at(begins) for begins, _ in other.spans()
        )


class RoleScale(Form):
    """How many servers of a role there are, and the load at which there should be more.

    Without a target they follow the schedule; in a split service, the role that has targets.
    """

    whose = "scale"

    least: Annotated[int, ValueUnit("servers")] = Field(default=1, ge=1, description="Never fewer.")
    most: Annotated[int, ValueUnit("servers")] = Field(ge=1, le=512, description="Never more.", examples=["4"])
    running: Annotated[float | None, ValueUnit("requests"), DefaultText("not looked at")] = Field(
        default=None, gt=0, description="Target: requests on each server, running or waiting."
    )
    waiting: Annotated[float | None, ValueUnit("requests"), DefaultText("not looked at")] = Field(
        default=None, gt=0, description="Target: of these, how many wait."
    )
    kv: Annotated[float | None, DefaultText("not looked at")] = Field(
        default=None, gt=0, le=1, description="Target: share of each server's KV pool that is used."
    )
    schedule: Annotated[list[ScheduleEntry], DefaultText("none")] = Field(
        default=[], description="Other limits at times of the day."
    )

    @property
    def by_load(self) -> bool:
        return any(target is not None for target in (self.running, self.waiting, self.kv))


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
    pods: PodChoice = field(default_factory=PodChoice)
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
