"""The journal's lines: each kind of event declared once, with its keys, their types and how they become records.

A line is a JSON object with `event` and `at` (seconds since the epoch). Events, in the order of a trial's life: opened,
build, trial, run, submitted, stopping, ended, charged; and for the campaign: confirm, set-aside, instruction, verdict,
extended, stopped. Writing, reading and checking follow the declarations below (`_Line`): keys are written in their
order; one that a line may lack is left out where it would say its default; a line of a known kind that lacks something
or holds something of another type is refused. Keys without a declaration are ignored: a later release wrote them.

What older releases wrote is read too: `opened` with `overrides` and without a kind (before 0.1.0), and `confirm`
without `first_block`, `protocol` and `seed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from ridgeline.records.duration import show_duration
from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Evidence, Kind, Move, Outcome
from ridgeline.records.run import Cause, Ending, Machine, Resources
from ridgeline.records.trial import PredictedRange, Stage, Trial

Event = dict[str, Any]
R = TypeVar("R")
_Kinds = frozenset[type]  # what a plain value may be; by type, not isinstance: true is no number here
_Reads = Callable[[Any], Any]
_MOST_ALIKE = 256  # combinations of keys and types that are remembered of one declaration
_NOTHING: Mapping[str, Any] = {}
_NEEDED: Any = object()


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of a line. `read` makes the record's value of the line's or raises ValueError; `write` is its inverse."""

    name: str
    kinds: _Kinds = frozenset()  # empty: `read` sees to it
    default: Any = _NEEDED  # of a line that lacks the key
    read: _Reads | None = None
    write: _Reads | None = None
    attribute: str = ""  # of the record, where that has another name

    def is_left_out(self, value: Any) -> bool:
        if self.default is _NEEDED:
            return False
        return value is None or (self.default is not None and not value)


class _Line(Generic[R]):
    """How records of one type stand in the journal. `make` takes their values in the order of the keys."""

    def __init__(self, make: Callable[..., R], *keys: _Key) -> None:
        self._make, self._keys = make, keys
        # lines of a journal are alike: of those with the same keys and types only what lies deeper is looked at again
        self._plans: dict[tuple[Any, ...], list[tuple[str, _Reads | None, Any]]] = {}

    def write(self, record: R) -> Event:
        line: Event = {}
        for key in self._keys:
            value = getattr(record, key.attribute or key.name)
            if not key.is_left_out(value):
                line[key.name] = value if key.write is None else key.write(value)
        return line

    def read(self, line: Any) -> R:
        """ValueError where it lacks a key or holds something of another type."""
        if type(line) is not dict:
            raise ValueError("it is no mapping")
        alike = (*line, *map(type, line.values()))
        plan = self._plans.get(alike) or self._plan(line, alike)
        # every line of a long journal comes through here
        return self._make(
            *[default if not name else line[name] if read is None else read(line[name]) for name, read, default in plan]
        )

    def _plan(self, line: Event, alike: tuple[Any, ...]) -> list[tuple[str, _Reads | None, Any]]:
        plan: list[tuple[str, _Reads | None, Any]] = []
        for key in self._keys:
            if key.name not in line:
                if key.default is _NEEDED:
                    raise ValueError(f"it has no {key.name!r}")
                plan.append(("", None, key.default))
            elif key.kinds and type(line[key.name]) not in key.kinds:
                raise ValueError(f"its {key.name!r} is of another type")
            else:
                plan.append((key.name, key.read, None))
        if len(self._plans) < _MOST_ALIKE:
            self._plans[alike] = plan
        return plan


# values


_TEXT, _WHOLE, _NUMBER, _OBJECT = frozenset({str}), frozenset({int}), frozenset({int, float}), frozenset({dict})
_BOOL: _Kinds = frozenset({bool})
_MAYBE_NUMBER: _Kinds = frozenset({int, float, type(None)})
_SETTING_KINDS: _Kinds = frozenset({str, int, float, bool, type(None)})


def _refused(what: str) -> ValueError:
    return ValueError(f"not {what}")


def _mapping_of(kinds: _Kinds) -> _Reads:
    def read(value: Any) -> Any:
        if type(value) is not dict or not kinds.issuperset(map(type, value.values())):
            raise _refused("a mapping of such values")
        return value

    return read


def _tuple_of(kinds: _Kinds) -> _Reads:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or not kinds.issuperset(map(type, value)):
            raise _refused("a list of such values")
        return tuple(value)

    return read


def _rows_of(make: Callable[..., Any], *kinds: _Kinds) -> _Reads:
    one = _row_of(make, *kinds)

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _refused("a list of rows")
        return tuple([one(row) for row in value])

    return read


def _row_of(make: Callable[..., Any], *kinds: _Kinds) -> _Reads:
    def read(row: Any) -> Any:
        if type(row) is not list or len(row) != len(kinds):
            raise _refused(f"a row of {len(kinds)}")
        if not all(type(value) in these for value, these in zip(row, kinds, strict=True)):
            raise _refused("a row of such values")
        return make(*row)

    return read


def _one_of(values: Any) -> _Reads:
    """A member of an enumeration. A long journal asks for these by the ten thousand, and an enumeration is slow."""
    known = {each.value: each for each in values}
    return lambda value: known.get(value) or values(value)


def _value(member: Any) -> Any:
    return member.value


_setting = _mapping_of(_SETTING_KINDS)


def _settings(value: Any) -> tuple[Any, ...]:
    if type(value) is not list:
        raise _refused("a list of settings")
    return tuple([_setting(point) for point in value])


def _list_of_dicts(points: Any) -> list[Event]:
    return [dict(point) for point in points]


def _measurements(rows: Any) -> tuple[Measurement, ...]:
    # written out: a long journal holds a hundred thousand of these
    if type(rows) is not list:
        raise _refused("a list of measurements")
    for row in rows:
        if not (
            type(row) is list
            and len(row) == 5
            and type(row[0]) is type(row[2]) is type(row[3]) is type(row[4]) is str
            and type(row[1]) in _NUMBER
        ):
            raise _refused("a measurement")
    return tuple([Measurement(*row) for row in rows])


def measurement_line(m: Measurement) -> list[Any]:
    return [m.metric, m.value, m.unit, m.source, m.origin]


@lru_cache(maxsize=1024)  # the same few in every line of a long journal
def _machine(host: str, boot: str, gpus: tuple[str, ...]) -> Machine:
    return Machine(host, boot, gpus)


def _machines(rows: Any) -> tuple[Machine, ...]:
    if type(rows) is not list:
        raise _refused("a list of machines")
    found = []
    for row in rows:
        if type(row) is not list or len(row) != 3 or not type(row[0]) is type(row[1]) is str:
            raise _refused("a machine")
        if type(row[2]) is not list or not _TEXT.issuperset(map(type, row[2])):
            raise _refused("a machine's GPUs")
        found.append(_machine(row[0], row[1], tuple(row[2])))
    return tuple(found)


def _machine_lines(machines: Sequence[Machine]) -> list[list[Any]]:
    return [[m.host, m.boot, list(m.gpus)] for m in machines]


@lru_cache(maxsize=1024)
def _resources(asked: tuple[tuple[str, int], ...]) -> Resources:
    return Resources(**dict(asked))


def _resources_read(line: Any) -> Resources:
    return _resources(tuple(_mapping_of(_WHOLE)(line).items()))


def _resources_line(asked: Resources) -> Event:
    names = ("nodes", "ranks_per_node", "cores", "gpus", "memory_bytes")
    return {name: value for name in names if (value := getattr(asked, name))}


# records inside events


_OUTCOME = _Line(
    Outcome,
    _Key("kind", _TEXT, read=_one_of(Kind), write=_value),
    _Key("reason", _TEXT, ""),
    _Key(
        "evidence",
        default=None,
        read=_row_of(Evidence, _TEXT, _WHOLE, _TEXT),
        write=lambda found: [found.source, found.line_number, found.text],
    ),
    _Key(
        "advice",
        default=(),
        read=_rows_of(Move, _TEXT, _WHOLE, _TEXT),
        write=lambda moves: [[move.knob, move.direction, move.why] for move in moves],
    ),
    _Key("at_start", _BOOL, default=False),
    _Key("was", _TEXT, None, _one_of(Kind), _value),
    _Key("remedy", _TEXT, ""),
    _Key("lacking", _TEXT, ""),
)
_PASSED, _PASSED_LINE = Outcome(Kind.OK), {"kind": Kind.OK.value}
outcome_line = _OUTCOME.write


def _outcome_from(line: Any) -> Outcome:
    return _PASSED if line == _PASSED_LINE else _OUTCOME.read(line)


def _ending(  # the order of the line, not of the record
    cause: Cause,
    started: float,
    ended: float,
    exit_code: int | None,
    signal: int | None,
    reason: str,
    nodes: tuple[str, ...],
    leftovers: tuple[str, ...],
    usage: Mapping[str, float],
    *rest: Any,
) -> Ending:
    return Ending(cause, exit_code, signal, reason, nodes, started, ended, leftovers, usage, *rest)


_ENDING = _Line(
    _ending,
    _Key("cause", _TEXT, read=_one_of(Cause), write=_value),
    _Key("started", _NUMBER, attribute="started_s"),
    _Key("ended", _NUMBER, attribute="ended_s"),
    _Key("exit_code", _WHOLE, None),
    _Key("signal", _WHOLE, None),
    _Key("reason", _TEXT, ""),
    _Key("nodes", default=(), read=_tuple_of(_TEXT), write=list),
    _Key("leftovers", default=(), read=_tuple_of(_TEXT), write=list),
    _Key("usage", default=_NOTHING, read=_mapping_of(_NUMBER), write=dict),
    _Key("elapsed", _NUMBER, None, attribute="elapsed_s"),
    _Key("held", _NUMBER, None, attribute="held_s"),
    _Key("charged", _NUMBER, None, attribute="charged_s"),
    _Key("machines", default=(), read=_machines, write=_machine_lines),
)
ending_line, ending_from = _ENDING.write, _ENDING.read

_PREDICTED = _Line(
    PredictedRange,
    _Key("value", _NUMBER),
    _Key("low", _NUMBER),
    _Key("high", _NUMBER),
    _Key("spread", _NUMBER),
    _Key("in_logs", _BOOL),
)


# events


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """What a campaign was asked: which kind of campaign reads it, and what only that kind understands."""

    kind: str = "search"
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opened:
    """A controller takes the campaign up. `receipt` is its machine, versions and command."""

    question: QuestionLine
    asked: Mapping[str, str]
    receipt: Mapping[str, Any]


def _opened(
    kind: str | None, question: Event, overrides: Event, asked: Mapping[str, str], receipt: Mapping[str, Any]
) -> Opened:
    said = _question_before_kinds(overrides) if kind is None else QuestionLine(kind, question)
    return Opened(said, asked, receipt)


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


_OPENED = _Line(
    _opened,
    _Key("kind", _TEXT, None),
    _Key("question", _OBJECT, _NOTHING),
    _Key("overrides", _OBJECT, _NOTHING),
    _Key("asked", default=_NOTHING, read=_mapping_of(_TEXT)),
    _Key("receipt", _OBJECT, _NOTHING),
)


def opened_event(controller: Mapping[str, Any], question: QuestionLine, asked: Mapping[str, str]) -> Event:
    asks = {"kind": question.kind, "question": dict(question.details)}
    return {"event": "opened", **controller, **asks, "asked": dict(asked)}


def _trial(
    number: int, stage: Stage, proposer: str, point: Event, settings: Event, why: str, block: int | None, predicted: Any
) -> Trial:
    return Trial(number, point, settings, stage, proposer, why, block, predicted=predicted)


_TRIAL = _Line(
    _trial,
    _Key("trial", _WHOLE, attribute="number"),
    _Key("stage", _TEXT, read=_one_of(Stage), write=_value),
    _Key("proposer", _TEXT),
    _Key("point", read=_setting, write=dict),
    _Key("settings", read=_setting, write=dict),
    _Key("why", _TEXT, ""),
    _Key("block", _WHOLE, None),
    _Key("predicted", default=None, read=_PREDICTED.read, write=_PREDICTED.write),
)


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


_RUN = _Line(
    RunBegun,
    _Key("run", _WHOLE),
    _Key("trial", _WHOLE),
    _Key("attempt", _WHOLE),
    _Key("folder", _TEXT),
    _Key("resources", read=_resources_read, write=_resources_line),
    _Key("on_nodes", default=(), read=_tuple_of(_TEXT), write=list),
    _Key("avoid_nodes", default=(), read=_tuple_of(_TEXT), write=list),
)


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


_ENDED = _Line(
    RunEnded,
    _Key("run", _WHOLE),
    _Key("ending", read=ending_from, write=ending_line),
    _Key("outcome", read=_outcome_from, write=outcome_line),
    _Key("measurements", default=(), read=_measurements, write=lambda rows: [measurement_line(m) for m in rows]),
    _Key("texts", default=_NOTHING, read=_mapping_of(_TEXT), write=dict),
)


@dataclass(frozen=True, slots=True)
class Build:
    """A variant of the program was built, or could not be. The last three are of one that was built on the site."""

    key: str
    outcome: Outcome
    files_kept: int
    duration_s: float
    settings: Mapping[str, Any]
    ticket: str = ""
    node_s: float | None = None  # what it cost
    estimated_s: float | None = None  # the part of that which the batch system has not confirmed yet
    missing: Mapping[str, Any] = field(default_factory=dict)  # the setting that names what is not there


_BUILD = _Line(
    Build,
    _Key("key", _TEXT),
    _Key("outcome", read=_outcome_from, write=outcome_line),
    _Key("files", _WHOLE, attribute="files_kept"),
    _Key("seconds", _NUMBER, attribute="duration_s"),
    _Key("settings", read=_setting, write=dict),
    _Key("ticket", _TEXT, ""),
    _Key("node_s", _NUMBER, None),
    _Key("estimated_s", _NUMBER, None),
    _Key("missing", default=_NOTHING, read=_setting, write=dict),
)


@dataclass(frozen=True, slots=True)
class Charged:
    """For how long the batch system charges an ended job, said after the job's end."""

    ticket: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ConfirmationBegun:
    """Settings that are compared with the baseline in so many blocks. Journals without `first_block` number every
    confirmation from 0; those without `protocol` and `seed` let the baseline begin each block."""

    candidates: tuple[Mapping[str, Any], ...]
    blocks: int
    protocol: int = 1
    seed: int | None = None
    first_block: int = 0
    search_ended: str = ""


def _confirmation(candidates: Any, blocks: int, protocol: int | None, seed: int | None, *rest: Any) -> Any:
    if (protocol is None) != (seed is None):
        raise ValueError("protocol and seed belong together")
    return ConfirmationBegun(candidates, blocks, protocol or 1, seed, *rest)


_CONFIRM = _Line(
    _confirmation,
    _Key("candidates", read=_settings, write=_list_of_dicts),
    _Key("blocks", _WHOLE),
    _Key("protocol", _WHOLE, None),
    _Key("seed", _WHOLE, None),
    _Key("first_block", _WHOLE, 0),
    _Key("search_ended", _TEXT, ""),
)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A block of the confirmation that does not count, and why; it is run again as a whole."""

    block: int
    trials: tuple[int, ...]
    reason: str

    def as_line(self) -> Event:
        return _SET_ASIDE.write(self)


_SET_ASIDE = _Line(
    SetAside,
    _Key("block", _WHOLE),
    _Key("trials", read=_tuple_of(_WHOLE), write=list),
    _Key("reason", _TEXT),
)
set_aside_from = _SET_ASIDE.read


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """What a campaign found: what every kind says, and the details that only its own kind understands."""

    conclusion: str
    headline: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_line(self) -> Event:
        return {"kind": self.conclusion, "headline": self.headline, **self.details}


def _as_is(*values: Any) -> None:
    """Of a declaration that only checks."""


_COMPARISON = _Line(
    _as_is,
    *(_Key(name, _TEXT) for name in ("candidate", "verdict", "scale")),
    _Key("level", _NUMBER),
    _Key("blocks", _WHOLE),
    *(_Key(name, _MAYBE_NUMBER, None) for name in ("estimate", "low", "high")),
)


def _comparisons(lines: Any) -> None:
    if type(lines) is not list:
        raise _refused("a list of comparisons")
    for line in lines:
        _COMPARISON.read(line)


_DETAILS = _Line(  # what the kinds of campaign agree on; each has more of its own
    _as_is,
    _Key("kind", _TEXT),
    _Key("headline", _TEXT),
    _Key("winner", default=None, read=lambda value: value if value is None else _setting(value)),
    _Key("comparisons", default=None, read=_comparisons),
    _Key("disqualified", default=None, read=_mapping_of(_TEXT)),
    _Key("paste", _TEXT, None),
    _Key("machines", default=None, read=_tuple_of(_TEXT)),
)


def _verdict_read(line: Any) -> VerdictLine:
    _DETAILS.read(line)
    details = {name: value for name, value in line.items() if name not in ("kind", "headline")}
    return VerdictLine(line["kind"], line["headline"], details)


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


_INSTRUCTION = _Line(  # its line is kept as it is: `AppliedInstructions` and the dashboard answer with it
    _as_is,
    *(_Key(name, _TEXT) for name in ("id", "act", "told")),
    _Key("refused", _BOOL),
    *(_Key(name, _WHOLE, None) for name in ("run", "search_limit")),
    *(_Key(name, _NUMBER, None) for name in ("wall_s", "node_hours")),
    _Key("point", default=None, read=_setting),
)
_LINES: dict[str, _Line[Any]] = {
    "opened": _OPENED,
    "trial": _TRIAL,
    "run": _RUN,
    "submitted": _Line(Submitted, _Key("run", _WHOLE), _Key("ticket", _TEXT)),
    "stopping": _Line(EarlyStop, _Key("run", _WHOLE), _Key("than", _WHOLE), _Key("ratio", _NUMBER), _Key("why", _TEXT)),
    "ended": _ENDED,
    "build": _BUILD,
    "charged": _Line(Charged, _Key("ticket", _TEXT), _Key("seconds", _NUMBER)),
    "confirm": _CONFIRM,
    "set-aside": _SET_ASIDE,
    "verdict": _Line(lambda verdict: verdict, _Key("verdict", read=_verdict_read)),
    "extended": _Line(
        Extension,
        _Key("trials", _WHOLE),
        _Key("blocks", _WHOLE),
        _Key("wall_s", _NUMBER, 0.0),
        _Key("node_hours", _NUMBER, 0.0),
        _Key("undecided", _BOOL, False),
    ),
    "instruction": _INSTRUCTION,
    "stopped": _Line(Stopped, _Key("reason", _TEXT)),
}
_READS = {name: line.read for name, line in _LINES.items()}
_EVENT_OF: dict[type, str] = {
    Trial: "trial",
    RunBegun: "run",
    Submitted: "submitted",
    EarlyStop: "stopping",
    RunEnded: "ended",
    Build: "build",
    Charged: "charged",
    ConfirmationBegun: "confirm",
    SetAside: "set-aside",
    Extension: "extended",
    Stopped: "stopped",
}


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
    if type(event.get("at")) not in _NUMBER:
        raise ValueError("`at` is not a time")
    kind = event.get("event")
    read = _READS.get(kind) if type(kind) is str else None
    if read is None:
        return None
    try:
        return read(event)
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"not a whole `{kind}` event: {error}") from error


def run_event(
    number: int,
    trial: int,
    attempt: int,
    folder: Path,
    resources: Resources,
    on_nodes: Sequence[str] = (),
    avoid_nodes: Sequence[str] = (),
) -> Event:
    return event_of(RunBegun(number, trial, attempt, folder.as_posix(), resources, tuple(on_nodes), tuple(avoid_nodes)))
