"""Is it slower than its reference? Fresh runs of one setting against stored ones, until that is decided either way.

Without stored runs the same campaign measures them: as many as a gate with the stated rates needs. Or the reference is
another setting, an old program, that runs in turn with it: then nothing is stored, and a machine that is another than
yesterday, or changes meanwhile, does so for both.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from ridgeline import __version__
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.kinds.base import Agenda, NextTrial, RepeatedSettings
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.machine import MachineState, clock_settings, clocks_changed, machine_state, receipt
from ridgeline.campaign.verdict import goal_text
from ridgeline.errors import CannotJudge, InputError
from ridgeline.files import write_whole
from ridgeline.records.answer import Answer, Candidate, Conclusion, Reference, Standing
from ridgeline.records.exhibit import Exhibits, KindShown
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run, short_names
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.compare import Direction, mean_and_spread
from ridgeline.stats.drift import Repeat, drift, outliers
from ridgeline.stats.gate import (
    FALSE_ALARM,
    FEWEST_PAIRS,
    FEWEST_REFERENCE,
    MOST_RUNS,
    POWER,
    SLOWER,
    GatePlan,
    GateResult,
    gate_plan,
    judge_gate,
    judge_pairs,
    pairs_plan,
    reference_wanted,
)
from ridgeline.stats.wording import count, percent, percent_range
from ridgeline.study.codec import KeptVerdict
from ridgeline.study.history import History

_FORMAT = 1  # of reference files
MOST_STORED = 300  # runs of a reference
# How sure it must be that the machine changed within a gate's runs. At the 95% of a report one gate in twenty of a
# steady machine would have no answer.
_CHANGE_LEVEL = 0.99
_CHANGE_WORTH = 0.5  # of the slowdown that is looked for: a smaller change of the machine decides nothing


@dataclass(frozen=True, slots=True)
class GateVerdict(KeptVerdict):
    """`change` is that of the metric towards worse, `runs` the new ones that it rests on."""

    change: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    finds: float | None = None  # the slow-down that is found with the stated power


@dataclass(frozen=True, slots=True)
class GateQuestion(RepeatedSettings[GateVerdict]):
    """Runs at `point` against the `stored` values, which were measured on `nodes` (empty: any will do) while the
    machine was as `state` says; or against runs at `old` in turn with them.

    `most_runs` is the limit of new runs; of stored ones where there are none yet.
    """

    point: Point
    stored: Sequence[float] = field(default_factory=list)
    slower: float = SLOWER
    false_alarm: float = FALSE_ALARM
    power: float = POWER
    most_runs: int = MOST_RUNS
    nodes: Sequence[str] = field(default_factory=list)
    state: Mapping[str, Any] | None = None
    old: Point | None = None

    kind: ClassVar[str] = "gate"
    reference: ClassVar[str] = "the reference"
    shown: ClassVar[KindShown] = KindShown(
        stored=True,
        figure="ridgeline.report.figures.campaigns:gate_runs",
        how="New runs against the stored ones of the reference",
    )
    verdict_type: ClassVar[type[KeptVerdict]] = GateVerdict
    standings: ClassVar[Mapping[str, Standing | None]] = {
        Conclusion.CANNOT_JUDGE: Standing.UNDECIDED,
        Conclusion.SLOWER: Standing.WORSE,
    }
    runs_called: ClassVar[str] = "run"
    most_is_planned: ClassVar[bool] = True

    @property
    def against(self) -> str:
        return self.reference if self.old is None else "the old one"

    @property
    def asked(self) -> str:
        if self.old is not None:
            return "Is it slower than the old one?"
        return "Is it slower than the reference?" if self.stored else "What is the reference for later gates?"

    @property
    def first(self) -> Point:
        return self.point if self.old is None else self.old

    def applied_to(self, study: Study) -> Study:
        # what a report says of a machine that changed is what the verdict goes by
        applied = RepeatedSettings.applied_to(self, study)
        return replace(applied, confirm=replace(applied.confirm, level=_CHANGE_LEVEL))

    def called(self, trial: Trial) -> str:
        if self.old is None or trial.stage is Stage.WARM_UP:
            return RepeatedSettings.called(self, trial)
        return "old" if trial.key == point_key(self.old) else "new"

    def most(self, study: Study) -> int:
        if self.old is not None:
            return 2 * self.most_runs
        return self.plan(study.goal.direction).most_runs if self.stored else self.most_runs

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> GateAgenda:
        return GateAgenda(found.study, history, ledger, self)

    def plan(self, direction: Direction, pairs: Sequence[tuple[float, float]] = ()) -> GatePlan:
        rates = (self.slower, self.false_alarm, self.power, self.most_runs)
        try:
            return pairs_plan(pairs, direction, *rates) if pairs else gate_plan(self.stored, direction, *rates)
        except ValueError as error:
            raise InputError(f"gate: {error} (`--runs`, `--false-alarms`, `--power`)") from None

    def judged(self, study: Study, history: History) -> tuple[GatePlan, GateResult]:
        """By the runs so far."""
        direction = study.goal.direction
        if self.old is None:
            plan = self.plan(direction)
            return plan, judge_gate(plan, self.stored, _gate_values(study, history), direction)
        pairs = _pair_values(self, study, history)
        plan = self.plan(direction, pairs)
        return plan, judge_pairs(plan, pairs, direction)

    def wanted(self, study: Study, history: History) -> int:
        """How many runs, or pairs of them, there are to be before the next look."""
        sample = _gate_values(study, history) if self.old is None else _pair_values(self, study, history)
        if self.old is not None and len(sample) < FEWEST_PAIRS:
            return FEWEST_PAIRS
        if self.old is None and not self.stored:
            rates = (self.slower, self.false_alarm, self.power, self.most_runs)
            return reference_wanted(_gate_values(study, history), study.goal.direction, *rates)
        plan, found = self.judged(study, history)
        if found.slower is not None:
            return len(sample)
        return next((runs for runs in plan.looks if runs > len(sample)), plan.most_runs)

    def sides(self, study: Study, history: History, verdict: GateVerdict | None) -> tuple[Reference, Candidate | None]:
        before, values = self.stored, self._new_values(study, history)
        if self.old is not None:
            before = [old for old, _ in _pair_values(self, study, history)]
        trial = next((each for each in history.trials.values() if each.key == point_key(self.point)), None)
        now = None
        if values and trial is not None:
            now = Candidate("now", trial.number, self.point, trial.settings, median(values), short="now")
        return Reference(self.against, self.first, median(before) if before else None), now

    def _new_values(self, study: Study, history: History) -> list[float]:
        if self.old is None:
            return _gate_values(study, history)
        return [new for _, new in _pair_values(self, study, history)]

    def facts(self, study: Study, history: History, verdict: GateVerdict | None, answer: Answer) -> dict[str, Any]:
        if verdict is None:
            return {}
        return {"gate": {**verdict.details(), "values": self._new_values(study, history)}}

    def exhibits(self, study: Study, history: History) -> Exhibits:
        runs = [
            run for trial, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH) if trial.key == point_key(self.point)
        ]
        repeats = [Repeat(run.metrics[study.goal.metric], run.ending.nodes) for run in runs]
        notes = [f"{odd} (#{runs[odd.index].trial})" for odd in outliers(repeats, study.goal.direction)]
        return Exhibits(notes=tuple(notes), groups=self.groups(history))


def _gate_values(study: Study, history: History) -> list[float]:
    """What the runs that passed measured, in the order they ended."""
    return [run.metrics[study.goal.metric] for _, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH)]


def _pair_values(asked: GateQuestion, study: Study, history: History) -> list[tuple[float, float]]:
    """Old and new of every pair that is whole, up to the first that is not, in the order they were started."""
    passed = {trial.number: run.metrics[study.goal.metric] for trial, run in history.ok_runs(Stage.SEARCH)}
    trials = [trial for trial in history.trials.values() if trial.stage is Stage.SEARCH]
    found = []
    for pair in zip(trials[::2], trials[1::2], strict=False):
        if not all(trial.number in passed for trial in pair):
            break
        new_last = pair[1].key == point_key(asked.point)
        old, new = pair if new_last else pair[::-1]
        found.append((passed[old.number], passed[new.number]))
    return found


@dataclass
class GateAgenda(Agenda):
    question: GateQuestion

    def fresh(self) -> NextTrial | None:
        if (cold := self.warm_up()) is not None or self.warms_up():
            return cold
        if (first := self.baseline()) is not None or not self.baseline_finished():
            return first
        if self._failed() or self._elsewhere() or min(self._values(), default=1.0) <= 0:  # ratios need values above 0
            return None
        if self.question.old is not None:
            return self._next_of_pair(self.question.old)
        started = self.history.count(Stage.BASELINE, Stage.SEARCH) - self._baselines_that_failed()
        if started >= self.question.wanted(self.study, self.history):
            return None
        return self.new(self.study.baseline, Stage.SEARCH, "gate") if self.fits(self.study.baseline) else None

    def _next_of_pair(self, old: Point) -> NextTrial | None:
        """Which of the two comes first is drawn for each pair: no course of the machine can go with it."""
        started = self.history.count(Stage.SEARCH)
        if started >= 2 * self.question.wanted(self.study, self.history):
            return None
        dice = random.Random(f"{self.study.search.seed} pair {started // 2}")
        new_now = (dice.random() < 0.5) == (started % 2 == 0)
        point = self.question.point if new_now else old
        return self.new(point, Stage.SEARCH, "gate", "new" if new_now else "old") if self.fits(point) else None

    def _values(self) -> list[float]:
        """What runs measured that count; of pairs, both of each."""
        if self.question.old is None:
            return _gate_values(self.study, self.history)
        return [value for pair in _pair_values(self.question, self.study, self.history) for value in pair]

    def _baselines_that_failed(self) -> int:
        passed = {trial.number for trial, _ in self.history.ok_runs(Stage.BASELINE)}
        return sum(t.stage is Stage.BASELINE and t.number not in passed for t in self.history.trials.values())

    def _failed(self) -> Run | None:
        """A run that did not pass, although the first one did."""
        for trial in self.history.trials.values():
            run = self.history.final_run(trial) if trial.stage is Stage.SEARCH else None
            if run is not None and run.outcome is not None and run.outcome.kind not in (Kind.OK, Kind.CANCELLED):
                return run
        return None

    def _elsewhere(self) -> str:
        """Where it ran, if the stored runs are of other nodes."""
        if not self.question.nodes:
            return ""
        known = short_names(self.question.nodes)
        hosts = (node for run in self.history.runs.values() for node in _hosts_of(run))
        return next((host for host in hosts if host not in known), "")

    def conclude(self) -> GateVerdict:
        study, asked = self.study, self.question
        values, ran = self._values(), len(_gate_values(study, self.history))
        done = ran if asked.old is None else len(values) // 2
        if failed := self._failed():
            text = f"run {failed.number} did not pass: {failed.outcome}"
            return GateVerdict(Conclusion.NOTHING_PASSED, text, runs=ran)
        if host := self._elsewhere():
            known = ", ".join(asked.nodes)
            return _cannot_judge(
                f"it ran on {host}, and the reference is of {known}; measure one there with --update", ran
            )
        if values and min(values) <= 0:
            return _cannot_judge(f"{study.goal.metric} is {min(values):g}, and ratios need values above 0", done)
        if asked.old is not None and done < FEWEST_PAIRS:
            text = f"the budget ended after {count(done, 'run')} of each, {FEWEST_PAIRS} are needed"
            return _cannot_judge(text, done)
        return self._judged(values) if asked.stored or asked.old is not None else self._measured(values)

    def _judged(self, values: Sequence[float]) -> GateVerdict:
        study, asked, in_turn = self.study, self.question, self.question.old is not None
        plan, found = asked.judged(study, self.history)
        pairs = _pair_values(asked, study, self.history) if in_turn else []
        sides = ([pair[side] for pair in pairs] for side in (0, 1)) if in_turn else (asked.stored, values)
        before, now = map(median, sides)
        against = "of each, in turn" if in_turn else f"against {len(asked.stored)}"
        text = f"{goal_text(study, self.history).before_after(before, now)}, slowdown {percent(found.change)}"
        text += f" (95%: {percent_range(found.low, found.high)}; {count(found.runs, 'run')} {against})"
        change = (found.change, found.low, found.high, found.runs, plan.slower)
        if found.slower is None:
            ended = "so many runs" if in_turn else count(len(values), "run")
            text = f"cannot judge: the budget ended after {ended}; {text}"
            return GateVerdict(Conclusion.CANNOT_JUDGE, text, *change)
        if not in_turn and (why := self._another_machine(values[: found.runs], found.slower)):
            return GateVerdict(Conclusion.CANNOT_JUDGE, f"cannot judge: {why}; {text}", *change)
        rates = str(plan)
        if plan.slower > plan.asked:
            runs = f"{asked.most_runs} runs of each"
            stored = f"{len(asked.stored)} stored runs and {asked.most_runs} new ones"
            rates += f" ({runs if in_turn else stored} show no less)"
        conclusion = Conclusion.SLOWER if found.slower else Conclusion.NOT_SLOWER
        word = "slower" if found.slower else "not slower"
        return GateVerdict(conclusion, f"{word} than {asked.against}: {text}; this gate {rates}", *change)

    def _another_machine(self, values: Sequence[float], slower: bool) -> str:
        """What the machine did that the program may not be blamed for, and what to do; empty where nothing shows.

        Others slow a program down, so they excuse what is slower now, and not what is slower on a quieter machine;
        what is not slower may hide behind a reference that others had slowed down.
        """
        asked = self.question
        if len({*values}) == 1 and len({*asked.stored}) == 1:
            return ""  # a count that is the same in every run does not depend on the machine
        turn = "run the old program in turn with the new one (--against-command), or run it again when it is quiet"
        before = MachineState.from_json(asked.state or {})
        now = machine_state(run for _, run in self.history.ok_runs(Stage.BASELINE, Stage.SEARCH))
        if slower and now is not None and (busier := now.busier_than(before)):
            when = "when the reference was measured" if before else "assumed for the reference, which does not say"
            return f"the machine is busier: {busier} {when}; {turn}"
        if not slower and now is not None and before is not None and (busier := before.busier_than(now)):
            return f"the reference was measured on a busier machine: {busier} now; measure it again with --update"
        found = drift(values, self.study.goal.direction, random.Random(0), _CHANGE_LEVEL)
        if (
            found.kind in ("step", "trend")
            and abs(math.log1p(found.change)) >= math.log1p(asked.slower) * _CHANGE_WORTH
        ):
            return f"the machine changed while it ran: {found}; {turn}"
        return ""

    def _measured(self, values: Sequence[float]) -> GateVerdict:
        study, asked = self.study, self.question
        if len(values) < FEWEST_REFERENCE:
            passed = count(len(values), "run")
            text = f"no reference: {passed} passed, {FEWEST_REFERENCE} are needed; give it more budget"
            return GateVerdict(Conclusion.CANNOT_JUDGE, text, runs=len(values))
        # the gate that these stored runs make possible
        plan = replace(asked, stored=list(values), most_runs=MOST_RUNS).plan(study.goal.direction)
        spread = mean_and_spread([math.log(value) for value in values])[1]
        goal = goal_text(study, self.history)
        text = f"reference of {count(len(values), 'run')}: {goal.value(median(values))}, runs scatter by {spread:.1%}"
        state = machine_state(run for _, run in self.history.ok_runs(Stage.BASELINE, Stage.SEARCH))
        if len({*values}) > 1 and state is not None and (busy := state.busier_than(None)):
            text += f"; {busy.rpartition(',')[0]} meanwhile: better measure it on a quiet machine"
        text += f"; a gate {plan}, in {plan.most_runs} runs at most"
        return GateVerdict(Conclusion.MEASURED, text, runs=len(values), finds=plan.slower)


def _cannot_judge(why: str, runs: int) -> GateVerdict:
    return GateVerdict(Conclusion.CANNOT_JUDGE, f"cannot judge: {why}", runs=runs)


def _hosts_of(run: Run) -> frozenset[str]:
    """Where a run was, without domains."""
    return short_names(run.ending.nodes or [machine.host for machine in run.ending.machines])


# the reference file


@dataclass(frozen=True, slots=True)
class ReferenceFile:
    """Stored runs with all that they depend on. `machine` is what a gate must find again to judge by them."""

    study: str
    setting: Point
    metric: str
    direction: Direction
    values: tuple[float, ...]
    machine: Mapping[str, Any]
    measured: Mapping[str, Any]  # when, by which version, on what kernel and driver: shown, not compared
    slower: float = SLOWER
    false_alarm: float = FALSE_ALARM
    power: float = POWER
    unit: str = ""
    before: tuple[Mapping[str, Any], ...] = ()  # earlier references in short, oldest first

    def write(self, path: Path) -> None:
        content = {"ridgeline_reference": _FORMAT, **asdict(self)}
        write_whole(path, json.dumps(content, indent=1, default=list) + "\n")

    @classmethod
    def read(cls, path: Path) -> ReferenceFile:
        """InputError says what is wrong with the file, and how to make one."""
        anew = "measure it again with --update"
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            raise InputError(f"{path}: no such reference; measure it once with --update and commit it") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as a reference ({error}); {anew}") from None
        if not isinstance(content, dict) or content.get("ridgeline_reference") != _FORMAT:
            raise InputError(f"{path}: not a reference file of this version; {anew}, under another name")
        known = {each.name: content[each.name] for each in fields(cls) if each.name in content}
        try:
            found = cls(**{**known, "values": tuple(map(float, known["values"])), "before": tuple(known["before"])})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: the reference is not whole ({error}); {anew}") from None
        if len(found.values) < FEWEST_REFERENCE or min(found.values) <= 0:
            what = f"has {count(len(found.values), 'run')}, {FEWEST_REFERENCE} above 0 are needed"
            raise InputError(f"{path}: {what}; {anew}")
        return found

    @classmethod
    def to_be_replaced(cls, path: Path) -> ReferenceFile | None:
        """The reference that a new one is written over; None where there is none, or it is damaged.

        InputError where the file is something else: that is not ours to overwrite.
        """
        if not path.exists():
            return None
        try:
            return cls.read(path)
        except InputError:
            if "ridgeline_reference" not in path.read_text(errors="replace"):
                raise InputError(f"{path}: is there and not a reference; name another file with --against") from None
            return None

    def require_same(self, path: Path, study: Study, point: Point, machine: Mapping[str, Any]) -> None:
        """InputError where it is of another question, CannotJudge where it is of another machine."""
        asked = (study.goal.metric, study.goal.direction, dict(point))
        if asked != (self.metric, self.direction, dict(self.setting)):
            of = f"{self.direction} {self.metric} at {json.dumps(dict(self.setting))}"
            raise InputError(f"{path}: is of {of}; name the reference of this setting, or measure it with --update")
        if changed := clocks_changed(
            self.measured.get("clocks", {}), clock_settings() if "nodes" not in self.machine else {}
        ):
            raise CannotJudge(
                f"cannot judge: the clocks of this machine are set otherwise than for {path} ({changed}); set them "
                "back, measure the reference again with --update, or run the old program in turn with --against-command"
            )
        differ = [name for name in self.machine if name != "nodes" and self.machine[name] != machine.get(name)]
        if differ:
            name = differ[0]
            raise CannotJudge(
                f"cannot judge: {path} was measured on another machine ({name} {self.machine[name]}, here "
                f"{machine.get(name)}); run the gate there, measure a reference here with --update, or give machines "
                "that are alike one name with --machine"
            )


def machine_of(study: Study, label: str = "") -> dict[str, Any]:
    """What tells machines apart here: processor, cores, cards, and the host name or the `label` that stands for it.

    Of a batch system its nodes count, which only the runs can name.
    """
    if study.site.batch != "local":
        return {"site": study.site.name, **({"name": label} if label else {})}
    facts = receipt(study, {})
    known = {name: facts[name] for name in ("cpu", "cores", "gpus") if facts.get(name)}
    return {"name": label or facts["host"], **known}


def measured_reference(
    question: GateQuestion,
    study: Study,
    history: History,
    machine: Mapping[str, Any],
    old: ReferenceFile | None,
    at: str,
) -> ReferenceFile:
    """What a finished measurement stores; `old` is the reference that it takes the place of."""
    values = _gate_values(study, history)
    hosts = sorted({host for run in history.runs.values() for host in _hosts_of(run)})
    on_nodes = study.site.batch != "local" and "name" not in machine
    facts = history.receipts[-1] if history.receipts else {}
    measured = {
        "at": at,
        "ridgeline": __version__,
        "runs": len(values),
        **{name: facts[name] for name in ("host", "kernel", "driver", "command") if facts.get(name)},
    }
    state = machine_state(run for _, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH))
    if study.site.batch == "local":
        measured |= {"clocks": clock_settings(), **({} if state is None else {"state": state.as_json()})}
    before = () if old is None else (*old.before, {**old.measured, "median": median(old.values)})
    return ReferenceFile(
        study.name,
        dict(question.point),
        study.goal.metric,
        study.goal.direction,
        tuple(values),
        {**machine, **({"nodes": hosts} if on_nodes else {})},
        measured,
        question.slower,
        question.false_alarm,
        question.power,
        goal_text(study, history).unit,
        before,
    )
