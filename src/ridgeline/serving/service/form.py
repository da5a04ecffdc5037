"""The deployment file as forms."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from ridgeline.records.secrets import looks_secret
from ridgeline.serving.service.servers import server_of
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
    FieldName,
    Form,
    Lines,
    OneLine,
    ValueUnit,
    Variable,
    accepted_by,
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
    """How `keep` adds and removes servers while the service runs; `replicas` of the units is where it begins."""

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
        description="Records of `ridgeline preflight --json` of the nodes (`nodes/*.json`): their InfiniBand adapters.",
    )
    host: Annotated[OneLine, DefaultText("loopback here, the node's address on a cluster")] = Field(
        description="The address that servers and router listen on."
    )
    api_key_env: Annotated[OneLine, AfterValidator(_key_variable), DefaultText("no key")] = Field(
        description="The environment variable that holds the API key."
    )
    limit: Annotated[Duration | None, FieldName("limit_s"), DefaultText("a day on a batch system, none here")] = Field(
        description="Time that a batch system is asked for; `keep` replaces members before it is over.",
    )
    slo: dict[str, float] = Field(description="Limits such as `ttft_p95_ms: 2000`.")
    expected: dict[str, Any] = Field(description="The plan's figures, each with its interval.")
    scale: Annotated[ScaleForm | None, DefaultText("as many as the units say")] = Field(default=None)
    notify: Annotated[NotifyForm, DefaultText("nobody")] = Field(
        default=NotifyForm.model_construct(), description="Whom `keep` tells what it sees and does."
    )
    kubernetes: Annotated[PodChoice, FieldName("pods"), DefaultText("nothing beyond the defaults")]
