"""The batch runner's promises that do not depend on which batch system it runs, on the PBS stand-in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors import batch, batch_script, script
from ridgeline.executors.base import waiting_for
from ridgeline.executors.batch import BatchExecutor, Folder, _ended_from_outside, conclude
from ridgeline.executors.dialect import JobReply, JobStatus, Phase
from ridgeline.executors.pbs import Pbs, pbs
from ridgeline.executors.slurm import Slurm, slurm
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site
from ridgeline.study.state_files import put_away, write_result


def executor(**options: object) -> BatchExecutor:
    return pbs(Site(**{"name": "here", "batch": "pbs", "queue": "workq", "poll_s": 0.2, **options}))  # type: ignore[arg-type]


def job(folder: Path, name: str = "j", command: str = "true") -> Job:
    (folder / name).mkdir(exist_ok=True)
    return Job(name, folder / name, command, limit_s=60.0)


def until_ended(runner: BatchExecutor, ticket: str, limit_s: float = 20) -> Ending:
    give_up = time.monotonic() + limit_s
    while time.monotonic() < give_up:
        if found := runner.poll([ticket]):
            return found[ticket]
        runner.wait(1)
    raise AssertionError(f"{ticket} did not end")


def wrap_qsub(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Puts a qsub of our own before the stand-in's, which it reaches as $QSUB."""
    original = Path(__file__).parent.parent / "pbs_standin" / "qsub"
    wrapper = folder / "bin" / "qsub"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nQSUB="{original}"\n{text}\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")


def jobs(state: Path) -> int:
    return len(list(state.glob("*.vm.json")))


def test_an_answer_that_got_lost_does_not_submit_twice(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap_qsub(tmp_path, monkeypatch, '"$QSUB" "$@" > /dev/null; echo "qsub: Communication failure." >&2; exit 1')
    runner, asked = executor(), job(tmp_path)
    with pytest.raises(SiteError) as lost:
        runner.submit(asked)
    assert lost.value.transient
    ticket = runner.submit(asked)
    assert jobs(pbs_standin) == 1
    assert until_ended(runner, ticket).exit_code == 0


CONTROLLER = """
import sys
from pathlib import Path
from ridgeline.executors.pbs import pbs
from ridgeline.records.run import Job
from ridgeline.records.site import Site
folder = Path(sys.argv[1])
pbs(Site(batch="pbs", queue="workq")).submit(Job(folder.name, folder, "true", limit_s=60.0))
"""


def test_a_submission_that_outlives_its_controller_is_waited_for(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap_qsub(tmp_path, monkeypatch, f'touch {tmp_path}/asking; sleep 1.5; exec "$QSUB" "$@"')
    asked = job(tmp_path)
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(asked.folder)], env=dict(os.environ))
    while not (tmp_path / "asking").exists():
        time.sleep(0.02)
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    runner = executor()
    ticket = runner.find(asked)
    assert ticket is not None
    assert runner.submit(job(tmp_path, "other")) != ticket
    assert jobs(pbs_standin) == 2
    assert until_ended(runner, ticket).exit_code == 0


def test_a_request_the_site_cannot_take_ends_that_run_only_and_survives_a_restart(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap_qsub(tmp_path, monkeypatch, 'echo "qsub: Job exceeds queue and/or server resource limits" >&2; exit 188')
    asked = job(tmp_path)
    ticket = executor().submit(asked)
    runner = executor()
    assert runner.find(asked) == ticket
    ending = until_ended(runner, ticket)
    assert ending.cause is Cause.NEVER_STARTS
    assert "exceeds queue" in ending.reason


def test_a_folder_is_used_once(pbs_standin: Path, tmp_path: Path) -> None:
    runner, asked = executor(), job(tmp_path)
    until_ended(runner, runner.submit(asked))
    with pytest.raises(SiteError, match="folder of its own"):
        runner.submit(asked)


def test_a_full_disk_is_told_before_anything_is_handed_over(pbs_standin: Path, tmp_path: Path) -> None:
    asked = job(tmp_path)
    asked.folder.rmdir()
    with pytest.raises(SiteError):
        executor().submit(asked)
    assert jobs(pbs_standin) == 0


def test_a_folder_the_nodes_do_not_see_is_named_as_the_cause(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, asked = executor(options={"settle_s": 0.5}), job(tmp_path)
    # the job itself works somewhere else, as on a node with another /tmp
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    text = runner.script(asked).replace('cd "$run_home"', f"cd {elsewhere}")
    monkeypatch.setattr(runner, "script", lambda _: text)
    ending = until_ended(runner, runner.submit(asked))
    assert ending.cause is Cause.LOST
    assert "shared disk" in ending.reason


class Scripted(Pbs):
    """A batch system that says, poll by poll, what it was told to say."""

    def __init__(self, *phases: Phase) -> None:
        self.phases = list(phases)

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        return ["true"]

    def cancel_command(self, job_id: str) -> list[str]:
        return ["true"]

    def read_poll(self, answer: JobReply) -> dict[str, JobStatus]:
        return {"1.vm": JobStatus("1.vm", self.phases.pop(0), reason="so it says")}


def test_hopeless_is_believed_only_when_it_is_said_twice_in_a_row(tmp_path: Path) -> None:
    said = [Phase.HOPELESS, Phase.WAITING, Phase.HOPELESS, Phase.RUNNING, Phase.HOPELESS, Phase.HOPELESS]
    runner = BatchExecutor(Site(poll_s=0.001), Scripted(*said))
    ticket = f"1.vm {tmp_path}"
    found = []
    for _ in said:
        time.sleep(0.002)
        found.append(runner.poll([ticket]))
    assert found[:-1] == [{}] * 5
    assert found[-1][ticket].cause is Cause.NEVER_STARTS
    assert "so it says" in found[-1][ticket].reason


class Reinstalled(Scripted):
    """Its queue is empty, and its history knows the job id: of a job that ran in this folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def read_poll(self, answer: JobReply) -> dict[str, JobStatus]:
        return {}

    def history_commands(self, job_ids: Collection[str]) -> list[list[str]]:
        return [["true"]]

    def read_history(self, answer: JobReply) -> dict[str, JobStatus]:
        ended = Ending(Cause.MEMORY_LIMIT, reason="another job's end")
        return {"1.vm": JobStatus("1.vm", Phase.ENDED, ending=ended, folder=str(self.folder))}


@pytest.mark.parametrize(("folder", "cause"), [("elsewhere", Cause.LOST), ("here", Cause.MEMORY_LIMIT)])
def test_an_id_that_was_given_out_again_is_not_our_job(tmp_path: Path, folder: str, cause: Cause) -> None:
    (tmp_path / "here").mkdir()
    site = Site(poll_s=0.001, options={"lost_after_s": 0.01, "settle_s": 0.0})
    runner = BatchExecutor(site, Reinstalled(tmp_path / folder))
    ticket = f"1.vm {tmp_path / 'here'}"
    assert until_ended(runner, ticket).cause is cause


def polled(runner: BatchExecutor, ticket: str) -> Ending | None:
    time.sleep(0.002)
    return runner.poll([ticket]).get(ticket)


def test_a_job_that_waits_for_broken_nodes_is_given_up_only_after_its_time(tmp_path: Path) -> None:
    ticket = f"1.vm {tmp_path}"
    patient = BatchExecutor(Site(poll_s=0.001, options={"stuck_after_s": 1000.0}), Scripted(*[Phase.STUCK] * 3))
    assert [polled(patient, ticket) for _ in range(3)] == [None] * 3
    hasty = BatchExecutor(Site(poll_s=0.001, options={"stuck_after_s": 0.0}), Scripted(Phase.STUCK))
    ending = polled(hasty, ticket)
    assert ending is not None
    assert ending.cause is Cause.NODE_FAILED, "no fault of the setting"
    assert "so it says" in ending.reason


class Away(Scripted):
    """Answers nothing while it is away."""

    is_away = True

    def cancel_command(self, job_id: str) -> list[str]:
        away = "echo 'qdel: cannot connect to server vm (errno=111)' >&2; exit 1"
        return ["sh", "-c", away] if self.is_away else ["true"]

    def read_poll(self, answer: JobReply) -> dict[str, JobStatus] | None:  # type: ignore[override]
        return None if self.is_away else super().read_poll(answer)


def test_a_job_is_not_given_up_behind_the_back_of_a_batch_system_that_cannot_be_told(tmp_path: Path) -> None:
    dialect = Away(*[Phase.STUCK] * 2)
    runner = BatchExecutor(Site(poll_s=0.001, options={"stuck_after_s": 0.0}), dialect)
    dialect.read_poll = super(Away, dialect).read_poll  # type: ignore[method-assign]  # it answers, and takes no orders
    assert polled(runner, f"1.vm {tmp_path}") is None, "it would stay in the queue, and run"
    dialect.is_away = False
    ending = polled(runner, f"1.vm {tmp_path}")
    assert ending is not None
    assert ending.cause is Cause.NODE_FAILED


def test_a_cancel_that_could_not_be_told_is_said(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="was not cancelled") as away:
        BatchExecutor(Site(), Away()).cancel(f"1.vm {tmp_path}")
    assert away.value.transient


def test_a_batch_system_that_is_away_is_no_news_until_that_lasts_too_long(tmp_path: Path) -> None:
    ticket = f"1.vm {tmp_path}"
    assert polled(BatchExecutor(Site(poll_s=0.001, options={"outage_s": 1000.0}), Away()), ticket) is None
    with pytest.raises(SiteError, match="jobs may still run") as away:
        polled(BatchExecutor(Site(poll_s=0.001, options={"outage_s": 0.0}), Away()), ticket)
    assert away.value.transient


class Forgetful(Reinstalled):
    """Its queue knows no job, and its history is away."""

    def read_history(self, answer: JobReply) -> dict[str, JobStatus] | None:  # type: ignore[override]
        return None


def test_a_job_is_not_lost_while_its_history_is_away(tmp_path: Path) -> None:
    site = Site(poll_s=0.001, options={"lost_after_s": 0.001})
    runner = BatchExecutor(site, Forgetful(tmp_path))
    assert [polled(runner, f"1.vm {tmp_path}") for _ in range(4)] == [None] * 4
    runner = BatchExecutor(site, Reinstalled(tmp_path / "elsewhere"))
    found = [polled(runner, f"1.vm {tmp_path}") for _ in range(4)]
    assert [ending.cause for ending in found if ending is not None][:1] == [Cause.LOST]


class Writing(Scripted):
    """Leaves a job's output where it is, as Slurm does."""

    copies_output_back = False


@pytest.mark.parametrize(("code", "alone"), [(0, True), (7, True), (137, False)])
def test_an_exit_file_is_enough_unless_a_signal_needs_the_batch_systems_word(
    tmp_path: Path, code: int, alone: bool
) -> None:
    (tmp_path / "exit").write_text(f"exit_code={code}\nstarted_s=10\nended_s=13\nhost=n1\n")
    runner = BatchExecutor(Site(poll_s=0.001), Writing(Phase.RUNNING))
    ending = polled(runner, f"1.vm {tmp_path}")
    assert (ending is not None) is alone
    assert runner.questions == (0 if alone else 1)
    cancelled = BatchExecutor(Site(poll_s=0.001), Writing(Phase.RUNNING))
    cancelled.cancel(f"1.vm {tmp_path}")
    assert polled(cancelled, f"1.vm {tmp_path}") is None, "whether it ended or was ended, the batch system knows"


def test_scratch_is_the_jobs_own_and_nothing_in_its_name_is_run(tmp_path: Path) -> None:
    hosts, home = tmp_path / "hosts", tmp_path / "home"
    hosts.write_text("vm0\n")
    home.mkdir()
    told = tmp_path / 'a `touch ran` "b" $WHO'
    asked = job(home, command='printf %s "$RIDGELINE_SCRATCH"; touch "$RIDGELINE_SCRATCH/file"')
    (asked.folder / "run.sh").write_text(executor(scratch=str(told)).script(asked))
    env = {**os.environ, "PBS_JOBID": "7.vm", "PBS_NODEFILE": str(hosts), "WHO": "me"}
    subprocess.run(["sh", str(asked.folder / "run.sh")], env=env, check=True)
    scratch = Path((asked.folder / "stdout").read_text())
    assert scratch == tmp_path / 'a `touch ran` "b" me' / "ridgeline-7.vm"
    assert not scratch.exists(), "what is left there would fill the node's disk"
    assert not (asked.folder / "ran").exists()


def test_why_a_job_waits_can_be_asked(tmp_path: Path) -> None:
    runner = BatchExecutor(Site(poll_s=0.001), Scripted(Phase.WAITING, Phase.RUNNING))
    ticket = f"1.vm {tmp_path}"
    runner.poll([ticket])
    assert runner.waiting == {ticket: "so it says"}
    time.sleep(0.002)
    runner.poll([ticket])
    assert runner.waiting == {}


def test_without_the_batch_systems_programs_the_message_says_where_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SiteError, match="login node") as missing:
        slurm(Site(batch="slurm")).submit(job(tmp_path))
    assert not missing.value.transient


def test_the_users_directives_win_and_the_state_files_stay_ours() -> None:
    ours = ["#SBATCH --job-name=a", "#SBATCH --no-requeue", "#SBATCH --time=5"]
    theirs = "#!/bin/bash\n#SBATCH -t 1:00:00\n#SBATCH --no-requeue=x\n#SBATCH --qos=high\necho\n"
    merged = batch_script._with_users(ours, theirs, Slurm())
    assert merged == ["#SBATCH -t 1:00:00", "#SBATCH --qos=high", "#SBATCH --job-name=a", "#SBATCH --no-requeue"]
    pbs_lines = ["#PBS -r n", "#PBS -l walltime=01:00:00", "#PBS -l select=1:ncpus=1"]
    merged = batch_script._with_users(pbs_lines, "#PBS -l walltime=02:00:00\n#PBS -r y\n", Pbs())
    assert merged == ["#PBS -l walltime=02:00:00", "#PBS -r n", "#PBS -l select=1:ncpus=1"]


def test_output_is_named_where_nobody_can_change_it_and_nobody_else_inherits_it(tmp_path: Path) -> None:
    """On the command line: it wins over users' directives, and a script that is handed over by hand has none."""
    for dialect, wanted in ((Slurm(), "--output=batch.out"), (Pbs(), f"{tmp_path}/batch.out")):
        assert wanted in dialect.submit_command(tmp_path / "run.sh", "name", job(tmp_path))
        assert "batch.out" not in "".join(dialect.directives(job(tmp_path), Site()))


def test_run_sh_handed_over_by_hand_leaves_the_evidence_as_it_is(pbs_standin: Path, tmp_path: Path) -> None:
    runner, asked = executor(), job(tmp_path, command="cat input; date +%N; echo $$ > program.out")
    (asked.folder / "input").write_text("as prepared\n")
    until_ended(runner, runner.submit(asked))
    before = {path.name: path.read_bytes() for path in asked.folder.iterdir()}
    copied = shutil.copytree(asked.folder, tmp_path / "elsewhere" / "copy")
    copy_before = {path.name: path.read_bytes() for path in copied.iterdir()}
    for folder in (asked.folder, copied):
        subprocess.run(["qsub", "run.sh"], cwd=folder, check=True, capture_output=True)
    here, there = tmp_path / "j.by-hand-1", tmp_path / "elsewhere" / "copy.by-hand-2"
    for repeat in (here, there):
        wait_for(repeat / "exit")
        assert (repeat / "stdout").read_text().startswith("as prepared\n")
        assert not (repeat / "ticket").exists()
    assert {name: (asked.folder / name).read_bytes() for name in before} == before
    assert {name: (copied / name).read_bytes() for name in copy_before} == copy_before


def test_run_sh_handed_over_by_hand_leaves_a_run_whose_state_files_are_folded_as_it_is(
    pbs_standin: Path, tmp_path: Path
) -> None:
    runner, asked = executor(), job(tmp_path, command="cat input; date +%N")
    (asked.folder / "input").write_text("as prepared\n")
    ending = until_ended(runner, runner.submit(asked))
    write_result(asked.folder, {"run": 1}, runner.state_files)
    put_away(asked.folder, runner.state_files)
    before = {path.name: path.read_bytes() for path in asked.folder.iterdir()}
    assert set(before) == {"input", "run.sh", "result.json", "stdout", "stderr"}
    assert conclude(Folder(asked.folder), Pbs(), None).exit_code == 0
    assert script.exit_record(asked.folder).elapsed_s == ending.elapsed_s  # type: ignore[union-attr]
    subprocess.run(["qsub", "run.sh"], cwd=asked.folder, check=True, capture_output=True)
    repeat = tmp_path / "j.by-hand-1"
    wait_for(repeat / "exit")
    assert (repeat / "stdout").read_text().startswith("as prepared\n")
    assert (repeat / "stdout").read_bytes() != before["stdout"]
    assert not (repeat / "result.json").exists()
    assert {path.name: path.read_bytes() for path in asked.folder.iterdir()} == before
    by_hand = subprocess.run(["sh", "run.sh"], cwd=asked.folder, check=True, capture_output=True, text=True)
    assert by_hand.stdout.startswith("as prepared\n")


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded yet"])
@pytest.mark.parametrize("system", ["slurm", "pbs"])
def test_a_second_start_of_a_run_that_has_ended_is_no_start_by_hand(tmp_path: Path, system: str, folded: bool) -> None:
    """It would compute outside the campaign's accounts."""
    runner = slurm(Site(batch="slurm")) if system == "slurm" else executor()
    asked = job(tmp_path, command="echo start >> starts")
    (asked.folder / "run.sh").write_text(runner.script(asked))
    (asked.folder / "ticket").write_text("71.vm\n" if system == "pbs" else "71\n")
    (tmp_path / "hosts").write_text("vm0\n")

    def started(number: str, **more: str) -> int:
        names = {"PBS_JOBID": f"{number}.vm", "PBS_NODEFILE": str(tmp_path / "hosts")}
        if system == "slurm":
            names = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "n1"}
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PBS_"))}
        return subprocess.run(["sh", str(asked.folder / "run.sh")], env={**env, **names, **more}).returncode

    assert started("71") == 0
    write_result(asked.folder, {"run": 1, "ticket": "7 is no 71"}, runner.state_files)
    if folded:
        put_away(asked.folder, runner.state_files)
    before = {path.name: path.read_bytes() for path in asked.folder.iterdir()}
    assert started("71") == 74
    assert {path.name: path.read_bytes() for path in asked.folder.iterdir()} == before
    assert not list(tmp_path.glob("j.by-hand-*"))
    # another job in the same folder is one that a person handed over, once
    for number in ("7", "711"):
        assert [started(number), started(number)] == [0, 74]
        assert (tmp_path / f"j.by-hand-{number}" / "starts").read_text() == "start\nstart\n"
    if system == "slurm":
        assert started("72", SLURM_RESTART_COUNT="1") == 74
        assert not (tmp_path / "j.by-hand-72").exists()


def test_a_job_that_is_put_back_before_it_began_begins_once(tmp_path: Path) -> None:
    asked = job(tmp_path, command="echo start >> starts")
    (asked.folder / "run.sh").write_text(slurm(Site(batch="slurm")).script(asked))
    (asked.folder / "ticket").write_text("71\n")
    env = {**os.environ, "SLURM_JOB_ID": "71", "SLURM_JOB_NODELIST": "n1", "SLURM_RESTART_COUNT": "1"}
    codes = [subprocess.run(["sh", str(asked.folder / "run.sh")], env=env).returncode for _ in range(2)]
    assert codes == [0, 74]
    assert (asked.folder / "starts").read_text() == "start\n"
    assert "second time" in (asked.folder / "requeued").read_text()


@pytest.mark.parametrize(
    ("lasted_s", "over", "cause"),
    [
        (30.0, True, Cause.CANCELLED),
        (598.0, True, Cause.CANCELLED),
        (599.0, True, Cause.TIME_LIMIT),
        (661.0, True, Cause.TIME_LIMIT),
        (30.0, False, Cause.TIME_LIMIT),
    ],
)
def test_a_limit_that_the_operator_shortened_is_not_the_settings_time_out(
    tmp_path: Path, lasted_s: float, over: bool, cause: Cause
) -> None:
    folder = Folder(tmp_path)
    folder.write("submission", "j-1f2e\n600")
    ending = Ending(
        Cause.TIME_LIMIT, reason="Slurm says TIMEOUT (TimeLimit)", started_s=1000.0, ended_s=1000 + lasted_s
    )
    status = JobStatus("7", Phase.ENDED, ending=ending, charged_s=lasted_s, over_walltime=over)
    found = conclude(folder, Slurm(), status)
    assert found.cause is cause
    if cause is Cause.CANCELLED:
        wanted = f"slurm ended it after {lasted_s:.0f} s, before its own limit of 600 s (Slurm says TIMEOUT"
        assert found.reason.startswith(wanted) and "somebody shortened its time" in found.reason
    # what run.sh stopped itself was over the limit by its own clock
    folder.write("stopped", "time-limit: ran longer than its limit of 600 s")
    assert conclude(folder, Slurm(), status).cause is Cause.TIME_LIMIT
    # as earlier releases wrote it
    (tmp_path / "stopped").unlink()
    folder.write("submission", "j-1f2e")
    assert conclude(folder, Slurm(), status).cause is Cause.TIME_LIMIT


def test_submissions_keep_the_sites_distance_whoever_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs and builds of a campaign have an executor each, and one batch system."""
    now, handed_over = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def taken(command: list[str], *unused: object) -> JobReply:
        handed_over.append(now[0])
        now[0] += 0.1
        return JobReply(0, f"{len(handed_over)}.vm\n")

    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(batch, "run", taken)
    monkeypatch.setattr(batch, "_submitted_s", {})
    runs, builds = executor(submit_every_s=0.6), executor(submit_every_s=0.6)
    assert runs.turn_in_s() == 0.0
    for number, runner in enumerate((runs, builds, runs)):
        runner.submit(job(tmp_path, f"j{number}"))
    assert handed_over == pytest.approx([100.0, 100.6, 101.2])
    assert builds.turn_in_s() == pytest.approx(0.5)
    assert slurm(Site(batch="slurm", submit_every_s=600.0)).turn_in_s() == 0.0, "another batch system"
    now[0] += 3.0
    runs.submit(job(tmp_path, "late"))
    assert handed_over[-1] == pytest.approx(104.3), "who waited long enough waits no more"
    executor(submit_every_s=0.0).submit(job(tmp_path, "at once"))
    assert handed_over[-1] == pytest.approx(104.4)
    assert Site().submit_every_s == 0.5


def test_a_folder_that_is_gone_while_its_job_waits_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Job Id: 7.vm\n    job_state = Q\n    comment = Not Running: Queue not started\n"
    monkeypatch.setattr(batch, "run", lambda *unused, **options: JobReply(0, said))
    runner, asked = executor(poll_s=0.0), job(tmp_path)
    ticket = f"7.vm {asked.folder}"
    (asked.folder / "ticket").write_text("7.vm\n")
    assert runner.poll([ticket]) == {}
    assert waiting_for(asked.folder) == "the operator has closed the queue (Queue not started)"
    other = tmp_path / "gone"
    assert runner.poll([f"7.vm {other}"]) == {}
    assert not other.exists()
    assert runner.waiting[f"7.vm {other}"] == "the operator has closed the queue (Queue not started)"


def test_a_job_is_not_submitted_again_into_a_folder_whose_state_files_are_folded(
    pbs_standin: Path, tmp_path: Path
) -> None:
    runner, asked = executor(), job(tmp_path)
    ticket = runner.submit(asked)
    until_ended(runner, ticket)
    write_result(asked.folder, {"run": 1}, runner.state_files)
    put_away(asked.folder, runner.state_files)
    with pytest.raises(SiteError, match="already run here"):
        executor().submit(asked)
    assert until_ended(executor(), ticket).exit_code == 0


def test_run_sh_by_hand_before_its_own_job_starts_does_not_take_its_place(tmp_path: Path) -> None:
    asked = job(tmp_path, command="true")
    (asked.folder / "run.sh").write_text(executor().script(asked))
    (asked.folder / "ticket").write_text("7.vm\n")
    (asked.folder / "hosts").write_text("vm0\n")
    for number in ("8.vm", "7.vm"):
        env = {**os.environ, "PBS_JOBID": number, "PBS_NODEFILE": str(asked.folder / "hosts")}
        subprocess.run(["sh", str(asked.folder / "run.sh")], env=env, check=True)
    assert (asked.folder / "started").read_text().splitlines()[0] == "7.vm"
    assert (tmp_path / "j.by-hand-8" / "started").read_text().splitlines()[0] == "8.vm"


@pytest.mark.parametrize("when", ["before run.sh can listen", "while the command runs"])
def test_a_deleted_job_is_a_cancel_also_where_the_server_forgot_that_it_was_asked(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setenv("PBS_STANDIN_FORGETS_QDEL", "1")
    early = when == "before run.sh can listen"
    runner = executor(setup=("touch here; sleep 60",) if early else ())
    asked = job(tmp_path, command="touch here; sleep 60")
    ticket = runner.submit(asked)
    wait_for(asked.folder / "here")
    subprocess.run(["qdel", ticket.split()[0]], check=True)
    ending = until_ended(runner, ticket, limit_s=60)
    assert ending.cause is Cause.CANCELLED
    assert (asked.folder / "exit").exists() is not early


def test_the_cpu_time_of_a_job_is_that_of_its_command(pbs_standin: Path, tmp_path: Path) -> None:
    runner = executor()
    for name in ("first", "second", "third"):
        asked = job(tmp_path, name, "true")
        assert until_ended(runner, runner.submit(asked)).exit_code == 0
    used = [
        found.cpu_s
        for found in map(script.exit_record, sorted(tmp_path.glob("*d*")))
        if found and found.cpu_s is not None
    ]
    assert used and min(used) < 0.004, "run.sh alone takes several times as much"


def test_a_program_that_dies_by_sigterm_is_not_taken_for_a_cancel(pbs_standin: Path, tmp_path: Path) -> None:
    runner = executor()
    ending = until_ended(runner, runner.submit(job(tmp_path, command="kill -TERM $$")))
    assert (ending.cause, ending.signal) == (Cause.EXITED, signal.SIGTERM)


def wait_for(path: Path) -> None:
    give_up = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.parametrize("dialect", [Slurm(), Pbs()], ids=lambda dialect: dialect.name)
def test_the_script_is_plain_sh_and_holds_all_the_site_says(dialect: Slurm | Pbs, tmp_path: Path) -> None:
    site = Site(
        modules=("gcc/12",), setup=("ulimit -s unlimited",), env={"A": "it's"}, scratch="/scratch/$USER",
        directives=("#SBATCH --exclusive",), queue="q",
    )  # fmt: skip
    text = batch_script.render(job(tmp_path, command="echo 'quoted'"), site, dialect)
    for wanted in ("module load gcc/12", "ulimit -s unlimited", "export A=", "/scratch/$USER", "#SBATCH --exclusive"):
        assert wanted in text
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_script_that_is_not_there_names_the_site_file(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"options\.script"):
        executor(options={"script": str(tmp_path / "none.sh")}).script(job(tmp_path))


def by_itself(folder: Path, command: str, site: Site | None = None, **limits: float) -> Ending | None:
    """Runs run.sh as a batch system does, with its variables set, and says how it ended by its own state files."""
    (folder / "hosts").write_text("vm0\n")
    asked = replace(job(folder, command=command), **limits)  # type: ignore[arg-type]
    site = site or Site(name="here", batch="pbs")
    (asked.folder / "run.sh").write_text(pbs(site).script(asked))
    batch_script.stage_user_script(asked, site)
    env = {**os.environ, "PBS_JOBID": "7.vm", "PBS_NODEFILE": str(folder / "hosts")}
    subprocess.run(["sh", str(asked.folder / "run.sh")], env=env, check=False, timeout=600)
    return conclude(Folder(asked.folder), Writing(), None)


def test_a_program_that_falls_silent_is_ended_by_its_own_script(tmp_path: Path) -> None:
    ending = by_itself(tmp_path, "echo begun; exec sleep 300", silence_limit_s=1.0)
    assert ending is not None
    assert (ending.cause, ending.reason) == (Cause.SILENCE, "wrote nothing for 1 s")
    assert (tmp_path / "j" / "stdout").read_text() == "begun\n"


def test_a_program_that_writes_is_not_silent_and_one_that_lasts_is_ended(tmp_path: Path) -> None:
    talk = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.3; done"
    ending = by_itself(tmp_path, talk, silence_limit_s=2.0)
    assert ending is not None
    assert (ending.cause, ending.exit_code) == (Cause.EXITED, 0)
    late = by_itself(tmp_path / "j", "exec sleep 300", limit_s=1.0)
    assert late is not None
    assert (late.cause, late.reason) == (Cause.TIME_LIMIT, "ran longer than its limit of 1 s")


def test_the_users_own_script_runs_unchanged_and_finds_the_command(tmp_path: Path) -> None:
    own = tmp_path / "own.sh"
    own.write_text('#!/bin/sh\n#PBS -q fast\necho before; sh -c "$RIDGELINE_COMMAND"; echo after\n')
    site = Site(name="here", batch="pbs", options={"script": str(own)})
    ending = by_itself(tmp_path, 'echo "it\'s $((1+1))"', site)
    assert ending is not None
    assert ending.exit_code == 0
    assert (tmp_path / "j" / "stdout").read_text() == "before\nit's 2\nafter\n"
    assert (tmp_path / "j" / batch_script.USER_SCRIPT).read_bytes() == own.read_bytes()


def ended_with(code: int) -> JobStatus:
    return JobStatus("1.vm", Phase.ENDED, ending=Ending(Cause.EXITED, code))


def test_a_run_that_could_not_keep_its_state_files_is_no_fault_of_the_setting(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text("one\nmodule: gcc/99 not found\nridgeline: a module did not load: gcc/99\n")
    ending = conclude(Folder(tmp_path), Pbs(), ended_with(script.STATE_FAILED))
    assert ending.cause is Cause.NODE_FAILED
    assert ending.reason == "module: gcc/99 not found; ridgeline: a module did not load: gcc/99"
    assert Folder(tmp_path).settled(Writing(), ended_with(script.STATE_FAILED)), "no exit file will come"


@pytest.mark.parametrize(("code", "cause"), [(0, Cause.LOST), (3, Cause.EXITED)])
def test_without_an_exit_file_a_good_end_is_not_believed(tmp_path: Path, code: int, cause: Cause) -> None:
    (tmp_path / "started").write_text("1.vm\nvm0\n")
    assert not Folder(tmp_path).settled(Writing(), ended_with(code)), "a network file system may be late"
    ending = conclude(Folder(tmp_path), Pbs(), ended_with(code))
    assert (ending.cause, ending.exit_code) == (cause, code or None)
    assert "the disk may be full" in ending.reason
    assert ending.nodes == ("vm0",)


@pytest.mark.parametrize(
    ("exit_code", "terminated", "signal_number", "cancelled"),
    [
        (0, True, None, True),  # some programs print what they have when they are told to stop: it may be partial
        (143, True, None, True),
        (143, False, None, False),  # of its own making
        (None, False, signal.SIGTERM, True),  # before run.sh could listen for it
        (None, False, signal.SIGKILL, False),
    ],
)
def test_who_was_told_to_stop_from_outside_and_did_was_cancelled(
    exit_code: int | None, terminated: bool, signal_number: int | None, cancelled: bool
) -> None:
    record = None if exit_code is None else script.ExitRecord(exit_code, 0.0, 0.0, "n1", None, terminated=terminated)
    ending = Ending(Cause.EXITED, exit_code, signal=signal_number)
    assert _ended_from_outside(ending, record) is cancelled


@pytest.mark.parametrize("name", ["exit", "stopped", "requeued", "batch.out"])
def test_a_pipe_in_place_of_a_jobs_own_file_does_not_hold_the_controller_up(
    pbs_standin: Path, tmp_path: Path, name: str
) -> None:
    asked = job(tmp_path, command="true")
    os.mkfifo(asked.folder / name)
    (asked.folder / "started").write_text("7.vm\nvm0\n")
    seen = JobStatus("7.vm", Phase.ENDED, ending=Ending(Cause.EXITED, exit_code=0))
    assert conclude(Folder(asked.folder), Pbs(), seen).cause in (Cause.LOST, Cause.EXITED)
