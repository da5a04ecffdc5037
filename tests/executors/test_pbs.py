"""The PBS dialect on text captured from a real server, and what only PBS does."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors.batch import BatchExecutor, Folder, conclude
from ridgeline.executors.dialect import Blame, JobReply, Phase
from ridgeline.executors.pbs import Pbs, pbs
from ridgeline.records.run import Cause, Ending, Job, Resources
from ridgeline.records.site import Site

DIALECT = Pbs()
CAPTURED = """Job Id: 0.vm
    Job_Name = okjob
    Job_Owner = root@vm
    resources_used.cpupercent = 0
    resources_used.cput = 00:00:00
    resources_used.mem = 0kb
    resources_used.ncpus = 1
    resources_used.vmem = 0kb
    resources_used.walltime = 00:00:06
    job_state = F
    queue = workq
    exec_host = vm/0
    exec_vnode = (vm:ncpus=1:mem=102400kb)
    Output_Path = vm:/path
    Resource_List.select = 1:ncpus=1:mpiprocs=1:mem=100mb
    Resource_List.walltime = 00:01:00
    substate = 92
    comment = Job run at Sun Nov 15 and finished
    Exit_status = 0

"""


def answer(**attributes: object) -> JobReply:
    said = {"Job_Name": "j", "exec_host": "vm1/0*8+vm2/0*8", **attributes}
    return JobReply(0, "Job Id: 0.vm\n" + "".join(f"    {name} = {value}\n" for name, value in said.items()) + "\n")


def read(text: JobReply):
    return (DIALECT.read_poll(text) or {})["0.vm"]


def test_the_captured_answer() -> None:
    seen = read(JobReply(0, CAPTURED))
    assert seen.ending == Ending(
        Cause.EXITED, 0, nodes=("vm",), usage={"cpu_s": 0.0, "wall_s": 6.0, "max_rss_bytes": 0.0}, elapsed_s=6.0
    )


def test_a_job_deleted_in_the_queue_has_used_no_time() -> None:
    told = {"job_state": "F", "substate": 91, "comment": "Job deleted by root@vm", "exec_host": ""}
    ending = read(answer(**told, Exit_status=271, stime=0, obittime=1794715140)).ending
    assert ending.cause is Cause.CANCELLED
    assert ending.duration_s == 0.0


def test_a_job_that_the_server_killed_has_used_the_time_it_says() -> None:
    told = {"job_state": "F", "substate": 93, "Exit_status": -29, "comment": "and exceeded resource walltime"}
    assert read(answer(**told, **{"resources_used.walltime": "00:01:40"})).ending.duration_s == 100.0


@pytest.mark.parametrize(
    ("substate", "status", "comment", "cause", "code", "number"),
    [
        (92, 0, "and finished", Cause.EXITED, 0, None),
        (93, 7, "and failed", Cause.EXITED, 7, None),
        (93, 265, "and failed", Cause.EXITED, 137, 9),
        (93, -29, "and exceeded resource walltime", Cause.TIME_LIMIT, None, None),
        (93, 271, "and exceeded resource mem", Cause.MEMORY_LIMIT, None, None),
        (91, 0, "and terminated by root@vm", Cause.CANCELLED, None, None),
        (91, 271, "and terminated by root@vm", Cause.CANCELLED, None, None),
        (93, 265, "Job run at x and terminated by root@vm", Cause.CANCELLED, None, None),
        (93, -3, "and failed", Cause.NODE_FAILED, None, None),
        (93, 271, "and exceeded resource vmem", Cause.MEMORY_LIMIT, None, None),
        (93, 271, "and exceeded resource cput", Cause.TIME_LIMIT, None, None),
        (93, 256, "and failed", Cause.EXITED, 256, None),
        # its own codes, where the comment says nothing
        (93, -29, "and failed", Cause.TIME_LIMIT, None, None),
        (93, -28, "and failed", Cause.MEMORY_LIMIT, None, None),
        (93, -27, "and failed", Cause.MEMORY_LIMIT, None, None),
        (93, -26, "and failed", Cause.TIME_LIMIT, None, None),
        (93, -24, "and failed", Cause.NODE_FAILED, None, None),
    ],
)
def test_endings(substate: int, status: int, comment: str, cause: Cause, code: int | None, number: int | None) -> None:
    ending = read(answer(job_state="F", substate=substate, Exit_status=status, comment=comment)).ending
    assert (ending.cause, ending.exit_code, ending.signal) == (cause, code, number)
    assert ending.nodes == ("vm1", "vm2")


def test_a_finished_job_without_an_exit_status_is_not_completed() -> None:
    assert read(answer(job_state="F", substate=92, comment="")).ending.cause is Cause.LOST


@pytest.mark.parametrize(
    ("state", "comment", "phase"),
    [
        ("Q", "Can Never Run: Insufficient amount of resource: ncpus", Phase.HOPELESS),
        ("Q", "Not Running: Insufficient amount of resource: ncpus", Phase.WAITING),
        ("Q", "", Phase.WAITING),
        ("H", "job held, too many failed attempts to run", Phase.STUCK),
        ("Q", "Not Running: Node is in an ineligible state: offline", Phase.STUCK),
        ("S", "", Phase.WAITING),
        ("R", "Can Never Run", Phase.RUNNING),
        ("R", "Job run at Sun Nov 15", Phase.RUNNING),
        ("E", "", Phase.RUNNING),
    ],
)
def test_waiting_and_running(state: str, comment: str, phase: Phase) -> None:
    assert read(answer(job_state=state, comment=comment)).phase is phase


@pytest.mark.parametrize(
    ("code", "said"), [(153, "qstat: Unknown Job Id 999.vm"), (35, "qstat: 0.vm Job has finished")]
)
def test_unknown_ids_do_not_hide_the_others(code: int, said: str) -> None:
    assert set(DIALECT.read_poll(JobReply(code, CAPTURED, said)) or {}) == {"0.vm"}
    assert DIALECT.read_poll(JobReply(code, "", said)) == {}


def test_jobs_that_have_ended_are_asked_for_too() -> None:
    """Without -x a server answers 35 for them, and a job of a dead controller would be handed over twice."""
    commands = (DIALECT.poll_command(["0.vm"]), *DIALECT.find_commands("j"))
    assert all("-x" in command for command in commands)


def test_a_server_that_is_away_is_no_news() -> None:
    assert DIALECT.read_poll(JobReply(255, "", "qstat: cannot connect to server vm (errno=15010)")) is None


def test_a_long_value_goes_on_in_the_next_line() -> None:
    text = (
        "Job Id: 0.vm\n    Job_Name = okjob\n    resources_used.walltime = 00:00:06\n    job_state = F\n"
        "    exec_host = vm/0\n    substate = 91\n    comment = Job run at Sun Nov 15 and termin\n\tated by root@vm\n"
        "    Exit_status = 0\n\n"
    )
    ending = read(JobReply(0, text)).ending
    assert (ending.cause, ending.usage["wall_s"]) == (Cause.CANCELLED, 6.0)


@pytest.mark.parametrize("before", ["", "Welcome to {site}!\n"])
@pytest.mark.parametrize(
    "value", ["() {  eval `/usr/bin/modulecmd bash $*`\\}", "{}", 'a "quoted" \t prompt\n$ = job_state = R']
)
def test_what_jobs_have_in_their_environment_hides_nothing(before: str, value: str) -> None:
    """Shell functions come along in the environment, as module systems define them."""
    text = (
        f"{before}Job Id: 0.vm\n    Job_Name = okjob\n    job_state = F\n    exec_host = vm/0\n    substate = 92\n"
        "    comment = Job run at Sun Nov 15 and finished\n    Exit_status = 0\n    Variable_List = PBS_O_HOME=/root,\n"
        f"\tBASH_FUNC_module%%={value}\n\n"
    )
    seen = read(JobReply(0, text))
    assert (seen.name, seen.ending.cause, seen.ending.exit_code) == ("okjob", Cause.EXITED, 0)


@pytest.mark.parametrize(
    ("said", "blame"),
    [
        ("qsub: Unknown queue", Blame.SITE_FILE),
        ("qsub: Error: You are not a member of project ab12", Blame.SITE_FILE),
        ("qsub: cannot connect to server gadi-pbs (errno=111)", Blame.WEATHER),
        ("qsub: would exceed queue generic's per-user limit", Blame.WEATHER),
        ("qsub: Maximum number of jobs already in queue", Blame.WEATHER),
        ("qsub: Queue is not enabled", Blame.SITE_FILE),
        ("qsub: Job exceeds queue and/or server resource limits", Blame.REQUEST),
        ("qsub: Job violates queue and/or server resource limits", Blame.REQUEST),
        ("qsub: Illegal attribute or resource value", Blame.REQUEST),
        ("qsub: Communication failure.", Blame.UNSURE),
    ],
)
def test_a_refusal_says_whether_waiting_helps(said: str, blame: Blame) -> None:
    assert DIALECT.refusal(JobReply(1, "", said), Site()).blame is blame


def test_requests_by_chunks_by_host_and_plain(tmp_path: Path) -> None:
    job = Job("0023-tp8", tmp_path, "true", resources=Resources(nodes=2, ranks_per_node=2, cores=112, gpus=8))
    site = Site(batch="pbs", queue="q", account="p1", memory_bytes_per_node=1880 * 2**30, cores_per_node=112)
    lines = DIALECT.directives(job, site)
    assert "#PBS -l select=2:ncpus=112:mpiprocs=2:ompthreads=56:ngpus=8:mem=1925120mb" in lines
    assert "#PBS -P p1" in lines
    assert "#PBS -l walltime=01:01:00" in lines
    assert "#PBS -r n" in lines, "started again by the server it would be measured as one run"
    assert "#PBS -N r0023-tp8" in lines
    pinned = Job("j", tmp_path, "true", resources=Resources(nodes=2, cores=4), on_nodes=("a", "b"))
    each = "1:ncpus=4:mpiprocs=1:ompthreads=4:host"
    assert f"#PBS -l select={each}=a+{each}=b" in DIALECT.directives(pinned, Site())
    avoiding = Job("j", tmp_path, "true", avoid_nodes=("a",))
    listed = Site(options={"hosts": ["a", "b", "c"]})
    assert "#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1:host=b" in DIALECT.directives(avoiding, listed)
    totals = Site(options={"request": "plain", "account_option": "-A"}, account="x", memory_bytes_per_node=2**40)
    plain = DIALECT.directives(replace(job, resources=replace(job.resources, memory_bytes=3 * 2**30)), totals)
    assert {"#PBS -l ncpus=224", "#PBS -l ngpus=16", "#PBS -l mem=6144mb", "#PBS -A x"} <= set(plain)
    assert not any("select" in line for line in plain)


@pytest.mark.parametrize(
    ("resources", "env", "threads"),
    [
        (Resources(ranks_per_node=4, cores=8), {}, "2"),
        (Resources(ranks_per_node=3, cores=8), {}, "2"),
        (Resources(ranks_per_node=8, cores=8), {}, "1"),
        (Resources(cores=8), {}, "8"),
        (Resources(ranks_per_node=4, cores=8), {"OMP_NUM_THREADS": "1"}, "1"),
        (Resources(ranks_per_node=4, cores=8), {"OMP_NUM_THREADS": "2,1"}, "2,1"),
    ],
)
def test_each_rank_gets_the_threads_of_its_share_and_not_of_the_node(
    pbs_standin: Path, tmp_path: Path, resources: Resources, env: dict[str, str], threads: str
) -> None:
    """Without ompthreads a server sets OMP_NUM_THREADS to ncpus, whatever mpiprocs says."""
    runner = executor(env={"OMP_NUM_THREADS": "7"} if env else {})
    asked = job(tmp_path, "j", "echo $OMP_NUM_THREADS", resources=resources, env=env)
    until_ended(runner, runner.submit(asked))
    assert (tmp_path / "j/stdout").read_text() == f"{threads}\n"
    # what ranks on other nodes are given by the server itself
    stated = re.search(r"ompthreads=(\d+)", runner.script(asked))
    assert stated is not None and stated[1] == (threads if threads.isdecimal() else "2")


@pytest.mark.parametrize(
    ("nodes", "on_nodes", "exclusive", "place"),
    [
        (2, (), False, "scatter"),
        (2, ("a", "b"), False, "scatter"),
        (2, (), True, "scatter:excl"),
        (1, (), True, "pack:excl"),
        (1, (), False, None),
    ],
)
def test_whole_nodes_are_asked_for_apart_and_alone_where_wanted(
    tmp_path: Path, nodes: int, on_nodes: tuple[str, ...], exclusive: bool, place: str | None
) -> None:
    asked = Job("j", tmp_path, "true", resources=Resources(nodes=nodes), on_nodes=on_nodes)
    lines = DIALECT.directives(asked, Site(options={"exclusive": exclusive}))
    assert [line for line in lines if "place" in line] == ([f"#PBS -l place={place}"] if place else [])
    plain = DIALECT.directives(asked, Site(options={"exclusive": exclusive, "request": "plain"}))
    assert not any("place" in line for line in plain), "totals leave it to the server"


def test_job_names_fit_old_servers_and_keep_the_tag() -> None:
    assert DIALECT.job_name("0023-a-very-long-label", "12345678") == "r0023--12345678"
    assert len(DIALECT.job_name("0023-a-very-long-label", "")) <= 15


# with qsub, qstat and qdel that follow those formats


def executor(**options: object) -> BatchExecutor:
    return pbs(Site(**{"name": "here", "batch": "pbs", "queue": "workq", "poll_s": 0.2, **options}))  # type: ignore[arg-type]


def job(folder: Path, name: str, command: str, **options: object) -> Job:
    (folder / name).mkdir()
    return Job(name, folder / name, command, **{"limit_s": 60.0, **options})  # type: ignore[arg-type]


def until_ended(runner: BatchExecutor, *tickets: str, limit_s: float = 120) -> list[Ending]:
    endings: dict[str, Ending] = {}
    give_up = time.monotonic() + limit_s
    while len(endings) < len(tickets):
        assert time.monotonic() < give_up
        endings |= runner.poll([ticket for ticket in tickets if ticket not in endings])
        runner.wait(1)
    return [endings[ticket] for ticket in tickets]


def test_a_job_is_not_finished_until_its_output_is_copied_back(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_STANDIN_COPY_S", "4")
    footer = (Path(__file__).parent.parent / "samples/batch/gadi.txt").read_text()
    monkeypatch.setenv("FOOTER", footer)
    # the site prints its footer into the job's own output after everything else
    runner = executor(setup=('trap \'printf "%s" "$FOOTER" > "/proc/$$/fd/9"\' EXIT',), options={"settle_s": 10})
    asked = job(tmp_path, "j", "echo hello")
    text = runner.script(asked).replace("exec > stdout", "exec 9>&1 > stdout")
    runner.script = lambda _: text  # type: ignore[method-assign]
    ticket = runner.submit(asked)
    give_up = time.monotonic() + 60
    while not (asked.folder / "exit").exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert runner.poll([ticket]) == {}
    (ending,) = until_ended(runner, ticket)
    assert (asked.folder / "batch.out").exists()
    assert ending.usage["service_units"] == 11.95
    assert ending.exit_code == 0


def test_two_nodes_are_two_nodes(pbs_standin: Path, tmp_path: Path) -> None:
    """Small chunks fit on one node, and the server fills one node before it takes the next."""
    runner = executor()
    apart = runner.submit(job(tmp_path, "apart", "true", resources=Resources(nodes=2, cores=2)))
    named = runner.submit(
        job(tmp_path, "named", "true", resources=Resources(nodes=2, cores=2), on_nodes=("vm3", "vm1"))
    )
    assert [set(ending.nodes) for ending in until_ended(runner, apart, named)] == [{"vm0", "vm1"}, {"vm1", "vm3"}]


def test_the_servers_walltime_is_told_from_a_failure(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_STANDIN_WALLTIME_S", "1")
    slow = executor(setup=("sleep 60",))  # before the job's own clock starts
    (ending,) = until_ended(slow, slow.submit(job(tmp_path, "slow", "true", limit_s=1.0)))
    assert ending.cause is Cause.TIME_LIMIT
    assert "walltime" in ending.reason
    # as after a `qalter -l walltime`: the job had asked for a minute
    runner = executor()
    (ending,) = until_ended(runner, runner.submit(job(tmp_path, "j", "sleep 60", limit_s=60.0)))
    assert ending.cause is Cause.CANCELLED
    assert "before its own limit of 60 s" in ending.reason and "walltime" in ending.reason


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("walltime 10 exceeded limit 3", Cause.TIME_LIMIT),
        ("mem 9kb exceeded limit 5kb", Cause.MEMORY_LIMIT),
        ("vmem 9kb exceeded limit 5kb", Cause.MEMORY_LIMIT),
        ("cput 65 exceeded limit 60", Cause.TIME_LIMIT),
    ],
)
def test_where_history_is_silent_the_kill_message_and_the_footer_speak(tmp_path: Path, said: str, cause: Cause) -> None:
    (tmp_path / "exit").write_text("exit_code=143\nstarted_s=10\nended_s=13\nhost=n1\n")
    footer = "Resource Usage on 2024-11-03 12:55:36:\nService Units: 11.95\nMemory Used: 2.0GB\n"
    (tmp_path / "batch.out").write_text(f"=>> PBS: job killed: {said}\n{footer}")
    ending = conclude(Folder(tmp_path), Pbs(), None)
    assert (ending.cause, ending.reason) == (cause, f"PBS: {said}")
    assert (ending.usage["service_units"], ending.usage["max_rss_bytes"]) == (11.95, 2.0 * 2**30)


def test_without_history_the_exit_file_decides_and_without_it_the_job_is_lost(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_STANDIN_HISTORY", "0")
    runner = executor(options={"lost_after_s": 1.0}, setup=("export SCRIPT=$$",))
    wrote = runner.submit(job(tmp_path, "wrote", "exit 5"))
    killed = runner.submit(job(tmp_path, "killed", "kill -9 $SCRIPT"))
    first, second = until_ended(runner, wrote, killed)
    assert (first.cause, first.exit_code) == (Cause.EXITED, 5)
    assert second.cause is Cause.LOST


def test_a_hopeless_request_is_reported_and_removed(pbs_standin: Path, tmp_path: Path) -> None:
    runner = executor()
    ticket = runner.submit(job(tmp_path, "j", "true", resources=Resources(cores=99)))
    (ending,) = until_ended(runner, ticket)
    assert ending.cause is Cause.NEVER_STARTS
    assert "Insufficient amount of resource: ncpus" in ending.reason
    assert json.loads((pbs_standin / "0.vm.json").read_text())["job_state"] == "F"


@pytest.mark.parametrize(
    ("site", "remedy", "transient"),
    [({"queue": "nosuch"}, "qstat -Q", False), ({"account": "nobody"}, "project", False)],
)
def test_refused(pbs_standin: Path, tmp_path: Path, site: dict[str, object], remedy: str, transient: bool) -> None:
    with pytest.raises(SiteError, match=remedy) as refused:
        executor(**site).submit(job(tmp_path, "j", "true"))
    assert refused.value.transient is transient


def test_a_server_that_is_away_for_a_while_costs_nothing(pbs_standin: Path, tmp_path: Path) -> None:
    runner = executor()
    asked = job(tmp_path, "j", "sleep 1")
    ticket = runner.submit(asked)
    (pbs_standin / "down").touch()
    assert runner.poll([ticket]) == {}
    with pytest.raises(SiteError) as refused:
        runner.submit(job(tmp_path, "k", "true"))
    assert refused.value.transient
    (asked.folder / "ticket").unlink()
    (asked.folder / "started").unlink(missing_ok=True)
    with pytest.raises(SiteError, match="may or may not have been submitted"):
        runner.find(asked)
    (pbs_standin / "down").unlink()
    assert runner.find(asked) == ticket
    assert until_ended(runner, ticket)[0].exit_code == 0


def test_one_qstat_an_interval_for_all_jobs(pbs_standin: Path, tmp_path: Path) -> None:
    runner = executor(poll_s=0.5)
    tickets = [runner.submit(job(tmp_path, f"j{n}", "sleep 1")) for n in range(8)]
    began = time.monotonic()
    until_ended(runner, *tickets)
    asked = (pbs_standin / "questions").read_text().count("qstat")
    assert asked <= (time.monotonic() - began) / 0.5 + 2


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        (
            "Not Running: Insufficient amount of resource: ncpus (R: 8 A: 0 T: 32)",
            "what it needs is in use (Insufficient amount of resource: ncpus (R: 8 A: 0 T: 32))",
        ),
        (
            "Not Running: User has reached queue workq running job limit.",
            "a limit of yours is reached (User has reached queue workq running job limit.)",
        ),
        (
            "Not Running: Queue workq has reached its running job limit",
            "a limit of the queue is reached (Queue workq has reached its running job limit)",
        ),
        ("Not Running: Queue not started", "the operator has closed the queue (Queue not started)"),
        ("Not Running: something new", "something new"),
        ("", ""),
    ],
)
def test_why_a_job_waits_is_said_in_words_with_the_servers_own(comment: str, words: str) -> None:
    assert Pbs().in_words(comment) == words
