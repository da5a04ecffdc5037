"""Which change made it slower? Versions in order, the ends first, then the pair that tells most, until one is sure."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.kinds.base import Agenda, NextTrial, RepeatedSettings, legal_points
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import Setting, parse_point
from ridgeline.errors import InputError, near
from ridgeline.records.answer import Answer, Candidate, Conclusion, Reference, Standing
from ridgeline.records.exhibit import Curve, CurveFigure, CurvePoint, Exhibits, KindShown, TextTable, side_by_side
from ridgeline.records.outcome import Kind
from ridgeline.records.run import OWN_LOG, PACKAGES_FILE
from ridgeline.records.space import Discrete, Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.change_points import (
    FOUND,
    NOT_REPRODUCED,
    ChangePosterior,
    Observed,
    between_ends,
    change_posterior,
    jumps,
    next_step,
)
from ridgeline.stats.wording import count, metric_text, percent, percent_range
from ridgeline.study.codec import KeptVerdict
from ridgeline.study.history import History
from ridgeline.study.state_files import state_text

MOST_RUNS = 400
_RUNS_OF_A_BLOCK = 4  # A B B A
_SHOWN = 8  # most rows of the posterior
_WORTH_A_ROW = 0.01


@dataclass(frozen=True, slots=True)
class _FoundChange:
    """Between `before` and `after`, neighbours among those that run; `skipped` lie between them and do not."""

    before: Any
    after: Any
    probability: float
    change: float
    low: float
    high: float
    skipped: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class BisectVerdict(KeptVerdict):
    """`likely` are places of the change with their probability, the most probable first; `skipped` why versions did
    not run."""

    over: str = ""
    changes: tuple[_FoundChange, ...] = ()
    likely: tuple[tuple[Any, Any, float], ...] = ()
    none: float | None = None  # the probability that nothing changed
    skipped: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0


@dataclass(frozen=True, slots=True)
class BisectQuestion(RepeatedSettings[BisectVerdict]):
    """The `points` differ in the knob `over` alone, in its order: the first is known as good, the last as bad."""

    over: str
    points: Sequence[Point]
    slower: float = 0.03
    most_runs: int = MOST_RUNS
    refused: Mapping[str, str] = field(default_factory=dict)

    kind: ClassVar[str] = "bisect"
    reference: ClassVar[str] = "the good end"
    shown: ClassVar[KindShown] = KindShown(
        versions=True, how="The two ends first, then the {over} pair whose comparison tells most, until one is sure"
    )
    verdict_type: ClassVar[type[KeptVerdict]] = BisectVerdict
    standings: ClassVar[Mapping[str, Standing | None]] = {
        Conclusion.UNRESOLVED: Standing.UNDECIDED,
        Conclusion.NOT_REPRODUCED: Standing.NOT_BETTER,
    }
    stage: ClassVar[str] = "bisect"
    runs_called: ClassVar[str] = "good"

    @property
    def asked(self) -> str:
        return f"Which {self.over} made it slower?"

    def most(self, study: Study) -> int:
        return self.most_runs

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> BisectAgenda:
        return BisectAgenda(found.study, history, ledger, self)

    # what the history says

    def skipped(self, history: History, before_block: int | None = None) -> dict[str, str]:
        """Points that do not run, by key, each with why; as known before this block."""
        found: dict[str, str] = {}
        passed = {trial.key for trial, _ in history.ok_runs(Stage.BASELINE, Stage.CONFIRM)}
        for trial in history.trials.values():
            run = history.final_run(trial)
            if run is None or run.outcome is None or trial.key in passed or trial.stage is Stage.WARM_UP:
                continue
            if before_block is not None and (trial.block or 0) >= before_block:
                continue
            if run.outcome.kind.caused_by_setting or run.outcome.kind is Kind.UNVERIFIED or run.outcome.kind.retryable:
                found[trial.key] = str(run.outcome)
        return found

    def alive(self, history: History, before_block: int | None = None) -> list[Point]:
        skipped = self.skipped(history, before_block)
        return [point for point in self.points if point_key(point) not in skipped]

    def runs(self, study: Study, history: History, before_block: int | None = None) -> list[Observed]:
        """Runs that passed, of blocks before this one; a block that a stop cut in two counts as two."""
        sign = 1.0 if study.goal.direction == "minimize" else -1.0
        places = {point_key(point): at for at, point in enumerate(self.alive(history, before_block))}
        return [
            Observed(
                places[trial.key],
                sign * math.log(run.metrics[study.goal.metric]),
                (trial.block or 0, history.opening_of[run.number]),
            )
            for trial, run in history.ok_runs(Stage.BASELINE, Stage.CONFIRM)
            if trial.key in places
            and run.metrics[study.goal.metric] > 0
            and (before_block is None or (trial.block or 0) < before_block)
        ]

    def posterior(self, study: Study, history: History) -> ChangePosterior | None:
        runs, versions = self.runs(study, history), len(self.alive(history))
        return change_posterior(runs, versions) if len(runs) > 1 and versions > 1 else None

    def value(self, point: Point) -> Any:
        return point[self.over]

    # what every face shows

    def sides(
        self, study: Study, history: History, verdict: BisectVerdict | None
    ) -> tuple[Reference, Candidate | None]:
        means, candidate = _means(study, history), None
        if verdict is not None and verdict.changes:
            point = next(p for p in self.points if self.value(p) == verdict.changes[0].after)
            trial = next(t for t in history.trials.values() if t.key == point_key(point))
            candidate = Candidate("the first slow one", trial.number, point, trial.settings, means[trial.key])
        return Reference(self.reference, self.first, means.get(point_key(self.first))), candidate

    def facts(self, study: Study, history: History, verdict: BisectVerdict | None, answer: Answer) -> dict[str, Any]:
        return {} if verdict is None else {"bisect": verdict.details()}

    def exhibits(self, study: Study, history: History) -> Exhibits:
        groups = {t.number: f"{self.over} {t.point.get(self.over)}" for t in history.trials.values()}
        verdict = self.found(history)
        tables, notes = [self._measured_table(study, history)], list[str]()
        if verdict is not None and verdict.conclusion != NOT_REPRODUCED and verdict.likely:
            rows = tuple((f"{a} -> {b}", f"{chance:.1%}") for a, b, chance in verdict.likely if chance >= _WORTH_A_ROW)
            tables.append(TextTable("Where the change is", ("between", "probability of a change"), rows))
        for change in () if verdict is None else verdict.changes:
            more, hints = self._difference(history, change)
            tables += more
            notes += hints
        figures = self._figure(study, history)
        return Exhibits(tables=tuple(tables), figures=figures, notes=tuple(notes), groups=groups)

    def _measured_table(self, study: Study, history: History) -> TextTable:
        means, skipped = _means(study, history), self.skipped(history)
        counts = Counter(trial.key for trial, _ in history.ok_runs(Stage.BASELINE, Stage.CONFIRM))
        rows = tuple(
            (str(self.value(p)), str(counts[key]), metric_text(means[key]) if key in means else "did not run")
            for p in self.points
            if (key := point_key(p)) in means or key in skipped
        )
        notes = [f"{self.value(p)}: {skipped[key]}" for p in self.points if (key := point_key(p)) in skipped]
        notes += [f"{value}: {why}" for value, why in self.refused.items()]
        return TextTable("Runs", (self.over, "runs", study.goal.metric), rows, notes=tuple(notes))

    def _difference(self, history: History, change: _FoundChange) -> tuple[list[TextTable], list[str]]:
        """The two settings with all that was derived from them, their packages, and where to look further."""
        trials = {trial.point[self.over]: trial for trial, _ in history.ok_runs(Stage.BASELINE, Stage.CONFIRM)}
        first, second = trials[change.before], trials[change.after]
        labels = (str(change.before), str(change.after))
        differ = [name for name in first.settings if first.settings[name] != second.settings.get(name)]
        sides = ({name: trial.settings.get(name) for name in differ} for trial in (first, second))
        tables = [side_by_side("What differs", labels, *sides)]
        folders = [run.folder for trial in (first, second) if (run := history.final_run(trial)) is not None]
        before, after = (_packages(folder) for folder in folders)
        if other := [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]:
            rows = tuple((name, before.get(name, "\u2013"), after.get(name, "\u2013")) for name in other)
            same = f"{count(len(before) - sum(name in before for name in other), 'other package')} the same"
            tables.append(TextTable("Packages that differ", ("package", *labels), rows, notes=(same,)))
        logs = " ".join(shlex.quote(str(_main_log(folder))) for folder in folders)
        notes = [f"compare what they wrote: ridgeline diagnose --compare {logs}"]
        if all(re.fullmatch(r"[0-9a-f]{7,40}", str(value)) for value in (change.before, change.after)):
            notes.append(f"the commits in between: git log --stat {change.before}..{change.after}")
        return tables, notes

    def _figure(self, study: Study, history: History) -> tuple[CurveFigure, ...]:
        """What each version measured, and the levels that the posterior sees."""
        posterior, means, alive = self.posterior(study, history), _means(study, history), self.alive(history)
        if posterior is None:
            return ()
        sign = 1.0 if study.goal.direction == "minimize" else -1.0
        measured = tuple(CurvePoint(at, means[key]) for at, p in enumerate(alive) if (key := point_key(p)) in means)
        levels = tuple(CurvePoint(at, math.exp(sign * level)) for at, level in enumerate(posterior.levels))
        curves = (Curve("mean of its runs", measured), Curve("level fitted to all runs", levels, ideal=True))
        verdict, values = self.found(history), [self.value(point) for point in alive]
        marks = tuple(
            (values.index(c.after) - 0.5, f"{'slower' if c.change > 0 else 'faster'} from {c.after}")
            for c in (() if verdict is None else verdict.changes)
            if c.after in values
        )
        says = f"What each {self.over} measured, oldest first, and where the level changes."
        return (
            CurveFigure(f"By {self.over}", self.over, study.goal.metric, curves, says, tuple(map(str, values)), marks),
        )


@dataclass
class BisectAgenda(Agenda):
    """One run at a time: the warm-up, the good end, then blocks A B B A of the pair that tells most."""

    question: BisectQuestion

    def fresh(self) -> NextTrial | None:
        if self.history.open_runs or self._without_ratios():
            return None
        if (cold := self.warm_up()) is not None:
            return cold
        if (first := self.baseline()) is not None or not self.history.ok_runs(Stage.BASELINE):
            return first
        block = max((trial.block or 0 for trial in self.history.trials.values()), default=0) or 1
        while True:
            pair = self._pair(block)
            if pair is None:
                return None
            started = [trial for trial in self.history.trials.values() if trial.block == block]
            order = self._order(block, *pair)
            skipped = self.question.skipped(self.history)
            if len(started) < _RUNS_OF_A_BLOCK and not any(trial.key in skipped for trial in started):
                point = order[len(started)]
                return self.new(point, Stage.CONFIRM, "bisect", block=block) if self.fits(point) else None
            block += 1

    def _without_ratios(self) -> bool:
        """Whether a run measured what has no logarithm: then no more of them would answer anything."""
        metric = self.study.goal.metric
        return any(run.metrics[metric] <= 0 for _, run in self.history.ok_runs(Stage.BASELINE, Stage.CONFIRM))

    def _order(self, block: int, a: Point, b: Point) -> list[Point]:
        """Each begins every other block, and drift cancels within each."""
        return [a, b, b, a] if block % 2 else [b, a, a, b]

    def _pair(self, block: int) -> tuple[Point, Point] | None:
        """What this block compares, from the blocks before it alone; None where it is over."""
        started = [trial.point for trial in self.history.trials.values() if trial.block == block]
        known = list({point_key(point): point for point in started}.values())
        if len(known) == 2:
            return (known[0], known[1]) if block % 2 else (known[1], known[0])
        alive = self.question.alive(self.history, block)
        if len(alive) < 2 or point_key(self.question.points[-1]) in self.question.skipped(self.history, block):
            return None
        runs = self.question.runs(self.study, self.history, block)
        if len(runs) + _RUNS_OF_A_BLOCK > self.question.most_runs:
            return None
        _, pair = next_step(runs, len(alive), self.question.slower, self._costs_s(alive, block))
        if pair is None:
            return None
        return alive[pair[0]], alive[pair[1]]

    def _costs_s(self, points: Sequence[Point], block: int) -> list[float]:
        """Node time of two runs of each, and of building it where that is still to be done.

        As known before this block: whatever ran in it must not change the pair that it was begun with.
        """
        runs = [(t, r) for t, r in self.history.ok_runs(Stage.BASELINE, Stage.CONFIRM) if (t.block or 0) < block]
        took = {trial.key: run.ending.duration_s for trial, run in runs}
        typical = math.fsum(took.values()) / len(took) if took else 1.0
        ran = {trial.point[self.question.over] for trial, _ in runs}
        builds = [b.duration_s for b in self.history.builds.values() if b.settings.get(self.question.over) in ran]
        build = math.fsum(builds) / len(builds) if builds else 0.0
        return [
            2 * took.get(point_key(point), typical) * self._width(point)
            + (0.0 if point[self.question.over] in ran else build)
            for point in points
        ]

    def conclude(self) -> BisectVerdict:
        question, study, history = self.question, self.study, self.history
        alive, skipped = question.alive(history), question.skipped(history)
        why = {str(question.value(p)): skipped[key] for p in question.points if (key := point_key(p)) in skipped}
        runs = question.runs(study, history)
        known: dict[str, Any] = {"over": question.over, "skipped": why, "runs": len(runs)}
        bad, first = question.value(question.points[-1]), question.value(question.first)
        if why_bad := skipped.get(point_key(question.points[-1])):
            text = f"the bad end, {question.over} {bad}, does not run: {why_bad}; name another with --bad"
            return BisectVerdict(Conclusion.NOTHING_PASSED, text, **known)
        if self._without_ratios():
            text = f"{study.goal.metric} is not above 0 in every run, and ratios need that; choose another goal"
            return BisectVerdict(Conclusion.UNRESOLVED, text, **known)
        ran = count(len(runs), "run")
        step = next_step(runs, len(alive), question.slower, [1.0] * len(alive))[0]
        measured = between_ends(runs, len(alive) - 1)
        posterior = question.posterior(study, history)
        if posterior is None or measured is None:
            return BisectVerdict(Conclusion.UNRESOLVED, f"the budget ended after {ran}; give it more", **known)
        places = sorted(range(len(alive) - 1), key=lambda t: -posterior.at[t])[:_SHOWN]
        pairs = tuple((question.value(alive[t]), question.value(alive[t + 1]), posterior.at[t]) for t in places)
        known |= {"likely": pairs, "none": posterior.none}
        change, low, high = measured.range()
        apart = f"{bad} against {first}: slowdown {percent(change)} (95%: {percent_range(low, high)}; {ran})"
        if step == NOT_REPRODUCED:
            text = f"not reproduced here: {apart}; {question.slower * 100:.2g}% was looked for"
            if high < 0:
                text += f"; {bad} is faster: --good {bad} --bad {first} finds where that came from"
            return BisectVerdict(NOT_REPRODUCED, text, **known)
        if step != FOUND:
            where = self._likely_text(alive, posterior)
            text = f"not resolved after {ran}: {where}; {apart}; continue with more --runs or budget"
            return BisectVerdict(Conclusion.UNRESOLVED, text, **known)
        changes = tuple(self._change(alive, posterior, jump) for jump in jumps(runs, posterior.found))
        text = "; and ".join(map(self._change_text, changes))
        return BisectVerdict(FOUND, f"{text}; {ran}", changes=changes, **known)

    def _likely_text(self, alive: Sequence[Point], posterior: ChangePosterior) -> str:
        if not posterior.likely:
            return "it is not sure that anything changed"
        first, last = alive[posterior.likely[0]], alive[posterior.likely[-1] + 1]
        return f"the change lies between {self.question.value(first)} and {self.question.value(last)} (95%)"

    def _change(self, alive: Sequence[Point], posterior: ChangePosterior, jump: Any) -> _FoundChange:
        places = [self.question.points.index(point) for point in alive[jump.at : jump.at + 2]]
        before, *between, after = map(self.question.value, self.question.points[places[0] : places[1] + 1])
        chance = posterior.at[jump.at]
        return _FoundChange(before, after, chance, jump.change, jump.low, jump.high, tuple(between))

    def _change_text(self, found: _FoundChange) -> str:
        word = "slower" if found.change > 0 else "faster"
        text = f"{self.question.over} {found.after} is {abs(found.change):.1%} {word} than {found.before}"
        ends = sorted((abs(found.low), abs(found.high))) if found.low * found.high > 0 else (found.low, found.high)
        chance = "above 99.9%" if found.probability > 0.999 else f"{found.probability:.1%}"
        text += f" (95%: {ends[0]:.1%} to {ends[1]:.1%}; probability {chance})"
        if found.skipped:
            text += f", or one of those between them that do not run: {', '.join(map(str, found.skipped))}"
        return text


def _means(study: Study, history: History) -> dict[str, float]:
    """Of the goal, by setting."""
    values: dict[str, list[float]] = {}
    for trial, run in history.ok_runs(Stage.BASELINE, Stage.CONFIRM):
        values.setdefault(trial.key, []).append(run.metrics[study.goal.metric])
    return {key: fmean(found) for key, found in values.items()}


def _packages(folder: Path) -> dict[str, str]:
    """Names and releases that the run wrote down; empty where it did not."""
    lines = (line.partition("==") for line in state_text(folder, PACKAGES_FILE).splitlines())
    return {name: release for name, _, release in lines if release}


def _main_log(folder: Path) -> Path:
    """Where a run says what it does: some programs have a log of their own."""
    log = folder / OWN_LOG
    return log if log.is_file() else folder / "stdout"


# the question as it is typed


def bisect_question(
    found: CheckedStudy, over: str, at: Setting, ends: tuple[object, object], slower: float, most_runs: int
) -> BisectQuestion:
    """Every legal value of the knob from the good end to the bad one, first to last of the study's list where None."""
    study = found.study
    if over not in study.space.by_name:
        raise InputError(f"--over {over}: not a knob of the study; {near(over, study.space.by_name)}")
    knob = study.space.by_name[over]
    if not isinstance(knob, Discrete):
        raise InputError(f"--over {over}: is a range; list its values in the study, from old to new: {over}: [A, B, C]")
    values = list(knob.listed or knob.values)
    first, last = (_place(values, over, option, end) for option, end in zip(("good", "bad"), ends, strict=True))
    first, last = 0 if first is None else first, len(values) - 1 if last is None else last
    if first == last:
        raise InputError(
            f"--over {over}: one value has nothing to be compared with; list two or more, from good to bad"
        )
    chosen = values[first : last + 1] if first < last else values[last : first + 1][::-1]
    start = parse_point(found, at, study.baseline)
    legal, reasons = legal_points(found, over, start, chosen)
    points, refused = [dict(point) for point in legal.values()], {str(value): why for value, why in reasons.items()}
    if lost := [value for value in (chosen[0], chosen[-1]) if str(value) in refused]:
        raise InputError(
            f"{over} {lost[0]} is refused ({refused[str(lost[0])]}); name other ends with --good and --bad"
        )
    return BisectQuestion(over, points, slower, most_runs, refused)


def _place(values: Sequence[Any], over: str, option: str, end: object) -> int | None:
    """Of a value, or of one as it is typed."""
    if end is None:
        return None
    names, text = [str(value) for value in values], str(end)
    if text not in names:
        raise InputError(f"--{option} {text}: not a value of {over}; {near(text, names)}")
    return names.index(text)
