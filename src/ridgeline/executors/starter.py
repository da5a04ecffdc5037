"""Starts the jobs of this machine from a small process, so that their peak memory is their own.

Linux counts the memory of whoever starts a program as that program's peak until it needs more: started from here, every
job of less than a controller's 100 MB and more would seem to use as much. So a small helper makes the process, as a
child of ours all the same (CLONE_PARENT): it is waited for as if we had started it. The helper ends when we do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence

# numbers of the system call `clone`; with no stack and no thread-local storage its arguments mean the same everywhere
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
SILENCED = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these two, and ignored signals are inherited

# CLONE_PARENT | CLONE_VFORK | SIGCHLD: our child, and the helper goes on when it has become the program
_HELPER = """
import ctypes, json, os, signal, sys
call, number = ctypes.CDLL(None, use_errno=True).syscall, int(sys.argv[1])
os.write(1, b"ready\\n")
for line in os.fdopen(0, "rb"):
    asked, opened = json.loads(line), []
    try:
        for name, flags in asked["files"]:
            opened.append(os.open(os.fsencode(name), flags, 0o644))
        pid = call(number, 0x8000 | 0x4000 | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            try:
                os.setsid()
                for target, source in enumerate(opened):
                    os.dup2(source, target)
                if asked["cores"]:
                    os.sched_setaffinity(0, asked["cores"])
                for each in asked["silenced"]:
                    signal.signal(each, signal.SIG_DFL)
                os.execve(asked["argv"][0], [os.fsencode(a) for a in asked["argv"][1:]],
                          {os.fsencode(n): os.fsencode(v) for n, v in asked["env"].items()})
            finally:
                os._exit(127)
        error = ctypes.get_errno() if pid < 0 else 0
    except OSError as failure:
        pid, error = -1, failure.errno
    for fd in opened:
        os.close(fd)
    os.write(1, b"%d %d\\n" % (pid, error))
"""


class Starter:
    """One helper of this process, started when first needed; `start` gives None where none can be had."""

    def __init__(self) -> None:
        self._owner = 0
        self._ask = self._answer = -1

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        files: Sequence[tuple[str, int]],
        cores: Collection[int] = (),
    ) -> int | None:
        """The process id of `argv[0]`, started as argv[1:] in a session of its own, with `files` as its 0, 1 and 2.

        OSError where it cannot be started.
        """
        if self._owner != os.getpid() and not self._begin():
            return None
        asked = {"argv": argv, "env": dict(env), "files": files, "cores": sorted(cores), "silenced": [*SILENCED]}
        try:
            _write_all(self._ask, json.dumps(asked).encode() + b"\n")
            reply = _line(self._answer)
        except BrokenPipeError:
            reply = b""
        if not reply:
            self._end()
            return None
        pid, error = (int(word) for word in reply.split())
        if pid < 0:
            raise OSError(error, os.strerror(error), files[-1][0])
        return pid

    def _begin(self) -> bool:
        self._end()
        number = CLONE.get(os.uname().machine)
        if sys.platform != "linux" or number is None:
            return False
        reads, self._ask = os.pipe()
        self._answer, writes = os.pipe()
        try:
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _HELPER, str(number)],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reads, 0),
                    (os.POSIX_SPAWN_DUP2, writes, 1),
                    (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                ],
                setsid=True,  # Ctrl-C is for us, and jobs are to outlive it
                setsigmask=[],
            )
        except OSError:
            self._end()
            return False
        finally:
            os.close(reads)
            os.close(writes)
        self._owner = os.getpid()
        if _line(self._answer) != b"ready\n":
            self._end()
            return False
        return True

    def _end(self) -> None:
        for fd in (self._ask, self._answer):
            if fd >= 0 and self._owner in (0, os.getpid()):
                os.close(fd)
        self._owner, self._ask, self._answer = 0, -1, -1


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (more := os.read(fd, 4096)):
        line += more
    return line if line.endswith(b"\n") else b""


STARTER = Starter()
