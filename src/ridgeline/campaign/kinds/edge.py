"""How far can one knob be raised? Its largest safe value, and the value to use in production."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from ridgeline.campaign.agenda import Agenda, Next
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.kinds import ladder as climbing
from ridgeline.campaign.kinds.ladder import Bracket, EdgeRules, Ladder, Number, RungResult
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import parse_point
from ridgeline.campaign.verdict import answer_of
from ridgeline.errors import InputError, near
from ridgeline.records.answer import NOTHING_PASSED, Answer, Candidate, Progress, Reference
from ridgeline.records.exhibit import Exhibits, TextTable, side_by_side, value_text
from ridgeline.records.expression import is_number
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.wording import count, metric_text
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History


@dataclass(frozen=True, slots=True)
class Rung:
    """What the runs of one value showed; `mean` of the goal's metric, over those that passed."""

    value: Number
    passed: int
    failed: int
    mean: float | None
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedValue:
    value: Number
    reason: str


@dataclass(frozen=True, slots=True)
class EdgeVerdict:
    """`edge` passed `edge_runs` times, `production` lies the margin below it at `point`; None where nothing passed."""

    conclusion: str
    headline: str
    knob: str
    margin: float
    runs: int
    failed_runs: int
    monotone: bool
    tried: tuple[Rung, ...]
    refused: tuple[RefusedValue, ...] = ()
    notes: tuple[str, ...] = ()
    first_failing: Number | None = None
    edge: Number | None = None
    edge_runs: int = 0
    production: Number | None = None
    point: Point | None = None
    price: float | None = None  # the share of the goal that the margin costs

    @property
    def recommended(self) -> Point | None:
        return self.point

    def details(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("conclusion", "headline")}

    @classmethod
    def from_line(cls, line: VerdictLine) -> EdgeVerdict:
        known = {name: value for name, value in line.details.items() if name in cls.__dataclass_fields__}
        known["tried"] = tuple(Rung(**{**row, "why": tuple(row["why"])}) for row in known["tried"])
        known["refused"] = tuple(RefusedValue(**row) for row in known.get("refused", ()))
        known["notes"] = tuple(known.get("notes", ()))
        return cls(line.conclusion, line.headline, **known)


def ladder_table(verdict: EdgeVerdict, metric: str) -> TextTable:
    rows = [_ladder_row(rung, verdict) for rung in verdict.tried]
    failed = frozenset(at for at, rung in enumerate(verdict.tried) if rung.failed)
    refused = tuple(f"{value_text(row.value)} was not run: {row.reason}" for row in _nearest_refused(verdict))
    return TextTable("The ladder", (verdict.knob, "runs", metric, "", "outcome"), tuple(rows), failed, notes=refused)


def _ladder_row(rung: Rung, verdict: EdgeVerdict) -> tuple[str, ...]:
    outcome = rung.why[0] if rung.why else "passed"
    if rung.why and rung.passed:
        outcome = f"{rung.passed} passed, {rung.failed} failed: {outcome}"
    names = {verdict.edge: "largest safe value", verdict.production: "for production"}
    if verdict.edge == verdict.production:
        names = {verdict.edge: "largest safe value, for production"}
    mean = "" if rung.mean is None else metric_text(rung.mean)
    return value_text(rung.value), str(rung.passed + rung.failed), mean, names.get(rung.value, ""), outcome


def _nearest_refused(verdict: EdgeVerdict) -> list[RefusedValue]:
    """The first refused value above what was tried: of a long ladder, all of them would say the same."""
    top = max((rung.value for rung in verdict.tried), default=0)
    return sorted((row for row in verdict.refused if row.value > top), key=lambda row: row.value)[:1]


FOUND, UNFINISHED = "edge", "unfinished"  # the edge is known; the budget ended before it was


@dataclass(frozen=True, slots=True)
class EdgeQuestion:
    """The edge of `knob` with the other knobs as in `start`, whose value of the knob should work."""

    knob: str
    start: Point
    repeats: int = 3
    margin: float = 0.03

    kind: ClassVar[str] = "edge"
    reference: ClassVar[str] = "the start"

    @property
    def rules(self) -> EdgeRules:
        return EdgeRules(self.knob, self.repeats, self.margin)

    def applied_to(self, study: Study) -> Study:
        return replace(
            study,
            baseline=self.start,
            presets=(),
            budget=replace(study.budget, trials=None),
            confirm=replace(study.confirm, top=0, blocks=0),
        )

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> EdgeAgenda:
        return EdgeAgenda(found.study, history, ledger, ladder_of(found, self.knob, self.start), self.rules)

    def verdict_from(self, line: VerdictLine) -> EdgeVerdict:
        return EdgeVerdict.from_line(line)

    def called(self, trial: Trial) -> str:
        return "start" if trial.stage is Stage.BASELINE else "climb"

    def progress(self, study: Study, history: History) -> Progress:
        stage = "finished" if history.verdict is not None else "climb"
        return Progress(stage, len(history.runs), None, "runs", None)

    def answer(self, study: Study, history: History) -> Answer:
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        candidate = self._candidate(study, history, verdict)
        facts: dict[str, Any] = {"best": None if candidate is None else candidate.as_json(study.goal.metric)}
        if verdict is not None:
            facts |= {"edge": verdict.edge, "production": verdict.production}
        start = _mean_at(study, history, point_key(self.start))
        return answer_of(
            self.kind,
            history.verdict,
            Reference(self.reference, self.start, start),
            candidate,
            facts,
        )

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
        known = verdict is not None and verdict.conclusion == FOUND
        short = f"{self.knob} {value_text(trial.point[self.knob])}"
        return Candidate(label, trial.number, trial.point, trial.settings, value, None, known, short)

    def exhibits(self, study: Study, history: History) -> Exhibits:
        groups = {t.number: f"{self.knob} {value_text(t.point.get(self.knob))}" for t in history.trials.values()}
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        if verdict is None:
            return Exhibits(groups=groups)
        setting = None
        if verdict.point is not None:
            setting = side_by_side("The setting for production", ("start", "production"), self.start, verdict.point)
        return Exhibits(setting, (ladder_table(verdict, study.goal.metric),), notes=verdict.notes, groups=groups)


def ladder_of(found: CheckedStudy, knob: str, start: Point) -> Ladder:
    """The values that may run with the other knobs as in `start`. InputError where the knob cannot have an edge."""
    space = found.study.space
    if knob not in space.by_name:
        raise InputError(f"{knob!r} is not a knob of this study; {near(knob, space.by_name)}")
    first = start.get(knob)
    if not is_number(first):
        raise InputError(f"{knob} is not a number at {dict(start)}; choose another setting with --at")
    legal: list[Number] = []
    refused: dict[Number, str] = {}
    for value in climbing.ladder_values(space.by_name[knob], first):
        point = space.restrict({**start, knob: value})
        if gaps := space.missing(point):
            refused[value] = f"{', '.join(gaps)} would need a value"
        elif reason := found.refusal(point):
            refused[value] = reason
        else:
            legal.append(value)
    return Ladder(tuple(legal), refused, _predicted_edge(found, knob, start, legal))


def _predicted_edge(found: CheckedStudy, knob: str, start: Point, legal: list[Number]) -> int | None:
    """The last value before those that the workload's memory model, if it has one, predicts to fail."""
    space = found.study.space
    doubted = [
        index
        for index, value in enumerate(legal)
        if found.workload.predicted_failure(space.settings(space.restrict({**start, knob: value})))
    ]
    passing = [index for index in range(len(legal)) if index not in set(doubted)]
    return max(passing) if doubted and passing else None


@dataclass
class EdgeAgenda(Agenda):
    """Hands out the start value, then the climb, the repeats at the edge, and the value for production."""

    ladder: Ladder
    rules: EdgeRules
    out_of_budget: bool = field(default=False, init=False)

    def fresh(self) -> Next | None:
        if not self.history.count(Stage.BASELINE):
            return self.new(self.study.baseline, Stage.BASELINE, "edge", "the value to start from")
        step = climbing.next_index(self.ladder, self.seen(), self.rules)
        if step is None:
            return None
        index, why = step
        if not self.fits(self.point(index)):
            self.out_of_budget = not self.history.open_runs
            return None
        return self.new(self.point(index), Stage.SEARCH, "edge", why)

    def conclude(self) -> EdgeVerdict:
        return verdict(self)

    def point(self, index: int) -> Point:
        return self.study.space.restrict({**self.study.baseline, self.rules.knob: self.ladder.values[index]})

    def seen(self) -> dict[int, RungResult]:
        """By index of the ladder. A trial that was cancelled or lost to the site shows nothing."""
        places = {value: index for index, value in enumerate(self.ladder.values)}
        found: dict[int, RungResult] = {}
        for trial in self.history.trials.values():
            what = found.setdefault(places[trial.point[self.rules.knob]], RungResult())  # type: ignore[index]
            run = self.history.final_run(trial)
            if self.is_open(trial.number) or run is None or run.outcome is None:
                what.flying += 1
            elif run.outcome.kind is Kind.OK:
                what.passes += 1
            elif run.outcome.kind.caused_by_setting or run.outcome.kind is Kind.UNVERIFIED:
                what.failures.append(run.outcome)
        return {index: what for index, what in found.items() if what.passes or what.flying or what.failures}


def verdict(agenda: EdgeAgenda) -> EdgeVerdict:
    """What was found; `conclusion` is edge, unfinished or nothing-passed."""
    ladder, rules, seen = agenda.ladder, agenda.rules, agenda.seen()
    now = climbing.bracket(ladder, seen, rules.knob)
    notes = climbing.oddities(ladder, seen, rules.knob)
    worst = next((what.failures for what in seen.values() if what.failures), ())
    why = climbing.failing_text(worst) if worst else "nothing was run"
    result = EdgeVerdict(
        conclusion=NOTHING_PASSED,
        headline=f"no value of {rules.knob} passed: {why}",
        knob=rules.knob,
        margin=rules.margin,
        runs=len(agenda.history.runs),
        failed_runs=sum(len(what.failures) for what in seen.values()),
        monotone=not notes,
        tried=tuple(_rung(agenda, index, seen[index]) for index in sorted(seen)),
        refused=tuple(RefusedValue(value, reason) for value, reason in ladder.refused.items()),
        notes=tuple(notes),
        first_failing=ladder.values[now.high] if now.high in seen else None,
    )
    return result if now.low is None else _with_edge(result, agenda, now, now.low)


def _with_edge(result: EdgeVerdict, agenda: EdgeAgenda, now: Bracket, low: int) -> EdgeVerdict:
    chosen = climbing.production(agenda.ladder, now, agenda.rules)
    result = replace(
        result,
        conclusion=FOUND if now.closed and not agenda.out_of_budget else UNFINISHED,
        edge=agenda.ladder.values[low],
        edge_runs=agenda.seen()[low].passes,
        production=agenda.ladder.values[chosen],
        point=dict(agenda.point(chosen)),
        price=_price(agenda, low, chosen),
    )
    return replace(result, headline=headline(result, agenda, now))


def _rung(agenda: EdgeAgenda, index: int, what: RungResult) -> Rung:
    failures = tuple(str(failure) for failure in what.failures)
    return Rung(agenda.ladder.values[index], what.passes, len(what.failures), _mean(agenda, index), failures)


def _mean(agenda: EdgeAgenda, index: int) -> float | None:
    return _mean_at(agenda.study, agenda.history, point_key(agenda.point(index)))


def _mean_at(study: Study, history: History, key: str) -> float | None:
    runs = history.ok_runs(Stage.BASELINE, Stage.SEARCH)
    figures = [run.metrics[study.goal.metric] for trial, run in runs if trial.key == key]
    return sum(figures) / len(figures) if figures else None


def _price(agenda: EdgeAgenda, low: int, chosen: int) -> float | None:
    """The share of the goal that the margin costs; negative where the value for production did better."""
    at_edge, below = _mean(agenda, low), _mean(agenda, chosen)
    if at_edge is None or below is None or not at_edge:
        return None
    return (agenda.study.goal.score(at_edge) - agenda.study.goal.score(below)) / abs(at_edge)


def headline(result: EdgeVerdict, agenda: EdgeAgenda, now: Bracket) -> str:
    knob, low, chosen = result.knob, result.edge, result.production
    assert low is not None and chosen is not None
    if now.high in agenda.seen():
        above = f"{agenda.ladder.values[now.high]:g} failed: {climbing.failing_text(agenda.seen()[now.high].failures)}"
    elif beyond := next((r for v, r in agenda.ladder.refused.items() if v > low), None):
        above = f"larger ones were not run: {beyond}"
    else:
        above = "the study allows no larger one"
    if result.conclusion == UNFINISHED:
        return f"{knob} {low:g} passed and the budget is spent; {above}"
    text = f"{knob} {low:g} is the largest safe value ({count(result.edge_runs, 'run')} passed; {above})"
    if chosen == low:
        return f"{text}; no smaller value leaves a margin of {result.margin:.0%}"
    price, metric = result.price, agenda.study.goal.metric
    cost = "" if price is None else f", {abs(price):.1%} {'worse' if price > 0 else 'better'} {metric} in these runs"
    return f"{text}; use {chosen:g} in production (margin {1 - chosen / low if low else 0:.1%}{cost})"


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


def edge_question(found: CheckedStudy, knob: str, at: str, repeats: int, margin: float) -> EdgeQuestion:
    """The question as it is typed; InputError where the knob cannot have an edge."""
    start = parse_point(found, at, found.study.baseline)
    ladder_of(found, knob, start)
    return EdgeQuestion(knob, dict(start), repeats, margin)
