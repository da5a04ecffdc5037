"""How far can one knob be raised? Its largest safe value, and the value to use in production.

Safe values of a knob lie between two cliffs: below, a pool that is too small to start; above, memory that runs out
under load. The hunt climbs from a value that works. It tries the lower third of what is left, not the half: a crash
costs a start and sometimes a node, a pass costs a run that also measures something. It decides from the runs so far
alone, so that a resumed hunt decides the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from ridgeline.campaign.agenda import Agenda, NextTrial
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import parse_point
from ridgeline.campaign.verdict import answer_of
from ridgeline.errors import InputError, near
from ridgeline.records.answer import NOTHING_PASSED, Answer, Candidate, Progress, Reference
from ridgeline.records.exhibit import Exhibits, TextTable, side_by_side, value_text
from ridgeline.records.expression import is_number
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.space import Continuous, Knob, Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.wording import count, metric_text
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History

_STEPS_OF_A_RANGE = 100  # a continuous knob is looked at in hundredths of its range
_LONGEST_LADDER = 512

_Number = int | float


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """`repeats` runs must pass at the edge; `margin` is the share of the edge by which production stays below it."""

    knob: str
    repeats: int = 3
    margin: float = 0.03


@dataclass(frozen=True, slots=True)
class _Ladder:
    """The legal values from low to high, and those that a rule or the memory model refused without a run."""

    values: tuple[_Number, ...]
    refused: Mapping[_Number, str] = field(default_factory=dict)
    predicted: int | None = None  # index of the largest value that is expected to work, where something can tell


@dataclass(slots=True)
class RungResult:
    """What the runs of one value showed."""

    passes: int = 0
    flying: int = 0
    failures: list[Outcome] = field(default_factory=list)

    @property
    def safe(self) -> bool:
        return self.passes > 0 and not self.failures


@dataclass(frozen=True, slots=True)
class _Bracket:
    """`high`: the lowest value that failed for being too large, or past the end; `low`: the largest safe one below."""

    floor: int  # the largest value that failed for being too small; -1 for none
    low: int | None
    high: int

    @property
    def closed(self) -> bool:
        return self.low is not None and self.high - self.low == 1


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


def _bracket(ladder: _Ladder, seen: Mapping[int, RungResult], knob: str) -> _Bracket:
    safe = [index for index, what in seen.items() if what.safe]
    too_small: list[int] = []
    too_large: list[int] = []
    for index, what in seen.items():
        if what.failures:
            # 'too small' cannot be true above a value that works
            small = all(_wants_more(failure, knob) for failure in what.failures) and not any(s < index for s in safe)
            (too_small if small else too_large).append(index)
    high = min(too_large, default=len(ladder.values))
    floor = max((index for index in too_small if index < high), default=-1)
    return _Bracket(floor, max((index for index in safe if floor < index < high), default=None), high)


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


def _next_index(ladder: _Ladder, seen: Mapping[int, RungResult], rules: EdgeRules) -> tuple[int, str] | None:
    """The value to run now and why; None: wait for what runs, or there is nothing left to ask."""
    now = _bracket(ladder, seen, rules.knob)
    flying = any(what.flying for what in seen.values())
    if now.closed:
        assert now.low is not None
        edge = seen[now.low]
        if edge.passes + edge.flying < rules.repeats:
            return now.low, f"the edge, run {edge.passes + edge.flying + 1} of {rules.repeats}"
        chosen = _production(ladder, now, rules)
        if not flying and not (chosen in seen and seen[chosen].passes):
            return chosen, f"the value for production, {rules.margin:.0%} below the edge"
        return None
    if flying:
        return None
    return _climb(ladder, now)


def _climb(ladder: _Ladder, now: _Bracket) -> tuple[int, str] | None:
    start = now.floor if now.low is None else now.low
    width = now.high - start
    if width <= 1:
        return None
    if ladder.predicted is not None:
        for index in (ladder.predicted, ladder.predicted + 1, ladder.predicted - 1):
            if start < index < now.high:
                return index, "beside the edge that the memory model foresees"
    step = max(1, width // 3)
    below = "nothing works so far" if now.low is None else f"{ladder.values[now.low]:g} works"
    above = f", {ladder.values[now.high]:g} does not" if now.high < len(ladder.values) else ""
    return start + step, below + above


def _production(ladder: _Ladder, now: _Bracket, rules: EdgeRules) -> int:
    """The largest value at least the margin below the edge; the edge itself where nothing lies there."""
    assert now.low is not None
    edge = ladder.values[now.low]
    limit = edge - rules.margin * abs(edge)
    below = [index for index in range(now.floor + 1, now.low + 1) if ladder.values[index] <= limit]
    return max(below, default=now.low)


def _oddities(ladder: _Ladder, seen: Mapping[int, RungResult], knob: str) -> list[str]:
    """What speaks against one cliff with everything safe below it."""
    failed = [index for index, what in seen.items() if what.failures]
    lines = []
    for index in sorted(failed):
        what = seen[index]
        above = [i for i in seen if i > index and seen[i].passes]
        small = all(_wants_more(failure, knob) for failure in what.failures)
        if above and not small:
            lines.append(
                f"{ladder.values[max(above)]:g} passed although {ladder.values[index]:g} failed: "
                f"{knob} is not the only thing that decides"
            )
        if what.passes:
            total = what.passes + len(what.failures)
            lines.append(f"{ladder.values[index]:g} passed {what.passes} of {count(total, 'run')}: not safe")
    return lines


def _failing_text(seen: Sequence[Outcome]) -> str:
    first = seen[0]
    return first.reason or first.kind.value


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
    refused: tuple[_RefusedValue, ...] = ()
    notes: tuple[str, ...] = ()
    first_failing: _Number | None = None
    edge: _Number | None = None
    edge_runs: int = 0
    production: _Number | None = None
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
        known["refused"] = tuple(_RefusedValue(**row) for row in known.get("refused", ()))
        known["notes"] = tuple(known.get("notes", ()))
        return cls(line.conclusion, line.headline, **known)


def _ladder_table(verdict: EdgeVerdict, metric: str) -> TextTable:
    rows = [_ladder_row(rung, verdict) for rung in verdict.tried]
    failed = frozenset(at for at, rung in enumerate(verdict.tried) if rung.failed)
    refused = tuple(f"{value_text(row.value)} was not run: {row.reason}" for row in _nearest_refused(verdict))
    return TextTable(
        "Every value that was tried", (verdict.knob, "runs", metric, "", "outcome"), tuple(rows), failed, notes=refused
    )


def _ladder_row(rung: Rung, verdict: EdgeVerdict) -> tuple[str, ...]:
    outcome = rung.why[0] if rung.why else "passed"
    if rung.why and rung.passed:
        outcome = f"{rung.passed} passed, {rung.failed} failed: {outcome}"
    names = {verdict.edge: "largest safe value", verdict.production: "for production"}
    if verdict.edge == verdict.production:
        names = {verdict.edge: "largest safe value, for production"}
    mean = "" if rung.mean is None else metric_text(rung.mean)
    return value_text(rung.value), str(rung.passed + rung.failed), mean, names.get(rung.value, ""), outcome


def _nearest_refused(verdict: EdgeVerdict) -> list[_RefusedValue]:
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
            question=f"How far can {self.knob} be raised?",
            baseline=self.start,
            presets=(),
            budget=replace(study.budget, trials=None),
            confirm=replace(study.confirm, top=0, blocks=0),
        )

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> EdgeAgenda:
        return EdgeAgenda(found.study, history, ledger, _ladder_of(found, self.knob, self.start), self.rules)

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
        return Exhibits(setting, (_ladder_table(verdict, study.goal.metric),), notes=verdict.notes, groups=groups)


def _ladder_of(found: CheckedStudy, knob: str, start: Point) -> _Ladder:
    """The values that may run with the other knobs as in `start`. InputError where the knob cannot have an edge."""
    space = found.study.space
    if knob not in space.by_name:
        raise InputError(f"{knob!r} is not a knob of this study; {near(knob, space.by_name)}")
    first = start.get(knob)
    if not is_number(first):
        raise InputError(f"{knob} is not a number at {dict(start)}; choose another setting with --at")
    legal: list[_Number] = []
    refused: dict[_Number, str] = {}
    for value in _ladder_values(space.by_name[knob], first):
        point = space.restrict({**start, knob: value})
        if gaps := space.missing(point):
            refused[value] = f"{', '.join(gaps)} would need a value"
        elif reason := found.refusal(point):
            refused[value] = reason
        else:
            legal.append(value)
    return _Ladder(tuple(legal), refused, _predicted_edge(found, knob, start, legal))


def _predicted_edge(found: CheckedStudy, knob: str, start: Point, legal: list[_Number]) -> int | None:
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

    ladder: _Ladder
    rules: EdgeRules
    out_of_budget: bool = field(default=False, init=False)

    def fresh(self) -> NextTrial | None:
        if not self.history.count(Stage.BASELINE):
            return self.new(self.study.baseline, Stage.BASELINE, "edge", "the value to start from")
        step = _next_index(self.ladder, self.seen(), self.rules)
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
    now = _bracket(ladder, seen, rules.knob)
    notes = _oddities(ladder, seen, rules.knob)
    worst = next((what.failures for what in seen.values() if what.failures), ())
    why = _failing_text(worst) if worst else "nothing was run"
    result = EdgeVerdict(
        conclusion=NOTHING_PASSED,
        headline=f"no value of {rules.knob} passed: {why}",
        knob=rules.knob,
        margin=rules.margin,
        runs=len(agenda.history.runs),
        failed_runs=sum(len(what.failures) for what in seen.values()),
        monotone=not notes,
        tried=tuple(_rung(agenda, index, seen[index]) for index in sorted(seen)),
        refused=tuple(_RefusedValue(value, reason) for value, reason in ladder.refused.items()),
        notes=tuple(notes),
        first_failing=ladder.values[now.high] if now.high in seen else None,
    )
    return result if now.low is None else _with_edge(result, agenda, now, now.low)


def _with_edge(result: EdgeVerdict, agenda: EdgeAgenda, now: _Bracket, low: int) -> EdgeVerdict:
    chosen = _production(agenda.ladder, now, agenda.rules)
    result = replace(
        result,
        conclusion=FOUND if now.closed and not agenda.out_of_budget else UNFINISHED,
        edge=agenda.ladder.values[low],
        edge_runs=agenda.seen()[low].passes,
        production=agenda.ladder.values[chosen],
        point=dict(agenda.point(chosen)),
        price=_price(agenda, low, chosen),
    )
    return replace(result, headline=_headline(result, agenda, now))


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


def _headline(result: EdgeVerdict, agenda: EdgeAgenda, now: _Bracket) -> str:
    knob, low, chosen = result.knob, result.edge, result.production
    assert low is not None and chosen is not None
    if now.high in agenda.seen():
        above = f"at {agenda.ladder.values[now.high]:g} it failed: {_failing_text(agenda.seen()[now.high].failures)}"
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
    _ladder_of(found, knob, start)
    return EdgeQuestion(knob, dict(start), repeats, margin)
