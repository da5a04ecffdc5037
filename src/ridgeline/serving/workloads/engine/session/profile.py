"""A window under a profiler while the engine is loaded, bounded by steps, time and size.

The traces of a few hundred requests may take 40 GB: an engine is told how many steps to record, what it writes is
watched, and a trace that is too large, or never ends, is cut off. Under nsys the engine only opens and closes the range
that nsys records, and the table of its kernels is made here, where nsys is.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.files import write_whole
from ridgeline.records.run import PROFILE_FOLDER
from ridgeline.serving.engines.base import NSYS, ServingEngine
from ridgeline.serving.engines.failures import FailureCause
from ridgeline.serving.workloads.engine.session import process as node
from ridgeline.serving.workloads.engine.session.load import POLL_S, send_other
from ridgeline.serving.workloads.engine.session.process import EngineFailed

_WRITE_S = 120.0  # for an engine to write what it has recorded, and to answer that it has stopped
_SETTLE_S = 5.0  # after that, for its files to be seen here
_MOST_AT_ONCE = 256
_STATS = "stats --report cuda_gpu_kern_sum --format csv --force-export=true --output -"


def require_profiler(folder: Path, asked: Mapping[str, Any]) -> None:
    """EngineFailed where the profiler is not to be had on this node; before the engine is started for nothing."""
    (folder / PROFILE_FOLDER).mkdir(exist_ok=True)
    if asked["tool"] != NSYS:
        return
    done = _nsys(folder, f"{asked['nsys']} --version")
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        what = (
            f"nsys does not run on {os.uname().nodename} ({why[0]}); load a module that has it "
            "(job: {modules: [...]}), take an image with it, or use `tool: torch`"
        )
        raise EngineFailed(FailureCause("no-profile", 0, what))


def _nsys(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S602  the command is shell text of our own making
        command, shell=True, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )


@dataclass
class ProfileWindow:
    """`asked` is the study's `stages.profile`, as session.json holds it."""

    folder: Path
    port: int
    dialect: ServingEngine
    asked: Mapping[str, Any]
    engine: node.EngineProcess
    _problem: str = ""
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def traces(self) -> Path:
        return self.folder / PROFILE_FOLDER

    def record(self, plan: Any, load: Callable[[], None]) -> None:
        """Open the window beside the load, which goes on until it is closed. EngineFailed where no trace came of it."""
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        count, number = plan.traffic.requests, 1
        try:
            load()
            while not self._over.is_set():
                number += 1
                send_other(plan, count, getattr(plan.traffic.pace, "concurrency", None) or _MOST_AT_ONCE, number)
        except EngineFailed:
            if not self._problem:
                raise
        finally:
            self._over.set()
            watcher.join(_WRITE_S)
            if self._size > self.asked["size_bytes"]:  # whatever was still written
                self._too_large()
        if self.asked["tool"] == NSYS and not self._problem:
            self._problem = self._kernel_table()
        if self._problem:
            raise EngineFailed(FailureCause("no-profile", 0, self._problem))

    def _watch(self) -> None:
        try:
            if not self._over.wait(self.asked["after_s"]):
                self._window()
        finally:
            self._over.set()

    def _window(self) -> None:
        steps, limit_s = self.asked["steps"], float(self.asked["limit_s"])
        opened = time.monotonic()
        body = self.dialect.profiler_body(str(self.asked["tool"]), steps, str(self.traces))
        self._problem = self._ask("/start_profile", body, limit_s)
        last, asked_s, answered_s = -1, 0.0, 0.0
        stopping: threading.Thread | None = None
        while not self._problem:
            if (size := self._size) > self.asked["size_bytes"]:
                self._too_large()
                return
            now, grows = time.monotonic(), size != last
            if stopping is None:
                if (size and not grows) or now - opened > limit_s:
                    # an engine answers only when it has written its trace, which may grow all the while
                    target = partial(self._ask, "/stop_profile", {}, _WRITE_S + _SETTLE_S)
                    stopping, asked_s = threading.Thread(target=target, daemon=True), now
                    stopping.start()
            elif stopping.is_alive() or (size and grows):
                answered_s = now
                if now - asked_s > _WRITE_S:
                    self._never_ends(size)
            elif size or (now - answered_s > _SETTLE_S and self.asked["tool"] == NSYS):
                return  # nsys may leave its report when it ends
            elif now - answered_s > _SETTLE_S:
                self._problem = (
                    f"the engine's profiler left no trace of {steps} steps within {limit_s:g} s; ask for fewer steps, "
                    "or allow more time (stages.profile: steps, limit)"
                )
            last = size
            time.sleep(POLL_S)

    def _kernel_table(self) -> str:
        """Write the kernels that nsys recorded on the first node as CSV. Returns why not; empty where it did."""
        if not (problem := self._stats()):
            return ""
        self.engine.stop()  # a report that was not whole is when nsys has ended
        return self._stats() and problem

    def _stats(self) -> str:
        reports = sorted(self.traces.glob("*.nsys-rep"))
        if not reports:
            return (
                f"nsys left no report of {self.asked['steps']} steps within {self.asked['limit_s']:g} s; ask for fewer "
                "steps, or allow more time (stages.profile: steps, limit)"
            )
        report = shlex.quote(str(reports[0].relative_to(self.folder)))
        done = _nsys(self.folder, f"{self.asked['nsys']} {_STATS} {report}")
        for database in self.traces.glob("*.sqlite"):
            database.unlink()
        table = re.search(r'^"?Time \(%\).*', done.stdout, re.MULTILINE | re.DOTALL)  # after the lines of the export
        if table is None:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no message"]
            return f"nsys recorded no kernel ({last[0]}); does the engine run on a GPU here?"
        write_whole(self.traces / "kernels.csv", table[0], survives_power_cut=False)
        return ""

    def _too_large(self) -> None:
        self._give_up(
            f"the traces of {self.asked['steps']} steps are larger than {self.asked['size_bytes'] / 1e6:g} MB and were "
            "deleted; ask for fewer steps, or allow more (stages.profile: steps, size)"
        )

    def _never_ends(self, size: int) -> None:
        self._give_up(
            f"the engine had not finished its trace of {self.asked['steps']} steps {_WRITE_S:g} s after it was told to "
            f"stop; what it wrote ({size / 1e6:.1f} MB) was deleted; ask for fewer steps (stages.profile: steps)"
        )

    def _give_up(self, why: str) -> None:
        """The engine may still be writing: only without it does its disk space come back."""
        self._problem = why
        self.engine.stop()
        shutil.rmtree(self.traces, ignore_errors=True)

    @property
    def _size(self) -> int:
        try:
            return sum(path.stat().st_size for path in self.traces.rglob("*") if path.is_file())
        except FileNotFoundError:
            return 0  # renamed while we looked

    def _ask(self, path: str, body: Mapping[str, object], limit_s: float) -> str:
        """Why it was refused; empty where it was not."""
        why = node.post(self.port, path, body, limit_s)
        return f"the engine's profiler: {why}" if why else ""
