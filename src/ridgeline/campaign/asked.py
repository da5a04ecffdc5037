"""What is asked of a study: the question, and the folder in which it is answered.

The command line and the Python API ask in the same way; they differ in what they show while the answer is found. A
setting is a mapping, or `knob=value,knob=value` as it is typed; either changes the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from ridgeline.campaign.assembly import (
    Asked,
    assemble_again,
    assemble_folder,
    assemble_next_folder,
    assemble_or_resume,
)
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.kinds.bisect import bisect_question
from ridgeline.campaign.kinds.compare import comparison
from ridgeline.campaign.kinds.edge import edge_question
from ridgeline.campaign.kinds.gate import MOST_STORED, GateQuestion, ReferenceFile, machine_of, measured_reference
from ridgeline.campaign.kinds.scale import scaling_question
from ridgeline.campaign.kinds.steps import steps_question
from ridgeline.campaign.point_text import BASELINE, Setting, parse_point
from ridgeline.campaign.status import read_status, read_winner
from ridgeline.errors import InputError
from ridgeline.stats.gate import MOST_RUNS
from ridgeline.study.folder import STEPS_ENDINGS, StudyFolder


def comparing(
    found: CheckedStudy, b: Setting, a: Setting = BASELINE, blocks: int | None = None, out: Path | None = None
) -> Asked:
    """Whether `b`, which changes `a`, is better; in a folder of its own each time."""
    question = comparison(found, a, b, blocks)
    return Asked(assemble_next_folder(found, out, f"{found.study.name}-compare", question), question)


def edge_of(
    found: CheckedStudy,
    knob: str,
    at: Setting = BASELINE,
    *,
    repeats: int = 3,
    margin: float = 0.03,
    fails: float | None = None,
    out: Path | None = None,
) -> Asked:
    """The largest value of a knob that passes, and the one to use in production, this share below it."""
    question = edge_question(found, knob, at, repeats, margin, fails)
    return assemble_or_resume(found, out, f"{found.study.name}-edge-{knob}", question)


def scaling(
    found: CheckedStudy, over: str | None = None, at: Setting = BASELINE, repeats: int = 3, out: Path | None = None
) -> Asked:
    """A setting on 1 to n ranks, nodes or threads."""
    question = scaling_question(found, over, at, repeats)
    return Asked(assemble_folder(found, out, f"{found.study.name}-scale-{question.over}"), question)


def steps_to(
    found: CheckedStudy,
    setting: Setting | Path,
    blocks: int | None = None,
    *,
    each: bool = False,
    beside: Path | None = None,
    out: Path | None = None,
) -> Asked:
    """The gain of each change on the way from the baseline to a setting, or to the one that a study folder confirmed.

    `beside` is the study folder of which they are steps: its report looks for them there.
    """
    if isinstance(setting, Path):
        winner, matters = read_winner(setting)
    else:
        winner, matters = parse_point(found, setting, found.study.baseline), None
    question, grouped = (steps_question(found, winner, blocks, matters, way) for way in (each, False))
    ending = STEPS_ENDINGS[-1] if question == grouped else STEPS_ENDINGS[0]  # both may be wanted of one setting
    if out is None and beside is not None:
        out = beside.resolve().with_name(f"{beside.resolve().name}{ending}")
    return assemble_or_resume(found, out, f"{found.study.name}{ending}", question)


def bisecting(
    found: CheckedStudy,
    over: str,
    ends: tuple[object, object] = (None, None),
    at: Setting = BASELINE,
    *,
    slower: float = 0.03,
    runs: int = 400,
    out: Path | None = None,
) -> Asked:
    """Which value of an ordered knob made a program slower, from a good end to a bad one; None: the first, the last."""
    question = bisect_question(found, over, at, ends, slower, runs)
    return assemble_or_resume(found, out, f"{found.study.name}-bisect-{over}", question)


@dataclass(frozen=True)
class Gate:
    """Whether a program is slower than it was. Rates are shares; None: as the reference says, else the usual ones."""

    found: CheckedStudy
    at: Setting = BASELINE
    old: Setting | None = None  # run in turn with it; no reference is needed then
    reference: Path | None = None
    slower: float | None = None
    false_alarm: float | None = None
    power: float | None = None
    runs: int | None = None
    alike: str = ""  # a name shared by machines that are alike
    out: Path | None = None

    @property
    def path(self) -> Path:
        return self.reference or Path(f"{self.found.study.name}.gate.json")

    @property
    def machine(self) -> dict[str, Any]:
        return machine_of(self.found.study, self.alike)

    def question(self, stored: ReferenceFile | None) -> GateQuestion:
        point = dict(parse_point(self.found, self.at, self.found.study.baseline))
        usual = stored or GateQuestion(point)
        return GateQuestion(
            point,
            slower=usual.slower if self.slower is None else self.slower,
            false_alarm=usual.false_alarm if self.false_alarm is None else self.false_alarm,
            power=usual.power if self.power is None else self.power,
        )

    def in_turn(self) -> Asked:
        """The old program and the new one, run in turn."""
        assert self.old is not None
        question = self.question(None)
        old = dict(parse_point(self.found, self.old, self.found.study.baseline))
        if old == question.point:
            raise InputError("--at and --against-setting are the same setting; name the new one with --at")
        return self._asked(replace(question, old=old, most_runs=self.runs or question.most_runs))

    def judged(self, stored: ReferenceFile) -> Asked:
        """Against a reference. CannotJudge where it is of another machine or study."""
        question = self.question(stored)
        stored.require_same(self.path, self.found.study, question.point, self.machine)
        nodes, state = list(stored.machine.get("nodes", [])), stored.measured.get("state")
        most = self.runs or MOST_RUNS
        return self._asked(replace(question, stored=list(stored.values), most_runs=most, nodes=nodes, state=state))

    def measuring(self) -> Asked:
        """Runs for a reference, which `write_reference` then writes in the place of the one before."""
        return self._asked(self._measures, "reference")

    def write_reference(self, measured: StudyFolder) -> None:
        now = read_status(measured.path)
        found = measured_reference(self._measures, now.study, now.history, self.machine, self._before, now_text())
        found.write(self.path)

    @cached_property
    def _before(self) -> ReferenceFile | None:
        return ReferenceFile.to_be_replaced(self.path)

    @property
    def _measures(self) -> GateQuestion:
        return replace(self.question(self._before), most_runs=self.runs or MOST_STORED)

    def _asked(self, question: GateQuestion, what: str = "gate") -> Asked:
        return assemble_again(self.found, self.out, f"{self.found.study.name}-{what}", question)


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
