"""The engine as a process of its own, why it ended, and what must be back when it has gone: GPU memory, the port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.records.run import signal_name
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.failures import FailureCause, cause_of
from ridgeline.serving.node.nvml import query
from ridgeline.serving.ports import is_free

_ASK_S, GRACE_S, BACK_S = 0.5, 20.0, 90.0
# What a session may need from the request to end to its end: the engine's grace here and on other nodes, its files, and
# limits of GPUs. Whoever ends it by force before that leaves an engine behind, with its memory.
STOPPING_S = 90.0
_SLACK_BYTES = 2**30


class EngineProcess:
    """Started in a session of its own, so that everything it leaves behind can be found and ended."""

    def __init__(self, command: str, folder: Path, log: Path | None, env: Mapping[str, str]) -> None:
        """Its output goes to `log`; None: where ours goes. `command` is one command of a shell."""
        with nullcontext() if log is None else log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S602  the command is shell text of our own making
                # a shell in between would die of SIGTERM first: the engine's grace and its CPU time would be lost;
                # env, because a launcher may be given variables of its own ("VAR=x mpirun")
                f"exec env {command}",
                shell=True,
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if log is None else subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for death by a signal, as a shell's 128 + n also says it."""
        code = self._process.poll()
        return 128 - code if code is not None and 128 < code <= 192 else code

    def wait(self, timeout_s: float) -> int | None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return self.exit_code

    def stop(self, grace_s: float = GRACE_S) -> list[int]:
        """Ask it to end, then end it with all it started. Returns processes that could not be ended."""
        _signal(self.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        until = time.monotonic() + 10.0
        while left := _members(self.pid):
            if time.monotonic() > until:
                return left
            _signal(self.pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.1)
        return []


def _signal(session: int, number: signal.Signals) -> None:
    for pid in _members(session):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _members(session: int) -> list[int]:
    """Living processes of a session: a leader's children may outlive it and have groups of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # gone while we looked
        if len(fields) > 3 and int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def post(port: int, path: str, body: Mapping[str, object], limit_s: float) -> str:
    """Ask the engine's server for something: why it refused, empty where it did not."""
    connection = HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        text = json.dumps(body) if body else None
        connection.request("POST", path, text, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        said = answer.read(1000).decode("utf-8", "replace").strip()
    except (OSError, HTTPException) as error:
        return f"{path} was not answered ({error})"
    finally:
        connection.close()
    return "" if answer.status == 200 else f"{path} was answered with {answer.status} {said}".rstrip()


def gpu_memory_bytes() -> list[tuple[int, int]] | None:
    """(used, all) of each GPU that this job may use; None on a machine without NVIDIA's tools."""
    try:
        rows = query(("memory.used", "memory.total"), visible_only=True)
        return [(int(used) << 20, int(total) << 20) for used, total in rows]
    except (OSError, ValueError):
        return None


def gpu_name() -> str:
    try:
        return query(("name",))[0][0]
    except OSError:
        return ""


def await_return(
    port: int | None,
    before: list[tuple[int, int]] | None,
    limit_s: float = BACK_S,
    alive: Callable[[], object] = lambda: None,
) -> tuple[float, str]:
    """Seconds until memory and port were back, and what is still missing after the limit. `alive` is called meanwhile:
    a job that waits in silence looks like one that hangs."""
    started = time.monotonic()
    while True:
        missing = _missing(port, before)
        elapsed = time.monotonic() - started
        if not missing or elapsed > limit_s:
            return elapsed, missing
        alive()
        time.sleep(_ASK_S)


def _missing(port: int | None, before: list[tuple[int, int]] | None) -> str:
    if port is not None and not is_free(port):
        return f"port {port} still answers"
    now = gpu_memory_bytes() if before else None
    if before and now:
        for number, ((used, _), (was, _)) in enumerate(zip(now, before, strict=False)):
            if used > was + _SLACK_BYTES:
                return f"GPU {number} still holds {(used - was) / 2**30:.1f} GiB"
    return ""


def host_oom_kills() -> int:
    """How often the kernel ended a process of our control group for its memory."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        text = (Path("/sys/fs/cgroup") / group.lstrip("/") / "memory.events").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))
    except (OSError, ValueError, IndexError):
        return 0


class EngineFailed(Exception):  # noqa: N818  the engine's failure, not ours
    def __init__(self, cause: FailureCause, exit_code: int = 1) -> None:
        super().__init__(cause.text)
        self.cause, self.exit_code = cause, exit_code


class ExitDiagnosis:
    """Looks at an engine that ended. Made before it starts, so that the kernel's count of kills can be compared."""

    def __init__(self, dialect: ServingEngine, log: Path) -> None:
        self.dialect, self.log = dialect, log
        self._oom_kills = host_oom_kills()

    def failed(self, code: int) -> EngineFailed:
        return EngineFailed(self._cause(code), code)

    def _cause(self, code: int) -> FailureCause:
        if host_oom_kills() > self._oom_kills:
            return FailureCause("host-oom", 0, "the kernel ended a process of this job for its memory (oom-kill)")
        log = self.dialect.read(TextFile(self.log))
        if found := cause_of(log.failures, log.weights_loaded):
            return found
        lines = [(n, line) for n, line in enumerate(TextFile(self.log), 1) if line.strip()]
        number, text = lines[-1] if lines else (0, "it wrote nothing")
        if "No module named" in text or code == 127:
            return FailureCause("missing", number, text)
        if code < 0:
            return FailureCause("signal", number, f"died by {signal_name(-code)}; its last line: {text}")
        return FailureCause("died", number, f"exit code {code}; its last line: {text}")


def users_cache() -> Path:
    """What outlives a session on a node: prepared caches, and what is to be undone."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"


def say(line: str) -> None:
    """To the run's stderr, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
