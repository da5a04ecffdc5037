"""Failures of serving engines and what each asks for. SGLang and vLLM fail alike; only their flags differ."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.diagnose.base import Claimed, Quote
from ridgeline.diagnose.knobs import EngineKnobs

_FRACTION = {"sglang": "--mem-fraction-static", "vllm": "--gpu-memory-utilization"}

# the cause first: what follows it in a log is only its echo
_CAUSES = (
    "rejected",
    "pool-too-small",
    "cuda-oom",
    "graph-capture",
    "host-oom",
    "kv-transfer",
    "port-taken",
    "watchdog",
    "signal",
    "child-died",
    "exception",
)


def failure_claims(
    engine: str, failures: Sequence[tuple[str, bool, int]], last_work_line: int, knobs: EngineKnobs
) -> list[Claimed]:
    """One claim for the cause of a failed run, from (kind, whether the engine was ready, line).

    An exception after which the engine went on working (up to `last_work_line`) was handled and is no failure.
    """
    fatal = [f for f in failures if f[0] != "exception" or f[2] > last_work_line]
    if not fatal:
        return []
    kind, ready, line = min(fatal, key=lambda f: _CAUSES.index(f[0]) if f[0] in _CAUSES else len(_CAUSES))
    claim, advice = _meaning(kind, ready, _FRACTION[engine])
    tried = knobs.named(_MOVES.get(kind, ""))
    return [Claimed(claim, (Quote(line),), advice, "fault", knobs=tried, key=f"{engine}.failed-{kind}")]


_MOVES = {"cuda-oom": "less-memory", "pool-too-small": "more-pool", "graph-capture": "fewer-graphs"}


def _meaning(kind: str, ready: bool, fraction: str) -> tuple[str, str]:
    if kind == "cuda-oom" and ready:
        return (
            "out of GPU memory while running (not at start)",
            f"Lower {fraction} so that activations and workspaces have room, or cap the running requests; "
            "`ridgeline edge` finds the largest safe value.",
        )
    if kind == "cuda-oom":
        return (
            "out of GPU memory while starting",
            f"Weights, graphs and pool do not fit together: lower {fraction}, capture fewer graphs, or use more GPUs.",
        )
    return _MEANINGS.get(
        kind,
        ("the engine stopped with an exception", "The cause is in the lines above the quoted one."),
    )


_MEANINGS = {
    "rejected": (
        "the engine refused its arguments",
        "Correct the argument named in the line; flags change between engine versions.",
    ),
    "pool-too-small": (
        "no room for the KV pool after the weights were loaded",
        "Raise the memory fraction (the opposite of what an out-of-memory while running needs), shorten the context, "
        "or spread the weights over more GPUs.",
    ),
    "graph-capture": (
        "CUDA graphs could not be captured",
        "Lower the memory fraction or the largest graph batch; without graphs decode is slower.",
    ),
    "host-oom": (
        "the host ran out of memory and killed a process",
        "Ask for more host memory, load weights one rank at a time, or stage the model on local disk.",
    ),
    "kv-transfer": (
        "the transfer of KV between prefill and decode did not start or timed out",
        "Check the InfiniBand devices given to --disaggregation-ib-device and that both sides can reach each other.",
    ),
    "port-taken": (
        "the port is in use, perhaps by an engine that is still shutting down",
        "Wait for the old process to end, or use another port.",
    ),
    "watchdog": (
        "a rank stopped answering until the watchdog ended it",
        "Look for a node or link that is slower or gone; raise the limit only if a long compile explains it.",
    ),
    "signal": (
        "a signal killed a process of the engine",
        "Exit code -11 is a crash in native code, -9 the system's memory limit: look at dmesg of that node.",
    ),
    "child-died": (
        "a child process ended and took the engine with it",
        "The cause is above the quoted line; if not, look in the logs of the other nodes.",
    ),
}
