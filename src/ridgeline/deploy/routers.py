"""Routers that exist, one dialect each: their flags, and how their workers are listed, added and taken away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.deploy.protection import protection_words
from ridgeline.deploy.service import RouterChoice, Service


@dataclass(frozen=True, slots=True)
class Backend:
    """A server as the router is told of it; its URL may hold a shell variable."""

    role: str
    url: str
    bootstrap_port: int


@dataclass(frozen=True, slots=True)
class RouterDialect:
    """`module` is run with the environment's python. `policies` are those it knows, for a message."""

    module: str
    command: tuple[str, ...]
    policies: tuple[str, ...]
    flags: Callable[[Service, RouterChoice, Sequence[Backend]], list[str]]


def router_words(service: Service, backends: Sequence[Backend]) -> list[str]:
    """All words of the router's command line."""
    choice = service.router
    assert choice is not None
    dialect = ROUTERS[choice.kind]
    words = [choice.python, "-m", dialect.module, *dialect.command]
    return [*words, *dialect.flags(service, choice, backends), *choice.arguments]


def _sglang_family(service: Service, choice: RouterChoice, backends: Sequence[Backend]) -> list[str]:
    words = ["--host", "$address", "--port", str(choice.port)]
    # it would open its metrics to the world at a port that two routers on a node would share
    words += ["--prometheus-host", "$address", "--prometheus-port", str(metrics_port(choice))]
    words += ["--worker-startup-check-interval", "1", "--worker-startup-timeout-secs", "1800"]
    words += ["--policy", choice.policy] if choice.policy else []
    words += protection_words(choice)
    if service.api_key_env:
        words += ["--api-key", f"${{{service.api_key_env}}}"]
    if not service.split:
        return [*words, "--worker-urls", *(backend.url for backend in backends)]
    words.append("--pd-disaggregation")
    for backend in backends:
        if backend.role == "prefill":
            words += ["--prefill", backend.url, str(backend.bootstrap_port)]
        else:
            words += ["--decode", backend.url]
    return words


def _vllm_router(service: Service, choice: RouterChoice, backends: Sequence[Backend]) -> list[str]:
    words = ["--host", "$address", "--port", str(choice.port), "--prometheus-host", "$address"]
    words += ["--prometheus-port", str(metrics_port(choice))]
    words += ["--policy", choice.policy] if choice.policy else []
    if not service.split:
        return [*words, "--worker-urls", *(backend.url for backend in backends)]
    words.append("--vllm-pd-disaggregation")
    for backend in backends:
        words += [f"--{backend.role}", backend.url]
    return words


def metrics_port(choice: RouterChoice) -> int:
    """Beside the router's own."""
    return choice.port + 1 if choice.port < 65535 else choice.port - 1


_COMMON = ("random", "round_robin", "cache_aware", "power_of_two")
ROUTERS: Mapping[str, RouterDialect] = {
    "sglang-router": RouterDialect("sglang_router.launch_router", (), (*_COMMON, "manual", "bucket"), _sglang_family),
    "smg": RouterDialect(
        "smg",
        ("launch",),
        (*_COMMON, "manual", "bucket", "least_load", "consistent_hashing", "prefix_hash", "passthrough"),
        _sglang_family,
    ),
    "vllm-router": RouterDialect("vllm_router.launch_router", (), (*_COMMON, "consistent_hash"), _vllm_router),
}
