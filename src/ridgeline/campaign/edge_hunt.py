"""A campaign that looks for the largest safe value of one knob: its ladder, its agenda, its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ridgeline.campaign import edge
from ridgeline.campaign.agenda import Agenda, Next
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.edge import EdgeQuestion, Ladder, Number, Seen
from ridgeline.campaign.engine import Campaign
from ridgeline.campaign.ledger import Ledger, Reserve
from ridgeline.errors import InputError
from ridgeline.executors.base import Executor
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Point
from ridgeline.records.trial import Stage
from ridgeline.samplers.base import Sampler
from ridgeline.store.history import History
from ridgeline.store.journal import Journal
from ridgeline.workloads.base import Foreseeing


def ladder_of(found: CheckedStudy, knob: str, start: Point) -> Ladder:
    """The values that may run with the other knobs as in `start`. InputError where the knob cannot have an edge."""
    space = found.study.space
    if knob not in space.by_name:
        near = get_close_matches(knob, space.by_name, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(space.by_name)}"
        raise InputError(f"{knob!r} is not a knob of this study; {hint}")
    first = start.get(knob)
    if not isinstance(first, int | float) or isinstance(first, bool):
        raise InputError(f"{knob} has no number at {dict(start)}; choose another setting with --at")
    legal: list[Number] = []
    refused: dict[Number, str] = {}
    for value in edge.ladder_values(space.by_name[knob], first):
        point = space.restrict({**start, knob: value})
        if gaps := space.missing(point):
            refused[value] = f"{', '.join(gaps)} would need a value"
        elif reason := found.refusal(point):
            refused[value] = reason
        else:
            legal.append(value)
    return Ladder(tuple(legal), refused, _foreseen(found, knob, start, legal))


def _foreseen(found: CheckedStudy, knob: str, start: Point, legal: list[Number]) -> int | None:
    """The last value before the memory model of the workload, if it has one, begins to doubt."""
    if not isinstance(found.workload, Foreseeing):
        return None
    space = found.study.space
    doubted = [
        index
        for index, value in enumerate(legal)
        if found.workload.foreseen_failure(space.settings(space.restrict({**start, knob: value})))
    ]
    hopeful = [index for index in range(len(legal)) if index not in set(doubted)]
    return max(hopeful) if doubted and hopeful else None


@dataclass
class EdgeAgenda(Agenda):
    """Hands out the start value, then the climb, the repeats at the edge, and the value for production."""

    ladder: Ladder = field(default_factory=lambda: Ladder(()))
    question: EdgeQuestion = field(default_factory=lambda: EdgeQuestion(""))
    out_of_budget: bool = False

    def fresh(self) -> Next | None:
        if not self.history.count(Stage.BASELINE):
            return self._new(self.study.baseline, Stage.BASELINE, "edge", "the value to start from")
        step = edge.next_index(self.ladder, self.seen(), self.question)
        if step is None:
            return None
        index, why = step
        point = self.point(index)
        nodes = self.study.job.resources(self.study.space.settings(point)).nodes
        if not self.ledger.fits(point, nodes, Reserve()):
            self.out_of_budget = not self.history.open_runs
            return None
        return self._new(point, Stage.SEARCH, "edge", why)

    def point(self, index: int) -> Point:
        return self.study.space.restrict({**self.study.baseline, self.question.knob: self.ladder.values[index]})

    def seen(self) -> dict[int, Seen]:
        """By index of the ladder. A trial that was cancelled or lost to the site shows nothing."""
        places = {value: index for index, value in enumerate(self.ladder.values)}
        found: dict[int, Seen] = {}
        for trial in self.history.trials.values():
            what = found.setdefault(places[trial.point[self.question.knob]], Seen())  # type: ignore[index]
            run = self.history.final_run(trial)
            if self._is_open(trial.number) or run is None or run.outcome is None:
                what.flying += 1
            elif run.outcome.kind is Kind.OK:
                what.passes += 1
            elif run.outcome.kind.caused_by_setting or run.outcome.kind is Kind.UNVERIFIED:
                what.failures.append(run.outcome)
        return {index: what for index, what in found.items() if what.passes or what.flying or what.failures}


@dataclass
class EdgeHunt(Campaign):
    """A campaign whose verdict is an edge."""

    def _next_stage(self) -> None:
        assert isinstance(self.agenda, EdgeAgenda)
        self.record({"event": "verdict", "verdict": verdict(self.agenda)})


def edge_hunt(
    found: CheckedStudy, executor: Executor, sampler: Sampler, journal: Journal, history: History, ledger: Ledger
) -> EdgeHunt:
    """The hunt that the history's overrides ask for."""
    study = found.study
    question = EdgeQuestion(**history.overrides["edge"])
    ladder = ladder_of(found, question.knob, study.baseline)
    agenda = EdgeAgenda(study, history, sampler, ledger, ladder=ladder, question=question)
    return EdgeHunt(study, found.workload, executor, journal, history, agenda, ledger)


def verdict(agenda: EdgeAgenda) -> dict[str, Any]:
    """What was found, as it stands in the journal; `kind` is edge, unfinished or nothing-passed."""
    ladder, question, seen = agenda.ladder, agenda.question, agenda.seen()
    now = edge.bracket(ladder, seen, question.knob)
    notes = edge.oddities(ladder, seen, question.knob)
    result: dict[str, Any] = {
        "knob": question.knob,
        "margin": question.margin,
        "runs": len(agenda.history.runs),
        "failed_runs": sum(len(what.failures) for what in seen.values()),
        "monotone": not notes,
        "notes": notes,
        "tried": [_tried(agenda, index, seen[index]) for index in sorted(seen)],
        "refused": [{"value": value, "reason": reason} for value, reason in ladder.refused.items()],
        "first_failing": ladder.values[now.high] if now.high in seen else None,
    }
    if now.low is None:
        worst = next((what.failures for what in seen.values() if what.failures), ())
        why = edge.failing_words(worst) if worst else "nothing was run"
        return result | {"kind": "nothing-passed", "headline": f"no value of {question.knob} passed: {why}"}
    chosen = edge.production(ladder, now, question)
    finished = now.closed and not agenda.out_of_budget
    result |= {
        "kind": "edge" if finished else "unfinished",
        "edge": ladder.values[now.low],
        "edge_runs": seen[now.low].passes,
        "production": ladder.values[chosen],
        "point": dict(agenda.point(chosen)),
        "price": _price(agenda, now.low, chosen),
    }
    return result | {"headline": headline(result, agenda, now)}


def _tried(agenda: EdgeAgenda, index: int, what: Seen) -> dict[str, Any]:
    return {
        "value": agenda.ladder.values[index],
        "passed": what.passes,
        "failed": len(what.failures),
        "mean": _mean(agenda, index),
        "why": [str(failure) for failure in what.failures],
    }


def _mean(agenda: EdgeAgenda, index: int) -> float | None:
    value, knob, metric = agenda.ladder.values[index], agenda.question.knob, agenda.study.goal.metric
    runs = agenda.history.ok_runs(Stage.BASELINE, Stage.SEARCH)
    figures = [run.metrics[metric] for trial, run in runs if trial.point[knob] == value]
    return sum(figures) / len(figures) if figures else None


def _price(agenda: EdgeAgenda, low: int, chosen: int) -> float | None:
    """The share of the goal that the margin costs; negative where the value for production did better."""
    at_edge, below = _mean(agenda, low), _mean(agenda, chosen)
    if at_edge is None or below is None or not at_edge:
        return None
    return (agenda.study.goal.score(at_edge) - agenda.study.goal.score(below)) / abs(at_edge)


def headline(result: Mapping[str, Any], agenda: EdgeAgenda, now: edge.Bracket) -> str:
    knob, low, chosen = result["knob"], result["edge"], result["production"]
    if now.high in agenda.seen():
        above = f"{agenda.ladder.values[now.high]:g} failed: {edge.failing_words(agenda.seen()[now.high].failures)}"
    elif beyond := next((r for v, r in agenda.ladder.refused.items() if v > low), None):
        above = f"larger ones were not run: {beyond}"
    else:
        above = "the study allows no larger one"
    if result["kind"] == "unfinished":
        return f"{knob} {low:g} passed and the budget is spent; {above}"
    words = f"{knob} {low:g} is the largest safe value ({result['edge_runs']} runs passed; {above})"
    if chosen == low:
        return f"{words}; no smaller value leaves a margin of {result['margin']:.0%}"
    price = result["price"]
    metric = agenda.study.goal.metric
    cost = "" if price is None else f", {abs(price):.1%} {'worse' if price > 0 else 'better'} {metric} in these runs"
    return f"{words}; use {chosen:g} in production (margin {1 - chosen / low if low else 0:.1%}{cost})"
