"""What differs between serving engines: their flags, their commands and their logs. The rest is one workload."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.records.expression import Value
from ridgeline.records.measurement import Measurement
from ridgeline.workloads.engine.flags import OWN_CHOICE, Flag, FlagTable, Version
from ridgeline.workloads.engine.options import Load

ENGINE_LOG = "engine.log"
DATASET = "dataset.json"
OFFLINE_RESULT = "offline.jsonl"
# What the session puts into the engine's environment, because only it knows them.
PORT, MODEL, HEAD, RENDEZVOUS = "RIDGELINE_PORT", "RIDGELINE_MODEL", "RIDGELINE_HEAD", "RIDGELINE_RENDEZVOUS"


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


class EngineDialect(Protocol):
    name: str
    packages: tuple[str, ...]  # names of the distribution whose version counts, the first that is there
    ready_line: str  # a part of the log line that says the engine serves; "" where health alone says it

    @property
    def table(self) -> FlagTable: ...

    def words(self, values: Mapping[str, Value], version: Version) -> list[str]:
        """Settings as a command line of this release."""
        ...

    def echoed(self, values: Mapping[str, Value], version: Version) -> dict[str, Value]:
        """Settings under the names by which the engine's log repeats them."""
        ...

    def serve(self, python: str, words: Sequence[str], cluster: Span) -> str: ...

    def offline(self, python: str, words: Sequence[str], load: Load, version: Version, cluster: Span) -> str: ...

    def read(self, lines: Iterable[str], measured_from: int = 0) -> EngineLog:
        """What the log says; batches up to line `measured_from` belong to the warm-up."""
        ...

    def offline_result(self, text: str, lines: Iterable[str]) -> tuple[Measurement, ...]:
        """Throughput figures from the result file's text, or from the log where that is empty."""
        ...

    def several_nodes(self, cluster: Span) -> str:
        """What a command gains on each node of several; empty for one."""
        ...

    def introspect(self) -> str:
        """Python text that prints the installed engine's flags as JSON, name to kind."""
        ...


def plain_words(table: FlagTable, values: Mapping[str, Value], version: Version) -> list[str]:
    """Each setting under the name this release has for it.

    A flag the table does not know, because the installed engine is newer, is a switch where its value is true or false.
    """
    words: list[str] = []
    for name, value in values.items():
        called = table.called(name, version)
        unknown = Flag(called, "switch" if isinstance(value, bool) else "value")
        words += table.flags.get(called, unknown).words(value)
    return words


def plain_echo(table: FlagTable, values: Mapping[str, Value], version: Version) -> dict[str, Value]:
    return {
        table.called(name, version): value
        for name, value in values.items()
        if value is not None and value != OWN_CHOICE
    }


def joined(words: Iterable[str]) -> str:
    """Shell text; words that read one of the session's variables stay readable by the shell."""
    return " ".join(f'"{word}"' if word.startswith("$") else shlex.quote(word) for word in words)
