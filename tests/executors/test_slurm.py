"""The Slurm dialect: what it says, and how it reads captured answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.executors.dialect import Blame, JobReply, Phase, walltime_minutes
from ridgeline.executors.slurm import COLUMNS, Slurm
from ridgeline.records.run import Cause, Job, Resources
from ridgeline.records.site import Site

DIALECT = Slurm()


def squeue(**cells: str) -> JobReply:
    given = {"JobID": "7", "exit_code": "0", "StartTime": "N/A", "EndTime": "N/A", "Name": "j", **cells}
    return JobReply(0, "".join(given.get(name, "").ljust(width) for name, width in COLUMNS.items()) + "\n")


def seen(**cells: str):
    return (DIALECT.read_poll(squeue(**cells)) or {})["7"]


def test_what_is_no_line_of_a_job_in_sacct_is_passed_over() -> None:
    """Steps of a job, lines that were cut off, and what a wrapper prints."""
    whole = "9|FAILED|3:0|1700000000|1700000060|n1|j|/home/me/a|b"
    lines = ["hello from the login node", "9.batch|FAILED|3:0|1|2|n1|j|/x", "9|FAILED|3:0", "9||3:0|1|2|n1|j|/x", whole]
    found = DIALECT.read_history(JobReply(0, "\n".join(["", *lines, ""]), ""))
    assert found is not None and [*found] == ["9"]
    one = found["9"]
    assert one.folder == "/home/me/a|b", "a folder may have any name"
    assert one.ending is not None
    assert (one.ending.exit_code, one.ending.started_s, one.ending.ended_s) == (3, 1700000000.0, 1700000060.0)
    assert one.ending.nodes == ("n1",)


@pytest.mark.parametrize(
    ("state", "reason", "status", "cause", "code", "number"),
    [
        ("COMPLETED", "None", "0", Cause.EXITED, 0, None),
        ("FAILED", "NonZeroExitCode", "1792", Cause.EXITED, 7, None),
        ("FAILED", "JobLaunchFailure", "9", Cause.EXITED, 137, 9),
        ("FAILED", "BadConstraints", "1", Cause.NEVER_STARTS, None, None),
        ("TIMEOUT", "TimeLimit", "15", Cause.TIME_LIMIT, None, None),
        ("DEADLINE", "None", "0", Cause.TIME_LIMIT, None, None),
        ("OUT_OF_MEMORY", "OutOfMemory", "125", Cause.MEMORY_LIMIT, None, None),
        ("CANCELLED", "None", "0", Cause.CANCELLED, None, None),
        ("NODE_FAIL", "NodeDown", "0", Cause.NODE_FAILED, None, None),
        ("PREEMPTED", "None", "0", Cause.CANCELLED, None, None),
        ("BOOT_FAIL", "None", "0", Cause.NODE_FAILED, None, None),
        ("REVOKED", "None", "0", Cause.CANCELLED, None, None),
        ("SPECIAL_EXIT", "None", "768", Cause.EXITED, 3, None),
        ("A_STATE_OF_TOMORROW", "None", "0", Cause.LOST, None, None),
    ],
)
def test_states(state: str, reason: str, status: str, cause: Cause, code: int | None, number: int | None) -> None:
    found = seen(
        State=state, Reason=reason, exit_code=status, NodeList="n[1-2]", StartTime="1794715130", EndTime="1794715140"
    )
    assert found.phase is Phase.ENDED
    assert (found.ending.cause, found.ending.exit_code, found.ending.signal) == (cause, code, number)
    assert found.ending.nodes == ("n1", "n2")
    assert found.ending.duration_s == 10
    assert found.ending.reason or cause is Cause.EXITED


def test_a_job_whose_epilog_runs_or_that_is_queued_again_has_not_ended() -> None:
    for state in ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"):
        assert (seen(State=state).phase, seen(State=state).ending) == (Phase.RUNNING, None), state
    for state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "STOPPED"):
        assert (seen(State=state).phase, seen(State=state).ending) == (Phase.WAITING, None), state
    for state in ("COMPLETING", "REQUEUED"):
        told = DIALECT.read_history(JobReply(0, f"41|{state}|0:0|1794715130|Unknown|n1|a|/w\n")) or {}
        assert (told["41"].phase, told["41"].ending) == (Phase.RUNNING, None)


@pytest.mark.parametrize("start", ["N/A", "0", "Unknown", "None", ""])
def test_a_job_cancelled_before_it_started_has_used_no_time(start: str) -> None:
    """The start comes back as 0 or not at all, and the end as a date: half a million hours apart."""
    ending = seen(State="CANCELLED", Reason="None", StartTime=start, EndTime="1794715140").ending
    assert (ending.started_s, ending.ended_s, ending.duration_s) == (0.0, 0.0, 0.0)
    line = f"41|CANCELLED by 1000|0:0|{start}|1794715140|None assigned|a|/w\n"
    told = DIALECT.read_history(JobReply(0, line))["41"].ending
    assert told is not None
    assert told.duration_s == 0.0


@pytest.mark.parametrize(
    ("reason", "phase"),
    [
        ("PartitionConfig", Phase.HOPELESS),
        ("PartitionTimeLimit", Phase.HOPELESS),
        ("PartitionNodeLimit", Phase.HOPELESS),
        ("BadConstraints", Phase.HOPELESS),
        ("AssocGrpCPUMinutesLimit", Phase.HOPELESS),
        ("AssocGrpBillingMinutes", Phase.HOPELESS),
        ("AssocMaxNodePerJobLimit", Phase.HOPELESS),
        ("QOSMaxWallDurationPerJobLimit", Phase.HOPELESS),
        ("QOSMaxCpuPerJobLimit", Phase.HOPELESS),
        ("InvalidQOS", Phase.HOPELESS),
        ("AccountNotAllowed", Phase.HOPELESS),
        ("InvalidAccount", Phase.HOPELESS),
        ("QOSNotAllowed", Phase.HOPELESS),
        ("QOSMinGRES", Phase.HOPELESS),
        ("QOSTimeLimit", Phase.HOPELESS),
        ("DependencyNeverSatisfied", Phase.HOPELESS),
        ("Job's account not known, so it can't use this partition (mem", Phase.HOPELESS),
        ("ReqNodeNotAvail, UnavailableNodes:n4", Phase.STUCK),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", Phase.STUCK),
        ("launch failed requeued held", Phase.STUCK),
        ("PartitionDown", Phase.STUCK),
        ("PartitionInactive", Phase.STUCK),
        ("Resources", Phase.WAITING),
        ("Priority", Phase.WAITING),
        ("QOSGrpCpuLimit", Phase.WAITING),
        ("AssocMaxJobsLimit", Phase.WAITING),
        ("AssocGrpNodeLimit", Phase.WAITING),
        ("None", Phase.WAITING),
    ],
)
def test_a_waiting_job_is_given_up_only_when_it_can_never_start(reason: str, phase: Phase) -> None:
    found = seen(State="PENDING", Reason=reason)
    assert (found.phase, found.reason) == (phase, reason)


def test_a_poll_without_an_answer_is_no_news_about_any_job() -> None:
    away = JobReply(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    assert DIALECT.read_poll(away) is None
    assert DIALECT.read_poll(JobReply(0, "", "")) == {}


@pytest.mark.parametrize(
    ("said", "blame"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", Blame.SITE_FILE),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            Blame.SITE_FILE,
        ),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", Blame.REQUEST),
        ("sbatch: error: Memory specification can not be satisfied", Blame.REQUEST),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Blame.UNSURE),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            Blame.WEATHER,
        ),
        (
            'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file',
            Blame.WEATHER,
        ),
        (
            "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            Blame.WEATHER,
        ),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing)", Blame.REQUEST),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", Blame.SITE_FILE),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", Blame.WEATHER),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", Blame.UNSURE),
        ("sbatch: unrecognized option '--bogus'", Blame.SITE_FILE),
    ],
)
def test_a_refusal_says_whether_waiting_helps(said: str, blame: Blame) -> None:
    refusal = DIALECT.refusal(JobReply(1, "", said), Site(queue="q1", account="a1"))
    assert refusal.blame is blame
    assert said.splitlines()[-1] in refusal.message


def test_a_closed_partition_is_no_matter_of_the_account() -> None:
    said = "sbatch: error: Batch job submission failed: User's group not permitted to use this partition"
    refusal = DIALECT.refusal(JobReply(1, "", said), Site(queue="q1", account="a1"))
    assert refusal.blame is Blame.SITE_FILE
    assert "set `queue` in the site file to a partition that is open to one of your groups (now q1" in refusal.message
    assert "account" not in refusal.message


@pytest.mark.parametrize("history", ["squeue", "sacct", "jobcomp"])
def test_a_job_that_was_preempted_blames_nobody(history: str) -> None:
    found = seen(State="PREEMPTED", Reason="None", NodeList="n1", StartTime="1794715130", EndTime="1794715140")
    if history == "sacct":
        found = DIALECT.read_history(JobReply(0, "3|PREEMPTED|0:15|1794717822|1794717823|n1|a-1f|/tmp\n"))["3"]
    if history == "jobcomp":
        found = DIALECT.read_history(JobReply(0, "JobId=3 JobState=PREEMPTED Name=a NodeList=n1 ExitCode=0:15 "))["3"]
    assert found.ending is not None and found.ending.cause is Cause.CANCELLED
    assert found.ending.reason == "Slurm says PREEMPTED (its nodes were given to a job that goes first)"


@pytest.mark.parametrize(("text", "job_id"), [("12\n", "12"), ("12;ridge\n", "12"), ("Hello, user!\n345\n", "345")])
def test_job_ids(text: str, job_id: str) -> None:
    assert DIALECT.job_id(JobReply(0, text)) == job_id


def test_accounting_and_the_completion_log_are_read_alike() -> None:
    sacct = JobReply(
        0,
        "3|FAILED|7:0|1794717822|1794717822|n1|seven-80537baa|/tmp/s/seven\n"
        "4|FAILED|0:9|1794717822|1794717822|n2|killed-d4aa1fb3|/tmp/s/killed\n"
        "41|CANCELLED by 1000|0:0|1794715130|1794715140|n[1-2]|a-1f|/work/a|b\n"
        "42|RUNNING|0:0|1794715130|Unknown|n3|b|/w\n",
    )
    found = DIALECT.read_history(sacct)
    assert found["41"].ending is not None
    assert found["41"].ending.cause is Cause.CANCELLED
    assert (found["41"].name, found["41"].folder) == ("a-1f", "/work/a|b")
    assert found["41"].ending.reason == "Slurm says CANCELLED by 1000"
    assert found["42"].phase is Phase.RUNNING
    assert [found[n].ending.exit_code for n in "34"] == [7, 137]
    assert [found[n].ending.signal for n in "34"] == [None, 9]
    jobcomp = (
        "JobId=9 UserId=root(0) GroupId=root(0) Name=wrap JobState=FAILED Partition=debug TimeLimit=1 "
        "StartTime=2026-11-15T03:58:50 EndTime=2026-11-15T03:58:50 NodeList=n2 NodeCnt=1 ProcCnt=1 WorkDir=/tmp "
        "ReservationName= Tres=cpu=1,mem=4000M,node=1,billing=1 Account= QOS= WcKey= Cluster=unknown "
        "SubmitTime=2026-11-15T03:58:48 EligibleTime=2026-11-15T03:58:48 DerivedExitCode=0:0 ExitCode=0:9 "
    )
    nine = DIALECT.read_history(JobReply(0, jobcomp))["9"]
    assert nine.ending is not None
    assert (nine.ending.cause, nine.ending.signal, nine.name, nine.folder) == (Cause.EXITED, 9, "wrap", "/tmp")


def test_no_accounting_is_no_answer_about_a_job_but_a_broken_one_is_a_reason_to_wait() -> None:
    assert DIALECT.read_found(JobReply(1, "", "Slurm accounting storage is disabled"), "j") == []
    assert DIALECT.read_found(JobReply(127, "", "env: 'sacct': No such file or directory"), "j") == []
    broken = JobReply(1, "", "sacct: error: slurm_persist_conn_open_without_init: failed to open: Connection refused")
    assert DIALECT.read_found(broken, "j") is None
    assert DIALECT.read_history(broken) is None


def test_a_job_around_us_does_not_shape_the_jobs_we_submit() -> None:
    assert DIALECT.obeys("SLURM_NTASKS") and DIALECT.obeys("SLURM_JOB_ID")
    assert DIALECT.obeys("SBATCH_REQUEUE") and DIALECT.obeys("SQUEUE_STATES")
    assert not DIALECT.obeys("SLURM_CONF"), "it says where the cluster is"
    assert not DIALECT.obeys("PATH")


def test_whole_nodes_where_the_site_wants_them(tmp_path: Path) -> None:
    job = Job("j", tmp_path, "true")
    assert "#SBATCH --exclusive" in DIALECT.directives(job, Site(options={"exclusive": True}))
    assert "#SBATCH --exclusive" not in DIALECT.directives(job, Site())


def test_directives_say_all_that_was_asked(tmp_path: Path) -> None:
    site = Site(batch="slurm", queue="gpu", account="p1", cores_per_node=48, memory_bytes_per_node=96 * 2**30)
    job = Job(
        "0001 a/b", tmp_path, "true", resources=Resources(nodes=2, ranks_per_node=4, gpus=2), limit_s=61.0,
        on_nodes=("n1", "n2"), avoid_nodes=("n2", "n9"),
    )  # fmt: skip
    lines = DIALECT.directives(job, site)
    for wanted in (
        "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=12", "--gres=gpu:2", "--mem=98304M", "--partition=gpu",
        "--account=p1", "--nodelist=n1,n2", "--exclude=n9", "--time=3", "--no-requeue", "--job-name=0001_a_b",
    ):  # fmt: skip
        assert f"#SBATCH {wanted}" in lines


@given(st.floats(0.1, 1e6))
def test_slurms_limit_is_never_below_the_jobs_own(limit_s: float) -> None:
    minutes = walltime_minutes(Job("j", Path("x"), "true", limit_s=limit_s), Site())
    assert limit_s + 60 <= minutes * 60 < limit_s + 121


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20, unique=True))
def test_node_lists_expand_to_every_node(numbers: list[int]) -> None:
    listed = "gpu[" + ",".join(f"{n:03d}" for n in numbers) + "]-ib,login1"
    assert list(Slurm().node_names(listed)) == [*(f"gpu{n:03d}-ib" for n in numbers), "login1"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],m2", ["n08", "n09", "n10", "n12", "m2"]),
        ("r[1-2]c[1-2]", ["r1c1", "r1c2", "r2c1", "r2c2"]),
        ("", []),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    assert list(Slurm().node_names(text)) == names


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "jobs of higher priority are ahead of it (Priority)"),
        ("Resources", "the nodes it needs are busy (Resources)"),
        ("AssocMaxJobsLimit", "you run as many jobs as your account may at once (AssocMaxJobsLimit)"),
        ("AssocGrpCpuLimit", "all that your account may use at once is in use (AssocGrpCpuLimit)"),
        ("QOSMaxJobsPerUserLimit", "you run as many jobs as the QOS allows at once (QOSMaxJobsPerUserLimit)"),
        ("QOSMaxCpuPerUserLimit", "you use as much as the QOS allows at once (QOSMaxCpuPerUserLimit)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n4",
            "nodes that it needs are down, drained or reserved (ReqNodeNotAvail, UnavailableNodes:n4)",
        ),
        ("JobHeldAdmin", "it is held by the operator of the cluster, who must release it (JobHeldAdmin)"),
        ("SomethingNew", "SomethingNew"),
        ("None", ""),
        ("", ""),
    ],
)
def test_why_a_job_waits_is_said_in_words_with_slurms_own(reason: str, words: str) -> None:
    assert DIALECT.in_words(reason) == words
