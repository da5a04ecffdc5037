"""The hunt for the largest value of a knob that passes, and what is shown of the one for production."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.campaign.assembly import assemble_campaign, assemble_or_resume
from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.kinds.base import CampaignQuestion
from ridgeline.campaign.kinds.edge import (
    EdgeHunt,
    EdgeLadder,
    EdgeQuestion,
    EdgeVerdict,
    RungResult,
    _ladder_of,
    _ladder_values,
    _wants_more,
    edge_question,
)
from ridgeline.campaign.ledger import Ledger
from ridgeline.errors import InputError, StoreError
from ridgeline.records.outcome import Evidence, Kind, Move, Outcome, Signature
from ridgeline.records.space import Continuous, Discrete, Settings, Space
from ridgeline.records.study import Budget, Goal, Study, WorkloadChoice
from ridgeline.stats.failure_rate import shown_failure_rate
from ridgeline.study.folder import StudyFolder
from ridgeline.study.history import History
from ridgeline.study.journal import Journal
from ridgeline.study.study_file import StudyFile
from ridgeline.study.yaml_tree import parse_yaml
from ridgeline.testing import FunctionWorkload, MemoryExecutor, MemorySite, ScriptedAnswer

SIGNATURES = (
    Signature(re.compile("pool is empty"), Kind.OOM_START, "the pool came out empty: raise --mem"),
    Signature(re.compile("out of memory"), Kind.OOM_RUN, "out of memory: lower --mem"),
)
TOO_MUCH = ScriptedAnswer({}, exit_code=1, stderr="out of memory\n")
TOO_LITTLE = ScriptedAnswer({}, exit_code=1, stderr="pool is empty\n")


def study(folder: Path, values: Any = range(100), start: int = 40, **changes: Any) -> Study:
    return Study(
        name="edge",
        workload=WorkloadChoice("function", {}),
        space=Space((Discrete("mem", values, ordered=True), Discrete("other", ("a", "b"), ordered=False)), {}),
        goal=Goal("rate", "maximize"),
        baseline={"mem": start, "other": "a"},
        folder=folder,
        **changes,
    )


def test_advice_of_the_workload_counts_before_the_words_of_the_program() -> None:
    """`raise --mem` in a log may be about another program's flag; the workload knows its own."""
    words = "out of memory: raise --mem"
    assert _wants_more(Outcome(Kind.OOM_RUN, words), "mem")
    assert not _wants_more(Outcome(Kind.OOM_RUN, words, advice=(Move("mem", -1, "why"),)), "mem")
    assert _wants_more(Outcome(Kind.OOM_START, "no room", advice=(Move("mem", +1, "why"),)), "mem")
    assert _wants_more(Outcome(Kind.OOM_RUN, words, advice=(Move("other", -1, "why"),)), "mem")


class WithModel(FunctionWorkload):
    """A workload that foresees a cliff, rightly or not."""

    cliff = 0

    def predicted_failure(self, settings: Settings) -> str | None:
        return "will not fit" if number(settings) > self.cliff else None


def number(settings: Settings) -> float:
    value = settings["mem"]
    assert isinstance(value, int | float)
    return value


def cliff_at(last_safe: float, first_safe: float = -math.inf) -> Callable[[Settings], ScriptedAnswer]:
    def answer(settings: Settings) -> ScriptedAnswer:
        value = number(settings)
        return (
            TOO_MUCH
            if value > last_safe
            else TOO_LITTLE
            if value < first_safe
            else ScriptedAnswer({"rate": 10 + value})
        )

    return answer


def _file(question: Study) -> StudyFile:
    return StudyFile(question, Path("study.yaml"), parse_yaml("name: edge\n", "study.yaml"))


class Hunt(Campaign):
    """A campaign whose verdict is known to be an edge."""

    def run(self) -> EdgeVerdict:
        verdict = super().run()
        assert isinstance(verdict, EdgeVerdict)
        return verdict


def hunt(
    root: Path,
    question: Study,
    function: Callable[[Settings], ScriptedAnswer],
    *,
    predicted: float | None = None,
    refuse: Callable[[Settings], str | None] = lambda settings: None,
    act: Any = None,
    world: MemorySite | None = None,
    **asked: Any,
) -> Hunt:
    root.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(root / "journal.jsonl")
    history = History.replay(root, journal.read())
    asks = EdgeQuestion("mem", dict(question.baseline), **asked)
    kind = FunctionWorkload if predicted is None else WithModel
    workload = kind(question, function, signatures=SIGNATURES, refuse=refuse)
    if predicted is not None:
        workload.cliff = predicted  # type: ignore[attr-defined]
    changed = asks.applied_to(question)
    found = CheckedStudy(_file(changed), workload)
    executor = MemoryExecutor(question.site, world, **({"act": act} if act else {}))
    ledger = Ledger(changed.budget, history)
    agenda = asks.agenda(found, history, ledger)
    return Hunt(asks, changed, workload, executor, journal, history, agenda, ledger)


def open_folder(root: Path, question: EdgeQuestion) -> tuple[StudyFolder, CampaignQuestion | None]:
    found = check_study(root / "study.yaml")
    asked = edge_question(found, question.knob, "baseline", question.repeats, question.margin)
    return assemble_or_resume(found, root / "out", "edge", asked)


def test_the_edge_and_a_production_value_below_it(tmp_path: Path) -> None:
    verdict = hunt(tmp_path, study(tmp_path), cliff_at(72)).run()
    assert verdict.conclusion == "edge"
    assert (verdict.edge, verdict.first_failing) == (72, 73)
    assert verdict.edge_runs == 3
    assert verdict.production <= 72 * 0.97 < verdict.production + 1
    assert verdict.price > 0
    assert verdict.monotone
    assert "at 73 it failed: out of memory: lower --mem" in verdict.headline
    assert any(row.value == verdict.production and row.passed for row in verdict.tried), "it was run too"


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 99), cliff=st.integers(0, 99), floor=st.integers(0, 99))
def test_every_cliff_is_found_from_every_start(
    tmp_path_factory: pytest.TempPathFactory, start: int, cliff: int, floor: int
) -> None:
    floor = min(floor, cliff)
    root = tmp_path_factory.mktemp("edge")
    campaign = hunt(root, study(root, start=start), cliff_at(cliff, floor), repeats=2)
    verdict = campaign.run()
    if verdict.conclusion == "nothing-passed":
        assert cliff - floor < 40, "only a narrow safe range may be missed, and it is said"
        return
    assert verdict.edge == cliff
    assert floor <= verdict.production <= cliff
    # thirds of 100 values: never more than log(100) to the base 1.5, however unlucky
    assert verdict.failed_runs <= 12


def test_fewer_crashes_than_halving(tmp_path: Path) -> None:
    crashes = {}
    for cliff in range(40, 100, 3):
        root = tmp_path / str(cliff)
        crashes[cliff] = hunt(root, study(root), cliff_at(cliff)).run().failed_runs
    assert sum(crashes.values()) / len(crashes) < math.log2(60) / 2


def test_a_memory_model_saves_crashes(tmp_path: Path) -> None:
    right = hunt(tmp_path / "right", study(tmp_path), cliff_at(72), predicted=72)
    assert right.run().edge == 72
    assert right.history.verdict is not None
    assert right.history.verdict.details["failed_runs"] == 1
    assert len(right.history.runs) == 8, "start, predicted edge, one above it, two repeats, three for production"
    wrong = hunt(tmp_path / "wrong", study(tmp_path), cliff_at(72), predicted=95)
    assert wrong.run().edge == 72, "a wrong model costs runs, not the answer"


def test_refused_values_are_not_run_and_say_why(tmp_path: Path) -> None:
    def refuse(settings: Settings) -> str | None:
        return "weights need all of it" if number(settings) > 60 else None

    campaign = hunt(tmp_path, study(tmp_path), cliff_at(99), refuse=refuse)
    verdict = campaign.run()
    assert verdict.edge == 60
    assert verdict.failed_runs == 0
    assert "weights need all of it" in verdict.headline
    assert all(number(trial.point) <= 60 for trial in campaign.history.trials.values())


def test_a_pool_too_small_moves_the_other_way(tmp_path: Path) -> None:
    campaign = hunt(tmp_path, study(tmp_path, start=10), cliff_at(72, first_safe=30))
    assert campaign.run().edge == 72
    values = [number(trial.point) for trial in campaign.history.trials.values()]
    assert all(value > 10 for value in values[1:])


def test_an_edge_that_holds_only_sometimes_is_not_safe(tmp_path: Path) -> None:
    runs: Counter[float] = Counter()

    def act(job: Any) -> ScriptedAnswer:
        value = json.loads((job.folder / "answer.json").read_text())["metrics"]["rate"]
        runs[value] += 1
        if value > 72 or (value == 72 and runs[value] > 1):
            return TOO_MUCH
        return ScriptedAnswer({"rate": value})

    verdict = hunt(tmp_path, study(tmp_path), lambda s: ScriptedAnswer({"rate": number(s)}), act=act).run()
    assert verdict.edge == 71
    assert not verdict.monotone
    assert "72 passed 1 of 2 runs" in verdict.notes


def test_a_pass_above_a_fail_is_reported(tmp_path: Path) -> None:
    def holed(settings: Settings) -> ScriptedAnswer:
        value = number(settings)
        return TOO_MUCH if value > 75 or 70 <= value <= 72 else ScriptedAnswer({"rate": value})

    verdict = hunt(tmp_path, study(tmp_path), holed).run()
    assert verdict.edge == 69, "the recommendation lies below every failure seen"
    assert any("is not the only thing that decides" in note for note in verdict.notes)
    assert not verdict.monotone


def test_nothing_passes(tmp_path: Path) -> None:
    verdict = hunt(tmp_path, study(tmp_path), lambda s: TOO_MUCH).run()
    assert verdict.conclusion == "nothing-passed"
    assert verdict.failed_runs <= 12


def test_the_top_of_the_space_may_be_safe(tmp_path: Path) -> None:
    verdict = hunt(tmp_path, study(tmp_path), cliff_at(1000)).run()
    assert (verdict.edge, verdict.first_failing) == (99, None)
    assert "the study allows no larger one" in verdict.headline


def test_an_edge_is_called_one_only_when_its_repeats_are_done(tmp_path: Path) -> None:
    """Wherever the budget ends: the bracket may be closed while the runs that make sure of it are still missing."""
    (tmp_path / "all").mkdir()
    whole = hunt(tmp_path / "all", study(tmp_path / "all"), cliff_at(72)).run()
    assert whole.conclusion == "edge"
    kinds = []
    for runs in range(1, whole.runs + 1):
        (folder := tmp_path / str(runs)).mkdir()
        limited = replace(study(folder), budget=Budget(node_hours=(runs + 0.5) / 3600))
        found = hunt(folder, limited, cliff_at(72)).run()
        kinds.append(found.conclusion)
        done = (found.edge_runs, found.production_runs) == (whole.edge_runs, whole.production_runs)
        assert (found.conclusion == "edge") == done, found
    assert kinds[-1] == "edge" and "unfinished" in kinds


def test_a_budget_ends_the_hunt_with_what_is_known(tmp_path: Path) -> None:
    budget = Budget(node_hours=2.5 / 3600)
    verdict = hunt(tmp_path, replace(study(tmp_path), budget=budget), cliff_at(72)).run()
    assert verdict.conclusion == "unfinished"
    assert "budget is spent" in verdict.headline


def test_a_killed_hunt_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = hunt(tmp_path / "whole", study(tmp_path), cliff_at(72))
    expected = whole.run()
    lines = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    for kept in range(2, len(lines) - 1, 5):
        root = tmp_path / f"killed-{kept}"
        root.mkdir()
        (root / "journal.jsonl").write_text("".join(lines[:kept]))
        resumed = hunt(root, study(tmp_path), cliff_at(72)).run()
        assert resumed.headline == expected.headline, kept
        assert resumed.tried == expected.tried, kept


@pytest.mark.parametrize(("values", "cliff"), [(range(1, 1501), 731), (range(1, 1501), 733), (range(1, 100_001), 4321)])
def test_a_long_ladder_is_finished_between_its_rungs(tmp_path: Path, values: range, cliff: int) -> None:
    """Of 1500 values every third is on the ladder; the edge is among all of them."""
    campaign = hunt(tmp_path, study(tmp_path, values, start=40), cliff_at(cliff), repeats=1)
    verdict = campaign.run()
    assert (verdict.edge, verdict.first_failing, verdict.untried) == (cliff, cliff + 1, 0)
    assert f"{cliff} is the largest value that passed (1 run passed; at {cliff + 1} it failed" in verdict.headline
    assert "not tried" not in verdict.headline
    ran = {number(trial.point) for trial in campaign.history.trials.values()}
    assert {cliff, cliff + 1, verdict.production} <= ran, "nothing is named that was not run"


def test_values_passed_over_below_a_refused_one_are_tried_too(tmp_path: Path) -> None:
    def refuse(settings: Settings) -> str | None:
        return "more than there is" if number(settings) > 732 else None

    verdict = hunt(tmp_path, study(tmp_path, range(1, 1501)), cliff_at(9999), refuse=refuse, repeats=1).run()
    assert verdict.edge == 732 and "larger ones were not run: more than there is" in verdict.headline


def test_a_budget_that_ends_early_leaves_a_bracket_and_says_how_wide(tmp_path: Path) -> None:
    budget = Budget(node_hours=4.5 / 3600)
    verdict = hunt(tmp_path, replace(study(tmp_path), budget=budget), cliff_at(72)).run()
    assert verdict.conclusion == "unfinished" and verdict.edge is not None
    if verdict.first_failing is None:
        assert f"{99 - verdict.edge} larger values not tried" in verdict.headline
    else:
        assert verdict.untried == verdict.first_failing - verdict.edge - 1
        assert f"{verdict.untried} values between not tried" in verdict.headline
    assert "largest" not in verdict.headline.replace("larger", ""), "it is not known yet"


def test_a_range_without_steps_leaves_values_between(tmp_path: Path) -> None:
    asked = replace(study(tmp_path), space=Space((Continuous("mem", 0.5, 0.95),), {}), baseline={"mem": 0.6})
    verdict = hunt(tmp_path, asked, cliff_at(0.8004)).run()
    assert verdict.untried is None and verdict.edge < 0.8004 < verdict.first_failing
    assert "values between were not tried" in verdict.headline


def test_what_the_runs_for_production_show_is_stated(tmp_path: Path) -> None:
    """The runs that led to the choice do not count: three more, and three passes leave two thirds open."""
    verdict = hunt(tmp_path, study(tmp_path), cliff_at(72)).run()
    assert verdict.production_runs == 3
    assert verdict.failure_rate == pytest.approx(1 - 0.04 ** (1 / 3))
    assert ": 3 runs passed there, so at most 66% of its runs fail (95%)" in verdict.headline
    assert "31 that pass would show 10% (`--fails 0.1`)" in verdict.headline
    assert "safe" not in verdict.headline
    assert verdict.show_less == {"rate": 0.1, "runs": 31}


def test_production_is_run_until_the_rate_asked_for_is_shown(tmp_path: Path) -> None:
    campaign = hunt(tmp_path, study(tmp_path), cliff_at(72), fails=0.1)
    verdict = campaign.run()
    assert verdict.production_runs == 31 and verdict.failure_rate <= 0.1
    assert "31 runs passed there, so at most 9.9% of its runs fail (95%); 63 that" in verdict.headline
    notes = campaign.question.exhibits(campaign.study, campaign.history).notes
    command = next(note for note in notes if "`ridgeline study edge" in note)
    assert "--knob mem --at mem=69,other=a --fails 0.05" in command and "63 runs that pass" in command
    answer = campaign.question.answer(campaign.study, campaign.history)
    assert answer.facts["failure_rate"] == verdict.failure_rate and answer.facts["first_failing"] == 73


def test_a_value_that_fails_in_its_runs_for_production_is_given_up(tmp_path: Path) -> None:
    """And the next one has less of the error left: more runs must pass there for the same rate."""
    runs: Counter[float] = Counter()

    def act(job: Any) -> ScriptedAnswer:
        value = json.loads((job.folder / "answer.json").read_text())["metrics"]["rate"]
        runs[value] += 1
        return TOO_MUCH if value > 72 or (value == 69 and runs[value] > 20) else ScriptedAnswer({"rate": value})

    asked = study(tmp_path)
    verdict = hunt(tmp_path, asked, lambda s: ScriptedAnswer({"rate": number(s)}), act=act, fails=0.1).run()
    assert verdict.production < verdict.edge < 69 and not verdict.monotone
    assert verdict.production_runs == math.ceil(math.log(0.0075) / math.log(0.9)) == 47
    assert verdict.failure_rate <= 0.1


def soft_hunt(dice: random.Random, width: float, rules: EdgeQuestion) -> tuple[float, float]:
    """One hunt by the real decisions at a logistic edge: the true failure rate of production, and the one stated."""
    ladder, seen = EdgeLadder(tuple(range(50, 100))), {10: RungResult(passes=1)}
    while (step := EdgeHunt(ladder, seen, rules).next_step()) is not None:
        index, why = step
        what = seen.setdefault(index, RungResult())
        fresh = why.startswith("the value for production")
        if fresh and not what.chosen:
            what.chosen = 1 + max(other.chosen for other in seen.values())
        if dice.random() < failing(ladder.values[index], width):
            what.failures.append(Outcome(Kind.OOM_RUN, "out of memory"))
        else:
            what.passes, what.fresh = what.passes + 1, what.fresh + fresh
    chosen = max((i for i, what in seen.items() if what.fresh and what.safe), key=lambda i: seen[i].chosen)
    stated = shown_failure_rate(seen[chosen].fresh, seen[chosen].chosen)
    return failing(ladder.values[chosen], width), stated


def failing(value: float, width: float) -> float:
    return 1 / (1 + math.exp((80 - value) / width))


@pytest.mark.parametrize("width", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(
    "rules",
    [EdgeQuestion("mem", {}, margin=0.0), EdgeQuestion("mem", {}, repeats=8), EdgeQuestion("mem", {}, fails=0.1)],
)
def test_at_a_soft_edge_the_stated_failure_rate_holds(width: float, rules: EdgeQuestion) -> None:
    """In 300 hunts the true rate lies above the stated one in 5% at most, with three standard errors of room."""
    found = [soft_hunt(random.Random(seed), width, rules) for seed in range(300)]
    assert sum(true > stated for true, stated in found) <= 300 * 0.05 + 3 * math.sqrt(300 * 0.05 * 0.95)
    if rules.fails is not None:
        assert all(stated <= rules.fails for _, stated in found)
        assert sum(true for true, _ in found) / 300 < 0.03, "production is chosen by it"


def test_a_failure_rate_is_a_share(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "grab.py").write_text(GRAB)
    found = check_study(tmp_path / "study.yaml")
    with pytest.raises(InputError, match="--fails 10: give a share of the runs between 0 and 1"):
        edge_question(found, "mib", "baseline", 2, 0.05, 10)


def test_advice_is_read_for_the_knob_it_names() -> None:
    line = Evidence("log", 1, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    assert _wants_more(Outcome(Kind.OOM_START, "", line), "mem_fraction_static")
    assert not _wants_more(Outcome(Kind.OOM_START, "", line), "max_running_requests")
    both = Outcome(Kind.OOM_RUN, "a GPU had no memory left: lower --mem-fraction-static or --max-running-requests")
    assert not _wants_more(both, "mem_fraction_static")
    assert not _wants_more(both, "max_running_requests")
    vllm = "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
    either = Outcome(Kind.OOM_START, "no room for the KV pool", Evidence("log", 1, vllm))
    assert _wants_more(either, "gpu_memory_utilization")
    assert not _wants_more(either, "max_model_len")


def test_repeats_may_run_side_by_side_the_climb_may_not() -> None:
    ladder, question = EdgeLadder(tuple(range(10))), EdgeQuestion("mem", {}, repeats=3)
    failed = [Outcome(Kind.OOM_RUN, "x")]
    closed = {4: RungResult(passes=1, flying=1), 5: RungResult(failures=failed)}
    assert EdgeHunt(ladder, closed, question).next_step() == (4, "the edge, run 3 of 3")
    waiting = {4: RungResult(passes=1, flying=2), 5: RungResult(failures=failed)}
    assert EdgeHunt(ladder, waiting, question).next_step() is None
    assert EdgeHunt(ladder, {4: RungResult(passes=1), 7: RungResult(flying=1)}, question).next_step() is None


def test_ladders() -> None:
    fractions = _ladder_values(Continuous("mem", 0.5, 0.95), 0.8123)
    assert fractions[0] == 0.5
    assert fractions[-1] == 0.95
    assert 0.8123 in fractions
    assert list(fractions) == sorted(fractions)
    long = _ladder_values(Discrete("n", range(1, 100_001), ordered=True), 77)
    assert len(long) <= 514
    assert {1, 77, 100_000} <= set(long)
    with pytest.raises(InputError, match="not a knob of ordered numbers"):
        _ladder_values(Discrete("backend", ("fa3", "triton"), ordered=False), 0)


def test_too_small_above_a_value_that_works_is_not_believed() -> None:
    small = Outcome(Kind.OOM_START, "raise --mem")
    seen = {3: RungResult(passes=1), 6: RungResult(failures=[small])}
    now = EdgeHunt(EdgeLadder(tuple(range(10))), seen, EdgeQuestion("mem", {}))
    assert (now.floor, now.low, now.high) == (-1, 3, 6)


GRAB = """\
import sys
block = bytearray(int(sys.argv[1]) << 20)
print("rate", sys.argv[1])
"""
STUDY = """\
version: 1
name: grab
workload:
  kind: command
  run: ulimit -v 300000; exec python3 -S grab.py {mib} {word}
  files: [grab.py]
  metrics: {rate: {regex: 'rate ([0-9.]+)'}}
space:
  mib: {from: 16, to: 512, step: 16}
  word: [a, b]
goal: {maximize: rate}
baseline: {mib: 64, word: a}
job: {limit: 60}
"""


def test_a_real_memory_limit(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "grab.py").write_text(GRAB)
    question = EdgeQuestion("mib", {}, repeats=2, margin=0.05)
    folder, asked = open_folder(tmp_path, question)
    with assemble_campaign(folder, asked) as campaign:
        verdict = campaign.run()
    assert isinstance(verdict, EdgeVerdict)
    assert verdict.conclusion == "edge"
    assert verdict.edge is not None
    assert 200 <= verdict.edge <= 288, "300,000 KiB less what Python itself takes"
    assert verdict.first_failing == verdict.edge + 16
    assert {run.outcome.kind for run in campaign.history.runs.values() if run.outcome} == {Kind.OK, Kind.OOM_RUN}
    again, none = open_folder(tmp_path, question)
    assert none is None, "the same question goes on in the same folder"
    with assemble_campaign(again, none) as finished:
        assert finished.run() == verdict
    with pytest.raises(StoreError, match="another campaign"):
        open_folder(tmp_path, replace(question, margin=0.1))


@pytest.mark.parametrize(
    ("knob", "at", "message"),
    [("mb", "baseline", "did you mean mib"), ("word", "baseline", "not a number"), ("mib", "mib=3", "outside")],
)
def test_questions_that_make_no_sense(tmp_path: Path, knob: str, at: str, message: str) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "grab.py").write_text(GRAB)
    with pytest.raises(InputError, match=message):
        edge_question(check_study(tmp_path / "study.yaml"), knob, at, 3, 0.03)
    assert not (tmp_path / "out").exists()


def test_ladder_of_needs_the_knob_to_exist(tmp_path: Path) -> None:
    question = study(tmp_path)
    found = CheckedStudy(_file(question), FunctionWorkload(question, cliff_at(3)))
    assert len(_ladder_of(found, "mem", question.baseline).values) == 100
