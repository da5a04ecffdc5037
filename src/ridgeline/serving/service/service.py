"""What a deployment file says: servers in units, the router in front of them, and where all of it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field

from ridgeline.records.secrets import looks_secret
from ridgeline.records.site import LOCAL, Site
from ridgeline.records.study import NOBODY, NotifyChoice
from ridgeline.serving.engines.base import ServingEngine, engine_named
from ridgeline.serving.engines.sglang.engine import Sglang
from ridgeline.serving.ports import BOOTSTRAP_PORT, LAST_PORT, ROUTER_PORT, SGLANG_PORT
from ridgeline.study.forms import (
    Accepts,
    DefaultText,
    Duration,
    Environment,
    FieldName,
    Form,
    Lines,
    OneLine,
    Single,
    Size,
    ValueUnit,
    Variable,
    Words,
    accepted_by,
)
from ridgeline.study.schema import NotifyForm

_DAY_S = 86400.0
ROLES = ("both", "prefill", "decode")
# Beside sglang-router it adds 0.6 ms to a first token instead of 42, keeps its limits, lets waiting requests in,
# refuses with Retry-After, and lists the model of a vLLM by its name (docs/guides/deploy.md).
USUAL_ROUTER: Final = "smg"
FULL_KV_SHARE = 0.9  # of a server's KV pool: beyond it requests are thrown out and computed again


class _TwinEngine(Sglang):
    """`twin serve` as an engine of a service: SGLang's API, pages and knobs, and none of its processes."""

    packages = ()
    module = "ridgeline"
    device_knob = ""
    image = ""
    host_variable = ""
    derived_ports = ()
    rendezvous_ports = ()
    port_spacing = rendezvous_spacing = 1
    works_on_cpus = False
    loads_model = False


_TWIN = _TwinEngine()


def server_of(engine: str) -> ServingEngine:
    """The home of what a deployment file calls its engine."""
    return _TWIN if engine == "twin" else engine_named(engine)


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


def _key_variable(name: str) -> str:
    """People write the key itself here. It is not repeated: whatever says so may be kept in a log."""
    # a key drawn from capitals alone: variables of that length are several words
    drawn = len(name) >= 20 and "_" not in name
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) or looks_secret(name) or drawn:
        raise ValueError(
            "is not the name of an environment variable in capital letters; if it is the key itself, remove it here, "
            "put it into a variable such as SERVICE_KEY, and write `api_key_env: SERVICE_KEY`"
        )
    return name


class ServedEngineForm(Form):
    """What the servers run."""

    whose = "an engine"

    kind: Annotated[OneLine, accepted_by(server_of), Accepts("sglang, vllm, twin, or an engine of another package")] = (
        Field(description="The engine; twin: servers that only pretend.", examples=["sglang"])
    )
    release: Annotated[OneLine, DefaultText("the newest that is known")] = Field(
        default="", description="The release whose flags are used, such as 0.5.15."
    )
    python: OneLine = Field(default="python3", description="The interpreter of the environment that has the engine.")
    gpu: Annotated[OneLine, DefaultText("needed by twin only")] = Field(
        default="", description="What it runs on, such as h200: the twin keeps its time."
    )


class ServiceForm(Form):
    """A service: servers, their router, and where they run."""

    whose = "a deployment"
    elsewhere: ClassVar[Mapping[str, str]] = {"scale": "servers are not added or removed by load; set `replicas`"}
    makes = Service
    aside = frozenset(("version", "engine", "units", "router", "site", "start", "preflight"))

    version: Annotated[Literal[1], Accepts("1: write 1")] = Field(description="The version of this format.")
    name: Annotated[OneLine, DefaultText("the file's name")] = Field(
        default="", description="Shown in jobs and reports."
    )
    model: OneLine = Field(description="The model's folder or name, as the engine takes it; a preset for twin.")
    served_name: Annotated[OneLine, DefaultText("the model's")] = Field(description="What requests call it.")
    secrets: Annotated[list[Variable], Accepts("a list of variables such as [HF_TOKEN]"), DefaultText("none")] = Field(
        description="Variables that hold tokens of the servers: from the environment, ~/.ridgeline/secrets/NAME or a "
        "Kubernetes Secret; no file that is written holds their value.",
    )
    engine: ServedEngineForm
    units: list[ServiceUnit] = Field(min_length=1, description="The servers.")
    router: Annotated[RouterChoice | None, DefaultText("none: one server alone")] = Field(default=None)
    site: Any = Field(default="local", description="A site's name or file, or the mapping itself.")
    start: Literal["together", "in-turn"] = Field(
        default="together",
        description="in-turn: each server only when the one before is ready, as servers that share a GPU need it.",
    )
    first_port: Annotated[int, ValueUnit("")] = Field(
        ge=1024, le=60000, description="Port of the first server on a node; the next ones follow."
    )
    first_bootstrap_port: Annotated[int, ValueUnit("")] = Field(
        ge=1024,
        le=60000,
        description="Where decode servers fetch KV from the first prefill server on a node; the next ones follow.",
    )
    preflight: Annotated[Lines, DefaultText("none")] = Field(
        default=[],
        description="Records of `ridgeline site preflight --json` of the nodes (`nodes/*.json`): their InfiniBand "
        "adapters.",
    )
    host: Annotated[OneLine, DefaultText("loopback here, the node's address on a cluster")] = Field(
        description="The address that servers and router listen on."
    )
    api_key_env: Annotated[OneLine, AfterValidator(_key_variable), DefaultText("no key")] = Field(
        description="The environment variable that holds the API key."
    )
    limit: Annotated[Duration | None, FieldName("limit_s"), DefaultText("a day on a batch system, none here")] = Field(
        description="Time that a batch system is asked for; `service keep` replaces members before it is over.",
    )
    slo: dict[str, float] = Field(description="Limits such as `ttft_p95_ms: 2000`.")
    expected: dict[str, Any] = Field(description="The plan's figures, each with its interval.")
    notify: Annotated[NotifyForm, DefaultText("nobody")] = Field(
        default=NotifyForm.model_construct(), description="Whom `service keep` tells what it sees and does."
    )
    kubernetes: Annotated[PodChoice, FieldName("pods"), DefaultText("nothing beyond the defaults")]
