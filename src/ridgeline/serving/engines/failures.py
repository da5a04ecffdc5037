"""How serving engines fail: what each failure means, which way the next proposal moves, and what to advise a person.

What an engine prints when it fails is in its home (`sglang/failures.py`, `vllm/failures.py`) as rows of `FailureText`;
its log reader, the workload that judges a run and `diagnose` all read those rows, and take their meaning from here.

The session that ran the engine reads its log when it fails and says `ridgeline: failure=NAME: engine.log:LINE: TEXT`,
with ` at start` after the name where the engine had not served yet: only it can know. Runs that were ended from outside
have no such line; for them the raw lines of the log are looked at, as far as they leave no doubt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.records.expression import Value
from ridgeline.records.outcome import Kind, Move, Signature
from ridgeline.serving.engines.knobs.engine_flags import EngineFlags

MARK, _AT_START = "ridgeline: failure=", " at start"


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """`reason` is said of a run. `claim` and `advice` are what `diagnose` says of a log; `{memory_flag}` stands for the
    engine's flag. `try_` names what the advice moves: a row of the engine's `values_to_try`."""

    name: str
    kind: Kind
    reason: str
    moves: tuple[tuple[str, int], ...] = ()  # (lever of the table of knobs, direction), the surest first
    claim: str = ""
    advice: str = ""
    try_: str = ""


# Start-up and run-time failures of memory ask for opposite moves, so the kind of a failure alone is not enough.
_DOWN = (("memory", -1), ("requests", -1), ("chunk", -1))
# The cause first: what follows it in a log is only its echo.
FAILURES: tuple[EngineFailure, ...] = (
    EngineFailure("gpu-in-use", Kind.NODE_FAULT, "the GPU is in use by another process"),
    EngineFailure(
        "port-taken",
        Kind.SITE_FAULT,
        "a port is in use or can't be used; another is picked next time",
        claim="the port is in use, perhaps by an engine that is still shutting down",
        advice="Wait for the old process to end, or use another port.",
    ),
    EngineFailure(
        "rejected",
        Kind.REJECTED,
        "the engine refused its arguments",
        claim="the engine refused its arguments",
        advice="Correct the argument named in the line; flags change between engine versions.",
    ),
    EngineFailure(
        "pool-too-small",
        Kind.OOM_START,
        "no room for the KV pool after the weights were loaded: raise the memory fraction",
        (("memory", +1), ("length", -1)),
        "no room for the KV pool after the weights were loaded",
        "Raise the memory fraction (the opposite of what an out-of-memory while running needs), shorten the context, "
        "or spread the weights over more GPUs.",
        "more-pool",
    ),
    EngineFailure(
        "oom-run",
        Kind.OOM_RUN,
        "out of GPU memory while running, not at start: lower the memory fraction or the requests at once",
        _DOWN,
        "out of GPU memory while running (not at start)",
        "Lower {memory_flag} so that activations and workspaces have room, or cap the running requests; "
        "`ridgeline study edge` finds the largest that passes.",
        "less-memory",
    ),
    EngineFailure(
        "graph-capture",
        Kind.OOM_START,
        "CUDA graphs could not be captured: lower the memory fraction or the largest graph",
        (("memory", -1), ("graph", -1), ("requests", -1)),
        "CUDA graphs could not be captured",
        "Lower the memory fraction or the largest graph batch; without graphs decode is slower.",
        "fewer-graphs",
    ),
    EngineFailure(
        "oom-start",
        Kind.OOM_START,
        "out of GPU memory while starting: lower the memory fraction",
        (("memory", -1),),
        "out of GPU memory while starting",
        "Weights, graphs and pool do not fit together: lower {memory_flag}, capture fewer graphs, or use more GPUs.",
        "less-memory",
    ),
    EngineFailure(
        "weights", Kind.OOM_START, "the weights do not fit the GPU: spread them over more", (("spread", +1),)
    ),
    EngineFailure(
        "host-oom",
        Kind.CRASH,
        "the host ran out of memory and ended a process",
        claim="the host ran out of memory and killed a process",
        advice="Ask for more host memory, load weights one rank at a time, or stage the model on local disk.",
    ),
    EngineFailure(
        "kv-transfer",
        Kind.CRASH,
        "the transfer of KV between prefill and decode failed or timed out",
        claim="the transfer of KV between prefill and decode did not start or timed out",
        advice="Check the InfiniBand devices given to --disaggregation-ib-device and that both sides can reach each "
        "other.",
    ),
    EngineFailure(
        "watchdog",
        Kind.HANG,
        "a rank stopped answering until the watchdog ended it",
        claim="a rank stopped answering until the watchdog ended it",
        advice="Look for a node or link that is slower or gone; raise the limit only if a long compile explains it.",
    ),
    EngineFailure("not-ready", Kind.HANG, "the engine was not ready in time"),
    EngineFailure("no-answer", Kind.HANG, "the engine lives but answered no request"),
    EngineFailure("refused", Kind.REJECTED, "the engine refused the setting while starting"),
    EngineFailure("missing", Kind.SITE_FAULT, "the engine is not installed where it was looked for"),
    EngineFailure(
        "signal",
        Kind.CRASH,
        "the engine died by a signal",
        claim="a signal killed a process of the engine",
        advice="Exit code -11 is a crash in native code, -9 the system's memory limit: look at dmesg of that node.",
    ),
    EngineFailure(
        "exception",
        Kind.CRASH,
        "the engine stopped with an exception",
        claim="the engine stopped with an exception",
        advice="The cause is in the lines above the quoted one.",
    ),
    EngineFailure(
        "child-died",
        Kind.CRASH,
        "a process of the engine ended and took it along",
        claim="a child process ended and took the engine with it",
        advice="The cause is above the quoted line; if not, look in the logs of the other nodes.",
    ),
    EngineFailure("no-profile", Kind.CRASH, "the run under the profiler left no profile"),
    EngineFailure("died", Kind.CRASH, "the engine ended before its time"),
)
BY_NAME = {failure.name: failure for failure in FAILURES}


@dataclass(frozen=True, slots=True)
class FailureText:
    """A line of the log that tells of a failure. `kind` is a name of the table above, or cuda-oom, which is another one
    before the engine was ready than after. `sure`: the line leaves no doubt, whatever else the log says."""

    kind: str
    pattern: re.Pattern[str]
    sure: bool = False

    @property
    def meaning(self) -> EngineFailure:
        """Of the line alone, without knowing how far the engine had come."""
        return BY_NAME.get(self.kind) or BY_NAME[_READ_AS[self.kind][True]]


# What engines print because of the libraries they share: sockets, argparse, torch.
PORT_IN_USE = FailureText("port-taken", re.compile(r"[Aa]ddress already in use|EADDRINUSE"), sure=True)
WRONG_ARGUMENTS = FailureText(
    "rejected",
    re.compile(r"error: (?:unrecognized arguments|argument -|the following arguments are required)"),
    sure=True,
)
WATCHDOG = FailureText(
    "watchdog", re.compile(r"[Ww]atchdog (?:timeout|caught collective operation timeout)"), sure=True
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory"
CUDA_OOM = FailureText(
    "cuda-oom", re.compile(r"OutOfMemoryError: CUDA out of memory|CUDA error: out of memory"), sure=True
)


# Values of a knob to try, from the one that ran; by what the advice is about, the knobs it moves.
NextValues = Callable[[float], Sequence[Value]]
ValuesToTry = Mapping[str, tuple[tuple[str, NextValues], ...]]
_MOST_MEMORY = 0.94


def times(*factors: float) -> NextValues:
    return lambda value: [max(1, round(value * factor)) for factor in factors] if value >= 1 else []


def plus(*steps: float) -> NextValues:
    """Shares of a GPU's memory."""
    return lambda value: [round(value + s, 3) for s in steps if 0.3 <= value + s <= _MOST_MEMORY]


def one_of(*values: Value) -> NextValues:
    return lambda _: values


def kind_in(line: str, texts: Sequence[FailureText]) -> str:
    """The first row that this line shows; empty where it shows none."""
    return next((text.kind for text in texts if text.pattern.search(line)), "")


def signatures(flags: EngineFlags, texts: Sequence[FailureText]) -> tuple[Signature, ...]:
    """The lines by which a run of an engine with these flags is judged, each with the moves that help against it."""
    ours = [
        Signature(
            re.compile(rf"^{MARK}{f.name}{_AT_START if early else ''}: "),
            f.kind,
            f.reason,
            advice=advice(f, flags),
            at_start=early,
        )
        for f in FAILURES
        for early in (False, True)
    ]
    raw = [(text.meaning, text.pattern) for text in texts if text.sure]
    return (*ours, *(Signature(pattern, f.kind, f.reason, advice=advice(f, flags)) for f, pattern in raw))


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

    def marked_line(self, log: str) -> str:
        where = f"{log}:{self.line}: " if self.line else ""
        return f"{MARK}{self.name}{_AT_START if self.at_start else ''}: {where}{self.text.strip()[:300]}"


# What the readers call a failure -> ours, before the engine was ready and after
_READ_AS = {
    "cuda-oom": ("oom-start", "oom-run"),
    "pool-too-small": ("pool-too-small", "oom-run"),
}
# an engine that refuses a combination of settings says so by one of these while it starts
_REFUSALS = re.compile(r"(AssertionError|ValueError|NotImplementedError|pydantic\S*ValidationError)\b")
_RANK = {failure.name: number for number, failure in enumerate(FAILURES)}


def cause_of(failures: Iterable[tuple[str, bool, int, str]], weights_loaded: bool) -> FailureCause | None:
    """The cause among (kind, whether the engine was ready, line, text), as the readers give them."""
    found: list[FailureCause] = []
    for kind, ready, line, text in failures:
        name = _READ_AS.get(kind, (kind, kind))[ready]
        if name == "oom-start" and not weights_loaded:
            name = "weights"
        if name == "exception" and not ready and _REFUSALS.search(text):
            name = "refused"
        if name in _RANK:
            found.append(FailureCause(name, line, text))
    # the last exception is the one that ended it; of everything else the first is the cause
    return min(found, key=lambda c: (_RANK[c.name], -c.line if c.name == "exception" else c.line), default=None)


# `diagnose` ranks a port that is taken below what an engine says of its memory, and an exception, which may have been
# handled, below a child that died; of a run that failed the judge has it the other way round.
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


def leading_cause(failures: Iterable[tuple[str, bool, int]]) -> tuple[str, EngineFailure, int] | None:
    """Of (kind, whether the engine was ready, line): the cause as a person reads it, its kind and its line."""
    found = min(failures, key=lambda f: _CAUSES.index(f[0]) if f[0] in _CAUSES else len(_CAUSES), default=None)
    if found is None:
        return None
    kind, ready, line = found
    meant = BY_NAME.get(kind) or BY_NAME[_READ_AS.get(kind, ("exception", "exception"))[ready]]
    return kind, meant, line
