"""What a run leaves: four files of ours with all that was in the others, wherever it ran and however it ended."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign import controller
from ridgeline.campaign.assembly import assemble_campaign
from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.verify import verify_folder
from ridgeline.study import state_files
from ridgeline.study.folder import StudyFolder
from ridgeline.study.state_files import RESULT_FILE, STATE_KEY, state_file
from ridgeline.study.study_file import read_study_file
from tests.slurm_cluster import SlurmCluster

STUDY = """\
version: 1
name: few-files
workload:
  kind: command
  run: echo "score $(( {x} * 37 % 11 ))"; test {x} -lt 5
  metrics:
    score: {regex: 'score (\\d+)', METRIC}
site: site.yaml
space:
  x: [1, 2, 3, 4, 5]
goal: {maximize: score}
baseline: {x: 1}
budget: {trials: 5}
search: {sampler: grid, sentinel_every: 0}
confirm: {top: 1, blocks: 3}
job: {limit: 60}
"""
SITES = {
    "local": "batch: local\n",
    "simulated": "batch: simulated\nnodes: 3\noptions: {seed: 4, noise: 0.01}\n",
    "pbs": "batch: pbs\nqueue: workq\npoll_s: 0.2\n",
    "slurm": "batch: slurm\nqueue: debug\npoll_s: 0.3\njobs_at_once: 3\n",
}
OURS = {"run.sh", "result.json", "stdout", "stderr"}
WRITTEN = {
    "local": {"process", "machine", "exit.used", "exit", "env"},
    "simulated": {"placement.json", "process", "machine", "exit.used", "exit", "env"},
    "pbs": {"submission", "ticket", "started", "machine", "exit.used", "exit", "batch.out", "env"},
    "slurm": {"submission", "ticket", "started", "machine", "exit.used", "exit", "batch.out", "env"},
}


class Killed(BaseException):
    """As kill -9: nothing that the campaign does on leaving is done."""


def created(home: Path, batch: str, metric: str = "unit: u") -> StudyFolder:
    (home / "study.yaml").write_text(STUDY.replace("METRIC", metric))
    (home / "site.yaml").write_text(SITES[batch])
    return StudyFolder.create(home / "study", read_study_file(home / "study.yaml"))


def tuned(folder: StudyFolder) -> None:
    with assemble_campaign(folder) as campaign:
        campaign.run()


def runs(folder: StudyFolder) -> list[Path]:
    return sorted((folder.path / "runs").iterdir())


def left(folder: StudyFolder) -> set[frozenset[str]]:
    """The different sets of files that runs have left."""
    return {frozenset(path.name for path in run.iterdir()) for run in runs(folder)}


def kept(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / RESULT_FILE).read_text())[STATE_KEY]
    return found


def assert_tidy(folder: StudyFolder, batch: str) -> None:
    assert left(folder) == {frozenset(OURS)}
    for run in runs(folder):
        assert WRITTEN[batch] <= kept(run).keys()
    found = verify_folder(folder.path)
    assert found.holds, found.mismatches
    assert found.unchecked == []
    assert found.verdict
    assert found.outcomes == found.runs == len(runs(folder))


@pytest.mark.parametrize("batch", ["local", "simulated"])
def test_a_run_leaves_four_files(tmp_path: Path, batch: str) -> None:
    folder = created(tmp_path, batch)
    tuned(folder)
    assert_tidy(folder, batch)
    run = runs(folder)[0]
    said = subprocess.run(["sh", "run.sh"], cwd=run, capture_output=True, text=True, check=True).stdout
    assert said == (run / "stdout").read_text()
    assert left(folder) == {frozenset(OURS)}, "a start by hand keeps no state files"


def test_a_run_on_pbs_leaves_four_files(pbs_standin: Path, tmp_path: Path) -> None:
    folder = created(tmp_path, "pbs")
    tuned(folder)
    assert_tidy(folder, "pbs")


@pytest.mark.slurm
def test_a_run_on_slurm_leaves_four_files(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = created(tmp_path, "slurm")
    tuned(folder)
    assert_tidy(folder, "slurm")


def test_while_jobs_of_a_batch_system_may_be_written_about_their_state_files_lie_loose(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may add to batch.out after the job wrote its exit file; what it adds is kept."""
    folder = created(tmp_path, "pbs")
    next_stage = Campaign._next_stage

    def late_words(campaign: Campaign) -> None:
        for run in runs(folder):
            assert (run / "exit").exists()
            assert (run / "batch.out").exists()
            (run / "batch.out").write_text("=>> PBS: a late word\n")
        next_stage(campaign)

    monkeypatch.setattr(Campaign, "_next_stage", late_words)
    monkeypatch.setattr("ridgeline.campaign.controller._LINGERING_S", 3600.0)  # on a busy machine it takes minutes
    tuned(folder)
    assert left(folder) == {frozenset(OURS)}
    assert [state_file(run, "batch.out").text for run in runs(folder)] == ["=>> PBS: a late word\n"] * len(runs(folder))  # type: ignore[union-attr]


def test_a_file_that_the_study_reads_by_such_a_name_stays(tmp_path: Path) -> None:
    folder = created(tmp_path, "local", metric="file: load")
    text = (folder.path / "study.yaml").read_text()
    (folder.path / "study.yaml").write_text(text.replace('% 11 ))";', '% 11 ))" > load;'))
    tuned(folder)
    assert left(folder) == {frozenset({*OURS, "load"})}
    assert verify_folder(folder.path).holds


def step_names() -> list[str]:
    return ["write_result", "record", "put_away", "unlink 1", "unlink 3", "after put_away"]


def kills(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Die at this step of the third run's end."""
    count = {"closed": 0, "unlinked": 0}
    write, record, put_away, unlink = controller.write_result, Campaign.record, controller.put_away, Path.unlink

    def third() -> bool:
        return count["closed"] == 3

    def writes(*args: Any) -> Any:
        count["closed"] += 1
        found = write(*args)
        if third() and step == "write_result":
            raise Killed
        return found

    def records(campaign: Campaign, event: dict[str, Any]) -> None:
        record(campaign, event)
        if third() and step == "record" and event["event"] == "ended":
            raise Killed

    def puts(*args: Any) -> None:
        if third() and step == "put_away":
            raise Killed
        put_away(*args)
        if third() and step == "after put_away":
            raise Killed

    def unlinks(path: Path, missing_ok: bool = False) -> None:
        if third() and path.name in WRITTEN["local"]:
            count["unlinked"] += 1
            if step == f"unlink {count['unlinked']}":
                raise Killed
        unlink(path, missing_ok)

    monkeypatch.setattr(controller, "write_result", writes)
    monkeypatch.setattr(Campaign, "record", records)
    monkeypatch.setattr(controller, "put_away", puts)
    monkeypatch.setattr(Path, "unlink", unlinks)
    monkeypatch.setattr(Campaign, "_leave", lambda campaign, error: None)


@pytest.mark.parametrize("step", step_names())
def test_a_controller_killed_between_ended_fold_and_unlink_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = created(tmp_path, "local")
    with monkeypatch.context() as patched:
        kills(patched, step)
        with pytest.raises(Killed):
            tuned(folder)
    third = runs(folder)[2]
    written = {name: state_file(third, name) for name in WRITTEN["local"]}
    assert None not in written.values()
    assert verify_folder(folder.path).holds
    tuned(folder)
    assert_tidy(folder, "local")
    for name, before in written.items():
        after = state_file(third, name)
        assert after is not None
        assert before is not None
        assert (after.text, after.changed_s) == (before.text, before.changed_s)
    journal = [json.loads(line) for line in (folder.path / "journal.jsonl").read_text().splitlines()]
    assert [event["run"] for event in journal if event["event"] == "ended"] == list(range(1, len(runs(folder)) + 1))


def cut_off(folder: StudyFolder, keeps: Callable[[dict[str, Any]], bool]) -> None:
    """Cut the journal off before the first event that `keeps` refuses, as its error messages tell people to."""
    lines = folder.journal_path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if not keeps(json.loads(line)))
    folder.journal_path.write_text("".join(lines[:at]))


@pytest.mark.parametrize("batch", ["local", "simulated"])
def test_a_journal_that_was_cut_off_finds_its_runs_again_in_folded_state_files(tmp_path: Path, batch: str) -> None:
    folder = created(tmp_path, batch)
    tuned(folder)
    first = [json.loads(line) for line in folder.journal_path.read_text().splitlines()]
    folded = {run.name: kept(run) for run in runs(folder)}
    cut_off(folder, lambda event: (event["event"], event.get("run")) != ("ended", 3))
    tuned(folder)
    assert_tidy(folder, batch)
    again = [json.loads(line) for line in folder.journal_path.read_text().splitlines()]
    assert ended(again)[3]["ending"]["started"] == ended(first)[3]["ending"]["started"], "found, not run once more"
    assert kept(runs(folder)[2]) == folded[runs(folder)[2].name]


def ended(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {event["run"]: event for event in events if event["event"] == "ended"}


def test_folders_of_an_earlier_release_keep_their_loose_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run.sh would not notice that there was a run, were they folded; nobody reads less for it."""
    folder = created(tmp_path, "local")

    def as_before(home: Path, result: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        (home / "result.json").write_text(json.dumps(result))
        if home.name.startswith("0004"):
            raise Killed
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(controller, "write_result", as_before)
        patched.setattr(Campaign, "_leave", lambda campaign, error: None)
        with pytest.raises(Killed):
            tuned(folder)
    tuned(folder)
    assert left(folder) == {frozenset(OURS), frozenset(OURS | WRITTEN["local"])}
    assert verify_folder(folder.path).holds


def test_result_json_is_on_disk_before_the_first_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[str] = []
    write, unlink = state_files.write_whole, Path.unlink

    def writes(path: Path, content: str, **more: Any) -> None:
        assert more.get("survives_power_cut", True), "a power cut must not find the files gone and this one empty"
        write(path, content, **more)
        acts.append(path.name)

    def unlinks(path: Path, missing_ok: bool = False) -> None:
        if path.name in WRITTEN["local"]:
            acts.append(f"{path.name} goes")
        unlink(path, missing_ok)

    monkeypatch.setattr(state_files, "write_whole", writes)
    monkeypatch.setattr(Path, "unlink", unlinks)
    tuned(created(tmp_path, "local"))
    assert acts[0] == "result.json"
    assert {act for act in acts if act.endswith(" goes")} == {f"{name} goes" for name in WRITTEN["local"]}
