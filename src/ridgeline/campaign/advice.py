"""What a failure asks for: the failed setting again with one knob moved the way the failure advises.

Decided from the failed trials in the order they ended and from what was tried, so that a resumed campaign decides the
same. The first move is one step of the knob. A moved setting that fails again moves once more, twice as far; then the
sampler goes on: a hopeless corner of the space must not eat the budget.

A baseline that fails asks a person: without it nothing can be compared. Until something has passed nothing was
measured, so the study in the campaign's folder may then be corrected in any part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from ridgeline.errors import InputError, NothingFound, OpenQuestion, RidgelineError, SiteError
from ridgeline.records.expression import Value, is_number
from ridgeline.records.observation import Proposal
from ridgeline.records.outcome import Kind, Move, Outcome
from ridgeline.records.run import Run
from ridgeline.records.space import Continuous, Knob, Point, Space, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.samplers.base import Refusal
from ridgeline.study.history import History
from ridgeline.study.yaml_tree import parse_yaml, read_text

PROPOSER = "advice"
_CONTINUOUS_STEP = 0.05  # of the range of a knob without steps of its own
LONGEST_CHAIN = 2  # moves in a row that fail; with 5 twice as many trials failed, for no measurable gain
_WORDS = {Kind.OOM_RUN: "run-time OOM", Kind.OOM_START: "start-up OOM"}


class _MadeMove(NamedTuple):
    way: tuple[str, int]
    steps: int
    chain: int  # how many in a row it is


@dataclass
class Advice:
    """`take` gets every search trial that failed; `next` gives the first moved setting that was not tried yet."""

    space: Space
    refusal: Refusal
    _failed: deque[tuple[Trial, Outcome]] = field(default_factory=deque)
    _made: dict[str, _MadeMove] = field(default_factory=dict)  # by moved point

    def take(self, trial: Trial, outcome: Outcome) -> None:
        if outcome.advice:
            self._failed.append((trial, outcome))

    @property
    def waits(self) -> bool:
        """Whether a failure waits for an answer, so that `next` is worth asking."""
        return bool(self._failed)

    def next(self, tried: Collection[str]) -> Proposal | None:
        """None: nobody asks for a move, or every moved setting was tried already or may not run."""
        while self._failed:
            if (proposal := self._answer(*self._failed[0], tried)) is not None:
                return proposal
            self._failed.popleft()
        return None

    def _answer(self, trial: Trial, outcome: Outcome, tried: Collection[str]) -> Proposal | None:
        before = self._made.get(trial.key) if trial.proposer == PROPOSER else None
        if before is not None and before.chain == LONGEST_CHAIN:
            return None
        for move in outcome.advice:
            same = before is not None and before.way == (move.knob, move.direction)
            steps = 2 * before.steps if before is not None and same else 1
            if (point := self._moved(trial.point, move, steps)) is None:
                continue
            key = point_key(point)
            # what was tried may run, and asking costs more than looking
            known = key in tried
            if known or self.refusal(point) is None:
                chain = 1 if before is None else before.chain + 1
                self._made[key] = _MadeMove((move.knob, move.direction), steps, chain)
                return None if known else Proposal(point, _why(trial, outcome, move))
        return None

    def _moved(self, point: Point, move: Move, steps: int) -> Point | None:
        """None where the study has no such knob, or it is at its end already."""
        knob = self.space.by_name.get(move.knob)
        value = None if knob is None else _stepped(knob, point.get(move.knob), steps * move.direction)
        if value is None:
            return None
        there = self.space.restrict({**point, move.knob: value})
        return None if self.space.missing(there) else there


def _stepped(knob: Knob, value: Value, steps: int) -> Value | None:
    """The value so many steps up (or down) the knob, its last one where it ends before; None for no move at all."""
    if not is_number(value):
        return None
    if isinstance(knob, Continuous):
        moved = value + (knob.high - knob.low) * _CONTINUOUS_STEP * steps
        if knob.log:
            moved = float(value * (knob.high / knob.low) ** (_CONTINUOUS_STEP * steps))
        there = knob.rounded(moved)
        return None if there == value else there
    if not knob.ordered:
        return None
    beyond = [v for v in knob.values if is_number(v) and (v > value if steps > 0 else v < value)]
    beyond.sort(reverse=steps < 0)
    return beyond[min(abs(steps), len(beyond)) - 1] if beyond else None


def _why(trial: Trial, outcome: Outcome, move: Move) -> str:
    way = "up" if move.direction > 0 else "down"
    failure = _WORDS.get(outcome.kind, outcome.kind.value)
    return f"moved {move.knob} {way} after {failure} of trial {trial.number}: {move.why}"


# a baseline that did not pass

# what the study's author changes, where the failure itself names no knob
_CHANGES = {
    Kind.OOM_START: "ask for less memory in `baseline`, or for more nodes or GPUs in `job`",
    Kind.OOM_RUN: "ask for less memory in `baseline`, or for more nodes or GPUs in `job`",
    Kind.REJECTED: "correct what is refused in `baseline`, `workload` or `job`",
    Kind.CRASH: "correct `baseline` or `workload`",
    Kind.HANG: "raise `job: silence` if it was only slow, or correct what it waits for",
    Kind.TIMEOUT: "raise `job: limit`, or make the run shorter",
    Kind.WRONG: "correct the guard, or what makes the result wrong",
    Kind.UNVERIFIED: "correct `baseline` or `workload` so that what is asked is applied",
    Kind.BUILD_FAILED: "correct `builds`",
}


def baseline_failure(study: Study, history: History, run: Run, outcome: Outcome) -> RidgelineError:
    """The error that ends a campaign whose baseline did not pass: what happened, what to change, how to go on."""
    text = f"the baseline itself did not pass: {outcome} (run folder {run.folder})"
    again = f"then `ridgeline resume {quote(str(history.root))}` runs the baseline again"
    if outcome.kind.retryable:
        sites = sorted((history.root / "sites").glob("*.y*ml"))
        file = sites[0] if sites else f"`site` in {history.root / 'study.yaml'}"
        return SiteError(
            f"{text}, also after {study.job.retries} retries. The site did this, not the setting: have it looked at, "
            f"or correct {file}; {again}"
        )
    if outcome.lacking:
        line, where = _place_of_run(history.root / "study.yaml")
        return InputError(
            f"{history.root / 'study.yaml'}:{line}: {where}: {text}. What to do: {outcome.remedy}; {again}"
        )
    return NothingFound(
        f"{text}; nothing can be compared with it, so nothing else was run. "
        f"In {history.root / 'study.yaml'} {_change(study, outcome)}; {again}"
    )


def open_question(study: Study, history: History, run: Run) -> OpenQuestion:
    """What stops a campaign that a setting it has seen pass does not pass any more: what happened, and how to go on."""
    trial = history.trials[run.trial]
    assert run.outcome is not None and run.outcome.was is not None
    base = trial.key == point_key(study.baseline)
    who = "the baseline" if base else ", ".join(f"{name}={value}" for name, value in trial.point.items())
    line = f"; {run.outcome.evidence}" if run.outcome.evidence else ""
    return OpenQuestion(
        f"what has changed on the nodes? {who} passed before and no longer does, even after "
        f"{study.job.retries} retries: {run.outcome.reason}{line} (run folder {run.folder}). That is no "
        "verdict about any setting, so none is given; look for other programs on its nodes, ports, GPUs and files. "
        f"Everything measured is kept: `ridgeline resume {quote(str(history.root))}` runs it again and continues"
    )


def _place_of_run(file: Path) -> tuple[int, str]:
    """Where the study says what is run: the line, and the key."""
    tree = parse_yaml(read_text(file), str(file)) if file.is_file() else None
    workload = tree.root.children.get("workload") if tree else None
    if tree is None or workload is None:
        return 1, "workload"
    key = ("workload", "run") if "run" in workload.children else ("workload",)
    return tree.line_of(key), ".".join(key)


def _change(study: Study, outcome: Outcome) -> str:
    options = study.workload.options.get("flags")
    fixed = options if isinstance(options, dict) else {}
    for move in outcome.advice:
        if move.knob in study.space.by_name or move.knob in fixed:
            where = "baseline" if move.knob in study.space.by_name else "workload: flags"
            return f"{'raise' if move.direction > 0 else 'lower'} {move.knob} in `{where}`"
    return outcome.remedy or _CHANGES.get(outcome.kind, "correct what the run shows")
