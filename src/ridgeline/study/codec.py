"""The journal's events: each kind declared once, as a dataclass. Reading, writing and checking follow from its fields.

A line is a JSON object with `event` and `at` (seconds since the epoch). Events, in the order of a trial's life: opened,
build, trial, run, submitted, stopping, ended, charged; and for the campaign: confirm, set-aside, instruction, verdict,
extended, stopped. `records/json_form.py` says how a dataclass becomes a line.

What older releases wrote is read too: `opened` with `overrides` and without a kind (before 0.1.0), and `confirm`
without `first_block`, `protocol` and `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ridgeline.records.expression import show_duration
from ridgeline.records.json_form import NUMBER, Line, Row, plain
from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Evidence, Move, Outcome
from ridgeline.records.run import Ending, Machine, Resources
from ridgeline.records.space import Point, Settings
from ridgeline.records.trial import Trial

Event = dict[str, Any]

# records inside events

measurement_line = Row(Measurement, "a measurement").write
Row(Evidence, "the line that decided")
Row(Move, "a move of a knob")
Row(Machine, "a machine")
Line(Resources)
_OUTCOME = Line(Outcome)
outcome_line, _outcome_from = _OUTCOME.write, _OUTCOME.read
_SECONDS = ("started_s", "ended_s", "elapsed_s", "held_s", "charged_s")
_ENDING = Line(
    Ending, first=("cause", "started_s", "ended_s"), names={name: name.removesuffix("_s") for name in _SECONDS}
)
ending_line, ending_from = _ENDING.write, _ENDING.read


# events


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """What a campaign was asked: which kind of campaign reads it, and what only that kind understands."""

    kind: str = "search"
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opened:
    """A controller takes the campaign up. `receipt` is its machine, versions and command."""

    kind: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)  # before 0.1.0
    asked: Mapping[str, str] = field(default_factory=dict)
    receipt: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> QuestionLine:
        if self.kind is None:
            return _question_before_kinds(self.overrides)
        return QuestionLine(self.kind, self.details)


def _question_before_kinds(overrides: Mapping[str, Any]) -> QuestionLine:
    """Journals before 0.1.0 kept what the command line changed in the study, and the kind only showed in that."""
    if "edge" in overrides:
        return QuestionLine("edge", {"start": overrides["baseline"], **overrides["edge"]})
    if "scale" in overrides:
        return QuestionLine("scale", overrides["scale"])
    if "candidate" in overrides:
        two = {"a": overrides["baseline"], "b": overrides["candidate"]}
        return QuestionLine("compare", {**two, "blocks": overrides.get("blocks")})
    return QuestionLine("search", overrides)


def opened_event(controller: Mapping[str, Any], question: QuestionLine, asked: Mapping[str, str]) -> Event:
    asks = {"kind": question.kind, "question": dict(question.details)}
    return {"event": "opened", **controller, **asks, "asked": dict(asked)}


@dataclass(frozen=True, slots=True)
class RunBegun:
    """A run is planned, before the site is asked. `folder` is relative to the study folder, which may be moved."""

    run: int
    trial: int
    attempt: int
    folder: str
    resources: Resources
    on_nodes: tuple[str, ...] = ()
    avoid_nodes: tuple[str, ...] = ()  # as far as the site has others


@dataclass(frozen=True, slots=True)
class Submitted:
    """The site has taken the run."""

    run: int
    ticket: str


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """A run that is ended because its goal was `ratio` times that of run `than`, and `why` it was."""

    run: int
    than: int
    ratio: float
    why: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    run: int
    ending: Ending
    outcome: Outcome
    measurements: tuple[Measurement, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Build:
    """A variant of the program was built, or could not be. The last three are of one that was built on the site."""

    key: str
    outcome: Outcome
    files_kept: int
    duration_s: float
    settings: Settings
    ticket: str = ""
    node_s: float | None = None  # what it cost
    estimated_s: float | None = None  # the part of that which the batch system has not confirmed yet
    missing: Settings = field(default_factory=dict)  # the setting that names what is not there


@dataclass(frozen=True, slots=True)
class Charged:
    """For how long the batch system charges an ended job, said after the job's end."""

    ticket: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ConfirmationBegun:
    """Settings that are compared with the baseline in so many blocks. Journals without `first_block` number every
    confirmation from 0; those without `protocol` and `seed` let the baseline begin each block."""

    candidates: tuple[Point, ...]
    blocks: int
    protocol: int = 1
    seed: int | None = None
    first_block: int = 0
    search_ended: str = ""

    def __post_init__(self) -> None:
        if (self.protocol == 1) != (self.seed is None):
            raise ValueError("protocol and seed belong together")


@dataclass(frozen=True, slots=True)
class SetAside:
    """A block of the confirmation that does not count, and why; it is run again as a whole."""

    block: int
    trials: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """What a campaign found: what every kind says, and the details that only its own kind understands."""

    conclusion: str
    headline: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_line(self) -> Event:
        return {"kind": self.conclusion, "headline": self.headline, **self.details}


@dataclass(frozen=True, slots=True)
class _Compared:
    candidate: str
    verdict: str
    scale: str
    level: float
    blocks: int
    estimate: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class _Details:
    """What the kinds of campaign agree on; each has more of its own."""

    kind: str
    headline: str
    winner: Point | None = None
    comparisons: tuple[_Compared, ...] = ()
    disqualified: Mapping[str, str] = field(default_factory=dict)
    paste: str = ""
    machines: tuple[str, ...] = ()


_DETAILS = Line(_Details)


def _verdict_from(event: Mapping[str, Any]) -> VerdictLine:
    if "verdict" not in event:
        raise ValueError("it has no 'verdict'")
    line = event["verdict"]
    said = _DETAILS.read(line)
    details = {name: value for name, value in line.items() if name not in ("kind", "headline")}
    return VerdictLine(said.kind, said.headline, details)


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    """A verdict of which the journal keeps every field under its own name; it recommends no setting."""

    conclusion: str
    headline: str

    @property
    def recommended(self) -> Point | None:
        return None

    def details(self) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if name not in ("conclusion", "headline")}

    @classmethod
    def from_line(cls, line: VerdictLine) -> Self:
        return Line(cls).read({**line.details, "conclusion": str(line.conclusion), "headline": line.headline})


@dataclass(frozen=True, slots=True)
class Extension:
    """What a finished campaign is to do beyond its verdict: so many more search trials, or more blocks; or, where the
    budget ended before there was a verdict, what there was no room for.

    `wall_s` and `node_hours` are added to a budget that has such a limit. `undecided`: before it there were too few
    blocks for any conclusion, so that nothing of the error was spent.
    """

    trials: int = 0
    blocks: int = 0
    wall_s: float = 0.0
    node_hours: float = 0.0
    undecided: bool = False

    @property
    def what(self) -> str:
        return "trials" if self.trials else "blocks" if self.blocks else "budget"

    def __str__(self) -> str:
        if number := self.trials or self.blocks:
            return f"{number} {self.what if number > 1 else self.what[:-1]}"
        added = [show_duration(self.wall_s)] if self.wall_s else []
        return " and ".join([*added, *([f"{self.node_hours:g} node-hours"] if self.node_hours else [])])


@dataclass(frozen=True, slots=True)
class Stopped:
    """The controller left, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Instructed:
    """Only checked: its line is kept as it is, `AppliedInstructions` and the dashboard answer with it."""

    id: str
    act: str
    told: str
    refused: bool
    run: int | None = None
    search_limit: int | None = None
    wall_s: float | None = None
    node_hours: float | None = None
    point: Point | None = None


_LINES: dict[str, Line[Any]] = {
    "opened": Line(Opened, names={"details": "question"}),
    "trial": Line(Trial, first=("number", "stage", "proposer"), names={"number": "trial"}, without=("build",)),
    "run": Line(RunBegun),
    "submitted": Line(Submitted),
    "stopping": Line(EarlyStop),
    "ended": Line(RunEnded),
    "build": Line(Build, names={"files_kept": "files", "duration_s": "seconds"}),
    "charged": Line(Charged),
    "confirm": Line(ConfirmationBegun),
    "set-aside": Line(SetAside),
    "extended": Line(Extension, first=("trials", "blocks")),
    "instruction": Line(_Instructed),
    "stopped": Line(Stopped),
}
_READS = {**{name: line.read for name, line in _LINES.items()}, "verdict": _verdict_from}
_EVENT_OF = {line.record: name for name, line in _LINES.items()}


def event_of(record: object) -> Event:
    """The record as the event that says it, without its time."""
    if isinstance(record, VerdictLine):
        return {"event": "verdict", "verdict": record.as_line()}
    kind = _EVENT_OF[type(record)]
    return {"event": kind, **_LINES[kind].write(record)}


def record_of(event: Mapping[str, Any]) -> Any:
    """What an event says, as a record; None where a later release wrote it, or its line is kept as it is.

    ValueError when an event of a known kind lacks something or holds something of another type.
    """
    if type(event.get("at")) not in NUMBER:
        raise ValueError("`at` is not a time")
    kind = event.get("event")
    read = _READS.get(kind) if type(kind) is str else None
    if read is None:
        return None
    try:
        record = read(event)
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"not a whole `{kind}` event: {error}") from error
    return None if kind == "instruction" else record
