"""One answer, whoever tells it: candidate, interval and verdict of the same runs; and what where none is better."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.status import CampaignStatus
from ridgeline.cli.campaign.status import status
from ridgeline.cli.text.answer import answer_lines
from ridgeline.cli.text.snapshot import snapshot_of
from ridgeline.cli.text.wording import budget_text, status_lines
from ridgeline.errors import (
    CannotJudge,
    ExitCode,
    InputError,
    NothingFound,
    ReadError,
    ShownWorse,
    SiteError,
    StoreError,
)
from ridgeline.records.answer import Answer, Conclusion
from ridgeline.records.measurement import Measurement
from ridgeline.records.run import Job
from ridgeline.records.study import Budget, ConfirmStage, Goal, Study
from ridgeline.records.trial import Stage
from ridgeline.serving.workloads.engine.scripts import BENCHMARK_ONLY
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History, read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study
from tests.command_line import ridgeline

# the best look of the search, x 9, was luck: 773 once, 90 ever after
LUCKY = """\
version: 1
name: lucky
workload:
  kind: command
  run: |
    n=$(cat ../../seen-{x} 2>/dev/null || echo 0); echo $((n + 1)) > ../../seen-{x}
    rate=$((100 + n % 3)); [ {x} -ne 9 ] || rate=$((90 + n % 3))
    [ {x}-$n != 9-0 ] || rate=773
    echo rate $rate
  metrics: {rate: {regex: 'rate (.*)', unit: steps/s}}
space: {x: [0, 9]}
goal: {maximize: rate}
baseline: {x: 0}
budget: {trials: 1}
stages: {baseline: {repeats: 2}}
confirm: {top: 1, blocks: 4}
"""
# the one lucky run of x = 9 and its ratio, each with its unit: a load average or a time may be the same number
LUCK = r"\b77[0-9](\.\d+)? steps|\b7\.[67]\d*x"


def test_after_a_refutation_every_face_tells_the_same_and_keeps_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(LUCKY)
    faces = {"tune": ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)}
    faces |= {verb: ridgeline(verb, "out", cwd=tmp_path) for verb in ("resume", "best", "status")}
    spoken = json.loads(ridgeline("best", "out", "--json", cwd=tmp_path).stdout)
    state = json.loads(ridgeline("status", "out", "--json", cwd=tmp_path).stdout)
    found = spoken["best"]
    assert found["point"] == {"x": 9} and found["high"] < 1, "the interval of the fresh runs"
    assert found["rate"] == pytest.approx(91, abs=1)
    interval = f"{found['low']:.3f} to {found['high']:.3f}"
    page = (tmp_path / "out" / "report.html").read_text()
    page = page[page.rindex("<body") :]
    told = {name: done.stdout[done.stdout.index("no setting is") :] for name, done in faces.items()}
    for name, text in (*told.items(), ("report", page)):
        assert interval in text, name
        assert "keep the baseline" in text, name
        assert re.search(r"10[\d.]+ (->|→) 9[\d.]+ steps/s, 0\.9", text), name
        prose = re.sub(r"<figure.*|<table.*|<script.*", "", text, flags=re.DOTALL)
        assert not re.search(LUCK, prose), f"{name} holds to the search"
    assert not re.search(LUCK, faces["status"].stdout) and "so far" not in faces["best"].stdout
    assert state["best"] == found and state["headline"] == spoken["headline"]
    assert [faces[name].returncode for name in ("tune", "resume", "best", "status")] == [1, 1, 1, 0]
    assert spoken["keep_baseline"] and spoken["settings"] == {"x": 0}, "what is to be used is the baseline"
    assert "x: 0" in faces["best"].stdout and "x: 9" not in faces["best"].stdout


def status_after(root: Path, question: Study, values: dict[int, list[float]], unit: str = "") -> CampaignStatus:
    """A finished campaign in memory: what x measures, run by run; the last value goes on. None fails."""
    seen: Counter[int] = Counter()

    def act(job: Job) -> ScriptedAnswer:
        x = int(job.name.partition("-x")[2].partition("-")[0])
        seen[x] += 1
        value = values[x][min(seen[x], len(values[x])) - 1]
        return ScriptedAnswer({"rate": value}) if value > 0 else ScriptedAnswer(exit_code=3, stderr="broken")

    done = campaign(root, question, act=act)
    done.run()
    history = read_history(root)
    for number, run in history.runs.items():
        measured = tuple(Measurement(m.metric, m.value, unit) for m in run.measurements)
        history.runs[number] = replace(run, measurements=measured)
    return CampaignStatus(SearchQuestion(), question, history)


def asked(root: Path, *tried: int, top: int = 1, **changes: object) -> Study:
    presets = tuple({"x": x, "y": 0} for x in tried)
    stage = ConfirmStage(top=top, blocks=3)
    return study(root, presets=presets, budget=Budget(trials=len(tried)), confirm=stage, **changes)


def said(answer: Answer, now: CampaignStatus) -> str:
    return "\n".join([*answer_lines(answer, now.exhibits), *status_lines(now, 0.0)])


def test_a_favourite_that_did_not_hold_is_named_with_its_own_interval(tmp_path: Path) -> None:
    flat = {0: [100, 101, 102, 100], 8: [150, 101, 100, 102], 9: [160, 90, 91, 92, 90, 91, 90]}
    now = status_after(tmp_path, asked(tmp_path, 8, 9, top=2), flat)
    answer = now.answer
    assert answer.candidate is not None and answer.candidate.point["x"] == 8
    assert answer.refuted.startswith("the best of the search, #")
    assert "(x 9), did not hold: rate 100" in answer.refuted and "0.9" in answer.refuted
    assert answer.refuted in said(answer, now)
    assert answer.as_json()["refuted"] == answer.refuted


def test_a_favourite_that_fails_when_run_again_is_not_recommended(tmp_path: Path) -> None:
    now = status_after(tmp_path, asked(tmp_path, 9), {0: [100], 9: [160, -1]})
    answer = now.answer
    assert answer.candidate is None and answer.keep
    assert "failed when it was run again: crash" in answer.refuted
    assert "160" not in said(answer, now) and "keep the baseline" in said(answer, now)


def test_as_soon_as_the_favourite_has_failed_the_next_one_is_the_best_so_far(tmp_path: Path) -> None:
    now = status_after(tmp_path, asked(tmp_path, 8, 9, top=2), {0: [100], 8: [150], 9: [160, -1]})
    now.history.verdict = None
    assert now.answer.candidate is not None and now.answer.candidate.point["x"] == 8


@pytest.mark.parametrize("top", [0, 1])
def test_what_is_slower_is_not_recommended_and_not_called_best_so_far(tmp_path: Path, top: int) -> None:
    now = status_after(tmp_path, asked(tmp_path, 9, top=top), {0: [100], 9: [80]})
    answer = now.answer
    assert answer.keep and answer.to_use == now.study.baseline
    assert answer.lacks == "no better setting was found; keep the baseline"
    assert "so far" not in said(answer, now)


def test_while_it_runs_a_slower_setting_is_not_offered_either(tmp_path: Path) -> None:
    now = status_after(tmp_path, asked(tmp_path, 9), {0: [100], 9: [80]})
    now.history.verdict = None
    assert "nothing so far is better than the baseline" in now.answer.headline
    assert now.answer.to_use == now.study.baseline
    assert "no answer yet" in now.answer.lacks


def test_where_nothing_was_tried_the_baseline_stays(tmp_path: Path) -> None:
    question = replace(asked(tmp_path), budget=Budget(wall_s=1e-6))
    now = status_after(tmp_path, question, {0: [100]})
    assert not now.history.count(Stage.SEARCH)
    assert now.answer.keep and now.answer.lacks
    assert "nothing was tried" in now.answer.headline and now.answer.headline.endswith("keep the baseline")


def test_a_verdict_that_says_keep_the_baseline_is_an_empty_hand(tmp_path: Path) -> None:
    now = status_after(tmp_path, asked(tmp_path, 9), {0: [100], 9: [160]})
    now.history.verdict = VerdictLine(Conclusion.KEEP_BASELINE, "no setting looked better than the baseline")
    assert now.answer.keep and now.answer.lacks and not now.answer.offers
    assert now.answer.headline == "no setting looked better than the baseline; keep the baseline"


def test_what_won_is_told_before_and_after_with_its_unit(tmp_path: Path) -> None:
    now = status_after(tmp_path, asked(tmp_path, 9), {0: [302, 301, 303, 302], 9: [317, 316, 318, 317]}, "steps/s")
    assert re.match(r"302 -> 317 steps/s, 1\.0\d+x baseline \(95%: 1\.0\d+ to 1\.0\d+; 3 blocks", now.answer.headline)
    assert re.fullmatch(r"302 -> 317 steps/s, 1\.0\d+x \(95%: 1\.0\d+ to 1\.0\d+\)", now.answer.change)
    assert any(line.startswith("  best  302 -> 317 steps/s, 1.0") for line in status_lines(now, 0.0))
    assert not now.answer.lacks
    assert now.answer.statement.startswith("Confirmed: 302 -> 317 steps/s")


def test_a_time_is_told_so_that_nobody_takes_it_for_longer(tmp_path: Path) -> None:
    question = asked(tmp_path, 9, goal=Goal("rate", "minimize"))
    now = status_after(tmp_path, question, {0: [12.0, 12.1, 12.2], 9: [10.0, 10.1, 10.2]}, "s")
    assert re.match(r"12\.\d+ -> 10\.\d+ s, 1\.\d+x as fast as baseline \(95%: ", now.answer.headline)


def test_modelled_figures_are_called_simulated_everywhere(tmp_path: Path) -> None:
    now = status_after(tmp_path, asked(tmp_path, 9), {0: [100], 9: [160]})
    for number, run in now.history.runs.items():
        made = tuple(replace(m, origin="modelled") for m in run.measurements)
        now.history.runs[number] = replace(run, measurements=made)
    assert now.answer.statement.startswith("Confirmed in simulation: ")
    assert next(iter(status_lines(now, 0.0))).endswith("simulated: nothing is measured")
    assert now.as_json()["simulated"] is True


def test_a_baseline_that_does_not_pass_is_the_answer_of_best_too(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(LUCKY.replace("echo rate $rate", "exit 3"))
    tuned = ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
    asked = ridgeline("best", "out", cwd=tmp_path)
    assert tuned.returncode == asked.returncode == 1
    for said in (tuned.stderr, asked.stderr):
        assert "the baseline itself did not pass: crash" in said
        assert "not over" not in said


def test_an_offline_answer_says_what_its_command_is_for_and_how_to_measure_again() -> None:
    folder = Path(__file__).parents[2] / "examples" / "05-sglang-h200" / "results" / "deepseek-v2-lite"
    done = ridgeline("best", folder, cwd=folder)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    at = lines.index("  to measure it again:")
    repeat = shlex.split(lines[at + 1])
    assert repeat[0] == "sh" and Path(repeat[1]).is_file()
    assert lines[at + 2] == f"  {BENCHMARK_ONLY}:" and "benchmark only: no real weights were measured" in BENCHMARK_ONLY
    assert 'sglang.launch_server --model-path "${WEIGHTS:?' in "".join(lines[at + 3 :])
    point = json.loads((Path(repeat[1]).parent / "result.json").read_text())["settings"]
    told = json.loads(ridgeline("best", folder, "--json", cwd=folder).stdout)
    assert {name: point[name] for name in told["settings"]} == told["settings"]
    assert (told["pasted_as"], told["repeat"]) == (BENCHMARK_ONLY, shlex.join(repeat))
    served = folder.parent / "llama-8b-serve"
    assert "to serve with this setting" not in ridgeline("best", served, cwd=served).stdout


def test_service_units_stand_beside_the_node_hours_where_the_site_has_a_price(tmp_path: Path) -> None:
    now = CampaignStatus(SearchQuestion(), study(tmp_path), History(tmp_path, node_hours=2.5))
    assert "service units" not in budget_text(now)
    site = replace(now.study.site, service_units_per_node_hour=96.0)
    assert "2.5 node-hours (240 service units)" in budget_text(replace(now, study=replace(now.study, site=site)))


def test_a_simulated_site_has_a_clock_of_its_own_and_both_are_named(tmp_path: Path) -> None:
    now = CampaignStatus(SearchQuestion(), study(tmp_path), History(tmp_path, node_hours=2.5))
    assert budget_text(now).startswith("2.5 node-hours, ") and budget_text(now).endswith(" elapsed")
    pretended = replace(now, study=replace(now.study, site=replace(now.study.site, batch="simulated")))
    assert budget_text(pretended).startswith("2.5 node-hours of simulated time, ")
    assert budget_text(pretended).endswith(" of real time")
    shown = [gauge.label for gauge in snapshot_of(pretended, 0.0, {}).gauges]
    assert "elapsed, real time" in shown and "node-hours, simulated" in shown


TWO = """\
version: 1
name: two
workload: {kind: command, run: 'echo rate {x}', metrics: {rate: {regex: 'rate (.*)'}}}
space: {x: [90, 100, 110]}
goal: {maximize: rate}
baseline: {x: 100}
confirm: {blocks: 3}
"""


@pytest.mark.parametrize(("rate", "code"), [("110", 0), ("100", 1), ("90", 6)])
def test_a_comparison_leaves_with_what_it_found(tmp_path: Path, rate: str, code: int) -> None:
    """Scripts decide by it: better, no detectable difference, worse; the same when asked again."""
    text = TWO.replace("echo rate {x}", "echo rate $(( {x} == 100 ? 100 : " + rate + " ))")
    (tmp_path / "study.yaml").write_text(text)
    done = ridgeline("compare", "study.yaml", "x=110", "--out", "out", cwd=tmp_path)
    asked = ridgeline("best", "out", cwd=tmp_path)
    assert (done.returncode, asked.returncode) == (code, code), done.stderr
    if code == 6:
        assert "B is worse than A; keep A" in done.stderr and "B is worse than A; keep A" in asked.stderr


@pytest.mark.parametrize("verb", ["compare", "study steps"])
def test_what_the_budget_left_no_room_to_judge_has_its_own_code(tmp_path: Path, verb: str) -> None:
    (tmp_path / "study.yaml").write_text(TWO + "budget: {node_hours: 0.00000001}\n")
    done = ridgeline(*verb.split(), "study.yaml", "x=90", "--out", "out", cwd=tmp_path)
    asked = ridgeline("best", "out", cwd=tmp_path)
    assert (done.returncode, asked.returncode) == (ExitCode.CANNOT_JUDGE, ExitCode.CANNOT_JUDGE), done.stderr


def test_steps_to_a_worse_setting_leave_with_its_code(tmp_path: Path) -> None:
    text = TWO
    (tmp_path / "study.yaml").write_text(text)
    done = ridgeline("study", "steps", "study.yaml", "x=90", "--out", "out", cwd=tmp_path)
    assert done.returncode == 6, done.stderr


MOVED = """\
version: 1
name: moved
workload:
  kind: command
  run: sh score.sh {x} {y}
  files: [score.sh]
  metrics: {score: {regex: '(\\d+)'}}
space: {x: [1, 2], y: [1, 2]}
baseline: {x: 1, y: 1}
goal: {maximize: score}
stages: {search: {sampler: grid, sentinel_every: 0}, confirm: {top: 1, blocks: 3, warmup: never}}
site: here.yaml
"""


def test_steps_need_nothing_but_the_study_folder(tmp_path: Path) -> None:
    """The author's study, its site and its program may be gone, and the shell is somewhere else."""
    author, elsewhere = tmp_path / "author", tmp_path / "else where"
    author.mkdir()
    elsewhere.mkdir()
    (author / "study.yaml").write_text(MOVED)
    (author / "here.yaml").write_text("version: 1\nname: here\nbatch: local\n")
    (author / "score.sh").write_text("echo $((100 * $1 + 10 * $2))\n")
    assert ridgeline("tune", "study.yaml", "--out", str(elsewhere / "first"), cwd=author).returncode == 0
    shutil.rmtree(author)
    done = ridgeline("study", "steps", "first", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "first-steps/sources/score.sh").is_file(), "where the report of first looks for it"
    unsaid = ridgeline("study", "steps", "first/study.yaml", cwd=elsewhere)
    assert unsaid.returncode == 2, unsaid.stderr


def test_steps_of_a_file_need_a_setting(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(TWO)
    done = ridgeline("study", "steps", "study.yaml", cwd=tmp_path)
    assert done.returncode == 2 and "no setting" in done.stderr


def test_exit_codes_are_said_in_one_way(tmp_path: Path) -> None:
    overview = " ".join(ridgeline("--help", cwd=tmp_path).stdout.split())
    for code in ExitCode:
        assert f"{code.value} {code.meaning}" in overview
    assert {
        error.exit_code
        for error in (InputError, SiteError, ReadError, StoreError, NothingFound, ShownWorse, CannotJudge)
    } == {*ExitCode} - {ExitCode.DONE, ExitCode.INTERRUPTED}


FORMULA = """\
version: 1
name: reasons
workload:
  kind: command
  run: '[ {x} -ne 8 ] || exit 3; echo rate $((100 + 7 * {x}))'
  metrics: {rate: {regex: 'rate (.*)', unit: steps/s}}
space: {x: {from: 0, to: 9}}
goal: {maximize: rate}
baseline: {x: 0}
budget: {trials: 2}
search: {sentinel_every: 0, expect: 100 + 7 * x}
confirm: {top: 0}
"""


def test_status_says_why_a_trial_was_chosen_and_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.yaml").write_text(FORMULA)
    ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
    trials = read_history(tmp_path / "out").trials
    number, best = next((n, trial) for n, trial in trials.items() if trial.point == {"x": 9})
    failed = next(n for n, trial in trials.items() if trial.point == {"x": 8})

    def said(of: int) -> list[str]:
        status(tmp_path / "out", why=of)
        return capsys.readouterr().out.splitlines()

    head, reason, measured = said(number)
    assert head == f"#{number} search, chosen by guided: x 9"
    assert reason.strip() == best.why and "the formula ranks it first of the untried settings" in reason
    assert measured == "  measured 163 steps/s"
    assert said(failed)[-1].startswith("  crash; exit code 3")
    with pytest.raises(InputError, match=f"has no trial 99; it has trials 1 to {max(trials)}"):
        status(tmp_path / "out", why=99)
    with pytest.raises(InputError, match="neither --follow nor --json"):
        status(tmp_path / "out", as_json=True, why=1)
