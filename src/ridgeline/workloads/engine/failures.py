"""How serving engines fail, told apart with the line, and which way the next proposal moves.

The session that ran the engine reads its log when it fails and says `ridgeline: failure=NAME: engine.log:LINE: TEXT`,
with ` at start` after the name where the engine had not served yet: only it can know. Runs that were ended from outside
have no such line; for them the raw lines of the log are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.engines.knobs.engine_flags import EngineFlags
from ridgeline.readers.failures import PROGRAM_FAILURES
from ridgeline.records.outcome import Kind, Move, Signature

MARK, AT_START = "ridgeline: failure=", " at start"


@dataclass(frozen=True, slots=True)
class EngineFailure:
    name: str
    kind: Kind
    reason: str
    moves: tuple[tuple[str, int], ...] = ()  # (lever of the table of knobs, direction), the surest first


# Start-up and run-time failures of memory ask for opposite moves, so the kind of a failure alone is not enough.
_DOWN = (("memory", -1), ("requests", -1), ("chunk", -1))
# The cause first: what follows it in a log is only its echo.
FAILURES: tuple[EngineFailure, ...] = (
    EngineFailure("gpu-in-use", Kind.NODE_FAULT, "the GPU is in use by somebody else"),
    EngineFailure("port-taken", Kind.SITE_FAULT, "a port is in use or can't be used; another is picked next time"),
    EngineFailure("rejected", Kind.REJECTED, "the engine refused its arguments"),
    EngineFailure(
        "pool-too-small",
        Kind.OOM_START,
        "no room for the KV pool after the weights were loaded: raise the memory fraction",
        (("memory", +1), ("length", -1)),
    ),
    EngineFailure(
        "oom-run",
        Kind.OOM_RUN,
        "out of GPU memory while running, not at start: lower the memory fraction or the requests at once",
        _DOWN,
    ),
    EngineFailure(
        "graph-capture",
        Kind.OOM_START,
        "CUDA graphs could not be captured: lower the memory fraction or the largest graph",
        (("memory", -1), ("graph", -1), ("requests", -1)),
    ),
    EngineFailure(
        "oom-start", Kind.OOM_START, "out of GPU memory while starting: lower the memory fraction", (("memory", -1),)
    ),
    EngineFailure(
        "weights", Kind.OOM_START, "the weights do not fit the GPU: spread them over more", (("spread", +1),)
    ),
    EngineFailure("host-oom", Kind.CRASH, "the host ran out of memory and ended a process"),
    EngineFailure("kv-transfer", Kind.CRASH, "the transfer of KV between prefill and decode failed or timed out"),
    EngineFailure("watchdog", Kind.HANG, "a rank stopped answering until the watchdog ended it"),
    EngineFailure("not-ready", Kind.HANG, "the engine was not ready in time"),
    EngineFailure("no-answer", Kind.HANG, "the engine lives but answered no request"),
    EngineFailure("refused", Kind.REJECTED, "the engine refused the setting while starting"),
    EngineFailure("missing", Kind.SITE_FAULT, "the engine is not installed where it was looked for"),
    EngineFailure("signal", Kind.CRASH, "the engine died by a signal"),
    EngineFailure("exception", Kind.CRASH, "the engine stopped with an exception"),
    EngineFailure("child-died", Kind.CRASH, "a process of the engine ended and took it along"),
    EngineFailure("died", Kind.CRASH, "the engine ended before its time"),
)
BY_NAME = {failure.name: failure for failure in FAILURES}

# For runs without our own line, such as those that ran into their wall limit; only lines that leave no doubt.
_RAW: tuple[tuple[str, str], ...] = (
    ("port-taken", r"[Aa]ddress already in use|EADDRINUSE|SGLANG_GRPC_PORT \(\d+\) must "),
    ("pool-too-small", r"Not enough memory\. Please try (to increase|increasing) --mem-fraction-static"),
    ("pool-too-small", r"Loaded weights leave no GPU memory for the KV cache"),
    ("pool-too-small", r"To serve at least one request with the model's max seq len|No available memory for the cache"),
    ("rejected", r"error: (unrecognized arguments|argument -|the following arguments are required)"),
    ("rejected", r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len"),
    ("rejected", r"must be divisible by tensor parallel size"),
    ("graph-capture", r"Capture (\w+ ){0,3}(cuda|CUDA) graph failed"),
    ("host-oom", r"scheduler died during initialization \(exit code: -9\)"),
    ("kv-transfer", r"KVTransferError\("),
    ("watchdog", r"[Ww]atchdog (timeout|caught collective operation timeout)"),
    ("oom-run", r"OutOfMemoryError: CUDA out of memory|CUDA error: out of memory"),
)


def signatures(flags: EngineFlags) -> tuple[Signature, ...]:
    """The lines by which a run of an engine with these flags is judged, each with the moves that help against it."""
    ours = [
        Signature(
            re.compile(rf"^{MARK}{f.name}{AT_START if early else ''}: "),
            f.kind,
            f.reason,
            advice=advice(f, flags),
            at_start=early,
        )
        for f in FAILURES
        for early in (False, True)
    ]
    raw = [(BY_NAME[name], text) for name, text in _RAW]
    seen = [Signature(re.compile(text), f.kind, f.reason, advice=advice(f, flags)) for f, text in raw]
    return (*ours, *seen, *PROGRAM_FAILURES)


def advice(failure: EngineFailure, flags: EngineFlags) -> tuple[Move, ...]:
    """Which knobs to move, and which way, so that this failure does not happen again; the surest first."""
    why = failure.reason.partition(":")[0]
    return tuple(Move(knob, direction, why) for lever, direction in failure.moves for knob in flags.levers(lever))


@dataclass(frozen=True, slots=True)
class FailureCause:
    """The failure a log shows, with its line. `line` 0: the log itself says nothing. `at_start`: before it served."""

    name: str
    line: int
    text: str
    at_start: bool = False

    def said(self, log: str) -> str:
        where = f"{log}:{self.line}: " if self.line else ""
        return f"{MARK}{self.name}{AT_START if self.at_start else ''}: {where}{self.text.strip()[:300]}"


# What the readers call a failure -> ours, before the engine was ready and after
_READ_AS = {
    "cuda-oom": ("oom-start", "oom-run"),
    "pool-too-small": ("pool-too-small", "oom-run"),
    "graph-capture": ("graph-capture", "graph-capture"),
    "exception": ("exception", "exception"),
}
# an engine that refuses a combination of settings says so by one of these while it starts
_REFUSALS = re.compile(r"(AssertionError|ValueError|NotImplementedError|pydantic\S*ValidationError)\b")


def cause_of(failures: Iterable[tuple[str, bool, int, str]], weights_loaded: bool) -> FailureCause | None:
    """The cause among (kind, whether the engine was ready, line, text), as the readers give them."""
    rank = {failure.name: number for number, failure in enumerate(FAILURES)}
    found: list[FailureCause] = []
    for kind, ready, line, text in failures:
        name = _READ_AS.get(kind, (kind, kind))[ready]
        if name == "oom-start" and not weights_loaded:
            name = "weights"
        if name == "exception" and not ready and _REFUSALS.search(text):
            name = "refused"
        if name in rank:
            found.append(FailureCause(name, line, text))
    # the last exception is the one that ended it; of everything else the first is the cause
    return min(found, key=lambda c: (rank[c.name], -c.line if c.name == "exception" else c.line), default=None)
