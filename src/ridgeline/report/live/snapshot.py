"""What a page shows at one moment: plain records, filled by those who know the folder, drawn by `sections`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from ridgeline.records.space import Knob, Point
from ridgeline.study.instructions import Instruction


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    GONE = "controller not running"  # its controller was killed
    STOPPED = "stopped"
    FINISHED = "finished"
    DAMAGED = "cannot be read"


@dataclass(frozen=True, slots=True)
class RunningRun:
    """A run under way, with the end of its log, where it runs and why it was chosen."""

    run: int
    title: str
    setting: str
    why: str
    log: str
    log_name: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Gauge:
    """How much of a limit is spent; `share` is None where there is no limit."""

    label: str
    text: str
    share: float | None = None


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event or instruction, for a list: when, what, and whether it is bad news."""

    when: str
    text: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A study at one moment. Every text is plain but the four marked as HTML."""

    name: str
    state: State
    state_text: str
    question: str = ""
    headline: str = ""
    gauges: Sequence[Gauge] = ()
    running: Sequence[RunningRun] = ()
    runs: Sequence[Sequence[str]] = ()  # the latest, newest first, with a head
    answers: Sequence[EventLine] = ()  # instructions and their answers, newest first
    waiting: Sequence[str] = ()  # instructions not answered yet
    answer: str = ""  # HTML that the report's room has drawn and escaped, and so are the next three
    crashes: str = ""
    progress: str = ""
    figures: str = ""
    gain: str = ""  # '2.58x' or what else the list says of the best
    share: float | None = None  # of the whole campaign that is done
    done: str = ""  # '16 of 36 trials'
    updated: str = ""  # how long ago something happened
    updated_s: float = 0.0  # and when
    note: str = ""  # what is wrong, where something is
    steerable: bool = False


class Watched(Protocol):
    """A folder that can be watched. `pulse` is cheap and changes whenever `snapshot` would."""

    path: Path

    def pulse(self) -> object: ...

    def snapshot(self) -> Snapshot: ...

    def knobs(self) -> tuple[Sequence[Knob], Point]:
        """What may be tried, and the setting to begin with; no knobs where it takes no instructions."""
        ...

    def refusal(self, instruction: Instruction) -> str:
        """Why an instruction would be in vain; empty where it may be left."""
        ...

    def metrics(self) -> tuple[Mapping[str, Any], str] | None:
        """For Prometheus: its status, and the goal's metric; None where it cannot be read."""
        ...

    def report(self) -> bytes:
        """The report as it is now; empty where there is none."""
        ...


Folders = Mapping[str, Watched]  # by the name in the address
