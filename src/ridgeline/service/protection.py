"""What routers are told so that overload and dead servers do not take the service down, and how each one takes it."""

from __future__ import annotations

from ridgeline.service.servers import server_of
from ridgeline.service.service import Service

# sglang-router 0.3.2 answers 408 to whoever waits in its queue, within a second, whether or not a place gets free.
_CANNOT_QUEUE = ("sglang-router",)
# Its limit is a bucket that also fills up by itself: by the whole limit every second unless told, by 1 at the least.
_REFILLS = ("sglang-router",)


# smg's power_of_two compares what servers said up to ten seconds ago, so that all new requests go to the same one until
# they say otherwise: at 1.0 of what two servers bear, a third of the goodput that its own count of requests gives.
_OWN_COUNT = ["--power-of-two-load-metric", "least_requests"]

# Its own protection refuses everything with 503 while one server is lost and the other one has eight requests waiting:
# a third of all requests, where the same load without it lost none. What is too much is for `most_running` to refuse.
_NO_VETO = "--disable-worker-overload-protection"


# Unless told they look once a minute, three times, before they believe that a server is gone. Replicas hardly need it,
# as a request is tried again elsewhere; one that was paired with a dead decode server waits for its prefill server
# instead, which waits for the dead one. A server that is merely busy has ten seconds to answer.
_HEALTH_CHECKS = {"--health-check-interval-secs": 2, "--health-check-timeout-secs": 5, "--health-failure-threshold": 2}
_CHECKS_HEALTH = ("sglang-router", "smg")

# A server with this limit answers 503 when it is full.
QUEUE_KNOB, RUNNING_KNOB = "max_queued_requests", "max_running_requests"

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


def leaks(kind: str) -> bool:
    """Whether more than `most_running` come through while overload lasts: one more every second."""
    return kind in _REFILLS


def servers_refuse(service: Service) -> bool:
    """Whether each server refuses by itself what is too much for it, with 503."""
    return any(QUEUE_KNOB in unit.settings for unit in service.units)


def router_promise(service: Service) -> str:
    """What this router's limit is worth when more comes than can be served; empty where it keeps what it says."""
    choice = service.router
    if choice is None:
        return ""
    waiting = ""
    if choice.most_waiting and not can_queue(choice.kind):
        remedy = "write `most_waiting: 0` or `kind: smg`"
        waiting = f"{choice.kind} answers 408 within a second to whoever waits; {remedy}. "
    if choice.most_running is None or not leaks(choice.kind):
        return waiting.removesuffix(". ")
    without = f"{choice.kind} refuses without Retry-After; where clients need it use `kind: smg`"
    if servers_refuse(service):
        return waiting + without
    more = "in every second while overload lasts: for more than a minute of it use `kind: smg`"
    able = server_of(service.engine).flags.knows(QUEUE_KNOB) and not service.split
    cure = f", or {QUEUE_KNOB} of each server, which `ridgeline rehearse` writes" if able else ""
    return f"{waiting}{choice.kind} lets one request more {more}{cure}. It also {without.partition(' ')[2]}"


def protection_argv(service: Service) -> list[str]:
    choice = service.router
    assert choice is not None
    argv: list[str] = []
    if choice.most_running is not None:
        argv += ["--max-concurrent-requests", str(choice.most_running)]
        if leaks(choice.kind):
            argv += ["--rate-limit-tokens-per-second", "1"]
    if choice.most_waiting is not None:
        argv += ["--queue-size", str(choice.most_waiting)]
    if choice.longest_wait_s is not None:
        argv += ["--queue-timeout-secs", str(max(1, round(choice.longest_wait_s)))]
    alone = choice.kind == "sglang-router" and (not service.split or servers_refuse(service))
    if choice.kind in _CHECKS_HEALTH:
        argv += [str(word) for pair in (_HEALTH_CHECKS_ALONE if alone else _HEALTH_CHECKS).items() for word in pair]
    argv += _NO_BREAKER if alone else []
    if choice.kind == "smg":
        argv += [_NO_VETO, *(_OWN_COUNT if choice.policy == "power_of_two" else ())]
    return argv
