"""The deployment file as forms."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from ridgeline.records.secrets import looks_secret
from ridgeline.serving.service.servers import server_of
from ridgeline.serving.service.service import (
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


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is not a time zone that this machine knows; write such as Europe/Berlin") from None
    return name


class ScaleForm(Form):
    """How `service keep` adds and removes servers while it watches; `replicas` of the units is where it begins."""

    whose = "scale"
    makes = ScaleRules
    aside = frozenset(("both", "prefill", "decode"))

    both: Annotated[RoleScale | None, DefaultText("as the unit says")] = Field(
        default=None, description="Servers that do prefill and decode."
    )
    prefill: Annotated[RoleScale | None, DefaultText("as the unit says")] = Field(
        default=None, description="Prefill servers, likewise."
    )
    decode: Annotated[RoleScale | None, DefaultText("as the unit says")] = Field(
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
    kubernetes: Annotated[PodChoice, FieldName("pods"), DefaultText("nothing beyond the defaults")]
