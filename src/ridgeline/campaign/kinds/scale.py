"""How does one setting scale? Run over the values of one knob, repeated and interleaved; there is no search."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.kinds.base import Agenda, NextTrial, RepeatedSettings, legal_points
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import Setting, parse_point
from ridgeline.errors import InputError
from ridgeline.records.answer import Answer, Candidate, Conclusion, Progress, Reference, Standing
from ridgeline.records.exhibit import Curve, CurveFigure, CurvePoint, Exhibits, KindShown, TextTable
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.compare import order_of_block
from ridgeline.stats.scaling import WORTH, ScalingLaw, ScalingStep, scaling
from ridgeline.stats.wording import metric_text
from ridgeline.study.codec import KeptVerdict
from ridgeline.study.history import History


@dataclass(frozen=True, slots=True)
class _ScaledSize(ScalingStep):
    """A step with the mean of the goal's metric there."""

    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalingVerdict(KeptVerdict):
    """Speed-up and efficiency by size with intervals, and where more stops paying."""

    over: str = ""
    metric: str = ""
    setting: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[_ScaledSize, ...] = ()
    law: ScalingLaw | None = None
    pays_to: int | None = None
    sure: bool = False
    level: float = 0.95
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> bool:
        """Whether the runs show where more stops paying, or that it pays up to the largest size; else more would."""
        if self.pays_to is not None:
            return self.sure
        return all(step.marginal_low is not None and step.marginal_low >= WORTH for step in self.steps[1:])

    def details(self) -> dict[str, Any]:
        return KeptVerdict.details(self) if self.steps else {"failed": dict(self.failed)}


def _scaling_table(verdict: ScalingVerdict) -> TextTable:
    head = (verdict.over, "runs", verdict.metric, "speed-up", "efficiency")
    rows = tuple(_row(step, first=at == 0) for at, step in enumerate(verdict.steps))
    notes = tuple(f"no result at {size} {verdict.over}: {reason}" for size, reason in verdict.failed.items())
    return TextTable("Scaling", head, rows, notes=notes)


def _row(step: _ScaledSize, first: bool) -> tuple[str, ...]:
    speed, share = f"{step.speedup:.2f}", f"{step.efficiency:.0%}"
    if not first and step.speedup_low is not None and step.efficiency_low is not None:
        speed += f" ({step.speedup_low:.2f} to {step.speedup_high:.2f})"
        share += f" ({step.efficiency_low:.0%} to {step.efficiency_high:.0%})"
    return str(step.size), str(step.runs), metric_text(step.mean), speed, share


def _law_text(law: ScalingLaw) -> str:
    between = "" if law.serial_low is None else f" ({law.serial_low:.0%} to {law.serial_high:.0%})"
    return f"{law.name}: {law.serial:.0%} serial{between}"


def _scaling_figures(verdict: ScalingVerdict) -> tuple[CurveFigure, ...]:
    """Speed-up and efficiency against size, each with what perfect scaling would give."""
    sizes = [step.size for step in verdict.steps]
    speed = tuple(CurvePoint(s.size, s.speedup, s.speedup_low, s.speedup_high) for s in verdict.steps)
    share = tuple(CurvePoint(s.size, s.efficiency, s.efficiency_low, s.efficiency_high) for s in verdict.steps)
    perfect = tuple(CurvePoint(size, size / sizes[0]) for size in sizes)
    full = tuple(CurvePoint(size, 1.0) for size in sizes)
    return (
        CurveFigure(
            "Speed-up", verdict.over, "speed-up", (Curve("measured", speed), Curve("perfect", perfect, ideal=True))
        ),
        CurveFigure(
            "Efficiency", verdict.over, "efficiency", (Curve("measured", share), Curve("perfect", full, ideal=True))
        ),
    )


_UNITS = {"nodes": "node", "ranks_per_node": "rank", "ranks": "rank", "threads": "thread", "gpus": "GPU"}
_RESAMPLING_SEED = 1  # the same runs give the same intervals


@dataclass(frozen=True, slots=True)
class ScalingQuestion(RepeatedSettings[ScalingVerdict]):
    """Every point `repeats` times; they differ in the knob `over` alone. `refused` are sizes that may not run.

    `seed` is what the order of sizes is drawn from, after a warm-up; journals of earlier versions have none: up through
    the sizes, and the first run of all, which is cold, is one of the smallest.
    """

    over: str
    points: Sequence[Point]
    repeats: int = 3
    refused: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None

    kind: ClassVar[str] = "scale"
    reference: ClassVar[str] = "the smallest size"
    shown: ClassVar[KindShown] = KindShown("How it scales", how="Each size ran {repeats} times, in mixed order")
    verdict_type: ClassVar[type[KeptVerdict]] = ScalingVerdict
    stage: ClassVar[str] = "sizes"
    runs_called: ClassVar[str] = "size"

    @property
    def asked(self) -> str:
        return f"How far does it pay to raise {self.over}?"

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> ScalingAgenda:
        return ScalingAgenda(found.study, history, ledger, self)

    def progress(self, study: Study, history: History) -> Progress:
        failed = _failures(history)
        planned = self.repeats * sum(point_key(point) not in failed for point in self.points) + len(failed)
        planned += history.count(Stage.WARM_UP)
        stage = "finished" if history.verdict is not None else self.stage
        done = len(history.runs)
        return Progress(stage, done, planned, "runs", max(0, planned - done))

    def sides(
        self, study: Study, history: History, verdict: ScalingVerdict | None
    ) -> tuple[Reference, Candidate | None]:
        """The candidate is the largest size that pays; before that is known, the largest that passed."""
        means = {size: statistics.fmean(values) for size, values in self.values(study, history).items()}
        reference = Reference(self.reference, self.first, means.get(_size(self.first, self.over)))
        if not means:
            return reference, None
        pays_to = None if verdict is None else verdict.pays_to
        size = max(means) if pays_to is None or pays_to not in means else pays_to
        trial = next(t for t in _measured(history) if t.point.get(self.over) == size)
        label = f"the largest {self.over} that pays" if verdict is not None else f"the largest {self.over} so far"
        return reference, Candidate(label, trial.number, trial.point, trial.settings, means[size])

    def facts(self, study: Study, history: History, verdict: ScalingVerdict | None, answer: Answer) -> dict[str, Any]:
        return {} if verdict is None else {"scaling": verdict.details()}

    def answer(self, study: Study, history: History) -> Answer:
        answer, verdict = RepeatedSettings.answer(self, study, history), self.found(history)
        if verdict is None or verdict.conclusion != Conclusion.SCALED or verdict.shown:
            return answer
        return replace(answer, shown=Standing.UNDECIDED, why=f"not shown: {verdict.headline}")

    def exhibits(self, study: Study, history: History) -> Exhibits:
        groups = {t.number: f"{self.over} {t.point.get(self.over)}" for t in history.trials.values()}
        verdict = self.found(history)
        if verdict is None or not verdict.steps:
            return Exhibits(groups=groups)
        law = () if verdict.law is None else (_law_text(verdict.law),)
        return Exhibits(tables=(_scaling_table(verdict),), figures=_scaling_figures(verdict), notes=law, groups=groups)

    def values(self, study: Study, history: History) -> dict[int, list[float]]:
        """What the runs that passed measured, by size."""
        found: dict[int, list[float]] = {}
        for trial, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH):
            found.setdefault(_size(trial.point, self.over), []).append(run.metrics[study.goal.metric])
        return found


def _size(point: Point, over: str) -> int:
    value = point[over]
    assert isinstance(value, int | float)
    return int(value)


@dataclass
class ScalingAgenda(Agenda):
    """Every size `repeats` times: through the sizes, back again, and so on, so that drift falls on all alike."""

    question: ScalingQuestion

    def fresh(self) -> NextTrial | None:
        cold = None if self.question.seed is None else self.warm_up()
        if cold is not None or self.warms_up():
            return cold
        if (first := self.baseline()) is not None or not self.baseline_finished():
            return first
        failed = _failures(self.history)
        started = Counter(t.key for t in _measured(self.history) if not _run_again(self.history, t))
        for step in range(self.question.repeats):
            for point in self._pass(step):
                key = point_key(point)
                if key in failed:
                    continue
                if not started[key]:
                    return self.new(point, Stage.SEARCH, "scale") if self.fits(point) else None
                started[key] -= 1
        return None

    def _pass(self, step: int) -> list[Point]:
        """All sizes once: two passes in turn are each other's reverse."""
        points = self.question.points
        return [points[at] for at in order_of_block(len(points), step, 1, self.question.seed, protocol=2)]

    def conclude(self) -> ScalingVerdict:
        return verdict(self.study, self.history, self.question)


def _failures(history: History) -> dict[str, str]:
    """Sizes that did not pass, each with the reason of its last run."""
    failed = {}
    for trial in _measured(history):
        run = history.final_run(trial)
        if _run_again(history, trial):
            continue
        if run and run.outcome and run.outcome.kind is not Kind.OK and run.outcome.kind is not Kind.CANCELLED:
            failed[trial.key] = str(run.outcome)
    return failed


def _measured(history: History) -> list[Trial]:
    return [trial for trial in history.trials.values() if trial.stage is not Stage.WARM_UP]


def _run_again(history: History, trial: Trial) -> bool:
    """Whether it is a baseline that had not passed, and that another one took the place of."""
    later = any(t.stage is Stage.BASELINE and t.number > trial.number for t in history.trials.values())
    run = history.final_run(trial)
    return trial.stage is Stage.BASELINE and later and not (run and run.outcome and run.outcome.kind is Kind.OK)


def verdict(study: Study, history: History, question: ScalingQuestion) -> ScalingVerdict:
    over, runs = question.over, question.values(study, history)
    failed = _failures(history)
    lost = {str(p[over]): failed[point_key(p)] for p in question.points if point_key(p) in failed}
    lost |= question.refused
    if len(runs) < 2:
        why = "; ".join(f"{size}: {reason}" for size, reason in lost.items()) or "the budget had no room for more"
        headline = f"scaling needs runs at two sizes or more, {len(runs)} passed ({why})"
        return ScalingVerdict(Conclusion.NOTHING_PASSED, headline, failed=lost)
    rng, unit = random.Random(_RESAMPLING_SEED), _UNITS.get(over, over)
    result = scaling(runs, study.goal.direction, rng, level=study.confirm.level, unit=unit)
    return ScalingVerdict(
        Conclusion.SCALED,
        result.headline,
        over,
        study.goal.metric,
        {name: value for name, value in question.points[0].items() if name != over},
        tuple(_ScaledSize(**asdict(step), mean=statistics.fmean(runs[step.size])) for step in result.steps),
        result.law,
        result.pays_to,
        result.sure,
        result.level,
        lost,
    )


# the question as it is typed


def scaling_question(found: CheckedStudy, over: str | None, at: Setting, repeats: int) -> ScalingQuestion:
    """The setting `at` over every legal whole number of a knob: the one named, or the first that counts ranks."""
    knob = over or _knob_to_scale(found.study)
    points, refused = _sizes(found, knob, parse_point(found, at, found.study.baseline))
    return ScalingQuestion(knob, [dict(point) for point in points], repeats, refused, found.study.search.seed)


def _knob_to_scale(study: Study) -> str:
    for name in _UNITS:
        if name in study.space.by_name and len(_numbers(study, name)) > 1:
            return name
    raise InputError(
        f"{study.name}: no knob among {', '.join(_UNITS)} has two values or more; name the one to scale with --over"
    )


def _numbers(study: Study, knob: str) -> list[int]:
    values: Sequence[object] = getattr(study.space.by_name[knob], "values", ())
    return sorted(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0)


def _sizes(found: CheckedStudy, knob: str, start: Point) -> tuple[list[Point], dict[str, str]]:
    study = found.study
    if knob not in study.space.by_name:
        raise InputError(f"--over {knob}: not a knob of the study; known: {', '.join(study.space.by_name)}")
    points, refused = legal_points(found, knob, start, _numbers(study, knob))
    if len(points) < 2:
        why = "; ".join(f"{size}: {reason}" for size, reason in refused.items())
        raise InputError(f"{knob} has {len(points)} legal whole numbers, scaling needs two{why and f' ({why})'}")
    return list(points.values()), {str(size): reason for size, reason in refused.items()}
