"""Jobs on a real Slurm: how each way to end is told apart, and what the executor survives."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors.base import waiting_for
from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.dialect import BATCH_OUTPUT
from ridgeline.executors.script import exit_record
from ridgeline.executors.slurm import slurm as slurm_executor
from ridgeline.records.launch import launch
from ridgeline.records.run import Cause, Ending, Job, Resources
from ridgeline.records.site import Site
from ridgeline.study.state_files import put_away, write_result
from tests.slurm_cluster import SlurmCluster, _alive, _until, plain_environment

pytestmark = pytest.mark.slurm


def executor(**options: object) -> BatchExecutor:
    given = {"name": "here", "batch": "slurm", "queue": "debug", "poll_s": 0.3, "jobs_at_once": 8, **options}
    return slurm_executor(Site(**given))  # type: ignore[arg-type]


def job(folder: Path, name: str, command: str, **options: object) -> Job:
    path = folder / name
    path.mkdir(exist_ok=True)
    return Job(name, path, command, **{"limit_s": 60.0, **options})  # type: ignore[arg-type]


def until_ended(runner: BatchExecutor, *tickets: str, limit_s: float = 40) -> list[Ending]:
    endings: dict[str, Ending] = {}
    give_up = time.monotonic() + limit_s
    while len(endings) < len(tickets):
        assert time.monotonic() < give_up, f"still open: {set(tickets) - set(endings)}, {runner.waiting}"
        endings |= runner.poll([ticket for ticket in tickets if ticket not in endings])
        runner.wait(1)
    return [endings[ticket] for ticket in tickets]


def wait_for(path: Path, limit_s: float = 60) -> None:
    give_up = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < give_up, f"{path} did not appear"
        time.sleep(0.05)


def until_running(folder: Path) -> None:
    wait_for(folder / "started")


def test_every_way_to_end_is_told_apart(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    jobs = {
        "ok": job(tmp_path, "ok", "echo result; echo noise >&2", env={"KNOB": "it's 1"}),
        "fails": job(tmp_path, "fails", "exit 7"),
        "killed": job(tmp_path, "killed", "kill -9 $$"),
        "limit": job(tmp_path, "limit", "sleep 60", limit_s=1.0),
        "silent": job(tmp_path, "silent", "echo one; sleep 60", silence_limit_s=1.0),
        "nodes": job(tmp_path, "nodes", "srun hostname", resources=Resources(nodes=2, ranks_per_node=2)),
    }
    endings = dict(zip(jobs, until_ended(runner, *[runner.submit(j) for j in jobs.values()]), strict=True))
    assert (endings["ok"].cause, endings["ok"].exit_code) == (Cause.EXITED, 0)
    assert (tmp_path / "ok/stdout").read_text() == "result\n"
    assert (tmp_path / "ok/stderr").read_text() == "noise\n"
    assert 0 < endings["ok"].started_s <= endings["ok"].ended_s
    assert len(endings["ok"].nodes) == 1
    assert (endings["fails"].cause, endings["fails"].exit_code) == (Cause.EXITED, 7)
    assert (endings["killed"].cause, endings["killed"].signal) == (Cause.EXITED, 9)
    assert endings["limit"].cause is Cause.TIME_LIMIT
    assert endings["silent"].cause is Cause.SILENCE
    assert len(endings["nodes"].nodes) == 2
    assert (tmp_path / "nodes/stdout").read_text().count("\n") == 4


def test_sbatch_by_hand_leaves_the_evidence_as_it_is_and_works_in_a_copy(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner, asked = executor(), job(tmp_path, "j", "cat input; echo $SLURM_JOB_ID > program.out")
    (asked.folder / "input").write_text("as prepared\n")
    until_ended(runner, runner.submit(asked))
    before = {path.name: path.read_bytes() for path in asked.folder.iterdir()}
    assert "batch.out" in before
    copied = shutil.copytree(asked.folder, tmp_path / "elsewhere" / "copy")
    for folder in (asked.folder, copied):
        by_hand = ["sbatch", "--wait", "--parsable", "run.sh"]
        done = subprocess.run(by_hand, cwd=folder, env=plain_environment(), check=True, capture_output=True)
        number = done.stdout.decode().strip()
        repeat = folder.with_name(f"{folder.name}.by-hand-{number}")
        assert (repeat / "stdout").read_text() == "as prepared\n"
        assert (repeat / "program.out").read_text() == f"{number}\n"
        assert {name: (folder / name).read_bytes() for name in before} == before


def test_the_batch_script_itself_killed_is_a_signal_and_not_a_success(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor(setup=("export SCRIPT=$$",))
    # the command ends its own run.sh, so that no exit file can be written
    ended = until_ended(runner, runner.submit(job(tmp_path, "j", "kill -9 $SCRIPT; sleep 300")))
    assert not (tmp_path / "j/exit").exists()
    assert ended[0].cause is Cause.EXITED
    assert ended[0].signal == 9


def test_cancel_ends_the_job_and_is_reported(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    ticket = runner.submit(job(tmp_path, "j", "sleep 300 & sleep 300"))
    until_running(tmp_path / "j")
    runner.cancel(ticket)
    (ending,) = until_ended(runner, ticket)
    assert ending.cause is Cause.CANCELLED
    assert not slurm.run(
        "squeue", "-h", "-t", "running,completing", "-j", ticket.split()[0], check=False
    ).stdout.strip()


def test_a_cancel_that_slurm_does_not_hear_is_an_error_and_can_be_repeated(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    ticket = runner.submit(job(tmp_path, "j", "sleep 300"))
    slurm.stop_munge()
    try:
        with pytest.raises(SiteError, match="not cancelled") as unheard:
            runner.cancel(ticket)
        assert unheard.value.transient
    finally:
        slurm.start_munge()
    runner.cancel(ticket)
    assert until_ended(runner, ticket)[0].cause is Cause.CANCELLED


def test_a_job_cancelled_by_somebody_else_is_not_a_failure_of_the_setting(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    ticket = runner.submit(job(tmp_path, "j", "sleep 300"))
    until_running(tmp_path / "j")
    slurm.run("scancel", ticket.split()[0])
    assert until_ended(runner, ticket)[0].cause is Cause.CANCELLED


@pytest.mark.parametrize(
    ("site", "asked"),
    [
        ({}, {"resources": Resources(nodes=9)}),
        ({}, {"resources": Resources(ranks_per_node=3)}),
        ({}, {"resources": Resources(memory_bytes=10**15)}),
        ({}, {"resources": Resources(gpus=1)}),
        ({"queue": "short"}, {"limit_s": 3600.0}),
        ({"queue": "members", "account": "strangers"}, {}),
    ],
    ids=["nodes", "cores", "memory", "gpus", "walltime", "account"],
)
def test_what_can_never_start_is_reported_with_slurms_reason_and_leaves_the_queue(
    slurm: SlurmCluster, tmp_path: Path, site: dict[str, object], asked: dict[str, object]
) -> None:
    runner = executor(**site)
    ticket = runner.submit(job(tmp_path, "j", "true", **asked))
    (ending,) = until_ended(runner, ticket)
    assert ending.cause is Cause.NEVER_STARTS
    assert ending.reason
    assert "j-" not in slurm.run("squeue", "-h", "-t", "pending", "-o", "%j").stdout


def test_an_unknown_partition_stops_the_campaign_and_names_the_remedy(slurm: SlurmCluster, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="sinfo") as refused:
        executor(queue="nosuch").submit(job(tmp_path, "j", "true"))
    assert not refused.value.transient
    assert "nosuch" in str(refused.value)


def test_munge_down_is_transient_and_the_same_folder_can_be_submitted_later(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    runner = executor()
    asked = job(tmp_path, "j", "true")
    slurm.stop_munge()
    try:
        with pytest.raises(SiteError, match="munged") as refused:
            runner.submit(asked)
        assert refused.value.transient
        assert runner.find(asked) is None
    finally:
        slurm.start_munge()
    assert until_ended(runner, runner.submit(asked))[0].exit_code == 0


def test_a_restart_of_slurmctld_in_mid_run_loses_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    tickets = [runner.submit(job(tmp_path, f"j{n}", "sleep 4; echo done")) for n in range(3)]
    until_running(tmp_path / "j0")
    slurm.stop_controller()
    try:
        assert runner.poll(tickets) == {}
        with pytest.raises(SiteError, match="slurmctld is down") as refused:
            runner.submit(job(tmp_path, "late", "true"))
        assert refused.value.transient
    finally:
        slurm.start_controller()
    assert [e.exit_code for e in until_ended(runner, *tickets)] == [0, 0, 0]


def test_a_long_outage_is_an_error_that_says_the_jobs_go_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor(options={"outage_s": 0.0})
    ticket = runner.submit(job(tmp_path, "j", "sleep 2"))
    slurm.stop_munge()
    try:
        with pytest.raises(SiteError, match="resume") as away:
            runner.poll([ticket])
        assert away.value.transient
    finally:
        slurm.start_munge()
    assert until_ended(runner, ticket)[0].exit_code == 0


def test_a_job_pinned_to_a_drained_node_is_given_up_with_the_operators_task(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    runner = executor(options={"stuck_after_s": 1.0})
    slurm.run("scontrol", "update", "nodename=n4", "state=drain", "reason=fan")
    try:
        pinned = runner.submit(job(tmp_path, "pinned", "true", on_nodes=("n4",)))
        free = runner.submit(job(tmp_path, "free", "true", avoid_nodes=("n1", "n2")))
        stuck, ran = until_ended(runner, pinned, free)
    finally:
        slurm.run("scontrol", "update", "nodename=n4", "state=resume")
    assert stuck.cause is Cause.NODE_FAILED
    assert "n4" in stuck.reason
    assert "operator" in stuck.reason
    assert (ran.exit_code, ran.nodes) == (0, ("n3",))
    slurm.await_idle()


def test_a_node_that_dies_under_a_job_is_a_node_fault(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    ticket = runner.submit(job(tmp_path, "j", "sleep 300", on_nodes=("n3",)))
    until_running(tmp_path / "j")
    slurm.run("scontrol", "update", "nodename=n3", "state=down", "reason=fire")
    try:
        (ending,) = until_ended(runner, ticket)
    finally:
        slurm.run("scontrol", "update", "nodename=n3", "state=resume", check=False)  # it may be back by itself
        slurm.await_idle()
    assert (ending.cause, ending.nodes) == (Cause.NODE_FAILED, ("n3",))


CONTROLLER = """
import sys, time
from pathlib import Path
from ridgeline.executors.slurm import slurm
from ridgeline.records.run import Job
from ridgeline.records.site import Site
from ridgeline.study.state_files import put_away, write_result
runner = slurm(Site(batch="slurm", queue="debug", poll_s=0.3))
folder = Path(sys.argv[1])
print(runner.submit(Job(folder.name, folder, "sleep 2; echo done", limit_s=60.0)), flush=True)
time.sleep(60)
"""


def test_another_controller_finds_the_jobs_of_a_killed_one_and_submits_nothing_twice(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    asked = job(tmp_path, "j", "sleep 2; echo done")
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(asked.folder)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert controller.stdout is not None
    ticket = controller.stdout.readline().strip()
    controller.send_signal(signal.SIGKILL)
    controller.communicate()
    runner = executor()
    assert runner.find(asked) == ticket
    # killed between sbatch and writing the ticket down: the unique name is in the queue
    (asked.folder / "ticket").unlink()
    (asked.folder / "started").unlink(missing_ok=True)
    assert runner.find(asked) == ticket
    (asked.folder / "ticket").unlink()
    assert runner.submit(asked) == ticket
    assert until_ended(runner, ticket)[0].exit_code == 0


def test_one_question_an_interval_for_all_jobs(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor(poll_s=0.5)
    tickets = [runner.submit(job(tmp_path, f"j{n}", "sleep 1")) for n in range(12)]
    began = time.monotonic()
    until_ended(runner, *tickets)
    assert runner.questions <= (time.monotonic() - began) / 0.5 + 2


def test_folders_and_names_with_blanks_and_quotes(slurm: SlurmCluster, tmp_path: Path) -> None:
    odd = tmp_path / "my studies (2)"
    odd.mkdir()
    runner = executor()
    asked = job(odd, "it's 1", "pwd")
    assert until_ended(runner, runner.submit(asked))[0].exit_code == 0
    assert (asked.folder / "stdout").read_text().strip() == str(asked.folder)


def test_a_controller_inside_a_job_does_not_hand_its_own_limits_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    # sbatch would take these as options of the new job
    os.environ |= {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "999999999", "SLURM_NTASKS_PER_NODE": "64"}
    try:
        runner = executor()
        ticket = runner.submit(job(tmp_path, "j", "echo ${SLURM_MEM_PER_CPU:-none}"))
    finally:
        for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SLURM_NTASKS_PER_NODE"):
            del os.environ[name]
    assert until_ended(runner, ticket)[0].exit_code == 0
    assert (tmp_path / "j/stdout").read_text() == "none\n"


def test_a_job_is_what_its_script_says_whatever_is_exported(slurm: SlurmCluster, tmp_path: Path) -> None:
    assert {os.environ["SBATCH_PARTITION"], os.environ["SBATCH_TIMELIMIT"]} == {"short", "1"}
    runner = executor()
    ticket = runner.submit(job(tmp_path, "j", "env | grep -E '^(SBATCH|SRUN|SQUEUE)_'; sleep 60", limit_s=600.0))
    until_running(tmp_path / "j")
    said = dict(re.findall(r"(\S+?)=(\S*)", slurm.run("scontrol", "show", "job", ticket.split()[0]).stdout))
    runner.cancel(ticket)
    assert until_ended(runner, ticket)[0].cause is Cause.CANCELLED, "SCANCEL_STATE names other jobs"
    asked = {name: said[name] for name in ("Partition", "TimeLimit", "Requeue", "OverSubscribe", "MinMemoryNode")}
    assert asked == {"Partition": "debug", "TimeLimit": "00:11:00", "Requeue": "0", "OverSubscribe": "OK"} | {
        "MinMemoryNode": "0"
    }
    assert (tmp_path / "j/stdout").read_text() == ""


def test_sbatch_run_sh_by_hand_repeats_the_run(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    asked = job(tmp_path, "j", "echo $((6 * 7)); exit 3")
    until_ended(runner, runner.submit(asked))
    done = slurm.run("sbatch", "--wait", "--output=/dev/null", str(asked.folder / "run.sh"), check=False)
    assert done.returncode == 3
    (repeat,) = tmp_path.glob("j.by-hand-*")
    assert (repeat / "stdout").read_text() == "42\n"


def test_a_job_slurm_has_forgotten_is_found_in_the_completion_log(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor(setup=("export SCRIPT=$$",))
    ticket = runner.submit(job(tmp_path, "j", "kill -9 $SCRIPT"))
    until_ended(runner, ticket)
    (seen,) = (runner._elsewhere({ticket: runner._watch(ticket)}) or {}).values()
    assert seen.ending is not None
    assert (seen.ending.cause, seen.ending.signal) == (Cause.EXITED, 9)


def test_a_job_found_nowhere_is_lost_and_never_completed(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor(options={"lost_after_s": 0.5})
    (tmp_path / "gone").mkdir()
    (ending,) = until_ended(runner, f"999999 {tmp_path / 'gone'}")
    assert ending.cause is Cause.LOST
    assert "999999" in ending.reason


def test_a_full_disk_or_a_module_that_does_not_load_is_not_blamed_on_the_setting(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    runner = executor(scratch="/proc/no-room-here")
    (ending,) = until_ended(runner, runner.submit(job(tmp_path, "j", "true")))
    assert ending.cause is Cause.NODE_FAILED
    assert "scratch" in ending.reason
    runner = executor(modules=("nwchem/7.2",))
    (ending,) = until_ended(runner, runner.submit(job(tmp_path, "k", "true")))
    assert ending.cause is Cause.NODE_FAILED
    assert "module" in ending.reason


def test_each_job_has_scratch_of_its_own_that_goes_away_with_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor(scratch=str(tmp_path / "scratch"))
    until_ended(runner, runner.submit(job(tmp_path, "j", 'touch "$RIDGELINE_SCRATCH/f"; ls "$RIDGELINE_SCRATCH"')))
    assert (tmp_path / "j/stdout").read_text() == "f\n"
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_users_own_script_runs_unchanged_with_the_trials_environment(slurm: SlurmCluster, tmp_path: Path) -> None:
    own = tmp_path / "mine.sh"
    own.write_text(
        '#!/bin/bash\n#SBATCH -N 2\n#SBATCH --comment=mine\necho "$SLURM_NNODES $KNOB"\neval "$RIDGELINE_COMMAND"\n'
    )
    runner = executor(options={"script": str(own)})
    asked = job(tmp_path, "j", "echo from the trial", env={"KNOB": "7"})
    until_ended(runner, runner.submit(asked))
    assert (asked.folder / "stdout").read_text() == "2 7\nfrom the trial\n"
    assert (asked.folder / "site-script").read_bytes() == own.read_bytes()


@pytest.mark.slow
def test_slurms_own_time_limit_ends_what_the_jobs_limit_cannot(slurm: SlurmCluster, tmp_path: Path) -> None:
    # setup runs before the job's own clock starts; Slurm counts in minutes and looks twice a minute. Deaf to Slurm's
    # TERM, all of it dies at once: if the sleep died first, the job's own command might just have time to run
    runner = executor(setup=("trap '' TERM", "sleep 300"), options={"walltime_slack_s": 0})
    over = runner.submit(job(tmp_path, "j", "true", limit_s=30.0))
    # the operator takes from another what it had asked for
    other = executor()
    shortened = other.submit(job(tmp_path, "shortened", "sleep 600", limit_s=600.0))
    slurm.run("scontrol", "update", f"JobId={shortened.split()[0]}", "TimeLimit=1")
    (ending,) = until_ended(runner, over, limit_s=150)
    assert ending.cause is Cause.TIME_LIMIT
    assert "TIMEOUT" in ending.reason
    (ending,) = until_ended(other, shortened, limit_s=150)
    assert ending.cause is Cause.CANCELLED
    assert "before its own limit of 600 s" in ending.reason


def test_a_preempted_job_blames_neither_its_setting_nor_its_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    ticket = runner.submit(job(tmp_path, "j", "sleep 300", on_nodes=("n4",), resources=Resources(ranks_per_node=2)))
    until_running(tmp_path / "j")
    first = slurm.run("sbatch", "--parsable", "-p", "urgent", "-w", "n4", "--exclusive", "-o/dev/null", "--wrap=true")
    (ending,) = until_ended(runner, ticket)
    assert _until(lambda: not slurm.run("squeue", "-h", "-j", first.stdout.strip(), check=False).stdout.strip(), 30)
    assert (ending.cause, ending.nodes) == (Cause.CANCELLED, ("n4",))
    assert "PREEMPTED" in ending.reason and "a job that goes first" in ending.reason


def test_nodes_are_avoided_as_far_as_there_are_others(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    some = runner.submit(job(tmp_path, "some", "true", avoid_nodes=("n1", "n2", "n4")))
    everywhere = runner.submit(job(tmp_path, "all", "true", avoid_nodes=("n1", "n2", "n3", "n4")))
    one, other = until_ended(runner, some, everywhere)
    assert (one.exit_code, one.nodes) == (0, ("n3",))
    assert (other.cause, other.exit_code, len(other.nodes)) == (Cause.EXITED, 0, 1)
    assert "--exclude" not in (tmp_path / "all/run.sh").read_text()


LINGERS = "echo $$ > pid; touch $RIDGELINE_SCRATCH/big; {before}while :; do sleep 0.1; done"


@pytest.mark.parametrize("before", ["", "trap '' TERM; "], ids=["dies of TERM", "ignores TERM"])
def test_a_cancelled_job_stops_computing_and_leaves_no_scratch(
    slurm: SlurmCluster, tmp_path: Path, before: str
) -> None:
    """By cgroup Slurm tells the batch script alone; KillWait would let the program compute on for half a minute."""
    runner = executor(scratch=str(tmp_path / "scratch"))
    asked = job(tmp_path, "j", LINGERS.format(before=before))
    ticket = runner.submit(asked)
    wait_for(asked.folder / "pid")
    while not (asked.folder / "pid").read_text().endswith("\n"):
        time.sleep(0.05)
    program = int((asked.folder / "pid").read_text())
    runner.cancel(ticket)
    [ending] = until_ended(runner, ticket)
    assert ending.cause is Cause.CANCELLED
    # written by run.sh itself, so it outlived its program: Slurm has not had to kill them together
    record = exit_record(asked.folder)
    assert record is not None
    assert record.terminated
    assert not _alive(program)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_program_that_ends_with_0_after_a_cancel_does_not_count(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    asked = job(tmp_path, "j", "trap 'echo rate 7; exit 0' TERM; touch here; while :; do sleep 0.1; done")
    ticket = runner.submit(asked)
    wait_for(asked.folder / "here")
    slurm.run("scancel", ticket.split()[0])
    [ending] = until_ended(runner, ticket)
    assert (ending.cause, ending.exit_code) == (Cause.CANCELLED, 0)
    assert "may be partial and does not count" in ending.reason


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits again", "when it starts again"])
def test_a_requeued_job_keeps_the_evidence_of_its_first_start(slurm: SlurmCluster, tmp_path: Path, waits: bool) -> None:
    runner = executor()
    asked = job(tmp_path, "j", "echo start >> starts; echo first; sleep 60")
    ticket = runner.submit(asked)
    wait_for(asked.folder / "starts")
    number = ticket.split()[0]
    slurm.run("scontrol", "update", f"JobId={number}", "Requeue=1")
    slurm.run("scontrol", "requeue", number)
    deadline = time.monotonic() + 300
    while not waits and not (asked.folder / "requeued").exists():
        assert time.monotonic() < deadline
        # Slurm holds a requeued job back for two minutes, counted from the end of its first start
        slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)
        time.sleep(1)
    [ending] = until_ended(runner, ticket, limit_s=150)
    assert ending.cause is Cause.CANCELLED
    assert "second time" in ending.reason or "back into the queue" in ending.reason
    assert (asked.folder / "starts").read_text() == "start\n"
    assert (asked.folder / "stdout").read_text() == "first\n"
    assert not slurm.run("squeue", "-h", "-t", "PD,R", "-j", number, check=False).stdout.strip()


def test_a_job_requeued_after_its_run_has_ended_does_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    asked = job(tmp_path, "j", "echo start >> starts; until [ -e go ]; do sleep 0.1; done")
    ticket = runner.submit(asked)
    number = ticket.split()[0]
    wait_for(asked.folder / "starts")
    slurm.run("scontrol", "update", f"JobId={number}", "Requeue=1")
    (asked.folder / "go").touch()
    assert until_ended(runner, ticket)[0].exit_code == 0
    write_result(asked.folder, {"run": 1}, runner.state_files)
    put_away(asked.folder, runner.state_files)
    assert _until(lambda: "COMPLETED" in slurm.run("scontrol", "show", "job", number).stdout, 30)
    slurm.run("scontrol", "requeue", number)
    deadline = time.monotonic() + 120
    while "74:0" not in (said := slurm.run("scontrol", "show", "job", number).stdout):
        assert time.monotonic() < deadline, said
        if "JobState=FAILED" in said and not (asked.folder / BATCH_OUTPUT).exists():
            # a node may refuse a job that ended on it a moment ago: nothing of the script has run
            slurm.run("scontrol", "requeue", number, check=False)
        # Slurm holds a requeued job back for two minutes, counted from the end of its first start
        slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)
        time.sleep(0.5)
    assert "Restarts=" in said and "Restarts=0" not in said
    assert (asked.folder / "starts").read_text() == "start\n"
    assert not list(tmp_path.glob("j.by-hand-*"))


def test_why_a_job_waits_is_known_in_words_until_it_starts(slurm: SlurmCluster, tmp_path: Path) -> None:
    runner = executor()
    first = runner.submit(job(tmp_path, "first", "until [ -e go ]; do sleep 0.1; done", on_nodes=("n4",)))
    until_running(tmp_path / "first")
    second = runner.submit(job(tmp_path, "second", "true", on_nodes=("n4",), resources=Resources(ranks_per_node=2)))
    assert waiting_for(tmp_path / "second") == "", "taken, and not asked about yet"

    def said() -> bool:
        runner.poll([first, second])
        runner.wait(1)
        return bool(waiting_for(tmp_path / "second"))

    assert _until(said, 30)
    assert waiting_for(tmp_path / "second") in (
        "the nodes it needs are busy (Resources)",
        "jobs of higher priority are ahead of it (Priority)",
    )
    assert waiting_for(tmp_path / "first") is None
    (tmp_path / "first/go").touch()
    assert [ending.exit_code for ending in until_ended(runner, first, second)] == [0, 0]
    assert waiting_for(tmp_path / "second") is None


def test_a_whole_node_is_asked_for_as_such_and_not_as_its_cores(slurm: SlurmCluster, tmp_path: Path) -> None:
    """A node of 2 CPUs whose site file says one core, as with hyper-threads: a neighbour could take the other CPU."""
    runner = executor(cores_per_node=1)
    until_ended(runner, runner.submit(job(tmp_path, "j", "echo $SLURM_CPUS_ON_NODE")))
    assert (tmp_path / "j/stdout").read_text() == "2\n"


DYING = """\
echo "rank $SLURM_PROCID says goodbye" >&2
[ "$SLURM_PROCID" = 1 ] && kill -9 $$
while :; do echo chatter; done
"""


def test_the_last_words_of_a_rank_that_dies_are_kept(slurm: SlurmCluster, tmp_path: Path) -> None:
    """srun drops them now and then, where it ends the other ranks first: here it did once in seven times."""
    runner = executor(launcher="srun", launcher_options="--kill-on-bad-exit=1", options={"rank_errors": True})
    ranks = Resources(nodes=2, ranks_per_node=2)
    (tmp_path / "dying").mkdir()
    (tmp_path / "dying/rank.sh").write_text(DYING)
    text = launch(runner.site, ranks, "sh rank.sh")
    (end,) = until_ended(runner, runner.submit(job(tmp_path, "dying", text, resources=ranks)), limit_s=90)
    assert end.exit_code
    said = (tmp_path / "dying/stderr").read_text()
    assert "rank-1.err:\nrank 1 says goodbye\n" in said
    assert "chatter" in (tmp_path / "dying/stdout").read_text(), "stdout comes as it always did"
    assert not list((tmp_path / "dying").glob("rank-*.err"))
