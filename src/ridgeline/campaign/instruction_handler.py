"""Doing what people tell a running campaign: each instruction is answered in the journal once, obeyed or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ridgeline.campaign.kinds.base import Agenda
from ridgeline.campaign.ledger import Ledger
from ridgeline.executors.base import Executor
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.trial import Stage
from ridgeline.study.codec import Event
from ridgeline.study.history import History
from ridgeline.study.instructions import Act, Instruction, put_away, waiting_instructions

CANCELLED = Outcome(Kind.CANCELLED, "a person asked for it")


class Refused(Exception):  # noqa: N818  an answer to a person, not an error
    """Why an instruction is not obeyed, and what to do instead."""


@dataclass
class InstructionHandler:
    """What instructions do to one campaign. `record` puts a line into its journal."""

    history: History
    agenda: Agenda
    ledger: Ledger
    executor: Executor
    record: Callable[[Event], None]

    def take_up(self) -> None:
        """At the beginning: what was left to a controller that is gone. Whoever starts a campaign wants it to run."""
        late = "it was left before the campaign was taken up again"
        self._answer({Act.PAUSE: late, Act.STOP: late})
        for planned in self.history.open_runs.values():
            if planned.number in self.history.instructions.cancelled and planned.ticket:
                self.executor.cancel(planned.ticket)

    def handle(self) -> bool:
        """Answers what waits; whether there was anything."""
        return self._answer({})

    def finish(self) -> None:
        """At the end: what came too late."""
        self._answer(dict.fromkeys(Act, "the campaign is over; `ridgeline resume --help` says how to extend it"))

    def _answer(self, refusals: dict[Act, str]) -> bool:
        waiting = waiting_instructions(self.history.root)
        for name, instruction in waiting.items():
            if name not in self.history.instructions.answers:
                self._answer_one(name, instruction, refusals)
            put_away(self.history.root, name)
        return bool(waiting)

    def _answer_one(self, name: str, instruction: Instruction | str, refusals: dict[Act, str]) -> None:
        if isinstance(instruction, str):
            line: Event = {"id": name, "act": "unreadable", "told": instruction, "refused": True}
        else:
            try:
                done, refused = self._carry_out(instruction, refusals), False
            except Refused as why_not:
                done, refused = {"told": str(why_not)}, True
            line = {**instruction.as_line(), **done, "refused": refused}
        self.record({"event": "instruction", **line})
        if not line["refused"] and line["act"] == Act.CANCEL:
            self.executor.cancel(self.history.open_runs[line["run"]].ticket)
        self.agenda.reconsider()

    def _carry_out(self, instruction: Instruction, refusals: dict[Act, str]) -> dict[str, Any]:
        """What the journal keeps of it; Refused where it cannot be."""
        if why := refusals.get(instruction.act):
            raise Refused(why)
        paused = self.history.instructions.paused
        match instruction.act:
            case Act.PAUSE:
                return {"told": "it was paused already" if paused else "running jobs continue, nothing new is started"}
            case Act.RESUME:
                return {"told": "goes on" if paused else "it was not paused"}
            case Act.STOP:
                return {"told": "stopped, as with Ctrl-C"}
            case Act.CANCEL:
                return {"told": self._cancel(instruction.run)}
            case Act.TRY:
                point, why = self.agenda.to_be_tried(instruction.point)
                if why:
                    raise Refused(why)
                return {"point": dict(point), "told": "it is tried as soon as a run can start"}
            case Act.EXTEND:
                return self._extend(instruction)

    def _cancel(self, number: int | None) -> str:
        planned = self.history.open_runs.get(number or 0)
        if planned is None:
            over = "is over" if number in self.history.runs else "does not exist"
            raise Refused(f"run {number} {over}")
        stage = self.history.trials[planned.trial].stage
        if stage is not Stage.SEARCH or self.history.question.kind != "search":
            why = "all others are compared with it; stop the campaign instead"
            raise Refused(f"run {number} cannot be left out: {why}")
        if not planned.ticket:
            raise Refused(f"run {number} is still being built or handed over; try again once it runs")
        return f"run {number} is cancelled; its setting is not tried again"

    def _extend(self, instruction: Instruction) -> dict[str, Any]:
        limits = self.ledger.limits
        if instruction.trials and (why := self.agenda.why_no_more_trials()):
            raise Refused(why)
        asked_for = {
            "time": (instruction.wall_s, limits.wall_s),
            "node-hours": (instruction.node_hours, limits.node_hours),
        }
        for name, (asked, limit) in asked_for.items():
            if asked and limit is None:
                raise Refused(f"the study sets no limit of {name}, so there is nothing to extend")
        line: dict[str, Any] = {"told": "the budget is extended"}
        if instruction.trials:
            line["search_limit"] = (self.agenda.trials_limit or 0) + instruction.trials
        return line
