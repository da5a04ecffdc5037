"""Processes of this machine as /proc shows them, and the cores they are given.

A pid alone is no identity: the kernel gives it out again. A pid with its start time (in ticks since boot) is one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.executors import script
from ridgeline.files import text_of
from ridgeline.study.state_files import state_text

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start_ticks: int
    state: str = field(default="?", compare=False)
    session: int = field(default=0, compare=False)

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
    fields = _stat(pid)
    return None if fields is None else _process(pid, fields)


_STATE, _SESSION, _START = 0, 3, 19  # among the fields of `stat` after the name


def _stat(pid: int) -> list[bytes] | None:
    """None where the process is gone. One plain read: a sweep reads hundreds of them after every job."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096)  # a line of some hundred bytes, made as a whole
    except OSError:  # it ended while we read
        return None
    finally:
        os.close(fd)
    # The name in brackets may hold blanks and brackets itself; fields are counted after the last one
    return text[text.rindex(b")") + 2 :].split(None, _START + 1) if text else None


def _process(pid: int, fields: list[bytes]) -> Process:
    return Process(pid, int(fields[_START]), fields[_STATE].decode(), int(fields[_SESSION]))


def of_run(mark: str, leader: Process) -> list[Process]:
    """Every living process of a run but its leader: of its session, or with the run's mark in its environment.

    The mark finds those that left the session (setsid) or were taken over by init.
    """
    wanted = mark.encode()
    found: list[Process] = []
    for pid in _pids():
        fields = _stat(pid)
        # nearly all of a machine's processes are older than a run
        if fields is None or int(fields[_START]) < leader.start_ticks or pid == leader.pid:
            continue
        process = _process(pid, fields)
        if process.state not in "ZX" and (process.session == leader.pid or wanted in _environment(pid)):
            found.append(process)
    return found


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What one process has done."""

    name: str
    start_ticks: int
    cpu_s: float
    state: str  # as /proc writes it
    waited_s: float  # for a core, all threads together


def work_of_run(mark: str, leader: Process) -> list[ProcessUsage]:
    """Of every living process of a run but its leader."""
    found = []
    for process in of_run(mark, leader):
        text = _content(f"/proc/{process.pid}/stat")
        if text:
            name = text[text.index(b"(") + 1 : text.rindex(b")")].decode(errors="replace")
            fields = text[text.rindex(b")") + 2 :].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
            found.append(ProcessUsage(name, process.start_ticks, cpu_s, fields[0].decode(), _waited_s(process.pid)))
    return found


def _waited_s(pid: int) -> float:
    """How long threads of a process that could run were left without a core; 0 where the kernel does not count it."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0.0
    rows = [(_content(f"{thread}/schedstat") or b"").split() for thread in threads]
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
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue


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
            if not entry.name.isdigit():
                continue
            try:
                mine = user == 0 or entry.stat().st_uid == user
            except OSError:
                continue
            if mine:
                yield int(entry.name)


def _environment(pid: int) -> list[bytes]:
    return _content(f"/proc/{pid}/environ").split(b"\0")


def _arguments(pid: int) -> list[bytes]:
    return _content(f"/proc/{pid}/cmdline").split(b"\0")


def _content(path: str) -> bytes:
    """A file of /proc, empty where the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:  # it ended while we read
        return b""
    finally:
        os.close(fd)


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


def claim_script(limit_s: float, silence_limit_s: float | None) -> str:
    """The lines of run.sh that write the claim. Shell builtins only: they cost no process."""
    limits = f"limit_s={limit_s:g}\\nsilence_limit_s={silence_limit_s or 0:g}\\n"
    return f"""\
if [ -n "${{{script.MARKER}:-}}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${{stat##*) }}
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\\nstart_ticks=%s\\nboot=%s\\nhost=%s\\n{limits}' $$ "${{20}}" "$boot" "$host" \\
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
        )
    except (KeyError, ValueError):
        return None


# Which cores a job gets, so that runs at the same time do not disturb each other.

CPU = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def allowed_cores(most: int | None = None) -> list[int]:
    """The cores this process may use: its affinity, cut to the CPU quota of its control group and to `most`.

    Hardware threads of one core come last, so that jobs share a core only when there are no whole ones left.
    """
    cores = sorted(os.sched_getaffinity(0), key=_place)
    limits = [n for n in (quota_cores(), most) if n is not None]
    return cores[: max(1, min([len(cores), *limits]))]


class FreeCores:
    """Which cores are free. `take` gives disjoint sets."""

    def __init__(self, cores: Iterable[int]) -> None:
        self._order = list(cores)
        self._taken: set[int] = set()

    def __len__(self) -> int:
        return len(self._order)

    def take(self, count: int) -> frozenset[int] | None:
        """`count` free cores, or None while there are not so many. A job larger than the machine gets all of it."""
        free = [core for core in self._order if core not in self._taken]
        count = max(1, min(count, len(self._order)))
        if len(free) < count:
            return None
        chosen = frozenset(free[:count])
        self._taken |= chosen
        return chosen

    def note(self, cores: Iterable[int]) -> frozenset[int]:
        """Mark the cores of a job that already runs (started by a controller before us)."""
        ours = frozenset(self._order) & frozenset(cores)
        self._taken |= ours
        return ours

    def give_back(self, cores: Iterable[int]) -> None:
        self._taken -= set(cores)


@contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """What this thread starts inside runs on these cores: affinity is inherited, and per thread on Linux."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _place(core: int) -> tuple[int, int, int]:
    siblings = _numbers(_text(CPU / f"cpu{core}/topology/thread_siblings_list"))
    package = _text(CPU / f"cpu{core}/topology/physical_package_id")
    rank = siblings.index(core) if core in siblings else 0
    return rank, int(package) if package.isdigit() else 0, core


def _numbers(text: str) -> list[int]:
    """0-3,8 -> 0 1 2 3 8"""
    result: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        result += range(int(low), int(high or low) + 1)
    return result


def quota_cores() -> int | None:
    """Whole cores of the CPU quota of this control group, version 2 or 1; None where there is no quota."""
    quota, period = "", ""
    for line in _text(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        inner = path.lstrip("/")
        if not controllers:
            fields = (_text(CGROUP / inner / "cpu.max") or _text(CGROUP / "cpu.max")).split()
            quota, period = (fields[0], fields[1]) if len(fields) == 2 else (quota, period)
        elif "cpu" in controllers.split(","):
            home = CGROUP / "cpu" / inner
            quota, period = _text(home / "cpu.cfs_quota_us"), _text(home / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit()):  # "max" and -1 mean no quota
        return None
    return max(1, int(quota) // int(period))


def _text(path: Path) -> str:
    return text_of(path).strip()
