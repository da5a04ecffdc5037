"""The flags an engine's releases have, and how a value is written on their command line.

The lists are literal files, flags.txt in each engine's folder, read from the releases themselves by
scripts/engine-flags. Where an engine can be imported, its own list is read instead: ours decides nothing that the
engine can say itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from ridgeline import catalog
from ridgeline.records.expression import Value

Version = tuple[int, ...]
NEWEST: Version = (999,)
_NEVER: Version = (9999,)
OWN_CHOICE = "default"  # the value that leaves a flag out: the engine then chooses itself


def parse_version(text: str) -> Version:
    """(0, 5, 15) from 0.5.15.post1; empty where there is no number."""
    found = re.match(r"\s*v?(\d+(?:\.\d+){0,3})", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def release_meant(version: Version) -> Version:
    """A line such as (0, 5) stands for its newest release."""
    return version if len(version) > 2 else (*version, 999)


def title_of(engine: str) -> str:
    """As people write its name; as it is where no such engine is known."""
    if engine not in catalog.shipped("engines") and engine not in catalog.names("engines"):
        return engine  # the list of names reads every installed package: a simulation asks for titles by the hundred
    return catalog.part("engines", engine).title or engine


def release_written(engine: str, version: Version) -> Version:
    """The release whose flags are written for `version`: the newest that is known, where a line is named."""
    latest: Version = catalog.part("engines", engine).latest
    return latest if release_meant(version) > latest else version


def release_text(engine: str, version: Version) -> str:
    """`SGLang 0.5.23`: the release whose flags are written for `version`."""
    return f"{title_of(engine)} {'.'.join(map(str, release_written(engine, version)))}"


@dataclass(frozen=True, slots=True)
class Flag:
    """`kind` is value, switch (there or not), toggle (--x or --no-x) or list. `gone`: the first release without it.

    `takes` are the values of a closed set, as flags.txt has them; nothing: whatever can be read.
    """

    name: str
    kind: str
    since: Version = ()
    gone: Version = _NEVER
    takes: tuple[str, ...] = ()

    def there(self, version: Version) -> bool:
        return self.since <= release_meant(version)[: max(3, len(self.since))] < self.gone

    def choices(self, version: Version | None = None) -> tuple[str, ...]:
        """What this release takes, or any where none is named; empty where it takes anything."""
        found = []
        for text in self.takes:
            value, _, span = text.removeprefix("~").partition("@")
            since, _, gone = span.partition("..")
            if version is None or Flag("", "", parse_version(since), parse_version(gone) or _NEVER).there(version):
                found.append(value)
        return tuple(found)

    def takes_value(self, value: object, version: Version | None = None) -> bool:
        choices, said = self.choices(version), str(value)
        if self.takes and self.takes[0].startswith("~"):
            return not choices or said.lower().replace("-", "_") in {choice.lower() for choice in choices}
        words = said.replace(",", " ").split() if self.kind == "list" else [said]
        return not choices or all(word in choices for word in words)

    def arguments(self, value: Value) -> list[str]:
        """The flag on a command line; nothing where the value says to leave it out."""
        dashed = "--" + self.name.replace("_", "-")
        if value is None or value == OWN_CHOICE:
            return []
        if self.kind in ("switch", "toggle") and isinstance(value, bool | int):
            if value:
                return [dashed]
            return [f"--no-{dashed[2:]}"] if self.kind == "toggle" else []
        if self.kind == "list":
            return [dashed, *str(value).replace(",", " ").split()]
        return [dashed, str(value).lower() if isinstance(value, bool) else str(value)]


@lru_cache(maxsize=4)
def read_flags(engine: str) -> Mapping[str, Flag]:
    """The flags of `serving/engines/ENGINE/flags.txt`."""
    found = {}
    for line in (resources.files("ridgeline.serving.engines") / engine / "flags.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, kind, since, gone, *takes = line.split()
            found[name] = Flag(name, kind, parse_version(since), parse_version(gone) or _NEVER, tuple(takes))
    return found


# Names of engines and of the two workloads that each gives: NAME-offline and NAME-serve.

USUAL_ENGINE = "sglang"  # meant where nobody names one

# the end of the workload's name, and who makes its factory from the engine's dialect
_WORKLOADS = {
    "offline": "ridgeline.serving.workloads.engine.workload:offline",
    "serve": "ridgeline.serving.workloads.engine.workload:serve",
}


def workloads_of(engine: str) -> tuple[str, ...]:
    """The kinds of workload that an engine gives."""
    return tuple(f"{engine}-{ending}" for ending in _WORKLOADS)


def engine_of(workload: str) -> str:
    """The engine that gives this kind of workload; empty where none does."""
    return next((engine for engine in catalog.names("engines") if workload in workloads_of(engine)), "")


class EngineWorkloads:
    """A `catalog.Family`: the workloads of every engine, ours and other packages'."""

    called = "engine"

    def names(self) -> dict[str, str]:
        engines = catalog.origins("engines").items()
        return {workload: package for engine, package in engines for workload in workloads_of(engine)}

    def part(self, name: str) -> Any:
        engine, _, ending = name.rpartition("-")
        return catalog.at(_WORKLOADS[ending])(catalog.part("engines", engine))


FAMILY = EngineWorkloads()
