"""Two goals: the front with intervals, the best within a limit, what a million tokens cost."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from ridgeline.campaign.front import (
    _metric_of,
    best_at,
    best_at_lines,
    front,
    front_figures,
    front_rows,
    front_tables,
)
from ridgeline.campaign.status import CampaignStatus
from ridgeline.campaign.verify import verify_folder
from ridgeline.cli.main import run as command_line
from ridgeline.errors import InputError, NothingFound, StudyError
from ridgeline.records.run import Cause, Ending, Measurement, Resources, Run
from ridgeline.records.site import Prices, Site
from ridgeline.records.space import Settings
from ridgeline.records.study import Goal, Study
from ridgeline.stats.pareto import tradeoffs
from ridgeline.stats.student import t_quantile
from ridgeline.study.site_file import load_site
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study


def answer(settings: Settings) -> ScriptedAnswer:
    """More x: faster and later. y costs speed and brings nothing."""
    x, y = float(settings["x"] or 0), float(settings["y"] or 0)
    return ScriptedAnswer({"rate": 100.0 + 10 * x - 3 * y, "ttft_ms": 50.0 * 1.5**x * (1 + 0.1 * y)})


def searched(folder: Path, **changes: Any) -> CampaignStatus:
    asked: Study = study(folder, second_goal=Goal("ttft_ms", "minimize"), **changes)
    run = campaign(folder, asked, answer)
    run.run()
    return CampaignStatus(run.question, run.study, run.history)


def test_the_figure_of_the_front_holds_every_setting_and_marks_two(tmp_path: Path) -> None:
    now = searched(tmp_path)
    found = front(now.study, now.history)
    (figure,) = front_figures(now.study, now.history, json.loads(found[0].setting))
    points = {curve.label: {(p.x, p.y) for p in curve.points} for curve in figure.curves}
    assert points["on the front"] == {(o.second.value, o.first.value) for o in found if o.place == "on"}
    assert points["the recommended setting"] == {(found[0].second.value, found[0].first.value)}
    assert len(points["the baseline"]) == 1
    assert front_figures(replace(now.study, second_goal=None), now.history, None) == ()


def test_no_setting_of_the_front_is_worse_in_both(tmp_path: Path) -> None:
    now = searched(tmp_path)
    found = front(now.study, now.history)
    on = [one for one in found if one.place == "on"]
    assert len(on) > 2
    for one in on:
        assert not [o for o in found if o.first.value > one.first.value and o.second.value < one.second.value]
    for one in found:
        if one.place != "on":
            assert [o for o in on if o.first.value >= one.first.value and o.second.value <= one.second.value]
    assert [one.first.value for one in found] == sorted((one.first.value for one in found), reverse=True)


def test_what_is_not_shown_to_be_behind_is_near() -> None:
    noisy = {"a": [(100.0, 10.0), (104.0, 10.4)], "b": [(101.0, 10.3)], "c": [(50.0, 30.0)]}
    places = {one.setting: one.place for one in tradeoffs(noisy, ("maximize", "minimize"), 0.5)}
    assert places == {"a": "on", "b": "near", "c": "behind"}
    alone = {key: values[:1] for key, values in noisy.items()}
    found = {one.setting: one for one in tradeoffs(alone, ("maximize", "minimize"))}
    assert found["c"].place == "near", "without repeats the noise is not known, so nothing is shown"
    assert found["c"].first.low is None
    turned = {one.setting: one.place for one in tradeoffs(noisy, ("minimize", "maximize"), 0.5)}
    assert turned["c"] == "on"


def test_the_noise_of_repeated_settings_is_that_of_all_and_means_have_less_of_it() -> None:
    runs = {"a": [(100.0, 10.0), (110.0, 10.5), (105.0, 10.2)], "b": [(200.0, 30.0)], "c": [(0.0, 1.0)]}
    found = {one.setting: one for one in tradeoffs(runs, ("maximize", "minimize"))}
    assert [*found] == ["b", "a"], "the best first; what has no log is left out"
    assert [one.setting for one in tradeoffs(runs, ("minimize", "minimize"))] == ["a", "b"]
    logs = [math.log(first) for first, _ in runs["a"]]
    half = t_quantile(0.975, 2) * stdev(logs)
    a, b = found["a"].first, found["b"].first
    assert a.value == pytest.approx(math.exp(fmean(logs)))
    assert a.low is not None and a.high is not None and b.low is not None and b.high is not None
    assert math.log(a.high / a.low) == pytest.approx(2 * half / math.sqrt(3))
    assert math.log(b.high / b.low) == pytest.approx(2 * half)


def test_the_best_within_a_limit(tmp_path: Path) -> None:
    now = searched(tmp_path)
    one, told = best_at(now.study, now.history, "ttft_ms=200")
    assert one.second.value <= 200
    better = [o for o in front(now.study, now.history) if o.first.value > one.first.value]
    assert all(o.second.value > 200 for o in better)
    assert told == "its whole interval keeps the limit"
    assert best_at_lines(now.study, now.history, "ttft_ms=200", "")[0].startswith("rate 1")
    chosen = json.loads(one.setting)
    changed = [f"{name} {value}" for name, value in chosen.items() if value != now.study.baseline[name]]
    said = best_at_lines(now.study, now.history, "ttft_ms=200", "")[2]
    assert changed
    assert said.removeprefix("  changes from the baseline: ") == ", ".join(changed), "what to set, not what was"
    with pytest.raises(NothingFound, match="no setting that ran keeps ttft_ms at or below 1"):
        best_at(now.study, now.history, "ttft_ms=1")
    with pytest.raises(InputError, match="second goal is ttft_ms"):
        best_at(now.study, now.history, "latency=3")
    with pytest.raises(InputError, match=r"no second goal; put second_goal: \{minimize: latency\}"):
        best_at(replace(now.study, second_goal=None), now.history, "latency=3")
    with pytest.raises(InputError, match="is not a number"):
        best_at(now.study, now.history, "ttft_ms=soon")


def test_the_front_is_shown_as_a_table(tmp_path: Path) -> None:
    now = searched(tmp_path)
    (table,) = now.exhibits.tables
    assert table.title == "rate against ttft_ms"
    assert {row[5] for row in table.rows} <= {"on", "near"}
    assert len(front_rows(now.study, now.history)) == len(table.rows)
    unmeasured = searched(tmp_path / "other")
    from dataclasses import replace

    other = replace(unmeasured.study, second_goal=Goal("late", "minimize"))
    (empty,) = front_tables(other, unmeasured.history)
    assert empty.notes == ("late: no good run measured it",)
    unmetered = replace(unmeasured.study, second_goal=Goal("joules", "minimize"))
    assert "state `node_watts`" in front_tables(unmetered, unmeasured.history)[0].notes[0]
    one_goal = replace(now.study, second_goal=None)
    assert front_tables(one_goal, now.history) == ()
    with pytest.raises(InputError, match="second_goal"):
        front_rows(one_goal, now.history)


def run_with(rate: float, nodes: int, gpus: int) -> Run:
    ending = Ending(Cause.EXITED, 0)
    return Run(1, 1, 1, Path(), Resources(nodes=nodes, gpus=gpus), ending, None, (Measurement("total_tok_s", rate),))


def test_prices_come_from_the_site_file(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("batch: slurm\nnodes: 2\ngpus_per_node: 8\nprices: {gpu_hour: 4.5}\n")
    site = load_site("site.yaml", tmp_path)
    assert site.prices == Prices(gpu_hour=4.5)
    priced = study(tmp_path, site=site)
    assert _metric_of(priced, run_with(10_000.0, 2, 8), "dollars_per_million_tokens") == pytest.approx(2.0)
    assert _metric_of(study(tmp_path, site=Site()), run_with(1.0, 1, 1), "dollars_per_million_tokens") is None


STUDY = """\
version: 1
name: two
workload:
  kind: command
  run: 'echo rate $((100 + {x})) late $((10 + 2 * {x}))'
  metrics: {rate: {regex: 'rate ([0-9]+)'}, late_ms: {regex: 'late ([0-9]+)'}}
space: {x: {from: 0, to: 4}}
goal: {maximize: rate}
second_goal: {minimize: late_ms}
baseline: {x: 0}
stages: {search: {sampler: grid}, confirm: {top: 0}}
"""


def test_best_and_export_read_it_from_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(STUDY)
    with pytest.raises(NothingFound, match="the study asks for no confirmation"):
        command_line(["tune", str(file), "--out", str(out)])
    assert "rate   interval" in capsys.readouterr().out
    with pytest.raises(NothingFound, match=r"no fresh runs compared this setting .* ridgeline compare STUDY x=2"):
        command_line(["best", str(out), "--at", "late_ms=15", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["setting"] == {"x": 2} and not told["confirmed"]
    with pytest.raises(SystemExit):  # the baseline needs no proof
        command_line(["best", str(out), "--at", "late_ms=10", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["setting"] == {"x": 0} and not told["confirmed"]
    with pytest.raises(InputError, match="'nan' is not a number"):
        command_line(["best", str(out), "--at", "late_ms=nan"])
    with pytest.raises(SystemExit):
        command_line(["study", "export", str(out), "--front"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["set.x"] for row in rows] == ["4", "3", "2", "1", "0"]
    assert "rate against late_ms" in (out / "report.html").read_text()


def test_text_and_json_say_the_same_of_the_best_within_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(STUDY.replace("top: 0", "top: 1, blocks: 3"))
    with pytest.raises(SystemExit):
        command_line(["tune", str(file), "--out", str(out)])
    for limit, says, confirmed in (("18", "; confirmed\n", True), ("10", "; the baseline\n", False)):
        for options in (["--json"], []):
            capsys.readouterr()
            with pytest.raises(SystemExit) as left:
                command_line(["best", str(out), "--at", f"late_ms={limit}", *options])
            assert left.value.code == 0
            said = capsys.readouterr().out
            assert json.loads(said)["confirmed"] is confirmed if options else says in said


PRICED = """\
version: 1
name: priced
workload:
  kind: command
  run: 'echo threads {threads}'
  metrics: {threads_seen: {regex: 'threads ([0-9]+)'}}
prices: {node_hour: 3.6, kwh: 0.5, co2_g_per_kwh: 400, node_watts: 1000}
space: {threads: [1, 2]}
goal: {minimize: dollars}
second_goal: {minimize: wall_s}
guards: ['co2_g < 1e9', 'joules > 0']
baseline: {threads: 1}
stages: {search: {sampler: grid}, confirm: {top: 1, blocks: 3}}
"""


def typed(*words: object) -> None:
    with contextlib.suppress(NothingFound, SystemExit):
        command_line([str(word) for word in words])


def test_dollars_are_a_goal_of_any_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(PRICED)
    typed("tune", file, "--out", out)  # which of the two is cheaper is luck
    capsys.readouterr()
    typed("study", "export", out)
    rows = [row for row in csv.DictReader(io.StringIO(capsys.readouterr().out)) if row["outcome"] == "ok"]
    assert rows
    for row in rows:
        joules = 1000 * float(row["got.wall_s"])
        assert float(row["got.joules"]) == pytest.approx(joules)
        assert float(row["got.dollars"]) == pytest.approx(joules / 1000 * 0.001 + joules / 3.6e6 * 0.5)
        assert float(row["got.co2_g"]) == pytest.approx(joules / 3.6e6 * 400)
    typed("best", out, "--at", "wall_s=600")
    assert capsys.readouterr().out.startswith("dollars ")
    assert verify_folder(out).mismatches == [], "every cost is worked out again"
    page = (out / "report.html").read_text()
    assert "Cost of one run" in page
    assert "Power is not measured but stated: 1000 W a node" in page


def test_a_cost_without_its_price_is_a_problem_of_the_study(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"

    def said(prices: str) -> str:
        file.write_text(
            PRICED.replace("prices: {node_hour: 3.6, kwh: 0.5, co2_g_per_kwh: 400, node_watts: 1000}\n", prices)
        )
        with pytest.raises(StudyError) as error:
            command_line(["check", str(file)])
        return str(error.value)

    assert "dollars needs a price: write `prices: {node_hour: 2.5}`" in said("")
    assert "dollars needs the energy of a run" in said("prices: {kwh: 0.5}\n")
    assert "keep one of the two" in said("prices: {node_hour: 1, node_watts: 5, meters: [rapl]}\n")
    assert "slurm counts whole nodes" in said("prices: {node_hour: 1, meters: [rapl, slurm]}\n")
    assert "measure the same GPUs" in said("prices: {node_hour: 1, meters: [nvidia-smi, nvml]}\n")
    assert "must be one of rapl, nvml, nvidia-smi, ipmi, slurm" in said("prices: {node_hour: 1, meters: [pdu]}\n")


def test_a_run_whose_meter_says_nothing_says_so(tmp_path: Path) -> None:
    from ridgeline.executors import energy

    file, out = tmp_path / "study.yaml", tmp_path / "out"
    text = STUDY.replace("goal: {maximize: rate}\nsecond_goal: {minimize: late_ms}", "goal: {minimize: joules}")
    file.write_text(text + "prices: {meters: [rapl]}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energy, "POWERCAP", str(tmp_path / "none"))
        with pytest.raises(NothingFound, match=r"joules: rapl measured no energy .*state `node_watts` under `prices`"):
            command_line(["tune", str(file), "--out", str(out)])
