"""Routers that exist, one dialect each: their flags, the policies they know, and what they call things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.records.launch import OnNode
from ridgeline.serving.service.keys import with_key
from ridgeline.serving.service.servers import server_of
from ridgeline.serving.service.service import RouterChoice, Service

# Settings of routers that keep overload and dead servers from taking the service down, and the flags of each for them.

# sglang-router 0.3.2 answers 408 to whoever waits in its queue, within a second, whether or not a place gets free.
_CANNOT_QUEUE = ("sglang-router",)
# Its limit is a bucket that also fills up by itself: by the whole limit every second by default, by 1 at the least.
_REFILLS = ("sglang-router",)


# smg's power_of_two compares what servers said up to ten seconds ago, so that all new requests go to the same one until
# they say otherwise: at 1.0 of what two servers bear, a third of the goodput that its own count of requests gives.
_OWN_COUNT = ["--power-of-two-load-metric", "least_requests"]

# Its own protection refuses everything with 503 while one server is lost and the other one has eight requests waiting:
# a third of all requests, where the same load without it lost none. What is too much is for `most_running` to refuse.
_NO_VETO = "--disable-worker-overload-protection"


# By default they check once a minute, three times, before they believe that a server is gone. Replicas hardly need it,
# as a request is tried again elsewhere; one that was paired with a dead decode server waits for its prefill server
# instead, which waits for the dead one. A server that is merely busy has ten seconds to answer.
_HEALTH_CHECKS = {"--health-check-interval-secs": 2, "--health-check-timeout-secs": 5, "--health-failure-threshold": 2}
_CHECKS_HEALTH = ("sglang-router", "smg")

# A server with this limit answers 503 when it is full.
_QUEUE_KNOB = "max_queued_requests"

# sglang-router's circuit breaker takes every answer that is no success for a broken server, and refuses everything for
# a minute: the 503s of full servers, and before replicas also the 400s and 404s of clients (ten of them on each server;
# smg and vllm-router count neither, nor does sglang-router where roles are split). Without it only health checks find a
# dead server, which power_of_two takes for the one with the least to do: so they come more often, and requests are
# tried again for a little longer than that.
_NO_BREAKER = ["--disable-circuit-breaker", "--retry-initial-backoff-ms", "100"]
_HEALTH_CHECKS_ALONE = {**_HEALTH_CHECKS, "--health-check-interval-secs": 1, "--health-failure-threshold": 1}


def can_queue(kind: str) -> bool:
    """Whether a request that waits in the router is let in when another one ends."""
    return kind not in _CANNOT_QUEUE


def _leaks(kind: str) -> bool:
    """Whether more than `most_running` come through while overload lasts: one more every second."""
    return kind in _REFILLS


def _servers_refuse(service: Service) -> bool:
    """Whether each server refuses by itself what is too much for it, with 503."""
    return any(_QUEUE_KNOB in unit.settings for unit in service.units)


def router_promise(service: Service) -> str:
    """What this router's limit is worth when more comes than can be served; empty where it keeps what it says."""
    choice = service.router
    if choice is None:
        return ""
    waiting = ""
    if choice.most_waiting and not can_queue(choice.kind):
        remedy = "write `most_waiting: 0` or `kind: smg`"
        waiting = f"{choice.kind} answers 408 within a second to whoever waits; {remedy}. "
    if choice.most_running is None or not _leaks(choice.kind):
        return waiting.removesuffix(". ")
    without = f"{choice.kind} refuses without Retry-After; where clients need it use `kind: smg`"
    if _servers_refuse(service):
        return waiting + without
    more = "in every second while overload lasts: for more than a minute of it use `kind: smg`"
    able = server_of(service.engine).flags.knows(_QUEUE_KNOB) and not service.split
    cure = f", or give each server max_running_requests and {_QUEUE_KNOB}" if able else ""
    return f"{waiting}{choice.kind} lets one request more {more}{cure}. It also {without.partition(' ')[2]}"


def _protection_argv(service: Service) -> list[str]:
    choice = service.router
    assert choice is not None
    argv: list[str] = []
    if choice.most_running is not None:
        argv += ["--max-concurrent-requests", str(choice.most_running)]
        if _leaks(choice.kind):
            argv += ["--rate-limit-tokens-per-second", "1"]
    if choice.most_waiting is not None:
        argv += ["--queue-size", str(choice.most_waiting)]
    if choice.longest_wait_s is not None:
        argv += ["--queue-timeout-secs", str(max(1, round(choice.longest_wait_s)))]
    alone = choice.kind == "sglang-router" and (not service.split or _servers_refuse(service))
    if choice.kind in _CHECKS_HEALTH:
        argv += [str(word) for pair in (_HEALTH_CHECKS_ALONE if alone else _HEALTH_CHECKS).items() for word in pair]
    argv += _NO_BREAKER if alone else []
    if choice.kind == "smg":
        argv += [_NO_VETO, *(_OWN_COUNT if choice.policy == "power_of_two" else ())]
    return argv


_ADDRESS = OnNode("$address")
_COMMON = ("random", "round_robin", "cache_aware", "power_of_two")


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
    usual: str = "cache_aware"  # the policy by default


_Backend = tuple[str, OnNode, int]  # the role of a server, its URL, and its bootstrap port


def router_argv(service: Service, backends: Sequence[_Backend]) -> list[str]:
    """All words of the router's command line, its servers named one by one; the node knows their addresses."""
    argv = [*_front(service), *_named(service, backends), *_choice(service).arguments]
    return with_key(argv, service.api_key_env)


def discovery_argv(service: Service, selectors: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The same for a router that asks Kubernetes which servers there are: by role, the labels that they have."""
    argv = ["--service-discovery", "--service-discovery-namespace", service.pods.namespace]
    argv += ["--service-discovery-port", str(service.first_port)]
    if service.split:
        argv.append(ROUTERS[_choice(service).kind].split_switch)
    for role, labels in selectors.items():
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
    argv += _protection_argv(service)
    return argv


def _policy(dialect: _RouterDialect, policy: str) -> list[str]:
    if not policy:
        return []
    return ["--prefill-policy" if policy in dialect.prefill_policies else "--policy", policy]


def _named(service: Service, backends: Sequence[_Backend]) -> list[str]:
    if not service.split:
        return ["--worker-urls", *(url for _, url, _ in backends)]
    argv = [ROUTERS[_choice(service).kind].split_switch]
    for role, url, bootstrap_port in backends:
        argv += [f"--{role}", url]
        if role == "prefill" and server_of(service.engine).bootstraps:
            argv.append(str(bootstrap_port))
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
