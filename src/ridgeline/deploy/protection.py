"""What routers are told so that overload and dead servers do not take the service down, and how each one takes it."""

from __future__ import annotations

from ridgeline.deploy.service import RouterChoice

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


# Unless told they look once a minute, three times, before they believe that a server is gone. Replicas hardly need it, as
# a request is tried again elsewhere; one that was paired with a dead decode server waits for its prefill server instead,
# which waits for the dead one. A server that is merely busy has ten seconds to answer.
_LOOKS = [
    *("--health-check-interval-secs", "2"),
    *("--health-check-timeout-secs", "5"),
    *("--health-failure-threshold", "2"),
]
_LOOK_OFTEN = ("sglang-router", "smg")


def can_queue(kind: str) -> bool:
    """Whether a request that waits in the router is let in when another one ends."""
    return kind not in _CANNOT_QUEUE


def leaks(kind: str) -> bool:
    """Whether more than `most_running` come through while overload lasts: one more every second."""
    return kind in _REFILLS


def protection_words(choice: RouterChoice) -> list[str]:
    words: list[str] = []
    if choice.most_running is not None:
        words += ["--max-concurrent-requests", str(choice.most_running)]
        if leaks(choice.kind):
            words += ["--rate-limit-tokens-per-second", "1"]
    if choice.most_waiting is not None:
        words += ["--queue-size", str(choice.most_waiting)]
    if choice.longest_wait_s is not None:
        words += ["--queue-timeout-secs", str(max(1, round(choice.longest_wait_s)))]
    if choice.kind in _LOOK_OFTEN:
        words += _LOOKS
    if choice.kind == "smg":
        words += [_NO_VETO, *(_OWN_COUNT if choice.policy == "power_of_two" else ())]
    return words
