"""The lines of a journal: every record's one shape on disk, and back.

A line is a JSON object with `event` and `at` (seconds since the epoch). Events, in the order of a trial's life:
opened, build, trial, run, submitted, stopping, ended; and for the campaign: confirm, set-aside, instruction, verdict,
extended, stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ridgeline.records.machine import Machine
from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Evidence, Kind, Move, Outcome
from ridgeline.records.run import Cause, Ending, Resources
from ridgeline.records.trial import PredictedRange, Stage, Trial

Event = dict[str, Any]
# a long journal asks for these by the ten thousand, and an enumeration takes its time
_STAGES, _CAUSES = {each.value: each for each in Stage}, {each.value: each for each in Cause}
_PASSED, _PASSED_LINE = Outcome(Kind.OK), {"kind": Kind.OK.value}


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """What a campaign was asked: which kind of campaign reads it, and what only that kind understands."""

    kind: str = "search"
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """What a campaign found: what every kind says, and the details that only its own kind understands."""

    conclusion: str
    headline: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_line(self) -> Event:
        return {"kind": self.conclusion, "headline": self.headline, **self.details}


def opened_event(controller: Mapping[str, Any], question: QuestionLine, asked: Mapping[str, str]) -> Event:
    asks = {"kind": question.kind, "question": dict(question.details)}
    return {"event": "opened", **controller, **asks, "asked": dict(asked)}


def question_from(event: Mapping[str, Any]) -> QuestionLine:
    if "kind" in event:
        return QuestionLine(event["kind"], event["question"])
    return _question_before_kinds(event.get("overrides", {}))


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


def verdict_event(verdict: VerdictLine) -> Event:
    return {"event": "verdict", "verdict": verdict.as_line()}


def verdict_from(event: Mapping[str, Any]) -> VerdictLine:
    details = {name: value for name, value in event["verdict"].items() if name not in ("kind", "headline")}
    return VerdictLine(event["verdict"]["kind"], event["verdict"]["headline"], details)


def trial_event(trial: Trial) -> Event:
    event: Event = {
        "event": "trial",
        "trial": trial.number,
        "stage": trial.stage.value,
        "proposer": trial.proposer,
        "point": dict(trial.point),
        "settings": dict(trial.settings),
    }
    if trial.why:
        event["why"] = trial.why
    if trial.block is not None:
        event["block"] = trial.block
    if trial.predicted is not None:
        event["predicted"] = asdict(trial.predicted)
    return event


def trial_from(event: Mapping[str, Any]) -> Trial:
    return Trial(
        number=event["trial"],
        point=event["point"],
        settings=event["settings"],
        stage=_STAGES.get(event["stage"]) or Stage(event["stage"]),
        proposer=event["proposer"],
        why=event.get("why", ""),
        block=event.get("block"),
        predicted=_predicted_from(event["predicted"]) if "predicted" in event else None,
    )


def _predicted_from(stated: Mapping[str, Any]) -> PredictedRange:
    return PredictedRange(*(stated[name] for name in ("value", "low", "high", "spread", "in_logs")))


def run_event(
    number: int, trial: int, attempt: int, folder: Path, resources: Resources, on_nodes: Sequence[str] = ()
) -> Event:
    """`folder` is relative to the study folder, so that the folder can be moved."""
    asked = {k: v for k in ("nodes", "ranks_per_node", "cores", "gpus", "memory_bytes") if (v := getattr(resources, k))}
    event: Event = {
        "event": "run",
        "run": number,
        "trial": trial,
        "attempt": attempt,
        "folder": folder.as_posix(),
        "resources": asked,
    }
    return event | ({"on_nodes": list(on_nodes)} if on_nodes else {})


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """A run that is ended because its goal was `ratio` times that of run `than`, with `why` as the reason in words."""

    run: int
    than: int
    ratio: float
    why: str


def stopping_event(found: EarlyStop) -> Event:
    return {"event": "stopping", "run": found.run, "than": found.than, "ratio": found.ratio, "why": found.why}


def early_stop_from(event: Mapping[str, Any]) -> EarlyStop:
    return EarlyStop(event["run"], event["than"], event["ratio"], event["why"])


@dataclass(frozen=True, slots=True)
class SetAside:
    """A block of the confirmation that does not count, and why; it is run again as a whole."""

    block: int
    trials: tuple[int, ...]
    reason: str

    def as_line(self) -> Event:
        return {"block": self.block, "trials": list(self.trials), "reason": self.reason}


def set_aside_event(found: SetAside) -> Event:
    return {"event": "set-aside", **found.as_line()}


def set_aside_from(line: Mapping[str, Any]) -> SetAside:
    return SetAside(line["block"], tuple(line["trials"]), line["reason"])


@dataclass(frozen=True, slots=True)
class Extension:
    """What a finished campaign is to do beyond its verdict: so many more search trials, or more blocks.

    `wall_s` and `node_hours` are added to a budget that has such a limit.
    """

    trials: int = 0
    blocks: int = 0
    wall_s: float = 0.0
    node_hours: float = 0.0

    @property
    def what(self) -> str:
        return "trials" if self.trials else "blocks"

    def __str__(self) -> str:
        number = self.trials or self.blocks
        return f"{number} {self.what if number > 1 else self.what[:-1]}"


def extended_event(extension: Extension) -> Event:
    event: Event = {"event": "extended", "trials": extension.trials, "blocks": extension.blocks}
    added = {"wall_s": extension.wall_s, "node_hours": extension.node_hours}
    return {**event, **{name: amount for name, amount in added.items() if amount}}


def extension_from(event: Mapping[str, Any]) -> Extension:
    return Extension(event["trials"], event["blocks"], event.get("wall_s", 0.0), event.get("node_hours", 0.0))


def ended_event(
    number: int, ending: Ending, outcome: Outcome, measurements: tuple[Measurement, ...], texts: Mapping[str, str]
) -> Event:
    event: Event = {"event": "ended", "run": number, "ending": ending_line(ending), "outcome": outcome_line(outcome)}
    if measurements:
        event["measurements"] = [measurement_line(m) for m in measurements]
    if texts:
        event["texts"] = dict(texts)
    return event


def measurement_line(m: Measurement) -> list[Any]:
    return [m.metric, m.value, m.unit, m.source, m.origin]


def ending_line(ending: Ending) -> Event:
    line: Event = {"cause": ending.cause.value, "started": ending.started_s, "ended": ending.ended_s}
    optional = {
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "reason": ending.reason or None,
        "nodes": list(ending.nodes) or None,
        "leftovers": list(ending.leftovers) or None,
        "usage": dict(ending.usage) or None,
        "elapsed": ending.elapsed_s,
        "held": ending.held_s,
        "charged": ending.charged_s,
        "machines": [[m.host, m.boot, list(m.gpus)] for m in ending.machines] or None,
    }
    return line | {k: v for k, v in optional.items() if v is not None}


@lru_cache(maxsize=1024)  # the same few in every line of a long journal
def _machine(host: str, boot: str, gpus: tuple[str, ...]) -> Machine:
    return Machine(host, boot, gpus)


@lru_cache(maxsize=1024)
def _resources(asked: tuple[tuple[str, int], ...]) -> Resources:
    return Resources(**dict(asked))


def resources_from(line: Mapping[str, int]) -> Resources:
    return _resources(tuple(line.items()))


def ending_from(line: Mapping[str, Any]) -> Ending:
    return Ending(
        cause=_CAUSES.get(line["cause"]) or Cause(line["cause"]),
        exit_code=line.get("exit_code"),
        signal=line.get("signal"),
        reason=line.get("reason", ""),
        nodes=tuple(line.get("nodes", ())),
        started_s=line["started"],
        ended_s=line["ended"],
        leftovers=tuple(line.get("leftovers", ())),
        usage=line.get("usage", {}),
        elapsed_s=line.get("elapsed"),
        held_s=line.get("held"),
        charged_s=line.get("charged"),
        machines=tuple([_machine(host, boot, tuple(gpus)) for host, boot, gpus in line.get("machines", ())]),
    )


def outcome_line(outcome: Outcome) -> Event:
    line: Event = {"kind": outcome.kind.value}
    if outcome.reason:
        line["reason"] = outcome.reason
    if outcome.evidence:
        line["evidence"] = [outcome.evidence.source, outcome.evidence.line_number, outcome.evidence.text]
    if outcome.advice:
        line["advice"] = [[move.knob, move.direction, move.why] for move in outcome.advice]
    if outcome.at_start:
        line["at_start"] = True
    if outcome.was is not None:
        line["was"] = outcome.was.value
    if outcome.remedy:
        line["remedy"] = outcome.remedy
    if outcome.lacking:
        line["lacking"] = outcome.lacking
    return line


def outcome_from(line: Mapping[str, Any]) -> Outcome:
    if line == _PASSED_LINE:
        return _PASSED
    evidence = line.get("evidence")
    advice = tuple(Move(*move) for move in line.get("advice", ()))
    was = Kind(line["was"]) if "was" in line else None
    return Outcome(
        Kind(line["kind"]),
        line.get("reason", ""),
        Evidence(*evidence) if evidence else None,
        advice,
        line.get("at_start", False),
        was,
        line.get("remedy", ""),
        line.get("lacking", ""),
    )
