"""How a run ended, sorted by what caused it. Only what the setting caused teaches the search."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from ridgeline.records.json_form import in_json


class Kind(StrEnum):
    OK = "ok"
    OOM_START = "oom-start"
    OOM_RUN = "oom-run"
    REJECTED = "rejected"  # the program refused the setting
    CRASH = "crash"
    HANG = "hang"  # no output for the silence limit
    TIMEOUT = "timeout"  # over the wall limit
    WRONG = "wrong"  # a guard failed: it ran, but the result may not count
    UNVERIFIED = "unverified"  # what was applied is not what was asked, or the measurement is contaminated
    BUILD_FAILED = "build-failed"
    NODE_FAULT = "node-fault"
    SITE_FAULT = "site-fault"
    CANCELLED = "cancelled"
    STOPPED_EARLY = "stopped-early"  # clearly worse than the best so far; nothing was measured, and it is no failure

    @property
    def caused_by_setting(self) -> bool:
        """Whether running the same setting again would very likely end the same way."""
        return self in _SETTING_CAUSED

    @property
    def text(self) -> str:
        """As people read it; its value is for files."""
        return _TEXTS.get(self, self.value.replace("-", " "))

    @property
    def short(self) -> str:
        """For a place with little room, where it does not matter when the memory ran out."""
        return "out of memory" if self in (Kind.OOM_START, Kind.OOM_RUN) else self.text

    @property
    def retryable(self) -> bool:
        return self in (Kind.NODE_FAULT, Kind.SITE_FAULT)


_SETTING_CAUSED = frozenset(
    {
        Kind.OOM_START,
        Kind.OOM_RUN,
        Kind.REJECTED,
        Kind.CRASH,
        Kind.HANG,
        Kind.TIMEOUT,
        Kind.WRONG,
        Kind.BUILD_FAILED,
    }
)


_TEXTS = {
    Kind.OOM_START: "out of memory at start",
    Kind.OOM_RUN: "out of memory while running",
    Kind.WRONG: "wrong result",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """The line that decided: which file, which line, what it says."""

    source: str = field(metadata=in_json("file"))
    line_number: int = field(metadata=in_json("line"))
    text: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line_number}: {self.text}" if self.line_number else f"{self.source}: {self.text}"


@dataclass(frozen=True, slots=True)
class Move:
    """Which way to move a knob so that a failure does not happen again: -1 down, +1 up."""

    knob: str
    direction: int
    why: str

    def __post_init__(self) -> None:
        if self.direction not in (-1, 1):
            raise ValueError(f"a move of {self.knob} by {self.direction}; it is -1 (down) or +1 (up)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`advice` names the moves that would help, the surest first; empty where there is none.

    `at_start`: the program had not begun to work. `was`: how a run ended that is no verdict about its setting, because
    the same setting had passed before; its kind is then that of a fault. `remedy` is for a person: what to change so
    that it does not happen again. `lacking` names what the run needs and was not there ('program ./solver', 'library
    libfoo.so'): no other setting brings it, a person does.
    """

    kind: Kind
    reason: str = ""
    evidence: Evidence | None = None
    advice: tuple[Move, ...] = ()
    at_start: bool = False
    was: Kind | None = None
    remedy: str = ""
    lacking: str = ""

    @property
    def never_began(self) -> bool:
        """Whether it was refused or fell before any work. Not for want of memory: that may be a matter of luck."""
        return self.kind in (Kind.REJECTED, Kind.BUILD_FAILED) or (self.at_start and self.kind.caused_by_setting)

    @property
    def brief(self) -> str:
        """'crash: Python stopped with RuntimeError', without the line that decided."""
        return f"{self.kind.text}: {self.reason}" if self.reason else self.kind.text

    def __str__(self) -> str:
        parts = [self.kind.text, self.reason, str(self.evidence) if self.evidence else ""]
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True)
class Signature:
    """A log line by which a workload distinguishes failures. The first of the table that is found wins.

    `even_if_exit_0`: some programs print a fatal message and still leave with 0 (as one does with inconsistent memory).
    `advice`: moves that help against this failure; names that are no knobs of the study are passed over.
    `remedy`: what a person should do. `{name}` in it, and in the reason, stands for the pattern's group of that name.
    `lacking`: the group that names what the run needs and is not there. `echo`: it says only that something failed, as
    a launcher does when we end its program ourselves. `last`: of several such lines the last counts, as of exceptions.
    `at_start`: who says this has not begun to work.
    """

    pattern: re.Pattern[str]
    kind: Kind
    reason: str
    even_if_exit_0: bool = False
    advice: tuple[Move, ...] = ()
    at_start: bool = False
    remedy: str = ""
    lacking: str = ""
    echo: bool = False
    last: bool = False

    def outcome(self, found: re.Match[str], evidence: Evidence) -> Outcome:
        """The outcome of a run whose log has this line."""
        return Outcome(
            self.kind,
            filled(self.reason, found),
            evidence,
            self.advice,
            self.at_start,
            remedy=filled(self.remedy, found),
            lacking=f"{self.lacking} {found[self.lacking].strip()}" if self.lacking else "",
        )


def filled(text: str, found: re.Match[str]) -> str:
    """The text with what the pattern's groups matched in their places."""
    for name, value in found.groupdict().items():
        text = text.replace(f"{{{name}}}", value or "?")
    return text
