"""Runs under a profiler: how they are started, that they are compared with nothing, and where their findings stand."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.status import _profile_tables
from ridgeline.campaign.verify import verify_folder
from ridgeline.nwchem.start import profiler
from ridgeline.records.study import ProfileStage
from ridgeline.records.trial import Stage
from ridgeline.study.history import History
from tests.journeys.test_nwchem import needs_nwchem, ridgeline, write_study
from tests.workloads.nwchem.runs import GUARD, checked, first_trial

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.mark.parametrize(
    ("tool", "in_rank", "in_run"),
    [
        ("perf", '  exec perf record -q -F 199 -o perf.data "$program" nwchem.nw', "perf report --stdio -i perf.data"),
        ("vtune", '  exec vtune -quiet -collect hotspots -r vtune -- "$program"', "vtune -report hotspots -format csv"),
        ("mpip", "export MPIP='-f .'\nexport LD_PRELOAD=libmpiP.so", ""),
        ("ipm", "export IPM_REPORT=full\nexport LD_PRELOAD=libipm.so", ""),
    ],
)
def test_only_a_profile_trial_is_started_under_the_profiler(
    tmp_path: Path, tool: str, in_rank: str, in_run: str
) -> None:
    found = checked(tmp_path, "{ranks_per_node: 2}", more=f"{GUARD}\nstages: {{profile: {{tool: {tool}}}}}")
    plain = first_trial(found)
    for trial, wanted in ((plain, False), (replace(plain, stage=Stage.PROFILE), True)):
        folder = tmp_path / trial.stage
        job = found.workload.prepare(trial, folder)
        assert (in_rank in (folder / "rank.sh").read_text()) is wanted
        assert (bool(in_run) and in_run in job.command) is (wanted and bool(in_run))


def test_a_library_of_ones_own_is_preloaded() -> None:
    assert "LD_PRELOAD=/opt/lib/libmpiP.so" in profiler(ProfileStage("mpip", "/opt/lib/libmpiP.so")).every_rank


def test_a_workload_that_cannot_be_profiled_says_so(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "version: 1\nname: x\nworkload: {kind: command, run: 'echo {n}', metrics: {n: {regex: '(.)'}}}\n"
        "space: {n: [1, 2]}\nbaseline: {n: 1}\ngoal: {maximize: n}\nstages: {profile: {tool: perf}}\n"
    )
    done = ridgeline("check", "study.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "stages.profile: runs of command cannot be put under a profiler" in done.stdout + done.stderr


def test_findings_of_a_profile_become_a_table(tmp_path: Path) -> None:
    found = checked(tmp_path, "{ranks_per_node: 2}", more=f"{GUARD}\nstages: {{profile: {{tool: mpip}}}}")
    history = History(tmp_path)
    point = dict(found.study.baseline)
    trial = {"trial": 1, "stage": "profile", "proposer": "profile", "point": point, "settings": point}
    run = {"run": 1, "trial": 1, "attempt": 1, "folder": "runs/1", "resources": {}}
    ended = {"run": 1, "ending": {"cause": "exited", "started": 1, "ended": 2}, "outcome": {"kind": "ok"}}
    for event in ({"event": "trial", **trial}, {"event": "run", **run}, {"event": "ended", **ended}):
        history.apply({"at": 0.0, **event})
    (tmp_path / "runs/1").mkdir(parents=True)
    sample = SAMPLES / "mpip" / "nwchem-waiting.mpiP"
    shutil.copy(sample, tmp_path / "runs/1/nwchem.2.1234.1.mpiP")
    (table,) = _profile_tables(found.study, history)
    assert table.rows[0][:2] == ("the baseline", "1")
    assert any("MPI" in row[2] for row in table.rows)
    assert history.ok_runs(*Stage) == [], "a run under a profiler is never ranked"


@pytest.mark.nwchem
@pytest.mark.timeout(900)
@needs_nwchem[-1]
@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed (Debian: linux-perf)")
def test_a_campaign_profiles_the_baseline_and_its_best_setting(tmp_path: Path) -> None:
    path = write_study(
        tmp_path,
        ("baseline: {ranks_per_node: 1}", "baseline: {ranks_per_node: 2}"),
        ("minimize: wall_s", "minimize: nproc"),  # which of two settings is faster would be luck on a busy machine
        (
            "stages: {baseline: {repeats: 1}}",
            "stages: {baseline: {repeats: 1}, confirm: {top: 1, blocks: 3, repeats: 1}, profile: {tool: perf}}\n"
            "budget: {trials: 1}",
        ),
    )
    done = ridgeline("tune", path, "--out", "out", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    events = [json.loads(line) for line in (tmp_path / "out/journal.jsonl").read_text().splitlines()]
    profiled = [e["point"]["ranks_per_node"] for e in events if e["event"] == "trial" and e["stage"] == "profile"]
    assert profiled == [2, 1]
    outcomes = {e["run"]: e["outcome"] for e in events if e["event"] == "ended"}
    assert all(outcome["kind"] == "ok" for outcome in outcomes.values()), outcomes
    assert len(list((tmp_path / "out/runs").glob("*/perf.txt"))) == 2
    page = (tmp_path / "out/report.html").read_text()
    assert "<h3>Profiles</h3>" in page
    assert "the baseline" in page.partition("<h3>Profiles</h3>")[2]
    assert verify_folder(tmp_path / "out").mismatches == []
