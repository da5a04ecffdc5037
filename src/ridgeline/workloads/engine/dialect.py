"""What differs between serving engines: their flags, their commands and their logs. The rest is one workload."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from ridgeline.engines.knobs.engine_flags import EngineFlags
from ridgeline.engines.knobs.releases import Version
from ridgeline.model.model import Model
from ridgeline.records.expression import Value
from ridgeline.records.measurement import Measurement
from ridgeline.workloads.engine.options import Install, Load

ENGINE_LOG = "engine.log"
DATASET = "dataset.json"
OFFLINE_RESULT = "offline.jsonl"
# What the session puts into the engine's environment, because only it knows them.
PORT, MODEL, HEAD, RENDEZVOUS = "RIDGELINE_PORT", "RIDGELINE_MODEL", "RIDGELINE_HEAD", "RIDGELINE_RENDEZVOUS"
KEEP = "RIDGELINE_KEEP"  # the folder in which a one-time step leaves its results


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What an engine's log says, in the words all engines share.

    `failures` are (kind, whether the engine was ready, line, text); `echo` is what the engine says it applied;
    `cached_share` is the part of the measured prompts' tokens that came from a cache.
    """

    failures: tuple[tuple[str, bool, int, str], ...] = ()
    weights_loaded: bool = False
    echo: Mapping[str, object] = field(default_factory=dict)
    version: str = ""
    figures: tuple[Measurement, ...] = ()
    cached_share: float | None = None
    running_limit: int | None = None  # requests one attention group may run, as applied


@dataclass(frozen=True, slots=True)
class Span:
    """The nodes one engine spans."""

    nodes: int = 1


@dataclass(frozen=True, slots=True)
class StepNeeds:
    """What the command of a one-time step is made from."""

    python: str
    arguments: Sequence[str]  # those of the trial
    values: Mapping[str, Value]
    cluster: Span
    sources: str  # a checkout of the engine's repository


@dataclass(frozen=True, slots=True)
class OneTimeStep:
    """`script` is the file of the engine's repository that it runs, "" where the package holds it. `flag` hands the
    engine the kept `file`, by the environment variable `variable`; without a flag the variable names the whole folder.
    """

    command: Callable[[StepNeeds], str]
    script: str = ""
    flag: str = ""
    variable: str = ""
    file: str = ""
    everywhere: bool = True  # on all nodes of the job
    serves: bool = False  # it is a server, which the session loads and asks for its record
    least_nodes: int = 1


class EngineDialect(Protocol):
    """One engine. A new one is a module with such an object and a row of the catalog's `engines`.

    Subclass it and say what has no default here. Readers get whatever was printed, and raise for none of it.
    """

    name: str
    packages: tuple[str, ...]  # names of the distribution whose version counts, the first that is there
    ready_line: str = ""  # a part of the log line that says the engine serves; "" where health alone says it
    offline_spans: bool = False  # whether its offline benchmark runs over several nodes
    decode_alone: Mapping[str, Value] = MappingProxyType({})  # flags of a server that decodes as if all KV had come
    host_variable: str = ""  # by which an engine is told its own address among several nodes; "" where it needs none
    simulated: bool = False  # whether the twin knows its memory and speed
    decoys: int = 0  # rows of data for each request that its offline benchmark reads and does not send
    # that it can be prepared by, beside a rehearsal, which every engine can
    steps: Mapping[str, OneTimeStep] = MappingProxyType({})

    @property
    def flags(self) -> EngineFlags: ...

    def serve(self, python: str, arguments: Sequence[str], cluster: Span) -> str: ...

    def offline(self, python: str, arguments: Sequence[str], load: Load, version: Version, cluster: Span) -> str: ...

    def refusal(
        self, model: Model | None, values: Mapping[str, Value], install: Install, version: Version
    ) -> str | None:
        """Why this build of the engine certainly does not start so, beyond what holds for every engine."""
        return None

    def read(self, lines: Iterable[str], measured_from: int = 0) -> EngineLog:
        """What the log says; batches up to line `measured_from` belong to the warm-up."""
        ...

    def offline_result(self, text: str, lines: Iterable[str]) -> tuple[Measurement, ...]:
        """Throughput figures from the result file's text, or from the log where that is empty."""
        ...

    def several_nodes(self, cluster: Span) -> str:
        """What a command gains on each node of several; empty for one."""
        return ""

    def introspect(self) -> str:
        """Python text that prints the installed engine's flags as JSON, name to kind: value, switch, toggle or list."""
        return "print('{}')"


def joined(words: Iterable[str]) -> str:
    """Shell text; words that read one of the session's variables stay readable by the shell."""
    return " ".join(f'"{word}"' if word.startswith("$") else shlex.quote(word) for word in words)
