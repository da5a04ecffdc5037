"""What a deployment file describes: servers in units, the router in front of them, and where all of it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ridgeline.records.site import LOCAL, Site
from ridgeline.records.study import NOBODY, NotifyChoice
from ridgeline.serving.ports import BOOTSTRAP_PORT, LAST_PORT, ROUTER_PORT, SGLANG_PORT
from ridgeline.study.forms import (
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
    planned_release: str = ""  # what the file names; servers of another one do not start

    @property
    def split(self) -> bool:
        return any(unit.role != "both" for unit in self.units)

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
