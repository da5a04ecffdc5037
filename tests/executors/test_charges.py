"""Node-hours as the batch system counts them: every job that ran, from its own start to its own end."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest

from ridgeline.executors.dialect import JobReply, JobStatus
from ridgeline.executors.pbs import Pbs
from ridgeline.executors.script import exit_record
from ridgeline.executors.slurm import COLUMNS, Slurm
from ridgeline.executors.slurm import slurm as slurm_executor
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.site import Site
from ridgeline.study.history import History
from tests.executors.test_slurm_campaign import ridgeline
from tests.slurm_cluster import SlurmCluster

SITE = """
batch: slurm
queue: debug
jobs_at_once: 3
poll_s: 0.3
setup: [sleep 1]
"""
STUDY = r"""
version: 1
name: charged
workload:
  kind: command
  run: sleep 1; echo "rate $(cat {build}/product)"
  metrics:
    rate: {regex: 'rate\s+([0-9.]+)', unit: u/s}
site: cluster.yaml
builds:
  where: site
  make: sleep 2; echo {speed} > product
  keep: [product]
space:
  speed: [1, 2, 3]
  nodes: [1, 2]
goal: {maximize: rate}
baseline: {speed: 1, nodes: 1}
budget: {trials: 4}
search: {sampler: grid, sentinel_every: 0}
confirm: {top: 1, blocks: 3}
job: {nodes: nodes, limit: 60s}
"""


def node_seconds(slurm: SlurmCluster, folder: Path) -> list[float]:
    """Of each job of this study, as the completion log of Slurm has it; each is named after the study."""
    found = []
    for line in slurm.jobcomp.read_text().splitlines():
        cells = dict(re.findall(r"(\w+)=(\S*)", line))
        if cells.get("WorkDir", "").startswith(f"{folder}/"):
            assert cells["Name"].startswith("charged-"), line
            took = datetime.fromisoformat(cells["EndTime"]) - datetime.fromisoformat(cells["StartTime"])
            found.append(took.total_seconds() * int(cells["NodeCnt"]))
    return found


@pytest.mark.slurm
@pytest.mark.slow
def test_the_ledger_agrees_with_slurms_own_books(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Slurm's times are whole seconds, of which jobs this short have few: ours must be the same ones, not finer."""
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "cluster.yaml").write_text(SITE)
    done = ridgeline(tmp_path, "tune", "study.yaml")
    text, _ = done.communicate(timeout=600)
    assert done.returncode == 0, text
    assert "run again" not in text, "blocks stay where they began, though the site file says nothing of nodes"
    theirs = node_seconds(slurm, tmp_path)
    runs = list((tmp_path / "studies/charged/runs").iterdir())
    assert len(theirs) == len(runs) + 3, "the runs and three builds"
    status = ridgeline(tmp_path, "status", "studies/charged", "--json").communicate(timeout=600)[0]
    assert json.loads(status)["node_hours"] * 3600 == pytest.approx(sum(theirs), rel=0.02)
    # from Slurm itself; of the very last one it may not have seen the end when the campaign ended
    lines = [json.loads(line) for line in (tmp_path / "studies/charged/journal.jsonl").read_text().splitlines()]
    later = sum(line["event"] == "charged" for line in lines)
    at_once = sum("charged" in line.get("ending", {}) for line in lines)
    at_once += sum(line["event"] == "build" and "estimated_s" not in line for line in lines)
    assert len(theirs) - 1 <= later + at_once <= len(theirs)


# without a Slurm


def polled(dialect: Slurm | Pbs, text: str) -> Mapping[str, JobStatus]:
    found = dialect.read_poll(JobReply(0, text, ""))
    assert found is not None
    return found


def remembered(text: str) -> Mapping[str, JobStatus]:
    found = Slurm().read_history(JobReply(0, text, ""))
    assert found is not None
    return found


def squeue_row(**cells: str) -> str:
    return "".join(f"{cells.get(name, ''):{width}}" for name, width in COLUMNS.items())


def test_slurm_charges_from_its_own_start_to_its_own_end() -> None:
    times = {"StartTime": "1700000000", "EndTime": "1700000012"}
    for state, charged_s in (("COMPLETED", 12.0), ("CANCELLED", 12.0), ("COMPLETING", 12.0), ("RUNNING", None)):
        row = squeue_row(JobID="7", State=state, exit_code="0", Name="x", **times)
        assert polled(Slurm(), row)["7"].charged_s == charged_s, state
    in_queue = squeue_row(JobID="7", State="CANCELLED", StartTime="N/A", EndTime="1700000012")
    assert polled(Slurm(), in_queue)["7"].charged_s == 0.0
    sacct = "7|COMPLETED|0:0|1700000000|1700000030|n1|x|/runs/7"
    assert remembered(sacct)["7"].charged_s == 30.0
    jobcomp = (
        "JobId=7 JobState=COMPLETED NodeList=n1 StartTime=2026-11-16T09:00:00 EndTime=2026-11-16T09:00:41 ExitCode=0:0"
    )
    assert remembered(jobcomp)["7"].charged_s == 41.0
    unknown = jobcomp.replace("2026-11-16T09:00:00", "Unknown")
    assert remembered(unknown)["7"].charged_s is None


def test_a_requeued_job_is_charged_for_all_its_starts() -> None:
    """squeue tells of the last one only, and while the first one ends, of when its limit would have been."""
    for state in ("COMPLETING", "CANCELLED", "FAILED"):
        times = {"StartTime": "1700000000", "EndTime": "1700007200", "RestartCnt": "1"}
        row = squeue_row(JobID="7", State=state, exit_code="0", Name="x", **times)
        assert polled(Slurm(), row)["7"].charged_s is None, state
    again = "7|CANCELLED by 0|0:0|1700000100|1700000100|None assigned|x|/runs/7"
    first = "7|REQUEUED|0:0|1700000000|1700000030|n1|x|/runs/7"
    of_another_cluster = "7|COMPLETED|0:0|1600000000|1600009000|n1|y|/runs/old"
    found = remembered("\n".join((of_another_cluster, first, again)))["7"]
    assert (found.charged_s, found.ending and found.ending.cause) == (30.0, Cause.CANCELLED)
    still_runs = again.replace("CANCELLED by 0", "RUNNING").replace("|1700000100|None", "|Unknown|None")
    assert remembered(f"{first}\n{still_runs}")["7"].charged_s is None
    lines = [
        f"JobId=7 Name=x JobState={state} StartTime=2026-11-16T09:00:{start} EndTime=2026-11-16T09:00:{end} "
        "WorkDir=/runs/7 ExitCode=0:0"
        for state, start, end in (("PENDING", "00", "41"), ("CANCELLED", "50", "50"))
    ]
    assert remembered("\n".join(lines))["7"].charged_s == 41.0


def test_pbs_charges_its_walltime() -> None:
    said = "Job Id: 0.vm\n    resources_used.walltime = 00:01:06\n    job_state = F\n    Exit_status = 0\n"
    assert polled(Pbs(), said)["0.vm"].charged_s == 66.0


def test_without_a_batch_systems_word_the_whole_script_counts(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text(
        "exit_code=0\nstarted_s=1700000008\nended_s=1700000020\nup_first_s=100.00\nup_began_s=108.00\nup_ended_s=120.00\n"
    )
    record = exit_record(tmp_path)
    assert record is not None
    assert (record.elapsed_s, record.held_s) == (12.0, 20.0)
    ending = Ending(Cause.EXITED, elapsed_s=record.elapsed_s, held_s=record.held_s)
    assert Run(1, 1, 1, tmp_path, Resources(nodes=3), ending).node_hours * 3600 == pytest.approx(60.0)


def test_a_run_between_two_ticks_of_the_clock_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text(
        "exit_code=0\nstarted_s=1700000008.001\nended_s=1700000008.005\n"
        "up_first_s=108.01\nup_began_s=108.01\nup_ended_s=108.01\n"
    )
    record = exit_record(tmp_path)
    assert record is not None
    assert record.held_s == pytest.approx(0.004, abs=1e-6)


def event(at: float, what: str, **fields: object) -> dict[str, object]:
    return {"at": at, "event": what, **fields}


def test_what_the_batch_system_says_later_replaces_what_was_known_at_the_end(tmp_path: Path) -> None:
    built = {"outcome": {"kind": "ok"}, "files": 1, "seconds": 9.0, "settings": {}}
    ending = {"cause": "exited", "started": 10.0, "ended": 20.0, "exit_code": 0, "elapsed": 10.0, "held": 11.0}
    told = [
        event(1, "opened"),
        event(2, "build", key="a", ticket="6 /b", node_s=8.0, estimated_s=5.0, **built),
        event(2, "trial", trial=1, stage="baseline", proposer="us", point={}, settings={}),
        event(3, "run", run=1, trial=1, attempt=1, folder="runs/0001", resources={"nodes": 2}),
        event(4, "submitted", run=1, ticket="7 /r"),
        event(5, "ended", run=1, ending=ending, outcome={"kind": "ok"}),
    ]
    history = History.replay(tmp_path, told)
    assert history.node_hours * 3600 == pytest.approx(8 + 2 * 11)
    assert list(history.uncharged) == ["6 /b", "7 /r"]
    history.apply_all(
        [event(6, "charged", ticket="7 /r", seconds=13.0), event(7, "charged", ticket="6 /b", seconds=6.0)]
    )
    assert history.node_hours * 3600 == pytest.approx(9 + 2 * 13)
    assert not history.uncharged
    assert history.runs[1].ending.charged_s == history.runs_of[1][0].ending.charged_s == 13.0
    assert history.runs[1].ending.duration_s == 10.0, "what a run measured stays as it was"


def test_a_job_given_up_after_a_requeue_costs_what_its_first_start_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = slurm_executor(Site(name="here", batch="slurm", poll_s=0.0))
    (tmp_path / "started").write_text("8\nn1\n")
    (tmp_path / "exit").write_text(
        "exit_code=143\nstarted_s=1700000008\nended_s=1700000020\nup_first_s=100\nup_began_s=108\nup_ended_s=120\ntold=TERM\n"
    )
    waits = squeue_row(JobID="8", State="PENDING", Name="x", Reason="BeginTime", RestartCnt="1")
    gone = squeue_row(JobID="8", State="CANCELLED", Name="x", StartTime="9", EndTime="9", RestartCnt="1")
    starts = [("PENDING", "00:00", "00:22"), ("CANCELLED", "09:00", "09:00")]
    jobcomp = "\n".join(
        f"JobId=8 Name=x JobState={s} StartTime=2026-11-16T09:{a} EndTime=2026-11-16T09:{b} "
        f"WorkDir={tmp_path} ExitCode=0:0"
        for s, a, b in starts
    )
    queue = [waits, waits, gone]

    def answer(command: list[str], keep_open: int | None = None) -> JobReply:
        if "squeue" in command:
            return JobReply(0, queue.pop(0) if len(queue) > 1 else queue[0])
        return JobReply(1, "", "accounting storage is disabled") if "sacct" in command else JobReply(0, jobcomp)

    monkeypatch.setattr(runner, "_run", answer)
    ticket = f"8 {tmp_path}"
    endings = [runner.poll([ticket]) for _ in range(2)]
    ending = endings[1][ticket]
    assert (ending.cause, ending.cost_s, ending.nodes) == (Cause.CANCELLED, 20.0, ("n1",))
    assert runner.charged([ticket]) == {}
    assert runner.charged([ticket], ask=True) == {ticket: 22.0}


def test_at_the_end_forgotten_jobs_are_looked_for_in_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = slurm_executor(Site(name="here", batch="slurm"))
    asked: list[str] = []

    def answer(command: list[str], keep_open: int | None = None) -> JobReply:
        asked.append(next(word for word in command if word in ("squeue", "sacct", "sh")))
        said = f"8|COMPLETED|0:0|1700000000|1700000030|n1|x|{tmp_path}" if "sacct" in command else ""
        return JobReply(0, said)

    monkeypatch.setattr(runner, "_run", answer)
    assert runner.charged([f"8 {tmp_path}"]) == {}
    assert asked == []
    assert runner.charged([f"8 {tmp_path}"], ask=True) == {f"8 {tmp_path}": 30.0}
    assert asked == ["squeue", "sacct", "sh"]
