"""The deployment file as forms."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from ridgeline.records.secrets import looks_secret
from ridgeline.serving.ports import LAST_PORT
from ridgeline.serving.service.service import (
    DAY_MIN,
    PodChoice,
    RoleScale,
    RouterChoice,
    ScaleRules,
    Service,
    ServiceUnit,
)
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
)
from ridgeline.study.schema import NotifyForm


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


class UnitForm(Form):
    """Equal servers of one role."""

    whose = "a unit"
    makes = ServiceUnit

    role: Literal["both", "prefill", "decode"] = Field(description="What its servers do.")
    replicas: Annotated[int, ValueUnit("servers")] = Field(ge=1, le=512, description="How many of them.")
    nodes: Annotated[int, ValueUnit("nodes")] = Field(ge=1, description="Nodes of each server.")
    gpus: Annotated[int, ValueUnit("GPUs")] = Field(ge=0, description="GPUs of each of these nodes.")
    settings: dict[str, Single] = Field(description="Knobs of the engine, as in a study.")
    arguments: Annotated[Words, DefaultText("none")] = Field(
        description="Further words of the server's command line, as they are."
    )
    env: Environment = Field(description="Environment of these servers.")
    cores: Annotated[int | None, ValueUnit("cores"), DefaultText("the share of its GPUs")] = Field(
        ge=1, description="Cores of each node, where a batch system or Kubernetes is asked for them."
    )
    memory: Annotated[Size | None, FieldName("memory_bytes"), DefaultText("the share of its GPUs")] = Field(
        description="Memory of each node, likewise."
    )


class RouterForm(Form):
    """The router in front of the servers."""

    whose = "a router"
    makes = RouterChoice

    kind: Literal["sglang-router", "smg", "vllm-router"] = Field(description="Which one.")
    policy: Annotated[OneLine, DefaultText("the router's own")] = Field(
        description="How it chooses a server: round_robin, power_of_two, cache_aware, ..."
    )
    port: Annotated[int, ValueUnit("")] = Field(ge=1, le=LAST_PORT, description="Where users reach it.")
    most_running: Annotated[int | None, ValueUnit("requests"), DefaultText("no limit")] = Field(
        ge=1, description="Requests under way at once; more wait."
    )
    most_waiting: Annotated[int | None, ValueUnit("requests"), DefaultText("the router's own")] = Field(
        ge=0, description="Requests that may wait; more are refused with 429."
    )
    longest_wait: Annotated[Duration | None, FieldName("longest_wait_s"), DefaultText("the router's own")] = Field(
        description="How long a request may wait there before it is refused."
    )
    python: OneLine = Field(description="The interpreter of the environment that has the router.")
    arguments: Annotated[Words, DefaultText("none")] = Field(
        description="Further words of the router's command line, as they are."
    )
    cores: Annotated[int | None, ValueUnit("cores"), DefaultText("an eighth of a node's, at most 4")] = Field(
        ge=1, description="Cores of the router's own small job."
    )
    memory: Annotated[Size | None, FieldName("memory_bytes"), DefaultText("an eighth of a node's, at most 8 GiB")] = (
        Field(description="Memory of the router's own small job.")
    )


class ServedEngineForm(Form):
    """What the servers run."""

    whose = "an engine"

    kind: Literal["sglang", "vllm", "twin"] = Field(description="The engine; twin: servers that only pretend.")
    release: Annotated[OneLine, DefaultText("the newest that is known")] = Field(
        default="", description="The release whose flags are used, such as 0.5.15."
    )
    python: OneLine = Field(default="python3", description="The interpreter of the environment that has the engine.")
    gpu: Annotated[OneLine, DefaultText("needed by twin only")] = Field(
        default="", description="What it runs on, such as h200: the twin keeps its time."
    )


class PodForm(Form):
    """What Kubernetes needs to know; read by `service render --for kubernetes`."""

    whose = "kubernetes"
    makes = PodChoice

    image: Annotated[OneLine, DefaultText("the engine's published one of this release")] = Field(
        description="The image of the servers."
    )
    router_image: Annotated[OneLine, DefaultText("needed where there is a router")] = Field(
        description="An image that has the router."
    )
    keep_image: Annotated[OneLine, DefaultText("no watcher in the cluster")] = Field(
        description="An image that has ridgeline: `service keep` then watches the service there."
    )
    namespace: OneLine = Field(description="Where everything is made.")
    model_claim: Annotated[OneLine, DefaultText("the folder is on every node")] = Field(
        description="The PersistentVolumeClaim that holds the model's folder."
    )
    secret: Annotated[OneLine, DefaultText("the service's name, then `-key`")] = Field(
        description="The Secret that holds the API key, under the name that `api_key_env` gives."
    )
    devices: dict[str, Annotated[int, ValueUnit("")]] = Field(
        description="Further resources of each pod of a server, such as `rdma/hca: 8`."
    )
    user: Annotated[int, ValueUnit("")] = Field(
        ge=0, description="Whom pods run as, as the standard `restricted` wants it; 0: the image decides."
    )
    ipc_lock: bool = Field(description="Let servers pin memory (IPC_LOCK) for RDMA; `restricted` does not allow it.")


_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def day_numbers(text: str) -> tuple[int, ...]:
    """`mon-fri`, `sat,sun`, `fri-mon`: numbers from Monday, 0. ValueError says what it is not."""
    found: set[int] = set()
    for part in text.replace(" ", "").lower().split(","):
        first, _, last = part.partition("-")
        if first not in _DAYS or (last or first) not in _DAYS:
            raise ValueError(f"{text!r} are no days; write such as mon-fri or sat,sun")
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, end + 1 if end >= begin else end + 8)}
    return tuple(sorted(found))


def minute_of_day(text: str) -> int:
    """`08:00` to `24:00`."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
    minute = int(match[1]) * 60 + int(match[2]) if match else -1
    if match is None or int(match[2]) > 59 or minute > DAY_MIN:
        raise ValueError(f'{text!r} is not a time of the day; write such as "08:00"')
    return minute


def _days(text: str) -> str:
    day_numbers(text)
    return text


def _time(text: str) -> str:
    minute_of_day(text)
    return text


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is not a time zone that this machine knows; write such as Europe/Berlin") from None
    return name


_TimeOfDay = Annotated[OneLine, AfterValidator(_time), Accepts('a time of the day such as "08:00"')]


class ScheduleForm(Form):
    """Limits that hold from one time of the day to another; past midnight where `to` comes before `from`."""

    whose = "a schedule"

    from_: _TimeOfDay = Field(alias="from", description="When it begins.", examples=['"08:00"'])
    to: _TimeOfDay = Field(description="When it ends.", examples=['"20:00"'])
    days: Annotated[
        OneLine, AfterValidator(_days), Accepts("days such as mon-fri or sat,sun"), DefaultText("every day")
    ] = Field(default="mon-sun", description="On which days it begins.")
    least: Annotated[int | None, ValueUnit("servers"), DefaultText("the role's")] = Field(
        default=None, ge=1, description="Never fewer meanwhile."
    )
    most: Annotated[int | None, ValueUnit("servers"), DefaultText("the role's")] = Field(
        default=None, ge=1, description="Never more meanwhile."
    )


class RoleScaleForm(Form):
    """How many servers of a role there are, and the load at which there should be more.

    Without a target they follow the schedule; in a split service, the role that has targets.
    """

    whose = "scale"
    makes = RoleScale
    aside = frozenset(("schedule",))

    least: Annotated[int, ValueUnit("servers")] = Field(default=1, ge=1, description="Never fewer.")
    most: Annotated[int, ValueUnit("servers")] = Field(ge=1, le=512, description="Never more.", examples=["4"])
    running: Annotated[float | None, ValueUnit("requests"), DefaultText("not looked at")] = Field(
        gt=0, description="Target: requests on each server, running or waiting."
    )
    waiting: Annotated[float | None, ValueUnit("requests"), DefaultText("not looked at")] = Field(
        gt=0, description="Target: of these, how many wait."
    )
    kv: Annotated[float | None, DefaultText("not looked at")] = Field(
        gt=0, le=1, description="Target: share of each server's KV pool that is used."
    )
    ttft_p95_ms: Annotated[float | None, ValueUnit("ms"), DefaultText("not looked at")] = Field(
        gt=0, description="Limit: time to the first token, p95 of a minute, as the servers measure it."
    )
    schedule: Annotated[list[ScheduleForm], DefaultText("none")] = Field(
        default=[], description="Other limits at times of the day."
    )


class ScaleForm(Form):
    """How `service keep` adds and removes servers while it watches; `replicas` of the units is where it begins."""

    whose = "scale"
    makes = ScaleRules
    aside = frozenset(("both", "prefill", "decode"))

    both: Annotated[RoleScaleForm | None, DefaultText("as the unit says")] = Field(
        default=None, description="Servers that do prefill and decode."
    )
    prefill: Annotated[RoleScaleForm | None, DefaultText("as the unit says")] = Field(
        default=None, description="Prefill servers, likewise."
    )
    decode: Annotated[RoleScaleForm | None, DefaultText("as the unit says")] = Field(
        default=None, description="Decode servers, likewise."
    )
    down_after: Annotated[Duration, FieldName("down_after_s")] = Field(
        description="Low load for so long, and no change of the number, before a server is removed."
    )
    most_servers: Annotated[int | None, ValueUnit("servers"), DefaultText("the sum of the roles' most")] = Field(
        ge=2, description="Of all roles together."
    )
    timezone: Annotated[OneLine, AfterValidator(_zone), DefaultText("that of the machine that runs keep")] = Field(
        description="Of the schedule's times, such as Europe/Berlin."
    )


class ServiceForm(Form):
    """A service: servers, their router, and where they run."""

    whose = "a deployment"
    makes = Service
    aside = frozenset(("version", "engine", "units", "router", "site", "start", "preflight", "scale"))

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
    units: list[UnitForm] = Field(min_length=1, description="The servers.")
    router: Annotated[RouterForm | None, DefaultText("none: one server alone")] = Field(default=None)
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
    scale: Annotated[ScaleForm | None, DefaultText("as many as the units say")] = Field(default=None)
    notify: Annotated[NotifyForm, DefaultText("nobody")] = Field(
        default=NotifyForm.model_construct(), description="Whom `service keep` tells what it sees and does."
    )
    kubernetes: Annotated[PodForm, FieldName("pods"), DefaultText("nothing beyond the defaults")] = Field(
        default=PodForm.model_construct()
    )
