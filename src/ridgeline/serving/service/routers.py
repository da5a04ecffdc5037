"""Routers that exist, one dialect each: their flags, policies and names; and servers taken out of a running one."""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ridgeline.errors import SiteError
from ridgeline.records.launch import OnNode
from ridgeline.serving.service import probe
from ridgeline.serving.service.quoting import with_key
from ridgeline.serving.service.service import RouterChoice, Service, server_of

# Settings of routers that keep overload and dead servers from taking the service down, and the flags of each for them.

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

# A server with this limit answers 503 when it is full.
_QUEUE_KNOB = "max_queued_requests"

# sglang-router's circuit breaker takes every answer that is no success for a broken server, and refuses everything for
# a minute: the 503s of full servers, and before replicas also the 400s and 404s of clients (ten of them on each server;
# smg and vllm-router count neither, nor does sglang-router where roles are split). Without it only health checks find a
# dead server, which power_of_two takes for the one with the least to do: so they come more often, and requests are
# tried again for a little longer than that.
_NO_BREAKER = ["--disable-circuit-breaker", "--retry-initial-backoff-ms", "100"]
_HEALTH_CHECKS_ALONE = {**_HEALTH_CHECKS, "--health-check-interval-secs": 1, "--health-failure-threshold": 1}


def _servers_refuse(service: Service) -> bool:
    """Whether each server refuses by itself what is too much for it, with 503."""
    return any(_QUEUE_KNOB in unit.settings for unit in service.units)


def router_promise(service: Service) -> str:
    """What this router's limit is worth when more comes than can be served; empty where it keeps what it says."""
    choice = service.router
    if choice is None:
        return ""
    waiting = ""
    if choice.most_waiting and not ROUTERS[choice.kind].queues:
        remedy = "write `most_waiting: 0` or `kind: smg`"
        waiting = f"{choice.kind} answers 408 within a second to whoever waits; {remedy}. "
    if choice.most_running is None or not ROUTERS[choice.kind].refills:
        return waiting.removesuffix(". ")
    without = f"{choice.kind} refuses without Retry-After; where clients need it use `kind: smg`"
    if _servers_refuse(service):
        return waiting + without
    more = "in every second while overload lasts: for more than a minute of it use `kind: smg`"
    able = server_of(service.engine).flags.knows(_QUEUE_KNOB) and not service.split
    cure = f", or give each server max_running_requests and {_QUEUE_KNOB}" if able else ""
    return f"{waiting}{choice.kind} lets one request more {more}{cure}. It also {without.partition(' ')[2]}"


def _protection_argv(service: Service) -> list[str]:
    choice, dialect = _choice(service)
    argv: list[str] = []
    if choice.most_running is not None:
        argv += ["--max-concurrent-requests", str(choice.most_running)]
        if dialect.refills:
            argv += ["--rate-limit-tokens-per-second", "1"]
    if choice.most_waiting is not None:
        argv += ["--queue-size", str(choice.most_waiting)]
    if choice.longest_wait_s is not None:
        argv += ["--queue-timeout-secs", str(max(1, round(choice.longest_wait_s)))]
    alone = choice.kind == "sglang-router" and (not service.split or _servers_refuse(service))
    if dialect.checks_health:
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

    `engines` are those whose prefill and decode servers it can pair, by the protocol that they speak. `checks_keys`: of
    users and of whoever changes its servers; else it only passes them on, and not to split roles.
    """

    module: str
    command: tuple[str, ...]
    policies: tuple[str, ...]
    prefill_policies: tuple[str, ...] = ("bucket",)  # those of them that choose among prefill servers only
    split_switch: str = "--pd-disaggregation"
    engines: tuple[str, ...] = ("sglang", "twin")
    port_annotation: str = "sglang.ai/bootstrap-port"  # of a prefill pod: where its bootstrap server listens
    checks_keys: bool = True
    checks_health: bool = True
    queues: bool = True  # a request that waits is let in when another one ends
    refills: bool = False  # its limit also fills up by itself


_Backend = tuple[str, OnNode, int]  # the role of a server, its URL, and its bootstrap port


def router_argv(service: Service, backends: Sequence[_Backend]) -> list[str]:
    """All words of the router's command line, its servers named one by one; the node knows their addresses."""
    choice, dialect = _choice(service)
    argv = _front(service)
    if not service.split:
        argv += ["--worker-urls", *(url for _, url, _ in backends)]
        return with_key([*argv, *choice.arguments], service.api_key_env)
    argv.append(dialect.split_switch)
    for role, url, bootstrap_port in backends:
        argv += [f"--{role}", url]
        if role == "prefill" and server_of(service.engine).bootstraps:
            argv.append(str(bootstrap_port))
    return with_key([*argv, *choice.arguments], service.api_key_env)


def discovery_argv(service: Service, selectors: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The same for a router that asks Kubernetes which servers there are: by role, the labels that they have."""
    choice, dialect = _choice(service)
    argv = [*_front(service), "--service-discovery", "--service-discovery-namespace", service.pods.namespace]
    argv += ["--service-discovery-port", str(service.first_port)]
    if service.split:
        argv.append(dialect.split_switch)
    for role, labels in selectors.items():
        argv += ["--selector" if role == "both" else f"--{role}-selector", *(f"{k}={v}" for k, v in labels.items())]
    return with_key([*argv, *choice.arguments], service.api_key_env)


def _choice(service: Service) -> tuple[RouterChoice, _RouterDialect]:
    assert service.router is not None
    return service.router, ROUTERS[service.router.kind]


def _front(service: Service) -> list[str]:
    """The program, where it listens, and what it may let through: these flags are the same for all of them."""
    choice, dialect = _choice(service)
    argv = [choice.python, "-m", dialect.module, *dialect.command, "--host", _ADDRESS, "--port", str(choice.port)]
    # it would open its metrics to the world at a port that two routers on a node would share
    argv += ["--prometheus-host", _ADDRESS, "--prometheus-port", str(metrics_port(choice))]
    argv += ["--worker-startup-check-interval", "1", "--worker-startup-timeout-secs", "1800"]
    if choice.policy:
        argv += ["--prefill-policy" if choice.policy in dialect.prefill_policies else "--policy", choice.policy]
    return argv + _protection_argv(service)


def metrics_port(choice: RouterChoice) -> int:
    """Beside the router's own."""
    return choice.port + 1 if choice.port < 65535 else choice.port - 1


USUAL_POLICY = "cache_aware"  # of all of them
ROUTERS: Mapping[str, _RouterDialect] = {
    # 0.3.2 answers 408 to whoever waits in its queue, within a second, whether or not a place gets free. Its limit is a
    # bucket that fills up by the whole limit every second by default, by 1 at the least.
    "sglang-router": _RouterDialect(
        "sglang_router.launch_router", (), (*_COMMON, "manual", "bucket"), queues=False, refills=True
    ),
    "smg": _RouterDialect(
        "smg",
        ("launch",),
        (*_COMMON, "manual", "least_load", "consistent_hashing", "prefix_hash", "passthrough", "bucket"),
    ),
    "vllm-router": _RouterDialect(
        "vllm_router.launch_router",
        (),
        (*_COMMON, "consistent_hash"),
        prefill_policies=(),
        split_switch="--vllm-pd-disaggregation",
        engines=("vllm", "twin"),
        port_annotation="vllm.ai/bootstrap-port",
        checks_keys=False,
        checks_health=False,
    ),
}


_POLL_S = 0.2
_ADMIN_S = 60.0
# a router that is still taking a server away under this URL refuses to add it
_STILL_THERE = 409


class RouterAdmin:
    """Actions on the router at `url` with the service's key, which its servers want too."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self._key = url, key

    def workers(self) -> dict[str, dict[str, Any]]:
        """URL -> what the router says of it."""
        found = json.loads(self._ask("/workers"))
        listed: list[dict[str, Any]] = found.get("workers", found) if isinstance(found, dict) else found
        return {str(row["url"]).rstrip("/"): row for row in listed}

    def take_away(self, url: str) -> None:
        """Gone from the list afterwards: no new request goes to it."""
        if (row := self.workers().get(url)) is not None:
            if "id" not in row and row.get("worker_type") in ("prefill", "decode"):
                # vllm-router forgets servers of split roles for good
                raise SiteError(
                    f"the router at {self.url} could not take {url} back once it is taken away; take the service "
                    "down and up instead"
                )
            known = quote(str(row.get("id", row["url"])), safe="")  # vllm-router calls its workers by their URLs
            self._ask(f"/workers/{known}", method="DELETE")
        self._until(url, listed=False)

    def add(self, url: str, role: str, **more: Any) -> None:
        """Listed afterwards, with everything that the router knew of it when it started."""
        if url not in self.workers():
            worker: dict[str, Any] = {"url": url, "worker_type": "regular" if role == "both" else role, **more}
            if self._key:
                worker["api_key"] = self._key  # else the router asks the server without one, and never takes it in
            if role == "prefill" and (port := _bootstrap_port(url, self._key)) is not None:
                worker["bootstrap_port"] = port  # else decode servers wait for KV that nobody sends
            self._post(worker)
        self._until(url, listed=True)

    def _post(self, worker: dict[str, Any]) -> None:
        deadline = time.monotonic() + _ADMIN_S
        while True:
            try:
                self._ask("/workers", worker)
            except urllib.error.HTTPError as error:
                if error.code != _STILL_THERE or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def _ask(self, path: str, body: object = None, method: str = "") -> bytes:
        try:
            return probe.ask(f"{self.url}{path}", body, key=self._key, method=method)
        except urllib.error.HTTPError as error:
            if error.code in probe.WRONG_KEY:
                raise probe.wrong_key(self.url, str(error.code)) from None
            raise

    def _until(self, url: str, listed: bool) -> None:
        deadline = time.monotonic() + _ADMIN_S
        while (url in self.workers()) is not listed:
            if time.monotonic() > deadline:
                state = "does not list" if listed else "still lists"
                raise SiteError(f"the router at {self.url} {state} {url} after {_ADMIN_S:g} s; look at its log")
            time.sleep(_POLL_S)


def _bootstrap_port(url: str, key: str) -> int | None:
    """What a prefill server says of itself; None where it has no such port, as vLLM's."""
    try:
        port = json.loads(probe.ask(f"{url}/server_info", key=key)).get("disaggregation_bootstrap_port")
    except (OSError, ValueError, AttributeError):
        return None
    return port if isinstance(port, int) else None
