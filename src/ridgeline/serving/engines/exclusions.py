"""Settings that an engine's own checks stop at start: a row each, by release, in the home of the engine.

Only what certainly does not start, or never runs as it was asked to, is a row: what is merely slow may be the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ridgeline.records.expression import Value
from ridgeline.serving.engines.releases import Version, release_meant

Values = Mapping[str, Value]  # under our names


@dataclass(frozen=True, slots=True)
class Exclusion:
    """From release `since` until `gone`. Texts may name settings: `{page_size}`."""

    reason: str
    remedy: str
    stops: Callable[[Values], bool]
    since: Version = ()
    gone: Version = (9999,)


def excluded(rows: Iterable[Exclusion], values: Values, version: Version) -> str | None:
    """The first row that stops a server of this release, with what to do."""
    release = release_meant(version)
    for row in rows:
        if row.since <= release < row.gone and row.stops(values):
            return f"{row.reason}; {row.remedy}".format_map(values)
    return None


def on(values: Values, *names: str) -> bool:
    """Whether all these switches are thrown."""
    return all(values.get(name) is True for name in names)


def number(values: Values, name: str, usual: int = 1) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else usual


def divides(values: Values, part: str, *whole: str) -> bool:
    """Whether the size `part`, times those of `whole` but the first, divides the first."""
    size = number(values, part)
    for name in whole[1:]:
        size *= number(values, name)
    return size > 0 and number(values, whole[0]) % size == 0
