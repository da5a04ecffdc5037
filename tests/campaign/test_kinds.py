"""Kinds of campaign: what the journal keeps of a question, one answer for every face, how little a new one takes."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ridgeline import catalog
from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.confirmation import ConfirmationVerdict
from ridgeline.campaign.kinds.base import Agenda, CampaignKind, CampaignQuestion, NextTrial, question_line, question_of
from ridgeline.campaign.kinds.bisect import BisectQuestion
from ridgeline.campaign.kinds.compare import ComparisonAgenda, ComparisonQuestion
from ridgeline.campaign.kinds.edge import EdgeQuestion
from ridgeline.campaign.kinds.gate import GateQuestion
from ridgeline.campaign.kinds.scale import ScalingQuestion
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.kinds.steps import StepsQuestion
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.status import CampaignStatus, read_status
from ridgeline.campaign.verify import verify_folder
from ridgeline.cli.main import run as command_line
from ridgeline.errors import InputError, StoreError
from ridgeline.records.answer import Answer, Candidate, Reference
from ridgeline.records.exhibit import Exhibits, TextTable
from ridgeline.records.run import Job
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.study.codec import KeptVerdict, QuestionLine
from ridgeline.study.folder import StudyFolder
from ridgeline.study.history import History, read_history
from ridgeline.testing import ScriptedAnswer
from ridgeline.testing import answer_of as answered
from tests.campaign.harness import campaign, study
from tests.test_architecture import SRC, modules, own_imports

STUDY = """\
version: 1
name: kinds
workload: {kind: command, run: 'echo {mode}; echo rate $((100 + {x}))', metrics: {rate: {regex: 'rate (.*)'}}}
space: {x: {from: 0, to: 9}, mode: [plain, other]}
goal: {maximize: rate}
baseline: {x: 0, mode: plain}
budget: {trials: 3}
search: {sampler: random}
confirm: {top: 1, blocks: 3}
"""
A, B = {"x": 0, "mode": "plain"}, {"x": 3, "mode": "plain"}
QUESTIONS: list[CampaignQuestion] = [
    SearchQuestion(trials=2, seed=4),
    ComparisonQuestion(A, B, 3),
    EdgeQuestion("x", A, repeats=2),
    ScalingQuestion("x", [{"x": 1, "mode": "plain"}, {"x": 2, "mode": "plain"}], 2, {"3": "too large"}),
    StepsQuestion([B], ["the rest"], None, 3),
    GateQuestion(A, [100.0] * 12),
    BisectQuestion("x", [{"x": x, "mode": "plain"} for x in (9, 8, 0)]),
]


def finished(root: Path, question: CampaignQuestion) -> CampaignStatus:
    (root / "study.yaml").write_text(STUDY)
    folder = assemble_folder(check_study(root / "study.yaml"), root / "out", "kinds")
    with assemble_campaign(folder, question) as running:
        running.run()
    return read_status(root / "out")


def test_every_kind_of_the_catalog_is_asked_here() -> None:
    assert [question.kind for question in QUESTIONS] == list(catalog.TABLE["kinds"])


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.kind)
def test_the_journal_says_the_kind_and_gives_the_question_back(tmp_path: Path, question: CampaignQuestion) -> None:
    now = finished(tmp_path, question)
    opened = json.loads((tmp_path / "out" / "journal.jsonl").read_text().splitlines()[0])
    assert opened["kind"] == question.kind
    assert "overrides" not in opened
    assert now.question == question
    assert now.answer.kind == question.kind
    assert now.progress.stage == "finished" and now.progress.runs_left in (0, None)
    assert json.loads(json.dumps(now.answer.as_json()))["kind"] == question.kind


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.kind)
def test_a_verdict_is_the_same_record_after_it_was_on_disk(tmp_path: Path, question: CampaignQuestion) -> None:
    finished(tmp_path, question)
    with assemble_campaign(StudyFolder.open(tmp_path / "out")) as again:
        verdict = again.run()
    line = read_history(tmp_path / "out").verdict
    assert line is not None
    assert question.verdict_from(line) == verdict
    on_disk = {name: value for name, value in line.details.items() if name != "paste"}
    assert json.loads(json.dumps(verdict.details())) == on_disk


def test_a_folder_of_a_kind_that_is_gone_is_read_and_not_run_on(tmp_path: Path) -> None:
    said = finished(tmp_path, QUESTIONS[1]).answer.headline
    journal = tmp_path / "out" / "journal.jsonl"
    first, *rest = journal.read_text().splitlines(keepends=True)
    asked = {"start": {"x": 1}, "good": {"OMP": "1"}, "bad": {"OMP": "2"}, "variables": ["OMP"]}
    opened = {**json.loads(first), "kind": "environment", "question": asked}
    journal.write_text(json.dumps(opened) + "\n" + "".join(rest))
    now = read_status(tmp_path / "out")
    verdict = now.history.verdict
    assert verdict is not None and now.answer.headline == verdict.headline and said in verdict.headline
    assert (now.answer.kind, now.progress.stage) == ("environment", "finished")
    assert now.study.space.by_name["OMP"].contains("2")
    found = verify_folder(tmp_path / "out")
    assert found.holds and "verdict is of a campaign of kind environment" in found.unchecked[-1].why
    with (
        pytest.raises(InputError, match="no campaigns of kind environment; what it found is shown"),
        assemble_campaign(StudyFolder.open(tmp_path / "out")),
    ):
        pass


@pytest.mark.parametrize(
    ("overrides", "question"),
    [
        ({}, QuestionLine("search", {})),
        ({"trials": 4}, QuestionLine("search", {"trials": 4})),
        ({"baseline": A, "candidate": B, "blocks": 3}, question_line(ComparisonQuestion(A, B, 3))),
        ({"baseline": A, "candidate": B}, question_line(ComparisonQuestion(A, B))),
        ({"baseline": A, "edge": {"knob": "x", "repeats": 2, "margin": 0.03}}, question_line(QUESTIONS[2])),
        (
            {"scale": {"over": "x", "points": [A, B], "repeats": 2, "refused": {}}},
            question_line(ScalingQuestion("x", [A, B], 2)),
        ),
    ],
)
def test_journals_before_there_were_kinds_are_understood(
    overrides: Any, question: QuestionLine, tmp_path: Path
) -> None:
    history = History.replay(tmp_path, [{"at": 1.0, "event": "opened", "overrides": overrides}])
    assert question_line(question_of(history)) == question


def test_an_edited_question_is_named_with_a_remedy(tmp_path: Path) -> None:
    line = {"at": 1.0, "event": "opened", "kind": "edge", "question": {"knobs": "x"}}
    with pytest.raises(StoreError, match=r"not the question of a campaign of kind edge.*restore a copy"):
        question_of(History.replay(tmp_path, [line]))


def test_no_winner_means_one_candidate_with_its_own_interval(tmp_path: Path) -> None:
    """A lucky look makes one setting the best of the search; the fresh runs then speak of another."""
    seen: Counter[str] = Counter()

    def act(job: Job) -> ScriptedAnswer:
        point = job.name.partition("-")[2]
        seen[point] += 1
        wobble = (0.0, 3.0, 1.0, -2.0, 2.0, -1.0, -3.0)[seen[point] % 7]
        lucky = {"x9-y2": 900.0, "x8-y2": 800.0}.get(point, 0.0) if seen[point] == 1 else 0.0
        slower = -20.0 if point == "x9-y2" else 0.0
        return ScriptedAnswer({"rate": 200.0 + lucky + slower + wobble})

    question = study(tmp_path, presets=({"x": 9, "y": 2}, {"x": 8, "y": 2}))
    done = campaign(tmp_path, question, act=act)
    verdict = done.run()
    assert isinstance(verdict, ConfirmationVerdict)
    assert verdict.conclusion == "no-difference" and verdict.winner is None
    answer = CampaignStatus(done.question, question, read_history(tmp_path)).answer
    assert answer.candidate is not None and answer.candidate.gain is not None
    assert answer.candidate.point == {"x": 8, "y": 2}, "the headline's setting, not the lucky one"
    spoken = verdict.spoken_of
    assert spoken is not None
    assert (answer.candidate.gain.low, answer.candidate.gain.high) == (spoken.low, spoken.high)
    assert answer.candidate.value == pytest.approx(200, abs=3), "of the fresh runs"
    assert answer.as_json()["best"]["ratio"] == spoken.estimate


def test_a_setting_that_is_worse_is_called_so_in_a_comparison(tmp_path: Path) -> None:
    now = finished(tmp_path, ComparisonQuestion(B, A, 3))
    assert now.answer.conclusion == "worse"
    assert now.answer.headline.startswith("B is worse than A: rate 103 -> 100, 0.971x A")
    assert not now.answer.offers


def test_scaling_is_figure_data_before_it_is_drawn(tmp_path: Path) -> None:
    now = finished(tmp_path, QUESTIONS[3])
    speed, efficiency = now.exhibits.figures
    assert [point.x for point in speed.curves[0].points] == [1, 2]
    assert [point.y for point in speed.curves[0].points] == pytest.approx([1, 102 / 101])
    assert [point.y for point in speed.curves[1].points] == [1, 2], "perfect scaling beside it"
    assert [point.y for point in efficiency.curves[0].points] == pytest.approx([1, 51 / 101])
    (table,) = now.exhibits.tables
    assert [row[0] for row in table.rows] == ["1", "2"]
    assert table.notes == ("no result at 3 x: too large",)


def test_an_edge_shows_its_ladder(tmp_path: Path) -> None:
    now = finished(tmp_path, QUESTIONS[2])
    (table,) = now.exhibits.tables
    assert ("9", "2", "109", "largest that passed", "passed") in table.rows
    assert now.answer.facts["edge"] == 9 and now.answer.facts["production"] == 8


# a kind of somebody else's


@dataclass(frozen=True, slots=True)
class SpreadVerdict(KeptVerdict):
    spread: float


@dataclass(frozen=True, slots=True)
class SpreadQuestion(CampaignKind[SpreadVerdict]):
    """How much do runs of the baseline scatter?"""

    runs: int

    kind: ClassVar[str] = "spread"
    verdict_type: ClassVar[type[KeptVerdict]] = SpreadVerdict

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> SpreadAgenda:
        return SpreadAgenda(found.study, history, ledger, self.runs)

    def sides(
        self, study: Study, history: History, verdict: SpreadVerdict | None
    ) -> tuple[Reference, Candidate | None]:
        trial = next(iter(history.trials.values()))
        candidate = Candidate("the baseline", 1, trial.point, trial.settings, 1.0)
        return Reference(self.reference, study.baseline, None), candidate

    def facts(self, study: Study, history: History, verdict: SpreadVerdict | None, answer: Answer) -> dict[str, Any]:
        return {"asked": self.runs}

    def exhibits(self, study: Study, history: History) -> Exhibits:
        rows = tuple((str(number),) for number in history.runs)
        return Exhibits(tables=(TextTable("Repeats", ("repeat",), rows),))


@dataclass
class SpreadAgenda(Agenda):
    runs: int

    def fresh(self) -> NextTrial | None:
        if len(self.history.trials) < self.runs:
            return self.new(self.study.baseline, Stage.SEARCH, "spread")
        return None

    def conclude(self) -> SpreadVerdict:
        values = [run.metrics["rate"] for _, run in self.history.ok_runs(Stage.SEARCH)]
        spread = statistics.pstdev(values)
        return SpreadVerdict("spread", f"{len(values)} runs scatter by {spread:g}", spread)


def test_a_new_kind_is_a_module_and_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(catalog.TABLE["kinds"], "spread", f"{__name__}:SpreadQuestion")
    now = finished(tmp_path, SpreadQuestion(4))
    assert now.question == SpreadQuestion(4)
    assert len(now.history.runs) == 4
    verbs = ("resume", "status", "best", "report", "study export")
    shown = {verb: _said(capsys, *verb.split(), tmp_path / "out") for verb in verbs}
    for verb in ("resume", "status", "best"):
        assert "4 runs scatter by 0" in shown[verb]
    assert "4 runs scatter by 0" in (tmp_path / "out" / "report.html").read_text()
    assert "<h3>Repeats</h3>" in (tmp_path / "out" / "report.html").read_text()


def _said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as left:
        command_line([str(argument) for argument in arguments])
    assert not left.value.code
    return capsys.readouterr().out


def test_concrete_kinds_are_known_to_their_verbs_alone() -> None:
    """Everything else asks the catalog, so that no `if it is an edge` can grow there."""
    kinds = [place.partition(":")[0].removeprefix("ridgeline.") for place in catalog.TABLE["kinds"].values()]
    concrete: Callable[[str], bool] = lambda name: any(name.startswith(kind) for kind in kinds)  # noqa: E731
    known = {
        path.relative_to(SRC).as_posix()
        for path in modules()
        for _, name in own_imports(path)
        if concrete(name) and path.parent.name != "kinds"
    }
    others = {
        "campaign/asked.py": "asks every question, for the command line and for Python",
        "campaign/preview.py": "is of a search",
        "api.py": "has verbs",
        **{f"cli/campaign/{verb}.py": "its own words" for verb in ("tune", "gate")},
    }
    assert known == others.keys()


@pytest.mark.parametrize(
    ("fails", "conclusion", "says"),
    [("always", "nothing-passed", "B did not pass"), ("again", "nothing-passed", "B failed when it was run again")],
)
def test_a_setting_that_fails_in_a_comparison_is_told_with_the_reason(
    tmp_path: Path, fails: str, conclusion: str, says: str
) -> None:
    asked = ComparisonQuestion({"x": 0, "y": 0}, {"x": 3, "y": 0}, 3)
    applied = asked.applied_to(study(tmp_path))
    seen: Counter[str] = Counter()

    def act(job: Job) -> ScriptedAnswer:
        seen[job.name[5:]] += 1
        bad = job.name.endswith("x3-y0") and (fails == "always" or seen[job.name[5:]] > 1)
        return replace(answered(job), exit_code=3 if bad else 0, stderr="no luck\n" if bad else "")

    run = campaign(tmp_path, applied, act=act)
    run.question = asked
    run.agenda = ComparisonAgenda(applied, run.history, run.ledger, run.agenda.new_sampler, run.agenda.refusal)  # type: ignore[attr-defined]
    verdict = run.run()
    assert (verdict.conclusion, verdict.recommended) == (conclusion, None)
    assert says in verdict.headline and "no luck" in verdict.headline
