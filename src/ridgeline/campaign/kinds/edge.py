"""How far can one knob be raised? The largest value that passes, and the value to use in production.

Values of a knob that work lie between two cliffs: below, a pool that is too small to start; above, memory that runs out
under load. The hunt climbs from a value that works. It tries the lower third of what is left, not the half: a crash
costs a start and sometimes a node, a pass costs a run that also measures something. It decides from the runs so far
alone, so that a resumed hunt decides the same.

The value for production is chosen first and then run: what these fresh runs show of how often it fails is stated, and
a value that fails in them is given up for a smaller one.
"""

from __future__ import annotations

import math
import re
import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.kinds.base import Agenda, CampaignKind, NextTrial, legal_points
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import Setting, parse_point
from ridgeline.campaign.scores import mean_value
from ridgeline.errors import InputError, near
from ridgeline.records.answer import Answer, Candidate, Conclusion, Reference, Use
from ridgeline.records.exhibit import Exhibits, KindShown, TextTable, side_by_side, value_text
from ridgeline.records.expression import is_number
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.space import Continuous, Knob, Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.failure_rate import passes_needed, shown_failure_rate
from ridgeline.stats.wording import count, metric_text
from ridgeline.study.codec import KeptVerdict
from ridgeline.study.history import History

_STEPS_OF_A_RANGE = 100  # a continuous knob is looked at in hundredths of its range
_LONGEST_LADDER = 512
_PRODUCTION = "production"  # proposes runs of the value for production, once that is chosen
_OFFERED = (0.1, 0.05, 0.02, 0.01, 0.001)  # failure rates that more runs may be asked to show

_Number = int | float


@dataclass(frozen=True, slots=True)
class EdgeLadder:
    """The legal values from low to high, and those that a rule or the memory model refused without a run."""

    values: tuple[_Number, ...]
    refused: Mapping[_Number, str] = field(default_factory=dict)
    predicted: int | None = None  # index of the largest value that is expected to work, where something can tell

    def with_values(self, values: Collection[_Number], refused: Mapping[_Number, str]) -> EdgeLadder:
        if not refused and all(value in self.values for value in values):
            return self
        merged = tuple(sorted({*self.values, *values}))
        predicted = None if self.predicted is None else merged.index(self.values[self.predicted])
        return EdgeLadder(merged, {**self.refused, **refused}, predicted)


@dataclass(slots=True)
class RungResult:
    """What the runs of one value showed; `fresh` are passes since it was chosen for production, as the `chosen`-th."""

    passes: int = 0
    flying: int = 0
    failures: list[Outcome] = field(default_factory=list)
    fresh: int = 0
    fresh_flying: int = 0
    chosen: int = 0

    @property
    def safe(self) -> bool:
        return self.passes > 0 and not self.failures


def _ladder_values(knob: Knob, start: _Number) -> tuple[_Number, ...]:
    """Values of a knob from low to high with `start` among them; long ones are thinned out evenly."""
    if isinstance(knob, Continuous):
        values = [knob.at(step / _STEPS_OF_A_RANGE) for step in range(_STEPS_OF_A_RANGE + 1)]
    elif not knob.ordered or not all(is_number(value) for value in (knob.values[0], knob.values[-1])):
        kept = next(iter(knob.numbers), "")
        why = f"; {kept} is kept as text, as it is written: write {float(knob.numbers[kept])}" if kept else ""
        raise InputError(f"{knob.name} is not a knob of ordered numbers; an edge needs one that can be raised{why}")
    else:
        stride = -(-len(knob.values) // _LONGEST_LADDER)
        values = [*knob.values[::stride], knob.values[-1]]
    return tuple(sorted({value for value in (*values, start) if isinstance(value, int | float)}))


def _wants_more(failure: Outcome, knob: str) -> bool:
    """Whether the workload's advice or the program's words ask to raise this knob, as for a pool that is too small."""
    for move in failure.advice:
        if move.knob == knob:
            return move.direction > 0
    text = f"{failure.reason}; {failure.evidence.text if failure.evidence else ''}".lower()
    name = re.escape(knob.lower()).replace("_", "[-_ ]")
    for place in re.finditer(rf"{name}\b", text):
        # "try increasing A or decreasing B": the verb that counts is the last one before the name
        sentence = re.split(r"[.;:]\s", text[: place.start()])[-1]
        if verbs := re.findall(r"\b(rais|increas|lower|decreas|reduc)", sentence):
            return verbs[-1] in ("rais", "increas")
    return False


class EdgeHunt:
    """What the runs so far say of the ladder, by index, and what is to be run next.

    `high` is the lowest value that failed for being too large, or past the end; `low` the largest safe one below it;
    `floor` the largest that failed for being too small, -1 for none.
    """

    def __init__(
        self, ladder: EdgeLadder, seen: Mapping[int, RungResult], asked: EdgeQuestion, level: float = 0.95
    ) -> None:
        self.ladder, self.values, self.seen, self.asked, self.level = ladder, ladder.values, seen, asked, level
        safe = [index for index, what in seen.items() if what.safe]
        failed = {index for index, what in seen.items() if what.failures}
        # 'too small' cannot be true above a value that works
        too_small = {index for index in failed if self._wants_more(index) and not any(s < index for s in safe)}
        self.high = min(failed - too_small, default=len(self.values))
        self.floor = max((index for index in too_small if index < self.high), default=-1)
        self.low = max((index for index in safe if self.floor < index < self.high), default=None)

    def _wants_more(self, index: int) -> bool:
        return all(_wants_more(failure, self.asked.knob) for failure in self.seen[index].failures)

    @property
    def closed(self) -> bool:
        return self.low is not None and self.high - self.low == 1

    def next_step(self) -> tuple[int, str] | None:
        """The value to run now and why; None: wait for what runs, or there is nothing left to ask."""
        if self.low is None or not self.closed:
            return None if any(what.flying for what in self.seen.values()) else self._climb()
        edge, repeats = self.seen[self.low], self.asked.repeats
        if edge.passes + edge.flying < repeats:
            return self.low, f"the edge, run {edge.passes + edge.flying + 1} of {repeats}"
        there, needed = self.seen.get(self.production, RungResult()), self.production_runs
        so_far = there.fresh + there.fresh_flying
        elsewhere = any(what.flying > what.fresh_flying for what in self.seen.values())
        if not elsewhere and so_far < needed:
            return self.production, f"the value for production, run {so_far + 1} of {needed}"
        return None

    def _climb(self) -> tuple[int, str] | None:
        start = self.floor if self.low is None else self.low
        width = self.high - start
        if width <= 1:
            return None
        if (predicted := self.ladder.predicted) is not None:
            for index in (predicted, predicted + 1, predicted - 1):
                if start < index < self.high:
                    return index, "beside the edge that the memory model foresees"
        below = "nothing works so far" if self.low is None else f"{self.values[self.low]:g} works"
        above = f", {self.values[self.high]:g} does not" if self.high < len(self.values) else ""
        return start + max(1, width // 3), below + above

    @property
    def production(self) -> int:
        """The largest value at least the margin below the edge; the edge itself where nothing lies there."""
        assert self.low is not None
        edge = self.values[self.low]
        limit = edge - self.asked.margin * abs(edge)
        below = [index for index in range(self.floor + 1, self.low + 1) if self.values[index] <= limit]
        return max(below, default=self.low)

    @property
    def choice(self) -> int:
        """Which choice of a value for production it is: 1 for the first."""
        if self.production in self.seen and (chosen := self.seen[self.production].chosen):
            return chosen
        return 1 + max((what.chosen for what in self.seen.values()), default=0)

    @property
    def production_runs(self) -> int:
        """How many runs must pass there: `repeats`, or so many that a failure rate above `fails` is ruled out."""
        fails = self.asked.fails
        return self.asked.repeats if fails is None else passes_needed(fails, self.choice, self.level)

    def oddities(self) -> list[str]:
        """What speaks against one cliff with nothing failing below it."""
        lines = []
        for index, what in sorted(self.seen.items()):
            if not what.failures:
                continue
            above = [i for i in self.seen if i > index and self.seen[i].passes]
            if above and not self._wants_more(index):
                lines.append(
                    f"{self.values[max(above)]:g} passed although {self.values[index]:g} failed: "
                    f"{self.asked.knob} is not the only thing that decides"
                )
            if what.passes:
                total = what.passes + len(what.failures)
                lines.append(f"{self.values[index]:g} passed {what.passes} of {count(total, 'run')}")
        return lines


def _failing_text(failures: Sequence[Outcome]) -> str:
    return failures[0].reason or failures[0].kind.value


@dataclass(frozen=True, slots=True)
class Rung:
    """What the runs of one value showed; `mean` of the goal's metric, over those that passed."""

    value: _Number
    passed: int
    failed: int
    mean: float | None
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _RefusedValue:
    value: _Number
    reason: str


@dataclass(frozen=True, slots=True)
class EdgeVerdict(KeptVerdict):
    """`edge` passed `edge_runs` times, `production` lies the margin below it at `point`; None where nothing passed.

    `production_runs` passed since it was chosen, which leaves failure rates up to `failure_rate` open at the `level`.
    `untried` are values of the knob between the edge and `first_failing`; None where they cannot be counted.
    """

    knob: str
    margin: float
    runs: int
    failed_runs: int
    monotone: bool
    tried: tuple[Rung, ...]
    refused: tuple[_RefusedValue, ...] = ()
    notes: tuple[str, ...] = ()
    first_failing: _Number | None = None
    edge: _Number | None = None
    edge_runs: int = 0
    production: _Number | None = None
    point: Point | None = None
    price: float | None = None  # the share of the goal that the margin costs
    production_runs: int = 0
    failure_rate: float | None = None
    level: float = 0.95
    untried: int | None = 0
    show_less: Mapping[str, float] | None = None  # the next rate that is worth asking for, and the runs it takes

    @property
    def recommended(self) -> Point | None:
        return self.point


def _ladder_table(verdict: EdgeVerdict, metric: str) -> TextTable:
    rows = [_ladder_row(rung, verdict) for rung in verdict.tried]
    failed = frozenset(at for at, rung in enumerate(verdict.tried) if rung.failed)
    top = max((rung.value for rung in verdict.tried), default=0)
    # the first one above what was tried: of a long ladder, all of them would say the same
    above = sorted((row for row in verdict.refused if row.value > top), key=lambda row: row.value)[:1]
    refused = tuple(f"{value_text(row.value)} was not run: {row.reason}" for row in above)
    return TextTable(
        "Every value that was tried", (verdict.knob, "runs", metric, "", "outcome"), tuple(rows), failed, notes=refused
    )


def _ladder_row(rung: Rung, verdict: EdgeVerdict) -> tuple[str, ...]:
    outcome = rung.why[0] if rung.why else "passed"
    if rung.why and rung.passed:
        outcome = f"{rung.passed} passed, {rung.failed} failed: {outcome}"
    names = {verdict.edge: "largest that passed", verdict.production: "for production"}
    if verdict.edge == verdict.production:
        names = {verdict.edge: "largest that passed, for production"}
    mean = "" if rung.mean is None else metric_text(rung.mean)
    return value_text(rung.value), str(rung.passed + rung.failed), mean, names.get(rung.value, ""), outcome


@dataclass(frozen=True, slots=True)
class EdgeQuestion(CampaignKind[EdgeVerdict]):
    """The edge of `knob` with the other knobs as in `start`, whose value of the knob should work.

    `repeats` runs must pass at the edge; `margin` is the share of the edge by which production stays below it. There as
    many must pass, or so many that a failure rate above `fails` is ruled out at the study's level.
    """

    knob: str
    start: Point
    repeats: int = 3
    margin: float = 0.03
    fails: float | None = None

    kind: ClassVar[str] = "edge"
    reference: ClassVar[str] = "the start"
    shown: ClassVar[KindShown] = KindShown(
        "How far it goes",
        figure="ridgeline.report.figures.campaigns:edge_climb",
        how="{knob} was raised until runs failed; at the edge {repeats} had to pass",
    )
    stage: ClassVar[str] = "climb"
    verdict_type: ClassVar[type[KeptVerdict]] = EdgeVerdict
    use: ClassVar[Use] = Use.CANDIDATE

    def applied_to(self, study: Study) -> Study:
        return replace(
            study,
            question=f"How far can {self.knob} be raised?",
            baseline=self.start,
            presets=(),
            budget=replace(study.budget, trials=None),
            confirm=replace(study.confirm, top=0, blocks=0),
        )

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> EdgeAgenda:
        ladder = _ladder_of(found, self.knob, self.start)
        return EdgeAgenda(found.study, history, ledger, ladder, self, partial(_between, found, self.knob, self.start))

    def called(self, trial: Trial) -> str:
        return "start" if trial.stage is Stage.BASELINE else "climb"

    def sides(self, study: Study, history: History, verdict: EdgeVerdict | None) -> tuple[Reference, Candidate | None]:
        value = _mean_at(study, history, point_key(self.start))
        return Reference(self.reference, self.start, value), self._candidate(study, history, verdict)

    def facts(self, study: Study, history: History, verdict: EdgeVerdict | None, answer: Answer) -> dict[str, Any]:
        best = CampaignKind.facts(self, study, history, verdict, answer)
        said = ("edge", "first_failing", "production", "failure_rate")
        return best if verdict is None else {**best, **{name: getattr(verdict, name) for name in said}}

    def _candidate(self, study: Study, history: History, verdict: EdgeVerdict | None) -> Candidate | None:
        """The setting for production; before it is known, the largest value that has only passed."""
        if verdict is not None and verdict.point is not None:
            key, label = point_key(verdict.point), f"{self.knob} for production"
        else:
            if (safe := _largest_safe(history, self.knob)) is None:
                return None
            key, label = safe, f"the largest {self.knob} that passed so far"
        trial = next(t for t in history.trials.values() if t.key == key)
        value = _mean_at(study, history, key)
        if value is None:
            return None
        known = verdict is not None and verdict.conclusion == Conclusion.EDGE
        short = f"{self.knob} {value_text(trial.point[self.knob])}"
        return Candidate(label, trial.number, trial.point, trial.settings, value, None, known, short)

    def exhibits(self, study: Study, history: History) -> Exhibits:
        groups = {t.number: f"{self.knob} {value_text(t.point.get(self.knob))}" for t in history.trials.values()}
        verdict = self.found(history)
        if verdict is None:
            return Exhibits(groups=groups)
        setting = None
        if verdict.point is not None:
            setting = side_by_side("The setting for production", ("start", "production"), self.start, verdict.point)
        notes = (*verdict.notes, *self._next_command(history, verdict))
        return Exhibits(setting, (_ladder_table(verdict, study.goal.metric),), notes=notes, groups=groups)

    def _next_command(self, history: History, verdict: EdgeVerdict) -> list[str]:
        """What to type to show that the value for production fails less often."""
        if verdict.show_less is None or verdict.point is None:
            return []
        rate, runs = verdict.show_less["rate"], verdict.show_less["runs"]
        at = ",".join(f"{name}={value_text(value)}" for name, value in verdict.point.items())
        words = ["ridgeline", "study", "edge", "study.yaml", "--knob", self.knob, "--at", at, "--fails", f"{rate:g}"]
        words += ["--out", f"{history.root.name}-fails-{rate:g}"]
        return [f"{runs:.0f} runs that pass show that at most {_share(rate)} of them fail: `{shlex.join(words)}`"]


def _ladder_of(found: CheckedStudy, knob: str, start: Point) -> EdgeLadder:
    """The values that may run with the other knobs as in `start`. InputError where the knob cannot have an edge."""
    space = found.study.space
    if knob not in space.by_name:
        raise InputError(f"{knob!r} is not a knob of this study; {near(knob, space.by_name)}")
    first = start.get(knob)
    if not is_number(first):
        raise InputError(f"{knob} is not a number at {dict(start)}; choose another setting with --at")
    legal, refused = legal_points(found, knob, start, _ladder_values(space.by_name[knob], first))
    return EdgeLadder(tuple(legal), refused, _predicted_edge(found, legal))


def _between(found: CheckedStudy, knob: str, start: Point, low: _Number, high: _Number) -> EdgeLadder:
    """The values that a long ladder passed over between two of its own."""
    known = found.study.space.by_name[knob]
    if isinstance(known, Continuous):
        return EdgeLadder(())
    values = sorted(value for value in known.values if isinstance(value, int | float))
    passed_over = values[bisect_right(values, low) : bisect_left(values, high)]
    stride = -(-len(passed_over) // _LONGEST_LADDER) or 1
    legal, refused = legal_points(found, knob, start, passed_over[::stride])
    return EdgeLadder(tuple(legal), refused)


def _predicted_edge(found: CheckedStudy, legal: Mapping[_Number, Point]) -> int | None:
    """The last value before those that the workload's memory model, if it has one, predicts to fail."""
    settings = map(found.study.space.settings, legal.values())
    passes = [not found.workload.predicted_failure(each) for each in settings]
    return None if all(passes) or not any(passes) else max(at for at, well in enumerate(passes) if well)


@dataclass
class EdgeAgenda(Agenda):
    """Hands out the start value, then the climb, the repeats at the edge, and the value for production."""

    coarse: EdgeLadder
    asked: EdgeQuestion
    between: Callable[[_Number, _Number], EdgeLadder] = lambda low, high: EdgeLadder(())
    out_of_budget: bool = field(default=False, init=False)

    def hunt(self) -> EdgeHunt:
        """On the coarse ladder, and once the edge lies between two of its values, on those in between as well."""
        own = {trial.point.get(self.asked.knob) for trial in self.history.trials.values()}
        ladder = self.coarse.with_values({value for value in own if isinstance(value, int | float)}, {})
        while True:
            now = EdgeHunt(ladder, self.seen(ladder), self.asked, self.study.confirm.level)
            if not now.closed or now.low is None:
                return now
            low = ladder.values[now.low]
            above = [*ladder.values[now.low + 1 :][:1], *(value for value in ladder.refused if value > low)]
            finer = self.between(low, min(above)) if above else EdgeLadder(())
            if not ({*finer.values} - {*ladder.values} or {*finer.refused} - {*ladder.refused}):
                return now
            ladder = ladder.with_values(finer.values, finer.refused)

    def fresh(self) -> NextTrial | None:
        if not self.history.count(Stage.BASELINE):
            return self.new(self.study.baseline, Stage.BASELINE, "edge", "the value to start from")
        now = self.hunt()
        if (step := now.next_step()) is None:
            return None
        index, why = step
        point = self.point(now.values[index])
        if not self.fits(point):
            self.out_of_budget = not self.history.open_runs
            return None
        proposer = _PRODUCTION if why.startswith("the value for production") else "edge"
        return self.new(point, Stage.SEARCH, proposer, why)

    def point(self, value: _Number) -> Point:
        return self.study.space.restrict({**self.study.baseline, self.asked.knob: value})

    def seen(self, ladder: EdgeLadder) -> dict[int, RungResult]:
        """By index of the ladder. A trial that was cancelled or lost to the site shows nothing."""
        places = {value: index for index, value in enumerate(ladder.values)}
        found: dict[int, RungResult] = {}
        chosen = 0
        for trial in self.history.trials.values():
            what = found.setdefault(places[trial.point[self.asked.knob]], RungResult())  # type: ignore[index]
            fresh = trial.proposer == _PRODUCTION
            if fresh and not what.chosen:
                chosen += 1
                what.chosen = chosen
            run = self.history.final_run(trial)
            if self.is_open(trial.number) or run is None or run.outcome is None:
                what.flying += 1
                what.fresh_flying += fresh
            elif run.outcome.kind is Kind.OK:
                what.passes += 1
                what.fresh += fresh
            elif run.outcome.kind.caused_by_setting or run.outcome.kind is Kind.UNVERIFIED:
                what.failures.append(run.outcome)
        return {index: what for index, what in found.items() if what.passes or what.flying or what.failures}

    def conclude(self) -> EdgeVerdict:
        """What was found; `conclusion` is edge, unfinished or nothing-passed."""
        now, knob = self.hunt(), self.asked.knob
        notes = now.oddities()
        worst = next((what.failures for what in now.seen.values() if what.failures), ())
        why = _failing_text(worst) if worst else "nothing was run"
        result = EdgeVerdict(
            conclusion=Conclusion.NOTHING_PASSED,
            headline=f"no value of {knob} passed: {why}",
            knob=knob,
            margin=self.asked.margin,
            runs=len(self.history.runs),
            failed_runs=sum(len(what.failures) for what in now.seen.values()),
            monotone=not notes,
            tried=tuple(self._rung(now.values[index], what) for index, what in sorted(now.seen.items())),
            refused=tuple(_RefusedValue(value, reason) for value, reason in now.ladder.refused.items()),
            notes=tuple(notes),
            first_failing=now.values[now.high] if now.high in now.seen else None,
        )
        if now.low is None:
            return result
        there, level = now.seen.get(now.production, RungResult()), now.level
        rate = shown_failure_rate(there.fresh, now.choice, level)
        less = next((asked for asked in _OFFERED if asked < rate), None)
        result = replace(
            result,
            conclusion=Conclusion.EDGE if now.closed and not self.out_of_budget else Conclusion.UNFINISHED,
            edge=now.values[now.low],
            edge_runs=now.seen[now.low].passes,
            production=now.values[now.production],
            point=dict(self.point(now.values[now.production])),
            price=self._price(now.values[now.low], now.values[now.production]),
            production_runs=there.fresh,
            failure_rate=rate if there.fresh else None,
            level=level,
            untried=self._untried(now, now.low),
            show_less=None if less is None else {"rate": less, "runs": passes_needed(less, 1, level)},
        )
        return replace(result, headline=_headline(result, now, self.study.goal.metric))

    def _untried(self, now: EdgeHunt, low: int) -> int | None:
        """How many values lie between the edge and the first one that failed; None of a range without steps."""
        if now.high >= len(now.values):
            return 0
        if isinstance(self.study.space.by_name[self.asked.knob], Continuous):
            return None
        skipped = self.between(now.values[low], now.values[now.high])
        return len({*now.values[low + 1 : now.high], *skipped.values})

    def _mean_at(self, value: _Number) -> float | None:
        return _mean_at(self.study, self.history, point_key(self.point(value)))

    def _rung(self, value: _Number, what: RungResult) -> Rung:
        failures = tuple(map(str, what.failures))
        return Rung(value, what.passes, len(what.failures), self._mean_at(value), failures)

    def _price(self, edge: _Number, production: _Number) -> float | None:
        """The share of the goal that the margin costs; negative where the value for production did better."""
        at_edge, below = self._mean_at(edge), self._mean_at(production)
        if at_edge is None or below is None or not at_edge:
            return None
        return (self.study.goal.score(at_edge) - self.study.goal.score(below)) / abs(at_edge)


def _mean_at(study: Study, history: History, key: str) -> float | None:
    return mean_value(study, history, Stage.BASELINE, Stage.SEARCH, key=key)


def _headline(result: EdgeVerdict, now: EdgeHunt, metric: str) -> str:
    knob, low, chosen, price = result.knob, result.edge, result.production, result.price
    assert low is not None and chosen is not None
    passed = f"{count(result.edge_runs, 'run')} passed; {_above(result, now)}"
    if result.conclusion == Conclusion.UNFINISHED and not result.production_runs:
        return f"{knob} {low:g} passed and the budget is spent ({passed})"
    text = f"{knob} {low:g} is the largest value that passed ({passed})"
    if chosen == low:
        text += f"; no smaller value leaves a margin of {result.margin:.0%}, so that {low:g} is the one for production"
    else:
        text += f"; use {chosen:g} in production (margin {1 - chosen / low if low else 0:.1%}"
        if price is not None:
            text += f", {abs(price):.1%} {'worse' if price > 0 else 'better'} {metric} in these runs"
        text += ")"
    return text + _shown(result)


def _above(result: EdgeVerdict, now: EdgeHunt) -> str:
    """What is known of larger values: which failed, and how many were not tried."""
    if now.high in now.seen:
        text = f"at {now.values[now.high]:g} it failed: {_failing_text(now.seen[now.high].failures)}"
        if result.untried is None:
            return f"{text}; values between were not tried"
        return f"{text}; {count(result.untried, 'value')} between not tried" if result.untried else text
    assert result.edge is not None
    if larger := len(now.values) - 1 - now.values.index(result.edge):
        return f"{count(larger, 'larger value')} not tried"
    if beyond := next((r for v, r in sorted(now.ladder.refused.items()) if v > result.edge), None):
        return f"larger ones were not run: {beyond}"
    return "the study allows no larger one"


def _shown(result: EdgeVerdict) -> str:
    """What the fresh runs of the value for production say of how often it fails, and how more would say more."""
    if result.failure_rate is None:
        return ": it has not been run since it was chosen, so nothing is shown of how often it fails"
    rate, level = result.failure_rate, f"{result.level * 100:g}%"
    spent = " and the budget is spent" if result.conclusion == Conclusion.UNFINISHED else ""
    passed = f"{count(result.production_runs, 'run')} passed there{spent}"
    text = f": {passed}, so at most {_share(rate)} of its runs fail ({level})"
    if result.show_less is None:
        return text
    less, runs = result.show_less["rate"], result.show_less["runs"]
    return f"{text}; {runs:.0f} that pass would show {_share(less)} (`--fails {less:g}`)"


def _share(rate: float) -> str:
    """In percent with two digits, rounded up: no less than was shown."""
    digits = max(0, 1 - math.floor(math.log10(rate * 100)))
    return f"{math.ceil(round(rate * 100 * 10**digits, 6)) / 10**digits:g}%"


def _largest_safe(history: History, knob: str) -> str | None:
    """The point with the largest value of which every run so far has passed."""
    passed: dict[str, float] = {}
    failed: set[str] = set()
    for trial in history.trials.values():
        run = history.final_run(trial)
        if run is not None and run.outcome is not None and isinstance(value := trial.point.get(knob), int | float):
            if run.outcome.kind is Kind.OK:
                passed[trial.key] = value
            elif run.outcome.kind.caused_by_setting or run.outcome.kind is Kind.UNVERIFIED:
                failed.add(trial.key)
    return max(passed.keys() - failed, key=passed.__getitem__, default=None)


def edge_question(
    found: CheckedStudy, knob: str, at: Setting, repeats: int, margin: float, fails: float | None = None
) -> EdgeQuestion:
    """The question as it is typed; InputError where the knob cannot have an edge."""
    start = parse_point(found, at, found.study.baseline)
    _ladder_of(found, knob, start)
    if fails is not None and not 0 < fails < 1:
        raise InputError(f"--fails {fails:g}: give a share of the runs between 0 and 1, such as 0.1")
    return EdgeQuestion(knob, dict(start), repeats, margin, fails)
