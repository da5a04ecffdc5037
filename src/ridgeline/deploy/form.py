"""The deployment file as forms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ridgeline.deploy.service import USUAL_ROUTER
from ridgeline.forms.form import CountedIn, Duration, Environment, Form, Lines, Otherwise, Single, Takes, Text, Words
from ridgeline.ports import LAST_PORT, ROUTER_PORT, SGLANG_PORT


class UnitForm(Form):
    """Equal servers of one role."""

    whose = "a unit"

    role: Literal["both", "prefill", "decode"] = Field(default="both", description="What its servers do.")
    replicas: Annotated[int, CountedIn("servers")] = Field(default=1, ge=1, le=512, description="How many of them.")
    nodes: Annotated[int, CountedIn("nodes")] = Field(default=1, ge=1, description="Nodes of each server.")
    gpus: Annotated[int, CountedIn("GPUs")] = Field(default=0, ge=0, description="GPUs of each of these nodes.")
    settings: dict[str, Single] = Field(default={}, description="Knobs of the engine, as in a study.")
    arguments: Annotated[Words, Otherwise("none")] = Field(
        default=[], description="Further words of the server's command line, as they are."
    )
    env: Environment = Field(default={}, description="Environment of these servers.")


class RouterForm(Form):
    """The router in front of the servers."""

    whose = "a router"

    kind: Literal["sglang-router", "smg", "vllm-router"] = Field(default=USUAL_ROUTER, description="Which one.")
    policy: Annotated[Text, Otherwise("the router's own")] = Field(
        default="", description="How it chooses a server: round_robin, power_of_two, cache_aware, ..."
    )
    port: Annotated[int, CountedIn("")] = Field(
        default=ROUTER_PORT, ge=1, le=LAST_PORT, description="Where users reach it."
    )
    most_running: Annotated[int | None, CountedIn("requests"), Otherwise("no limit")] = Field(
        default=None, ge=1, description="Requests under way at once; more wait."
    )
    most_waiting: Annotated[int | None, CountedIn("requests"), Otherwise("the router's own")] = Field(
        default=None, ge=0, description="Requests that may wait; more are refused with 429."
    )
    longest_wait: Annotated[Duration | None, Otherwise("the router's own")] = Field(
        default=None, description="How long a request may wait there before it is refused."
    )
    python: Text = Field(default="python3", description="The interpreter of the environment that has the router.")
    arguments: Annotated[Words, Otherwise("none")] = Field(
        default=[], description="Further words of the router's command line, as they are."
    )


class ServedEngineForm(Form):
    """What the servers run."""

    whose = "an engine"

    kind: Literal["sglang", "vllm", "twin"] = Field(description="The engine; twin: servers that only pretend.")
    release: Annotated[Text, Otherwise("the newest that is known")] = Field(
        default="", description="The release whose flags are used, such as 0.5.15."
    )
    python: Text = Field(default="python3", description="The interpreter of the environment that has the engine.")
    gpu: Annotated[Text, Otherwise("needed by twin only")] = Field(
        default="", description="What it runs on, such as h200: the twin keeps its time."
    )


class PodForm(Form):
    """What Kubernetes must be told; read by `deploy render --for kubernetes`."""

    whose = "kubernetes"

    image: Annotated[Text, Otherwise("the engine's published one of this release")] = Field(
        default="", description="The image of the servers."
    )
    router_image: Annotated[Text, Otherwise("needed where there is a router")] = Field(
        default="", description="An image that has the router."
    )
    namespace: Text = Field(default="default", description="Where everything is made.")
    model_claim: Annotated[Text, Otherwise("the folder lies on every node")] = Field(
        default="", description="The PersistentVolumeClaim that holds the model's folder."
    )
    secret: Annotated[Text, Otherwise("the service's name, then `-key`")] = Field(
        default="", description="The Secret that holds the API key, under the name that `api_key_env` gives."
    )
    devices: dict[str, Annotated[int, CountedIn("")]] = Field(
        default={}, description="Further resources of each pod of a server, such as `rdma/hca: 8`."
    )


class ServiceForm(Form):
    """A service: servers, their router, and where they run."""

    whose = "a deployment"

    version: Annotated[Literal[1], Takes("1: write 1")] = Field(description="The version of this format.")
    name: Annotated[Text, Otherwise("the file's name")] = Field(default="", description="Shown in jobs and reports.")
    model: Text = Field(description="The model's folder or name, as the engine takes it; a preset for twin.")
    served_name: Annotated[Text, Otherwise("the model's")] = Field(default="", description="What requests call it.")
    engine: ServedEngineForm
    units: list[UnitForm] = Field(min_length=1, description="The servers.")
    router: Annotated[RouterForm | None, Otherwise("none: one server alone")] = Field(default=None)
    site: Any = Field(default="local", description="A site's name or file, or the mapping itself.")
    start: Literal["together", "in-turn"] = Field(
        default="together",
        description="in-turn: each server only when the one before is ready, as servers that share a GPU need it.",
    )
    first_port: Annotated[int, CountedIn("")] = Field(
        default=SGLANG_PORT, ge=1024, le=60000, description="Port of the first server on a node; the next ones follow."
    )
    preflight: Annotated[Lines, Otherwise("none")] = Field(
        default=[],
        description="Records of `ridgeline preflight --json` of the nodes (`nodes/*.json`): their InfiniBand adapters.",
    )
    host: Annotated[Text, Otherwise("loopback here, the node's address on a cluster")] = Field(
        default="", description="The address that servers and router listen on."
    )
    api_key_env: Annotated[Text, Otherwise("no key")] = Field(
        default="", description="The environment variable that holds the API key."
    )
    limit: Duration = Field(default=86400.0, description="Time that a batch system is asked for.")
    slo: dict[str, float] = Field(default={}, description="Limits such as `ttft_p95_ms: 2000`.")
    expected: dict[str, Any] = Field(default={}, description="The plan's figures, each with its interval.")
    kubernetes: Annotated[PodForm, Otherwise("nothing beyond the defaults")] = Field(default=PodForm())
