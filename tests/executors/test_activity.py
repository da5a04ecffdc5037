"""What the processes of a local job are at, as `keep` asks for a server that answers nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ridgeline.executors.local import LocalExecutor
from ridgeline.records.run import Job
from ridgeline.records.site import LOCAL

# a program that starts another one, as a server's API its engine
PROGRAM = """\
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_engine_and_not_its_api_is_looked_at(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = tmp_path / "run"
    folder.mkdir()
    executor = LocalExecutor(LOCAL)
    ticket = executor.submit(Job("job", folder, f"exec {shlex.quote(sys.executable)} {program} 'while True: pass'"))
    try:
        until(lambda: (folder / "stdout").exists() and (folder / "stdout").read_text().endswith("\n"))
        engine = int((folder / "stdout").read_text())
        until(lambda: (seen := executor.activity(ticket)) is not None and seen.cpu_s > 0.1)
        seen = executor.activity(ticket)
        assert seen is not None and seen.runnable and not seen.stopped
        os.kill(engine, signal.SIGSTOP)
        until(lambda: (seen := executor.activity(ticket)) is not None and seen.stopped)
        first, second = executor.activity(ticket), executor.activity(ticket)
        assert first is not None and second is not None
        assert first.cpu_s == second.cpu_s
        assert not second.runnable
        os.kill(engine, signal.SIGCONT)
    finally:
        executor.cancel(ticket)
    assert executor.activity(ticket) is None


def test_a_program_alone_is_looked_at_itself(tmp_path: Path) -> None:
    executor = LocalExecutor(LOCAL)
    ticket = executor.submit(Job("job", tmp_path, "exec sleep 60"))
    try:
        until(lambda: (seen := executor.activity(ticket)) is not None and not seen.runnable)
    finally:
        executor.cancel(ticket)


def test_a_compiler_among_its_processes_is_seen(tmp_path: Path) -> None:
    compiler = tmp_path / "cicc"
    shutil.copy("/bin/sleep", compiler)
    executor = LocalExecutor(LOCAL)
    ticket = executor.submit(Job("job", tmp_path, f"sleep 600 & {compiler} 600; wait"))
    try:
        until(lambda: (seen := executor.activity(ticket)) is not None and seen.compiles)
    finally:
        executor.cancel(ticket)
