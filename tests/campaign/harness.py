"""Whole campaigns in memory: a study, a function that answers for the program, and a site that takes no time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline import catalog
from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.judge import judge
from ridgeline.campaign.kinds.search import SearchAgenda, SearchQuestion
from ridgeline.campaign.ledger import Ledger
from ridgeline.records.expression import Expression
from ridgeline.records.guard import parse_guard
from ridgeline.records.measurement import Reading
from ridgeline.records.outcome import Outcome, Signature
from ridgeline.records.run import Ending, Job, Resources, Run
from ridgeline.records.site import Site
from ridgeline.records.space import Discrete, Rule, Settings, Space
from ridgeline.records.study import Budget, ConfirmStage, Goal, SearchStage, Study, WorkloadChoice
from ridgeline.study.history import History
from ridgeline.study.journal import Journal
from ridgeline.testing import FunctionWorkload, MemoryExecutor, MemorySite, ScriptedAnswer


def study(folder: Path, **changes: Any) -> Study:
    """Two knobs; x from 0 to 9 and y from 0 to 2; more is better."""
    space = Space(
        knobs=(Discrete("x", range(10), ordered=True), Discrete("y", (0, 1, 2), ordered=True)),
        derived={"sum": Expression.parse("x + y")},
    )
    plain = Study(
        name="memory",
        workload=WorkloadChoice("function", {}),
        space=space,
        goal=Goal("rate", "maximize"),
        baseline={"x": 0, "y": 0},
        folder=folder,
        budget=Budget(trials=12),
        search=SearchStage(sampler="random", seed=1, sentinel_every=5),
        confirm=ConfirmStage(top=2, blocks=3),
    )
    return replace(plain, **changes)


def guards(*sentences: str) -> tuple[Any, ...]:
    return tuple(parse_guard(text) for text in sentences)


def rule(refuse: str, because: str = "because") -> Rule:
    return Rule(Expression.parse(refuse), because)


def rate(settings: Settings) -> ScriptedAnswer:
    return ScriptedAnswer({"rate": 100.0 + 10 * float(settings["sum"] or 0)})


def campaign(
    root: Path,
    question: Study,
    function: Callable[[Settings], ScriptedAnswer] = rate,
    *,
    act: Callable[[Job], ScriptedAnswer] | None = None,
    executor: Any = None,
    signatures: tuple[Signature, ...] = (),
    refuse: Callable[[Settings], str | None] = lambda settings: None,
    world: MemorySite | None = None,
) -> Campaign:
    root.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(root / "journal.jsonl")
    history = History.replay(root, journal.read())
    workload = FunctionWorkload(question, function, signatures=signatures, refuse=refuse)
    if executor is None:
        executor = MemoryExecutor(question.site, world, **({"act": act} if act else {}))

    def refusal(point: Settings) -> str | None:
        return question.space.refusal(point) or workload.refusal(question.space.settings(point))

    def sampler() -> Any:
        return catalog.part("samplers", question.search.sampler)(question.space, question.search.seed, {}, refusal)

    ledger = Ledger(question.budget, history, slots=question.site.jobs_at_once)
    agenda = SearchAgenda(question, history, ledger, sampler, refusal)
    return Campaign(SearchQuestion(), question, workload, executor, journal, history, agenda, ledger)


def slots(count: int, nodes: int = 1) -> Site:
    return Site(name="memory", nodes=nodes, jobs_at_once=count)


def judged(
    ending: Ending, reading: Reading, folder: Path, table: Sequence[Signature], logs: Sequence[str], **more: Any
) -> Outcome:
    """What a run that left this is taken for; `more`: `asked`, `settings`, and `reference` once one has passed."""
    run = Run(1, 1, 1, folder, Resources(), ending)
    workload: Any = SimpleNamespace(signatures=table, logs=logs)
    asked, settings, reference = more.get("asked") or study(folder), more.get("settings", {}), more.get("reference", {})
    return judge(run, reading, workload, asked, settings, reference)
