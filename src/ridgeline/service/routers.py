"""Routers that exist, one dialect each: their flags, the policies they know, and what they call things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.records.launch import OnNode
from ridgeline.service.keys import with_key
from ridgeline.service.protection import protection_argv
from ridgeline.service.servers import server_of
from ridgeline.service.service import RouterChoice, Service

_ADDRESS = OnNode("$address")
_COMMON = ("random", "round_robin", "cache_aware", "power_of_two")


@dataclass(frozen=True, slots=True)
class Backend:
    """A server as the router is told of it; the node knows its address."""

    role: str
    url: OnNode
    bootstrap_port: int


@dataclass(frozen=True, slots=True)
class PodSelectors:
    """The labels by which a router in Kubernetes finds its servers, by role; all of them listen on one port."""

    labels: Mapping[str, Mapping[str, str]]
    port: int
    namespace: str


@dataclass(frozen=True, slots=True)
class _RouterDialect:
    """`module` is run with the environment's python.

    `engines` are those whose prefill and decode servers it can pair, by the protocol that they speak.
    """

    module: str
    command: tuple[str, ...]
    policies: tuple[str, ...]
    prefill_policies: tuple[str, ...]  # those of them that choose among prefill servers only
    split_switch: str
    engines: tuple[str, ...]
    port_annotation: str  # of a prefill pod: where its bootstrap server listens
    checks_keys: (
        bool  # of users and of whoever changes its servers; else it only passes them on, and not to split roles
    )
    adds_split: bool = True  # whether it takes prefill and decode servers in, and back, while it runs
    usual: str = "cache_aware"  # the policy of one that is told none


def router_argv(service: Service, backends: Sequence[Backend]) -> list[str]:
    """All words of the router's command line, its servers named one by one."""
    argv = [*_front(service), *_named(service, backends), *_choice(service).arguments]
    return with_key(argv, service.api_key_env)


def discovery_argv(service: Service, pods: PodSelectors) -> list[str]:
    """The same for a router that asks Kubernetes which servers there are."""
    argv = ["--service-discovery", "--service-discovery-namespace", pods.namespace]
    argv += ["--service-discovery-port", str(pods.port)]
    if service.split:
        argv.append(ROUTERS[_choice(service).kind].split_switch)
    for role, labels in pods.labels.items():
        argv += ["--selector" if role == "both" else f"--{role}-selector", *(f"{k}={v}" for k, v in labels.items())]
    return with_key([*_front(service), *argv, *_choice(service).arguments], service.api_key_env)


def _choice(service: Service) -> RouterChoice:
    assert service.router is not None
    return service.router


def _front(service: Service) -> list[str]:
    """The program, where it listens, and what it may let through: these flags are the same for all of them."""
    choice = _choice(service)
    dialect = ROUTERS[choice.kind]
    argv = [choice.python, "-m", dialect.module, *dialect.command, "--host", _ADDRESS, "--port", str(choice.port)]
    # it would open its metrics to the world at a port that two routers on a node would share
    argv += ["--prometheus-host", _ADDRESS, "--prometheus-port", str(metrics_port(choice))]
    argv += ["--worker-startup-check-interval", "1", "--worker-startup-timeout-secs", "1800"]
    argv += _policy(dialect, choice.policy)
    argv += protection_argv(service)
    return argv


def _policy(dialect: _RouterDialect, policy: str) -> list[str]:
    if not policy:
        return []
    return ["--prefill-policy" if policy in dialect.prefill_policies else "--policy", policy]


def _named(service: Service, backends: Sequence[Backend]) -> list[str]:
    if not service.split:
        return ["--worker-urls", *(backend.url for backend in backends)]
    argv = [ROUTERS[_choice(service).kind].split_switch]
    for backend in backends:
        argv += [f"--{backend.role}", backend.url]
        if backend.role == "prefill" and server_of(service.engine).bootstraps:
            argv.append(str(backend.bootstrap_port))
    return argv


def metrics_port(choice: RouterChoice) -> int:
    """Beside the router's own."""
    return choice.port + 1 if choice.port < 65535 else choice.port - 1


_SGLANG_PORT = "sglang.ai/bootstrap-port"
ROUTERS: Mapping[str, _RouterDialect] = {
    "sglang-router": _RouterDialect(
        "sglang_router.launch_router",
        (),
        (*_COMMON, "manual", "bucket"),
        ("bucket",),
        "--pd-disaggregation",
        ("sglang", "twin"),
        _SGLANG_PORT,
        True,
    ),
    "smg": _RouterDialect(
        "smg",
        ("launch",),
        (*_COMMON, "manual", "least_load", "consistent_hashing", "prefix_hash", "passthrough", "bucket"),
        ("bucket",),
        "--pd-disaggregation",
        ("sglang", "twin"),
        _SGLANG_PORT,
        True,
    ),
    "vllm-router": _RouterDialect(
        "vllm_router.launch_router",
        (),
        (*_COMMON, "consistent_hash"),
        (),
        "--vllm-pd-disaggregation",
        ("vllm", "twin"),
        "vllm.ai/bootstrap-port",
        False,
        adds_split=False,
    ),
}
