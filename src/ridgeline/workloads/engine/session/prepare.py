"""One-time steps on the node: done once for model, GPU, layout and release, and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from ridgeline.engines.base import KEEP, OFFLINE_RESULT, ServingEngine
from ridgeline.engines.failures import FailureCause
from ridgeline.workloads.engine.options import Load
from ridgeline.workloads.engine.session import process as node
from ridgeline.workloads.engine.session.causes import EngineFailed, ExitDiagnosis
from ridgeline.workloads.engine.session.files import add_environment
from ridgeline.workloads.engine.session.load import POLL_S, await_ready, plan_of, send_other

LIMIT_S = 4 * 3600.0
RECORDED = 1000  # requests under which experts are counted, at most
DONE = "done"


@dataclass(frozen=True, slots=True)
class Preparation:
    """All steps of one session. `started` starts a command, with its log and on so many nodes."""

    folder: Path
    spec: Mapping[str, Any]
    load: Load
    dialect: ServingEngine
    port: int
    started: Callable[[str, Path, int], node.EngineProcess]

    def run(self) -> None:
        """Do what was not done before, and tell the engine, by its environment, where the results are."""
        for step in self.spec.get("prepare", ()):
            kept = self._kept(step)
            if not (kept / DONE).exists():
                self._do(step, kept)
            add_environment(self.folder, self._given(str(step["step"]), kept))

    def _given(self, name: str, kept: Path) -> dict[str, str]:
        """How the engine finds what a step kept: by the file it is given, or by the folder."""
        step = self.dialect.steps.get(name)
        return {step.variable: str(kept / step.file)} if step and step.variable else {}

    def _kept(self, step: Mapping[str, Any]) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "prepared"
        gpu = "".join(c if c.isalnum() else "-" for c in node.gpu_name()) or "no-gpu"
        return cache / f"{step['step']}-{gpu}-{step['key']}"

    def _do(self, step: Mapping[str, Any], kept: Path) -> None:
        partial = kept.with_name(f".{kept.name}.{os.getpid()}")
        partial.mkdir(parents=True)
        started = time.monotonic()
        try:
            add_environment(self.folder, {KEEP: str(partial)})
            code = self._run(step, partial)
            if code == 0:
                (partial / DONE).write_text(f"{time.monotonic() - started:.0f} s\n")
                _move(partial, kept)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        (self.folder / OFFLINE_RESULT).unlink(missing_ok=True)
        # a rehearsal's failure is found again, and judged, in the run that counts
        if code != 0 and step["own"]:
            raise EngineFailed(
                FailureCause("died", 0, f"preparation {step['step']} ended with {code}; see prepare.log"), 1
            )

    def _run(self, step: Mapping[str, Any], partial: Path) -> int | None:
        log = self.folder / "prepare.log"
        process = self.started(str(step["start"]), log, int(step.get("nodes", 1)))
        try:
            if step["serves"]:
                return self._record(process, log, partial)
            if not step["own"] and self.spec["serves"]:
                return self._come_up(process)
            return process.wait(LIMIT_S)
        finally:
            process.stop()

    def _come_up(self, process: node.EngineProcess) -> int | None:
        """The trial's own server once, for its caches only."""
        until = time.monotonic() + float(self.spec["ready_limit_s"])
        while process.exit_code is None and time.monotonic() < until:
            if node.healthy(self.port):
                return 0
            time.sleep(POLL_S)
        return process.exit_code

    def _record(self, process: node.EngineProcess, log: Path, partial: Path) -> int:
        """How often each expert is used under traffic like the measured one."""
        exit_diagnosis = ExitDiagnosis(self.dialect, log)
        await_ready(process, self.port, log, self.dialect, exit_diagnosis, float(self.spec["ready_limit_s"]))
        self._ask("/start_expert_distribution_record")
        plan = plan_of(self.load, self.port, None, self.dialect)
        send_other(plan, min(RECORDED, self.load.requests), self.load.concurrency or 64)
        self._ask("/stop_expert_distribution_record")
        self._ask("/dump_expert_distribution_record")
        records = sorted(partial.glob("expert_distribution_recorder_*.pt"))
        if not records:
            raise EngineFailed(
                FailureCause("died", 0, "preparation eplb: the engine left no record; see prepare.log"), 1
            )
        records[-1].rename(partial / self.dialect.steps["eplb"].file)
        return 0

    def _ask(self, path: str) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", path)
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            raise EngineFailed(
                FailureCause("died", 0, f"preparation eplb: {path} was not answered ({error})"), 1
            ) from error
        finally:
            connection.close()
        if status != 200:
            raise EngineFailed(FailureCause("died", 0, f"preparation eplb: {path} was answered with {status}"), 1)


def _move(partial: Path, kept: Path) -> None:
    """Into its place, unless a run elsewhere was faster."""
    try:
        partial.rename(kept)
    except OSError:
        if not (kept / DONE).exists():
            raise
