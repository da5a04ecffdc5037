"""Flags of serving engines: which a release has, and how a setting is written on its command line.

The tables are literal files (`presets/*_flags.txt`). Where an engine can be imported, its own list is read instead:
the table decides nothing that the engine can say itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources

from ridgeline.records.expression import Value

Version = tuple[int, ...]
NEWEST: Version = (999,)
_NEVER: Version = (9999,)
OWN_CHOICE = "default"  # the value that leaves a flag out: the engine then chooses itself


def parse_version(text: str) -> Version:
    """(0, 5, 15) from 0.5.15.post1; empty where there is no number."""
    found = re.match(r"\s*v?(\d+(?:\.\d+){0,3})", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


@dataclass(frozen=True, slots=True)
class Flag:
    """`kind` is value, switch (there or not), toggle (--x or --no-x) or list. `gone`: the first release without it."""

    name: str
    kind: str
    since: Version = ()
    gone: Version = _NEVER

    def there(self, version: Version) -> bool:
        return self.since <= version[: max(3, len(self.since))] < self.gone

    def words(self, value: Value) -> list[str]:
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


@dataclass(frozen=True)
class FlagTable:
    """All flags of an engine. `aliases` are short names that people write; `moved` are flags that were renamed."""

    flags: Mapping[str, Flag]
    aliases: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, tuple[str, Version]] = field(default_factory=dict)  # old name -> new name, since

    def at(self, version: Version) -> dict[str, Flag]:
        return {name: flag for name, flag in self.flags.items() if flag.there(version)}

    def names(self, version: Version) -> list[str]:
        """Every name a study may use, short and old ones included."""
        own = self.at(version)
        short = [short for short, name in self.aliases.items() if self.called(name, version) in own]
        return [*short, *own, *(old for old in self.moved if self.called(old, version) in own and old not in own)]

    def called(self, name: str, version: Version) -> str:
        """What this release calls a setting, whichever of its names a study used."""
        name = self.aliases.get(name, name)
        for old, (new, since) in self.moved.items():
            if name in (old, new):
                return new if version >= since else old
        return name


@lru_cache(maxsize=4)
def read_table(name: str) -> Mapping[str, Flag]:
    """The flags of `presets/NAME_flags.txt`."""
    text = (resources.files("ridgeline.serving.engine") / "presets" / f"{name}_flags.txt").read_text()
    return {flag.name: flag for flag in _rows(text.splitlines())}


def _rows(lines: Iterable[str]) -> Iterable[Flag]:
    for line in lines:
        if line.strip() and not line.startswith("#"):
            name, kind, since, gone = line.split()
            yield Flag(
                name,
                kind,
                () if since == "-" else parse_version(since),
                _NEVER if gone == "-" else parse_version(gone),
            )
