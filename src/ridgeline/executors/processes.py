"""Processes of this machine as /proc shows them, and the word of a job on who runs it.

A pid alone is no identity: the kernel gives it out again. A pid with its start time (in ticks since boot) is one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.executors import script
from ridgeline.study.state_files import state_text

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start_ticks: int
    state: str = field(default="?", compare=False)  # as /proc writes it
    session: int = field(default=0, compare=False)
    name: str = field(default="", compare=False)
    cpu_s: float = field(default=0.0, compare=False)

    @property
    def started_at_s(self) -> float:
        """On the clock of `now_s`."""
        return self.start_ticks / _TICKS_PER_S

    @property
    def ended(self) -> bool:
        """True for a zombie too: it has ended, only its parent has not looked yet."""
        seen = find_process(self.pid)
        return seen is None or seen.start_ticks != self.start_ticks or seen.state in "ZX"


def now_s() -> float:
    """Seconds since boot: the clock of process start times, which nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def find_process(pid: int) -> Process | None:
    """None where the process is gone."""
    text = _content(f"/proc/{pid}/stat")
    if not text:
        return None
    # the name in brackets may hold blanks and brackets itself; fields are counted after the last one
    name, fields = text[text.index(b"(") + 1 : text.rindex(b")")], text[text.rindex(b")") + 2 :].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return Process(pid, int(fields[19]), fields[0].decode(), int(fields[3]), name.decode(errors="replace"), cpu_s)


def of_run(mark: str, leader: Process) -> list[Process]:
    """Every living process of a run but its leader: of its session, or with the run's mark in its environment.

    The mark finds those that left the session (setsid) or were taken over by init.
    """
    wanted = mark.encode()
    found: list[Process] = []
    for pid in _pids():
        process = find_process(pid)
        # nearly all of a machine's processes are older than a run
        if process is None or process.start_ticks < leader.start_ticks or pid == leader.pid:
            continue
        if process.state not in "ZX" and (process.session == leader.pid or wanted in _environment(pid)):
            found.append(process)
    return found


def waited_s(pid: int) -> float:
    """How long threads of a process that could run were left without a core; 0 where the kernel does not count it."""
    rows = [_content(str(file)).split() for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(row[1]) for row in rows if len(row) == 3) / 1e9


def leader_of(mark: str, script: Path) -> Process | None:
    """The process that runs `script` with this mark, if there is one."""
    wanted, name = mark.encode(), os.fsencode(script)
    for pid in _pids():
        if wanted in _environment(pid) and name in _arguments(pid):
            process = find_process(pid)
            if process is not None and process.session == pid and process.state not in "ZX":
                return process
    return None


def command_line(pid: int) -> str:
    return b" ".join(_arguments(pid)).decode(errors="replace").strip() or "?"


def send_signal(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to each that is still the process it was."""
    for process in processes:
        if not process.ended:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def handle(process: Process) -> int | None:
    """A file descriptor that becomes readable when the process ends; None where it is gone, or kernels lack it."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return None
    seen = find_process(process.pid)
    if seen is None or seen.start_ticks != process.start_ticks:
        os.close(fd)
        return None
    return fd


def _pids() -> Iterator[int]:
    user = os.geteuid()
    with os.scandir(_PROC) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.isdigit() and (user == 0 or entry.stat().st_uid == user):
                    yield int(entry.name)


def _environment(pid: int) -> list[bytes]:
    return _content(f"/proc/{pid}/environ").split(b"\0")


def _arguments(pid: int) -> list[bytes]:
    return _content(f"/proc/{pid}/cmdline").split(b"\0")


def _content(path: str) -> bytes:
    """A file of /proc, empty where the process is gone."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


# The file `process` of a run folder: the job's own word on who runs it, where, and under which limits.
#
# The job writes it, not the controller, so that there is no moment in which a job runs and nobody can know.

CLAIM_FILE = "process"


@dataclass(frozen=True, slots=True)
class RunClaim:
    process: Process
    boot: str
    host: str
    limit_s: float
    silence_limit_s: float | None
    load: float | None  # the machine's load average before the run


def claim_script(limit_s: float, silence_limit_s: float | None) -> str:
    """The lines of run.sh that write the claim. Shell builtins only: they cost no process."""
    limits = f"limit_s={limit_s:g}\\nsilence_limit_s={silence_limit_s or 0:g}\\n"
    return f"""\
if [ -n "${{{script.MARKER}:-}}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${{stat##*) }}
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  read -r up_load up_rest < /proc/loadavg
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\\nstart_ticks=%s\\nboot=%s\\nhost=%s\\nload=%s\\n{limits}' $$ "${{20}}" "$boot" "$host" "$up_load" \\
    > {CLAIM_FILE} || exit {script.STATE_FAILED}
  set +C
fi
"""


def read_claim(folder: Path) -> RunClaim | None:
    """None where the job has not begun, or is just writing it."""
    found = script.fields_in(state_text(folder, CLAIM_FILE))
    try:
        return RunClaim(
            Process(int(found["pid"]), int(found["start_ticks"])),
            found["boot"],
            found["host"],
            float(found["limit_s"]),
            float(found["silence_limit_s"]) or None,
            float(found["load"]) if found.get("load") else None,  # older ones do not say it
        )
    except (KeyError, ValueError):
        return None
