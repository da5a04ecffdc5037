"""Jobs on this machine: limits, leftovers, cores, and controllers that die."""

from __future__ import annotations

import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors import local, processes, script
from ridgeline.executors.local import STOP_FILE, LocalExecutor
from ridgeline.executors.processes import CLAIM_FILE, read_claim
from ridgeline.records.run import Cause, Ending, Job, Resources
from ridgeline.records.site import Site

GRACE_S = 0.2


def make(**site: object) -> LocalExecutor:
    return LocalExecutor(Site(**site), grace_s=GRACE_S)  # type: ignore[arg-type]


def job(folder: Path, command: str, name: str = "0001-a", **more: object) -> Job:
    home = folder / name
    home.mkdir()
    return Job(name, home, command, **more)  # type: ignore[arg-type]


def ending(executor: LocalExecutor, ticket: str) -> Ending:
    for _ in range(1000):
        if found := executor.poll([ticket]):
            return found[ticket]
        executor.wait(5)
    raise AssertionError(f"{ticket} does not end")


def run(folder: Path, command: str, **more: object) -> Ending:
    executor = make()
    return ending(executor, executor.submit(job(folder, command, **more)))


def until(condition: object, patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


def lives(pid: int) -> bool:
    seen = processes.find_process(pid)
    return seen is not None and seen.state not in "ZX"


def test_silence_is_a_hang_but_writing_any_file_is_life(tmp_path: Path) -> None:
    quiet = run(tmp_path, "echo begun; sleep 30", name="quiet", silence_limit_s=0.3)
    assert quiet.cause is Cause.SILENCE
    assert "0.3 s" in quiet.reason
    busy = run(
        tmp_path,
        "mkdir deep; for i in 1 2 3 4 5 6 7 8 9 10; do echo $i >> deep/log; sleep 0.3; done",
        name="busy",
        silence_limit_s=2.5,
    )
    assert (busy.cause, busy.exit_code) == (Cause.EXITED, 0)


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    end = run(tmp_path, "trap '' TERM; while :; do sleep 0.05; done", limit_s=0.1)
    assert end.cause is Cause.TIME_LIMIT
    assert end.signal == signal.SIGKILL


@pytest.mark.parametrize(
    "way",
    [
        "sleep 60 & echo $! > child",
        "setsid sh -c 'echo $$ > child; exec sleep 60' & until [ -s child ]; do sleep 0.02; done",
        "(setsid sh -c 'echo $$ > child; exec sleep 60' &) ; until [ -s child ]; do sleep 0.02; done",
    ],
    ids=["background", "own session", "taken over by init"],
)
def test_leftovers_are_ended_and_reported(tmp_path: Path, way: str) -> None:
    end = run(tmp_path, way)
    assert (end.cause, end.exit_code) == (Cause.EXITED, 0)
    child = int((tmp_path / "0001-a" / "child").read_text())
    assert [entry for entry in end.leftovers if entry.startswith(f"{child} ") and "sleep 60" in entry]
    assert not lives(child)


def test_what_leaves_by_itself_right_after_is_no_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SETTLE_S", 2.0)  # on a loaded machine "right after" takes longer
    assert run(tmp_path, "sleep 0.02 & true").leftovers == ()


def test_waiting_for_leftovers_does_not_spin(tmp_path: Path) -> None:
    executor = make()
    ticket = executor.submit(job(tmp_path, "setsid sh -c \"trap '' TERM; sleep 60\" & sleep 0.1"))
    looks = 0
    while not executor.poll([ticket]):
        executor.wait(5)
        looks += 1
    assert looks < 20


def test_cpu_time_and_memory_are_measured(tmp_path: Path) -> None:
    # more than this process: Linux charges a child with what its parent had when it was started
    size = 300_000_000 + 2048 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = f"x = bytearray({size}); x[::4096] = b'1' * len(x[::4096]); sum(range(3_000_000))"
    end = run(tmp_path, f'{shlex.quote(sys.executable)} -c "{code}"')
    assert end.exit_code == 0
    assert 0.02 < end.usage["cpu_s"] < 60
    assert end.usage["max_rss_bytes"] > 0.95 * size


def test_an_idle_command_takes_no_cpu_time_of_our_own_shells(tmp_path: Path) -> None:
    # the least of some runs: what a neighbour leaves in the caches costs the kernel time that is not the command's
    used = [run(tmp_path, "true", name=f"r{n}").usage["cpu_s"] for n in range(7)]
    assert 0 < min(used) < 0.001


_BURN = "import time\nwhile time.process_time() < 0.15: pass"


def test_the_cpu_time_is_of_all_processes_of_the_command(tmp_path: Path) -> None:
    burn = f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(_BURN)}"
    end = run(tmp_path, f"burn() {{ {burn}; }}\nburn & burn | cat; (burn); wait", name="three")
    assert 0.45 < end.usage["cpu_s"] < 0.45 + 0.4, "three of them, each with the start of its interpreter"


def _programs(folder: Path, perl: str = "") -> dict[str, str]:
    """An environment whose PATH has what run.sh needs, and this text as Perl or none."""
    folder.mkdir()
    for name in ("sh", "date", "mv", "uname", "dirname", "cat", "sleep"):
        (folder / name).symlink_to(str(shutil.which(name)))
    if perl:
        (folder / "perl").write_text(f"#!/bin/sh\n{perl}\n")
        (folder / "perl").chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize("perl", ["", "exit 3"])
def test_without_a_perl_that_works_the_shell_says_what_it_knows(tmp_path: Path, perl: str) -> None:
    env = _programs(tmp_path / "bin", perl)
    burn = f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(_BURN)}"
    end = run(tmp_path, f"{burn}; exit 5", env=env)
    assert (end.cause, end.exit_code) == (Cause.EXITED, 5), "not what Perl left with"
    assert 0.13 < end.usage["cpu_s"] < 0.6, "in steps of 10 ms"


def test_what_is_started_elsewhere_is_not_given_as_the_commands_cpu_time(tmp_path: Path) -> None:
    elsewhere = [
        Job("a", tmp_path / "a", "srun ./prog"),
        Job("b", tmp_path / "b", "mpirun ./prog", resources=Resources(nodes=2)),
    ]
    for asked in elsewhere:
        assert not {"times", "perl"} & set(script.metered(asked, asked.command).split()), asked.command
    here = Job("c", tmp_path / "c", "mpirun ./srunner")
    assert {"perl"} <= set(script.metered(here, here.command).split())


def test_a_small_program_is_not_charged_the_controllers_memory(tmp_path: Path) -> None:
    ours = 1024 * int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())]))
    assert run(tmp_path, "true").usage.get("max_rss_bytes", 0) < ours


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    assert run(tmp_path, "no-such-program --fast").exit_code == 127
    assert "not found" in (tmp_path / "0001-a" / "stderr").read_text()


def test_broken_shell_text_ends_with_an_error(tmp_path: Path) -> None:
    end = run(tmp_path, "echo 'unfinished")
    assert end.cause is Cause.EXITED
    assert end.exit_code not in (0, None)


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="cannot write the job"):
        make().submit(Job("x", tmp_path / "gone", "true"))


def test_a_variable_name_the_shell_cannot_have(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="A-B"):
        make().submit(job(tmp_path, "true", env={"A-B": "1"}))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_fault_of_the_setting(tmp_path: Path) -> None:
    one = job(tmp_path, "echo done")
    (one.folder / "exit.partial").symlink_to("/dev/full")
    executor = make()
    end = ending(executor, executor.submit(one))
    assert end.cause is Cause.NODE_FAILED
    assert str(one.folder) in end.reason


def test_a_folder_is_used_once(tmp_path: Path) -> None:
    one, executor = job(tmp_path, "echo ran"), make()
    ticket = executor.submit(one)
    ending(executor, ticket)
    assert make().submit(one) == ticket
    assert ending(make(), ticket).exit_code == 0
    assert (one.folder / "stdout").read_text() == "ran\n"
    with pytest.raises(SiteError, match="already run"):
        executor.submit(replace(one, command="echo something else"))


def test_site_setup_runs_first_and_its_environment_yields_to_the_jobs(tmp_path: Path) -> None:
    executor = make(env={"A": "site", "B": "site"}, setup=("C=from-setup",))
    one = job(tmp_path, "echo $A $B $C", env={"A": "job"})
    ending(executor, executor.submit(one))
    assert (one.folder / "stdout").read_text() == "job site from-setup\n"
    assert (one.folder / "env").read_text() == "export LC_ALL=C.UTF-8\nexport A=job\nexport B=site\n"


def test_a_module_that_does_not_load_stops_the_run(tmp_path: Path) -> None:
    executor = make(modules=("no-such-compiler/1",))
    one = job(tmp_path, "echo measured")
    assert ending(executor, executor.submit(one)).cause is Cause.NODE_FAILED
    assert (one.folder / "stdout").read_text() == ""


# cores


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_jobs_at_the_same_time_have_cores_of_their_own(tmp_path: Path) -> None:
    executor, before = make(jobs_at_once=2, cores_per_node=2), os.sched_getaffinity(0)
    assert executor.slots == 2
    cpus = "grep Cpus_allowed_list /proc/self/status; sleep 0.1"
    jobs = [job(tmp_path, cpus, name, resources=Resources(cores=1)) for name in ("a", "b", "c")]
    tickets = [executor.submit(one) for one in jobs]
    assert os.sched_getaffinity(0) == before
    ends = [ending(executor, ticket) for ticket in tickets]
    cores = [(one.folder / "stdout").read_text().split()[1] for one in jobs]
    assert cores[0] != cores[1]
    # the third found no free core and had to wait for one
    assert ends[2].started_s >= min(ends[0].ended_s, ends[1].ended_s)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_job_for_the_whole_machine_runs_alone(tmp_path: Path) -> None:
    executor = make(jobs_at_once=2, cores_per_node=2)
    one = job(tmp_path, "sleep 0.1", "a", resources=Resources(cores=1))
    large = job(tmp_path, "true", "b", resources=Resources(cores=64))
    first, second = executor.submit(one), executor.submit(large)
    assert executor.find(large) == second
    assert ending(executor, second).started_s >= ending(executor, first).ended_s


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_job_that_waits_for_cores_can_be_cancelled(tmp_path: Path) -> None:
    executor = make(jobs_at_once=2, cores_per_node=2)
    first = executor.submit(job(tmp_path, "sleep 30", "a", resources=Resources(cores=2)))
    second = executor.submit(job(tmp_path, "touch ran", "b", resources=Resources(cores=2)))
    for ticket in (second, first):
        executor.cancel(ticket)
    assert {end.cause for end in executor.poll([first, second]).values()} == {Cause.CANCELLED}
    assert not (tmp_path / "b" / "ran").exists()


# controllers that die

CONTROLLER = """
    import sys, time
    from pathlib import Path
    from ridgeline.executors.local import LocalExecutor
    from ridgeline.records.run import Job
    from ridgeline.records.site import Site
    folder = Path(sys.argv[1])
    executor = LocalExecutor(Site())
    job = Job("x", folder, sys.argv[2], limit_s=float(sys.argv[3]))
    print("ready", flush=True)
    sys.stdin.readline()
    ticket = executor.submit(job)
    print("submitted", flush=True)
    while not executor.poll([ticket]):
        executor.wait(5)
    time.sleep(30)
"""


def controller(folder: Path, command: str, limit_s: float = 60.0) -> subprocess.Popen[str]:
    """Another process that submits this job when told to, and watches it."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CONTROLLER), str(folder), command, str(limit_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def tell_and_kill(process: subprocess.Popen[str], after_s: float = 0.0, once: Path | None = None) -> None:
    """Killed after a while, or once a file is there."""
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(after_s)
    if once is not None:
        until(once.exists)
    process.kill()
    process.wait()


def test_killed_at_any_moment_the_job_runs_exactly_once(tmp_path: Path) -> None:
    chance = random.Random(4)
    for number in range(12):
        folder = tmp_path / f"{number:04d}"
        folder.mkdir()
        command = f"echo ran >> {tmp_path}/count-{number}; sleep 0.02; exit 3"
        tell_and_kill(controller(folder, command), chance.uniform(0, 0.02))
        executor, one = make(), Job("x", folder, command)
        end = ending(executor, executor.find(one) or executor.submit(one))
        assert (end.cause, end.exit_code) == (Cause.EXITED, 3)
        assert (tmp_path / f"count-{number}").read_text() == "ran\n"


def test_a_job_handed_over_twice_runs_once(tmp_path: Path) -> None:
    """The controller died between handing over and knowing it, and the next one could not see the job yet."""
    one = job(tmp_path, "echo ran >> ran; sleep 0.2; exit 3")
    first, second = make(), make()
    first.submit(one)
    second._waiting[str(one.folder)] = one  # what submit does once it has seen no claim
    second._start_waiting()
    end = ending(second, str(one.folder))
    assert end.exit_code == 3
    assert (one.folder / "ran").read_text() == "ran\n"


def test_limits_hold_after_adoption(tmp_path: Path) -> None:
    folder = tmp_path / "0001"
    folder.mkdir()
    tell_and_kill(controller(folder, "touch began; setsid sleep 60 & wait", limit_s=0.5), once=folder / "began")
    executor, one = make(), Job("x", folder, "")
    ticket = executor.find(one)
    assert ticket
    end = ending(executor, ticket)
    assert end.cause is Cause.TIME_LIMIT
    assert end.duration_s < 50
    assert not processes.of_run(script.mark(folder), read_claim(folder).process)  # type: ignore[union-attr]


def test_processes_of_a_run_are_those_of_its_session_or_with_its_mark_that_live() -> None:
    """Not its leader, not what has ended and waits to be noticed, and nobody else's."""
    started: list[subprocess.Popen[str]] = []

    def start(command: str, mark: str) -> subprocess.Popen[str]:
        words, env = ["sh", "-c", command], {**os.environ, "RUN_MARK": mark}
        started.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1]

    def told(process: subprocess.Popen[str]) -> int:
        assert process.stdout is not None
        return int(process.stdout.readline())

    def found(leader: processes.Process) -> set[int]:
        return {process.pid for process in processes.of_run("RUN_MARK=this run", leader)}

    try:
        older = start("echo $$; exec sleep 60", "this run")
        told(older)
        before = processes.find_process(older.pid)
        until(lambda: before is not None and processes.now_s() > before.started_at_s + 0.05)
        first = start("sleep 60 & echo $!; sleep 61 & echo $!; exec sleep 60", "")
        child, dying = told(first), told(first)
        escaped, other = start("echo $$; exec sleep 60", "this run"), start("echo $$; exec sleep 60", "another")
        assert (told(escaped), told(other)) == (escaped.pid, other.pid)
        leader = processes.find_process(first.pid)
        assert leader is not None and not leader.ended
        assert found(leader) == {child, dying, escaped.pid}
        os.kill(dying, signal.SIGKILL)
        until(lambda: (processes.find_process(dying) or leader).state == "Z")
        assert found(leader) == {child, escaped.pid}
    finally:
        for one in started:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def test_the_reason_of_a_stop_outlives_the_controller(tmp_path: Path) -> None:
    one, first = job(tmp_path, "sleep 30", limit_s=0.1), make()
    ticket = first.submit(one)
    until(lambda: first.poll([ticket]) or (one.folder / STOP_FILE).exists())
    until((one.folder / "exit").exists)
    end = ending(make(), ticket)
    assert end.cause is Cause.TIME_LIMIT


def test_a_script_killed_from_outside_is_lost_not_completed(tmp_path: Path) -> None:
    folder = tmp_path / "0001"
    folder.mkdir()
    tell_and_kill(controller(folder, "touch began; sleep 60"), once=folder / "began")
    executor, ticket = make(), str(folder)
    assert executor.poll([ticket]) == {}
    claim = read_claim(folder)
    assert claim
    os.kill(claim.process.pid, signal.SIGKILL)
    end = ending(executor, ticket)
    assert end.cause is Cause.LOST
    assert str(claim.process.pid) in end.reason


def test_a_pid_given_out_again_is_another_process(tmp_path: Path) -> None:
    one = job(tmp_path, "true")
    (one.folder / CLAIM_FILE).write_text(
        f"pid={os.getpid()}\nstart_ticks=1\nboot={processes.boot_id()}\nhost={os.uname().nodename}\n"
        "limit_s=60\nsilence_limit_s=0\n"
    )
    executor = make()
    ticket = executor.find(one)
    assert ticket
    assert executor.poll([ticket])[ticket].cause is Cause.LOST


@pytest.mark.parametrize(
    ("boot", "host", "expected"), [("other", os.uname().nodename, Cause.NODE_FAILED), ("other", "elsewhere", None)]
)
def test_a_restarted_machine_and_another_machine(tmp_path: Path, boot: str, host: str, expected: Cause | None) -> None:
    one = job(tmp_path, "true")
    (one.folder / CLAIM_FILE).write_text(
        f"pid=1\nstart_ticks=1\nboot={boot}\nhost={host}\nlimit_s=60\nsilence_limit_s=0\n"
    )
    ticket = str(one.folder)
    if expected:
        assert make().poll([ticket])[ticket].cause is expected
    else:
        with pytest.raises(SiteError, match="elsewhere"):
            make().poll([ticket])
