"""What each change brought: steps from baseline to winner in interleaved blocks; simpler settings; search in stages."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.engine import Campaign, Interrupted
from ridgeline.campaign.kinds.staged import StagedSampler, in_stages, knob_groups
from ridgeline.campaign.kinds.steps import StepsQuestion, steps_question
from ridgeline.campaign.status import CampaignStatus, read_winner
from ridgeline.campaign.verify.folder import verify_folder
from ridgeline.catalog import part
from ridgeline.cli.main import run as command_line
from ridgeline.errors import InputError, StudyError
from ridgeline.records.answer import CONFIRMED
from ridgeline.records.expression import Expression
from ridgeline.records.observation import Observation
from ridgeline.records.space import Discrete, Rule, Settings, Space, point_key
from ridgeline.records.study import Budget, ConfirmStage, SearchStage, Study
from ridgeline.records.trial import Stage
from ridgeline.study.study_file import read_study_file
from ridgeline.testing import MemoryExecutor, MemorySite, ScriptedAnswer, answer_of
from tests.campaign.harness import campaign, slots, study

SPACE = Space(
    (
        Discrete("attention_backend", ("fa3", "triton"), False),
        Discrete("max_batch", (64, 128, 256), True),
        Discrete("tp", (4, 8), True),
        Discrete("pp", (1, 2), True),
        Discrete("NCCL_ALGO", ("Ring", "Tree"), False),
        Discrete("OMP_PROC_BIND", ("false", "close"), False),
    ),
    {},
    (Rule(Expression.parse("tp * pp != 8"), "use all eight GPUs"),),
)
BASE = {"attention_backend": "triton", "max_batch": 64, "tp": 4, "pp": 2, "NCCL_ALGO": "Ring", "OMP_PROC_BIND": "false"}
WON = {"attention_backend": "fa3", "max_batch": 256, "tp": 8, "pp": 1, "NCCL_ALGO": "Tree", "OMP_PROC_BIND": "close"}
BROUGHT = {"layout": 1.4, "batch and memory": 1.1, "back end": 1.05, "network": 1.0, "environment": 1.0}


def rate(settings: Settings) -> ScriptedAnswer:
    value = (
        100.0 * (1.4 if settings["tp"] == 8 else 1.0) * {64: 1.0, 128: 1.05, 256: 1.1}[int(settings["max_batch"] or 0)]
    )
    return ScriptedAnswer({"rate": value * (1.05 if settings["attention_backend"] == "fa3" else 1.0)})


class Noisy(MemoryExecutor):
    """Runs scatter by 0.1%, by the number of the run alone."""

    def __init__(self, world: MemorySite | None = None) -> None:
        super().__init__(slots(1), world, self._answer)

    def _answer(self, job: Any) -> ScriptedAnswer:
        dice = random.Random(job.folder.name.partition("-")[0])
        answer = answer_of(job)
        return replace(answer, metrics={name: v * (1 + dice.gauss(0, 0.001)) for name, v in answer.metrics.items()})


def question(folder: Path, **changes: Any) -> Study:
    return study(folder, space=SPACE, baseline=BASE, confirm=ConfirmStage(top=1, blocks=4), **changes)


class Found:
    """As much of a checked study as the question needs."""

    def __init__(self, asked: Study, refuse: Callable[[Settings], str | None] = lambda point: None) -> None:
        self.study = asked
        self._refuse = refuse

    def refusal(self, point: Settings) -> str | None:
        return self.study.space.refusal(point) or self._refuse(point)


def asks(
    folder: Path, setting: Any = None, matters: list[str] | None = None, each: bool = False, **changes: Any
) -> StepsQuestion:
    found: Any = Found(question(folder, **changes))
    return steps_question(found, WON if setting is None else setting, None, matters, each)


SWITCHES = ("b1_batch", "b2_batch", "c_cache", "d", "e", "f", "g", "h")


def switched(folder: Path, refuse: Callable[[Settings], str | None], each: bool) -> StepsQuestion:
    """From all eight knobs at 0 to all at 1."""
    space = Space(tuple(Discrete(name, (0, 1), True) for name in SWITCHES), {}, ())
    asked = replace(question(folder), space=space, baseline=dict.fromkeys(SWITCHES, 0))
    found: Any = Found(asked, refuse)
    return steps_question(found, dict.fromkeys(SWITCHES, 1), None, None, each)


def changed_in(asked: StepsQuestion) -> list[set[str]]:
    ways = [dict.fromkeys(SWITCHES, 0), *asked.points]
    return [{name for name in SWITCHES if b[name] != a[name]} for a, b in pairwise(ways)]


def test_more_than_six_changes_go_by_group_and_say_so_and_each_has_a_row_where_asked(tmp_path: Path) -> None:
    grouped = switched(tmp_path, lambda point: None, each=False)
    assert changed_in(grouped) == [set(SWITCHES[:3]), set(SWITCHES[3:])]
    assert grouped.names == ["batch and memory", "the rest"]
    assert grouped.together[0].startswith("b1_batch, b2_batch and c_cache are one step, the group batch and memory; ")
    assert all("`ridgeline study steps --each` takes them one by one" in why for why in grouped.together)
    single = switched(tmp_path, lambda point: None, each=True)
    assert changed_in(single) == [{name} for name in SWITCHES]
    assert not any(single.together)


def test_only_knobs_that_are_legal_together_share_a_row_and_the_reason_is_given(tmp_path: Path) -> None:
    def pair(point: Settings) -> str | None:
        return "e needs b1_batch" if point["b1_batch"] != point["e"] else None

    asked = switched(tmp_path, pair, each=True)
    assert changed_in(asked) == [{"b2_batch"}, {"c_cache"}, {"d"}, {"b1_batch", "e"}, {"f"}, {"g"}, {"h"}]
    assert [why for why in asked.together if why] == [
        "b1_batch and e are one step: they are only legal together (e needs b1_batch)"
    ]
    assert asked.names[3] == "batch and memory and the rest"


def test_a_change_that_becomes_legal_by_a_later_one_has_its_own_row_after_it(tmp_path: Path) -> None:
    def after(point: Settings) -> str | None:
        return "b1_batch needs d" if point["b1_batch"] > point["d"] else None

    asked = switched(tmp_path, after, each=True)
    assert changed_in(asked)[:4] == [{"b2_batch"}, {"c_cache"}, {"d"}, {"b1_batch"}]
    assert not any(asked.together) and asked.points[-1] == dict.fromkeys(SWITCHES, 1)


MANY = """\
version: 1
name: many
workload:
  kind: command
  run: 'echo rate $(( 100 + {a} + 2 * {b} + 4 * {c} + 8 * {d} + 16 * {e} + 32 * {f} + 64 * {g} ))'
  metrics: {rate: {regex: 'rate ([0-9]+)'}}
space: {a: [0, 1], b: [0, 1], c: [0, 1], d: [0, 1], e: [0, 1], f: [0, 1], g: [0, 1]}
rules: [{refuse: 'a != b', because: a and b go together}]
goal: {maximize: rate}
baseline: {a: 0, b: 0, c: 0, d: 0, e: 0, f: 0, g: 0}
groups: {all: [a, b, c, d, e, f, g]}
presets: [{a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1}]
budget: {trials: 1}
stages: {search: {sampler: random, sentinel_every: 0}, baseline: {repeats: 1}, confirm: {top: 1, blocks: 3, repeats: 1}}
"""


def test_the_command_that_is_printed_measures_each_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, home = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(MANY)

    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as left:
            command_line([*words])
        assert left.value.code == 0, capsys.readouterr()
        return capsys.readouterr().out

    said("tune", str(file), "--out", str(home))
    said("report", str(home), "--format", "md", "--out", str(tmp_path / "page.md"))
    (printed,) = set(re.findall("ridgeline (study steps [^`\n]*)", (tmp_path / "page.md").read_text()))
    monkeypatch.chdir(tmp_path)
    rows = json.loads(said(*shlex.split(printed), "--json"))["steps"]
    assert [row["change"] for row in rows] == ["a 1, b 1", "c 1", "d 1", "e 1", "f 1", "g 1"]
    assert rows[1]["ratio"] == pytest.approx(107 / 103) and rows[-1]["ratio"] == pytest.approx(227 / 163)
    shown = said("best", str(tmp_path / "out-steps-each"))
    assert "a and b are one step: they are only legal together (a and b go together)" in " ".join(shown.split())
    by_group = said("study", "steps", str(file), str(home), "--json", "--out", str(tmp_path / "grouped"))
    assert len(json.loads(by_group)["steps"]) == 1


def stepped(folder: Path, asked: StepsQuestion, world: MemorySite | None = None, function: Any = rate) -> Campaign:
    applied = asked.applied_to(question(folder))
    run = campaign(folder, applied, function, executor=Noisy(world))
    found: Any = Found(applied)
    run.question, run.agenda = asked, asked.agenda(found, run.history, run.ledger)
    return run


def test_steps_are_told_in_the_order_a_person_tells_them(tmp_path: Path) -> None:
    asked = asks(tmp_path)
    assert asked.names == ["environment", "layout", "batch and memory", "back end", "network"]
    assert point_key(asked.points[-1]) == point_key(WON)
    assert asked.points[1] == BASE | {"OMP_PROC_BIND": "close", "tp": 8, "pp": 1}, "tp and pp only go together"
    with pytest.raises(InputError, match="no steps between"):
        asks(tmp_path, BASE)


def test_a_study_may_group_its_knobs_itself(tmp_path: Path) -> None:
    own = {"first": ("NCCL_ALGO", "max_batch")}
    assert [*knob_groups(question(tmp_path, groups=own))] == ["first", "environment", "layout", "back end"]
    assert asks(tmp_path, groups=own).names[0] == "first"


def test_each_step_is_judged_against_the_one_before(tmp_path: Path) -> None:
    run = stepped(tmp_path, asks(tmp_path))
    verdict: Any = run.run()
    assert verdict.conclusion == CONFIRMED
    for step in verdict.steps:
        assert step.low <= BROUGHT[step.name] <= step.high
        assert (step.verdict == "better") == (BROUGHT[step.name] > 1), step
    table = CampaignStatus(run.question, run.study, run.history).exhibits.tables[0]
    assert table.rows[1][:3] == ("layout", "tp 8, pp 1", table.rows[1][2])
    assert table.rows[1][2].startswith(("+39", "+40"))
    assert "no detectable difference" in verdict.headline


def test_a_simpler_setting_within_one_percent_is_preferred_and_said_so(tmp_path: Path) -> None:
    run = stepped(tmp_path, asks(tmp_path))
    verdict: Any = run.run()
    assert verdict.winner == WON | {"NCCL_ALGO": "Ring"}, "the last step brought nothing"
    assert verdict.simpler.startswith("a simpler setting is preferred: 5 changes instead of 6, within 1%")
    assert verdict.simpler.endswith("without NCCL_ALGO Tree")
    now = CampaignStatus(run.question, run.study, run.history)
    alone = "tp and pp are one step: they are only legal together (use all eight GPUs)"
    assert now.exhibits.notes == (alone, verdict.simpler)
    assert now.answer.to_use == verdict.winner


def test_what_the_search_saw_to_matter_gives_a_simpler_one_to_try(tmp_path: Path) -> None:
    asked = asks(tmp_path, matters=["tp", "pp", "max_batch", "attention_backend"])
    assert asked.simpler == BASE | {"tp": 8, "pp": 1, "max_batch": 256, "attention_backend": "fa3"}
    verdict: Any = stepped(tmp_path, asked).run()
    assert verdict.winner == asked.simpler
    assert "4 changes instead of 6" in verdict.simpler


def test_a_setting_that_loses_more_is_not_preferred(tmp_path: Path) -> None:
    def all_matter(settings: Settings) -> ScriptedAnswer:
        tree = 1.03 if settings["NCCL_ALGO"] == "Tree" else 1.0
        return ScriptedAnswer({"rate": rate(settings).metrics["rate"] * tree})

    verdict: Any = stepped(tmp_path, asks(tmp_path), function=all_matter).run()
    assert verdict.winner == WON
    assert not verdict.simpler


def test_a_step_that_cannot_run_is_told_with_the_next(tmp_path: Path) -> None:
    def fails_between(settings: Settings) -> ScriptedAnswer:
        alone = settings["max_batch"] == 256 and settings["attention_backend"] == "triton"
        return ScriptedAnswer(exit_code=1) if alone else rate(settings)

    run = stepped(tmp_path, asks(tmp_path), function=fails_between)
    verdict: Any = run.run()
    step = next(step for step in verdict.steps if step.name == "back end")
    assert step.change == "attention_backend fa3, max_batch 256"
    assert step.low <= 1.155 <= step.high


def test_stopped_and_resumed_it_says_the_same(tmp_path: Path) -> None:
    calm: Any = stepped(tmp_path / "calm", asks(tmp_path)).run()
    world, stops = MemorySite(), {2, 5}
    while True:
        run = stepped(tmp_path / "stopped", asks(tmp_path), world)
        run.stop_requested = lambda run=run: (
            bool(stops) and not run.history.open_runs and len(run.history.runs) >= min(stops)
        )
        try:
            again: Any = run.run()
            break
        except Interrupted:
            stops.discard(min(stops))
            run.journal.close()
    assert [(s.name, s.change, s.verdict) for s in again.steps] == [(s.name, s.change, s.verdict) for s in calm.steps]
    assert again.winner == calm.winner


def test_the_verdict_is_read_back_from_the_journal(tmp_path: Path) -> None:
    run = stepped(tmp_path, asks(tmp_path))
    verdict = run.run()
    assert run.history.verdict is not None
    assert run.question.verdict_from(run.history.verdict) == verdict


def test_only_a_confirmed_setting_has_steps(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    with pytest.raises(InputError, match="no confirmed setting"):
        from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
        from ridgeline.campaign.check import check_study
        from ridgeline.campaign.kinds.search import SearchQuestion

        folder = assemble_folder(check_study(file), tmp_path / "out", "s")
        with assemble_campaign(folder, SearchQuestion(trials=1)) as run:
            run.run()
        read_winner(tmp_path / "out")


STUDY = """\
version: 1
name: steps
workload: {kind: command, run: 'echo {mode} rate 100 {x}', metrics: {rate: {regex: 'rate ([0-9]+)'}}}
space: {x: {from: 0, to: 9}, mode: [plain, other]}
goal: {maximize: rate}
baseline: {x: 0, mode: plain}
stages: {search: {sampler: random, in_stages: true, sentinel_every: 0}, baseline: {repeats: 1}, confirm: {top: 0}}
"""


def test_groups_of_a_study_file_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY + "groups: {fast: [mode], slow: [x]}\n")
    read = read_study_file(file).study
    assert read.search.in_stages
    assert [*knob_groups(read)] == ["fast", "slow"]
    file.write_text(STUDY + "groups: {fast: [mod]}\n")
    with pytest.raises(StudyError, match=r"mod is not a knob; known: mode"):
        read_study_file(file)
    file.write_text(STUDY + "groups: {fast: [mode], slow: [mode]}\n")
    with pytest.raises(StudyError, match="mode is also in group fast"):
        read_study_file(file)


def staged(folder: Path, trials: int = 24) -> tuple[StagedSampler, Study]:
    asked = question(folder, budget=Budget(trials=trials), search=SearchStage(sampler="random", in_stages=True))

    def make(space: Space) -> Any:
        return part("samplers", "random")(space, 3, {}, asked.space.refusal)

    return in_stages(asked, make), asked


def test_a_search_in_stages_moves_one_group_after_the_other(tmp_path: Path) -> None:
    sampler, asked = staged(tmp_path)
    groups, best = knob_groups(asked), Observation(BASE, rate(BASE).metrics["rate"])
    sampler.tell(best)
    order = []
    for _ in range(20):
        proposal = sampler.ask()
        assert proposal is not None
        stage = proposal.why.partition(", ")[2].partition(":")[0]
        order.append(stage)
        if stage in groups:
            moved = {k for k in BASE if proposal.point[k] != best.point[k]}
            assert moved <= set(groups[stage]), "only the knobs of the stage's group leave the best setting"
        observation = Observation(proposal.point, rate(proposal.point).metrics["rate"])
        sampler.tell(observation)
        best = max(best, observation, key=lambda known: known.score or 0)
    seen = list(dict.fromkeys(order))
    assert seen == [name for name in (*groups, "all groups") if name in seen]
    assert "layout" in seen


def test_a_search_in_stages_depends_on_its_observations_alone(tmp_path: Path) -> None:
    first, _ = staged(tmp_path)
    first.tell(Observation(BASE, 100.0))
    for _ in range(9):
        proposal = first.ask()
        assert proposal is not None
        first.tell(Observation(proposal.point, rate(proposal.point).metrics["rate"]))
    again, _ = staged(tmp_path)
    for observation in first.observations:
        again.tell(observation)
    assert again.ask() == first.ask()


def test_a_campaign_in_stages_runs_and_says_which(tmp_path: Path) -> None:
    asked = question(tmp_path, budget=Budget(trials=12), search=SearchStage("random", seed=1, in_stages=True))
    run = campaign(tmp_path, asked, rate)
    found: Any = Found(asked)
    run.agenda = run.question.agenda(found, run.history, run.ledger)
    run.run()
    whys = [t.why for t in run.history.trials.values() if t.stage is Stage.SEARCH]
    assert whys[0].startswith("stage 1 of 6, environment")


LADDER = """\
version: 1
name: ladder
workload:
  kind: command
  run: 'echo rate $(( {tp} * ({max_batch} + 100) * 10 )) {NCCL_ALGO}'
  metrics: {rate: {regex: 'rate ([0-9]+)'}}
space: {tp: [1, 2], max_batch: [100, 200], NCCL_ALGO: [Ring, Tree]}
goal: {maximize: rate}
baseline: {tp: 1, max_batch: 100, NCCL_ALGO: Ring}
presets: [{tp: 2, max_batch: 200, NCCL_ALGO: Tree}]
budget: {trials: 1}
stages: {search: {sampler: random, sentinel_every: 0}, baseline: {repeats: 1}, confirm: {top: 1, blocks: 3, repeats: 1}}
"""


def test_tune_with_a_ladder_ends_with_what_each_change_brought(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(LADDER)
    with pytest.raises(SystemExit) as left:
        command_line(["tune", str(file), "--out", str(tmp_path / "out"), "--ladder"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert "layout             tp 2             +100.0%" in said
    assert "batch and memory   max_batch 200    +50.0%" in said
    assert "network            NCCL_ALGO Tree   +0.0%" in said
    assert "a simpler setting is preferred: 2 changes instead of 3, within 1%" in said
    with pytest.raises(SystemExit):
        command_line(["best", str(tmp_path / "out-steps")])
    assert "NCCL_ALGO: Ring" in capsys.readouterr().out
    assert not verify_folder(tmp_path / "out-steps").mismatches
