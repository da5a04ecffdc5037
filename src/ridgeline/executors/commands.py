"""Running the commands of a batch system, and the lock on a run folder while one of them submits it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ridgeline.errors import SiteError
from ridgeline.executors.dialect import BatchDialect, JobReply
from ridgeline.records.site import Site

COMMAND_LIMIT_S = 120.0


def run(command: list[str], site: Site, dialect: BatchDialect, keep_open: int | None = None) -> JobReply:
    """What the command says. It inherits the descriptor `keep_open`; SiteError when there is no such command."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_LIMIT_S,
            env=_environment(dialect),
            pass_fds=() if keep_open is None else (keep_open,),
            check=False,
        )
    except (FileNotFoundError, PermissionError):  # the latter, too, where a folder of PATH may not be searched
        raise SiteError(
            f"site {site.name}: {command[0]} is not on this machine's PATH; run ridgeline where jobs are "
            f"submitted from (a login node), or load the module of {dialect.name}"
        ) from None
    except subprocess.TimeoutExpired:
        return JobReply(124, "", f"{command[0]} was ended after {COMMAND_LIMIT_S:.0f} s without an answer")
    return JobReply(done.returncode, done.stdout, done.stderr)


def _environment(dialect: BatchDialect) -> dict[str, str]:
    """Ours, but when we run inside a job ourselves, without what was set for that job: commands would obey it."""
    inside = dialect.job_variable in os.environ
    kept = {name: value for name, value in os.environ.items() if not (inside and dialect.obeys(name))}
    return {**kept, "LC_ALL": "C"}


@contextmanager
def submitting(path: Path) -> Iterator[int]:
    """Held by whoever submits for a run folder, and by the submit command itself as long as it lives."""
    with path.open() as file:
        give_up_s = time.monotonic() + COMMAND_LIMIT_S
        while not _locked(file.fileno()):
            if time.monotonic() > give_up_s:
                raise SiteError(
                    f"{path}: somebody is still submitting this run; end that process first", transient=True
                )
            time.sleep(0.1)
        yield file.fileno()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # file systems without locks (Lustre without its flock option): the ticket file must do
    return True
