"""A failure that is no verdict: what has passed and does not begin any more is run again, then somebody is asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.kinds.compare import ComparisonQuestion
from ridgeline.campaign.kinds.edge import EdgeAgenda, EdgeLadder, EdgeQuestion
from ridgeline.campaign.kinds.scale import ScalingAgenda, ScalingQuestion
from ridgeline.campaign.ledger import Ledger
from ridgeline.errors import NothingFound, OpenQuestion, SiteError
from ridgeline.records.outcome import Kind, Outcome, Signature
from ridgeline.records.run import Job
from ridgeline.records.study import Budget, JobLimits, SearchStage
from ridgeline.records.trial import Stage
from ridgeline.study.codec import _outcome_from, outcome_line
from ridgeline.study.history import History, read_history
from ridgeline.study.journal import Journal
from ridgeline.testing import MemoryExecutor, ScriptedAnswer, answer_of
from tests.campaign.harness import campaign, slots, study
from tests.command_line import ridgeline

PORT = "SGLANG_GRPC_PORT (68123) must be between 1 and 65535"
SIGNATURES = (
    Signature(re.compile("must be between"), Kind.REJECTED, "the engine refused the setting while starting"),
    Signature(re.compile("died at start"), Kind.CRASH, "the engine died", at_start=True),
    Signature(re.compile("out of memory"), Kind.OOM_RUN, "out of memory while running"),
)
REFUSED = ScriptedAnswer(exit_code=1, stderr=f"{PORT}\n")
Act = Callable[[Job], ScriptedAnswer]


def setting(job: Job) -> str:
    return job.name.partition("-")[2]


def failing(when: Callable[[Job, int], bool], how: ScriptedAnswer = REFUSED) -> Act:
    """Jobs fail `when` this says so, of the job and how many of its setting there were with it."""
    seen: Counter[str] = Counter()

    def act(job: Job) -> ScriptedAnswer:
        seen[setting(job)] += 1
        return how if when(job, seen[setting(job)]) else answer_of(job)

    return act


def tune(root: Path, act: Act, **changes: object) -> Campaign:
    return campaign(root, study(root, **changes), act=act, signatures=SIGNATURES)


def test_a_confirmation_in_which_all_is_refused_stops_with_a_question_and_goes_on_when_it_is_answered(
    tmp_path: Path,
) -> None:
    run = tune(tmp_path, failing(lambda job, n: n > 1))
    with pytest.raises(OpenQuestion) as question:
        run.run()
    told = str(question.value)
    assert "what has changed on the nodes? the baseline passed before" in told
    assert f"rejected; the engine refused the setting while starting; stderr:1: {PORT}" in told
    assert f"`ridgeline resume {tmp_path}`" in told
    assert question.value.exit_code == SiteError.exit_code != 0
    assert run.history.verdict is None
    last = list(run.history.runs.values())[-1]
    assert last.outcome is not None
    assert (last.outcome.kind, last.outcome.was) == (Kind.SITE_FAULT, Kind.REJECTED)
    assert "passed in run 1" in last.outcome.reason

    measured = {n for n, r in run.history.runs.items() if r.outcome is not None and r.outcome.kind is Kind.OK}
    again = tune(tmp_path, failing(lambda job, n: False))
    verdict = again.run()
    assert verdict.conclusion == "confirmed"
    assert not verdict.disqualified
    assert measured <= again.history.runs.keys()


def test_a_site_that_broke_before_any_setting_passed_is_asked_about(tmp_path: Path) -> None:
    """Every setting fails after the baseline has passed: only the baseline, run again, can say whose fault it is."""
    began = Counter[str]()

    def broken(job: Job) -> ScriptedAnswer:
        began["runs"] += 1
        return REFUSED if began["runs"] > 3 else answer_of(job)

    few = {"budget": Budget(trials=4), "search": SearchStage(sampler="random", sentinel_every=0)}
    run = tune(tmp_path / "site", broken, **few)
    with pytest.raises(OpenQuestion, match="the baseline passed before"):
        run.run()
    settings = tune(tmp_path / "settings", failing(lambda job, n: not setting(job).endswith("x0-y0")), **few)
    verdict = settings.run()
    assert verdict.conclusion == "nothing-passed"
    assert settings.history.count(Stage.SENTINEL) == 1, "asked once"


@pytest.mark.parametrize("how", [REFUSED, ScriptedAnswer(exit_code=1, stderr="died at start\n")])
def test_one_refusal_of_what_had_passed_changes_no_verdict(tmp_path: Path, how: ScriptedAnswer) -> None:
    plain = tune(tmp_path / "plain", failing(lambda job, n: False))
    expected = plain.run()
    run = tune(tmp_path / "faulty", failing(lambda job, n: n in (2, 5), how))
    found = run.run()
    assert found.conclusion == expected.conclusion == "confirmed"
    assert found.winner == expected.winner  # type: ignore[attr-defined]
    assert not found.disqualified  # type: ignore[attr-defined]
    faults = [r for r in run.history.runs.values() if r.outcome is not None and r.outcome.was is not None]
    assert len(faults) >= 4
    assert {r.outcome.kind for r in faults if r.outcome} == {Kind.SITE_FAULT}


@pytest.mark.parametrize("stage", [Stage.SENTINEL, Stage.CONFIRM])
@pytest.mark.parametrize("how", [REFUSED, ScriptedAnswer(exit_code=3, stderr="no idea\n")])
def test_a_baseline_that_passed_and_fails_in_any_way_is_no_verdict(
    tmp_path: Path, stage: Stage, how: ScriptedAnswer
) -> None:
    run = tune(tmp_path, lambda job: answer_of(job))

    def act(job: Job) -> ScriptedAnswer:
        trial = list(run.history.trials.values())[-1]
        return how if trial.stage is stage and setting(job).endswith("x0-y0") else answer_of(job)

    run.executor = MemoryExecutor(run.study.site, act=act)
    with pytest.raises(OpenQuestion, match="the baseline passed before"):
        run.run()
    assert tune(tmp_path, answer_of).run().conclusion == "confirmed"


def test_a_baseline_that_never_passed_stays_its_authors_problem(tmp_path: Path) -> None:
    run = tune(tmp_path, failing(lambda job, n: True))
    with pytest.raises(NothingFound, match=r"the baseline itself did not pass: rejected"):
        run.run()
    (only,) = run.history.runs.values()
    assert only.outcome is not None and only.outcome.was is None


def test_a_setting_that_begins_and_fails_under_load_is_disqualified_as_before(tmp_path: Path) -> None:
    how = ScriptedAnswer(exit_code=1, stderr="out of memory\n")
    verdict = tune(tmp_path, failing(lambda job, n: n > 1 and not setting(job).endswith("x0-y0"), how)).run()
    assert verdict.conclusion == "nothing-passed"
    assert "failed when it was run again: out of memory while running" in verdict.headline


def test_a_candidate_that_failed_beside_a_failing_baseline_is_not_disqualified(tmp_path: Path) -> None:
    """The order of a block decides who meets the trouble first; the verdict must not hang on it."""
    how = ScriptedAnswer(exit_code=1, stderr="out of memory\n")
    run = tune(tmp_path, failing(lambda job, n: n > 1, how))
    with pytest.raises(OpenQuestion):
        run.run()
    verdict = tune(tmp_path, answer_of).run()
    assert verdict.conclusion == "confirmed"
    assert not verdict.disqualified  # type: ignore[attr-defined]


def test_a_controller_killed_at_any_moment_of_it_asks_the_same_question(tmp_path: Path) -> None:
    whole = tune(tmp_path / "whole", failing(lambda job, n: n > 1))
    with pytest.raises(OpenQuestion):
        whole.run()
    lines = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if '"was"' in line)
    for cut in range(first - 3, len(lines)):
        root = tmp_path / f"cut-{cut}"
        root.mkdir()
        (root / "journal.jsonl").write_text("".join(lines[:cut]).replace(str(tmp_path / "whole"), str(root)))
        tried = tune(root, lambda job: REFUSED)
        with pytest.raises(OpenQuestion, match="passed before and no longer does"):
            tried.run()
        assert tune(root, answer_of).run().conclusion == "confirmed"


def test_it_is_tried_on_another_node_where_there_is_one(tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    class Nodes(MemoryExecutor):
        def submit(self, job: Job) -> str:
            asked.append(job.avoid_nodes)
            where = next(n for n in ("n1", "n2", "n3") if n not in job.avoid_nodes)
            return super().submit(replace(job, on_nodes=job.on_nodes or (where,)))

    broken = failing(lambda job, n: n > 1 and job.on_nodes == ("n1",))
    question = study(tmp_path, site=slots(1, 3))
    run = campaign(tmp_path, question, executor=Nodes(question.site, act=broken), signatures=SIGNATURES)
    assert run.run().conclusion == "confirmed"
    assert ("n1",) in asked


def test_retries_are_those_of_the_study(tmp_path: Path) -> None:
    run = tune(tmp_path, failing(lambda job, n: n > 1), job=JobLimits(retries=0))
    with pytest.raises(OpenQuestion, match="even after 0 retries"):
        run.run()
    assert sum(r.outcome is not None and r.outcome.was is not None for r in run.history.runs.values()) == 1


def test_the_journal_keeps_what_it_was() -> None:
    outcome = Outcome(Kind.SITE_FAULT, "why", at_start=True, was=Kind.CRASH)
    assert _outcome_from(outcome_line(outcome)) == outcome
    assert _outcome_from({"kind": "ok"}) == Outcome(Kind.OK)


@pytest.mark.parametrize(("kind", "never"), [(Kind.REJECTED, True), (Kind.OOM_START, False), (Kind.CRASH, False)])
def test_what_ran_out_of_memory_at_start_may_be_the_settings_doing(kind: Kind, never: bool) -> None:
    assert Outcome(kind).never_began is never
    assert Outcome(Kind.CRASH, at_start=True).never_began
    assert not Outcome(Kind.SITE_FAULT, at_start=True).never_began


def other_kind(root: Path, question: object, agenda: Callable[[History, Ledger], object], act: Act) -> Campaign:
    asked = question.applied_to(study(root))  # type: ignore[attr-defined]
    run = campaign(root, asked, act=act, signatures=SIGNATURES)
    ledger = Ledger(asked.budget, run.history)
    return replace(run, question=question, agenda=agenda(run.history, ledger), ledger=ledger)  # type: ignore[arg-type]


def scaling(root: Path, act: Act) -> Campaign:
    root.mkdir(exist_ok=True)
    question = ScalingQuestion("x", [{"x": size, "y": 0} for size in (1, 2, 4)], 3, {})
    asked = question.applied_to(study(root))
    return other_kind(root, question, lambda history, ledger: ScalingAgenda(asked, history, ledger, question), act)


def test_a_size_that_passed_and_is_refused_later_is_not_left_out_of_a_scaling(tmp_path: Path) -> None:
    once = scaling(tmp_path / "once", failing(lambda job, n: n == 2)).run()
    assert once.conclusion == "scaling" and not once.failed  # type: ignore[attr-defined]
    with pytest.raises(OpenQuestion):
        scaling(tmp_path / "ever", failing(lambda job, n: n > 1)).run()
    assert not scaling(tmp_path / "ever", answer_of).run().failed  # type: ignore[attr-defined]


def edge(root: Path, act: Act) -> Campaign:
    root.mkdir(exist_ok=True)
    question = EdgeQuestion("x", {"x": 0, "y": 0})
    asked = question.applied_to(study(root))
    ladder = EdgeLadder(tuple(range(10)))
    return other_kind(root, question, lambda history, ledger: EdgeAgenda(asked, history, ledger, ladder, question), act)


def test_an_edge_is_not_lowered_by_a_refusal_of_a_value_that_passed(tmp_path: Path) -> None:
    plain = edge(tmp_path / "plain", answer_of).run()
    once = edge(tmp_path / "once", failing(lambda job, n: n == 2)).run()
    assert once.edge == plain.edge == 9  # type: ignore[attr-defined]
    under_load = failing(
        lambda job, n: n == 2 and setting(job).endswith("x9-y0"), ScriptedAnswer(exit_code=1, stderr="out of memory\n")
    )
    assert edge(tmp_path / "load", under_load).run().edge < 9  # type: ignore[attr-defined]
    with pytest.raises(OpenQuestion):
        edge(tmp_path / "ever", failing(lambda job, n: n > 1)).run()


def test_a_comparison_asks_as_well(tmp_path: Path) -> None:
    question = ComparisonQuestion({"x": 0, "y": 0}, {"x": 3, "y": 0}, 3)
    asked = question.applied_to(study(tmp_path))
    with pytest.raises(OpenQuestion):
        campaign(tmp_path, asked, act=failing(lambda job, n: n > 1), signatures=SIGNATURES).run()
    assert History.replay(tmp_path, Journal.open(tmp_path / "journal.jsonl").read()).verdict is None


# after baseline and search the program refuses everything, until somebody removes what is in its way
REFUSING = """\
version: 1
name: refusing
workload:
  kind: command
  run: |
    n=$(cat ../../seen 2>/dev/null || echo 0); echo $((n + 1)) > ../../seen
    [ $n -lt 5 ] || [ -e ../../repaired ] || {{ echo "serve: unrecognized argument --port 68123" >&2; exit 2; }}
    echo rate $((100 + 20 * {x} + n % 3))
  metrics: {rate: {regex: 'rate (.*)', unit: steps/s}}
space: {x: [0, 1, 2]}
goal: {maximize: rate}
baseline: {x: 0}
budget: {trials: 2}
confirm: {top: 1, blocks: 3}
"""


def test_the_command_line_leaves_with_a_question_goes_on_and_the_proof_holds(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(REFUSING)
    stopped = ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
    assert stopped.returncode == 3
    told = " ".join((stopped.stdout + stopped.stderr).split())
    # x=2 begins the first block, as its order is drawn from the seed
    assert "what has changed on the nodes? x=2 passed before and no longer does" in told
    assert "unrecognized argument --port 68123" in told and "ridgeline resume" in told
    assert "keep the baseline" not in told
    status = " ".join(ridgeline("status", "out", cwd=tmp_path).stdout.split())
    assert "what has changed on the nodes?" in status
    (tmp_path / "out" / "repaired").touch()
    assert ridgeline("resume", "out", cwd=tmp_path).returncode == 0
    verdict = read_history(tmp_path / "out").verdict
    assert verdict is not None and verdict.conclusion == "confirmed"
    proof = ridgeline("study", "verify", "out", cwd=tmp_path)
    assert proof.returncode == 0, proof.stdout
