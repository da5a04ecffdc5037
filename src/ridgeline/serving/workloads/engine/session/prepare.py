"""One-time steps on the node: done once for model, GPU, layout and release, and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.serving.engines.base import KEEP, OFFLINE_RESULT, ServingEngine
from ridgeline.serving.engines.failures import FailureCause
from ridgeline.serving.workloads.engine.options import Load
from ridgeline.serving.workloads.engine.prepare import BAKE, CACHES, CACHES_INSIDE, FOLDER, IMAGE, OVERLAY, TAR
from ridgeline.serving.workloads.engine.session import process as node
from ridgeline.serving.workloads.engine.session.baked import (
    DONE,
    Manifest,
    NodeFolder,
    image_suffix,
    image_tool,
    make_image,
    make_tar,
    packed,
    unpack,
)
from ridgeline.serving.workloads.engine.session.causes import EngineFailed, ExitDiagnosis
from ridgeline.serving.workloads.engine.session.files import add_environment
from ridgeline.serving.workloads.engine.session.load import POLL_S, await_ready, measure_offline, plan_of, send_other

_STEP_S = 4 * 3600.0  # for one step, at most
_ANSWER_S = 300.0
_RECORD_REQUESTS = 1000  # under which experts are counted, at most
_BAKE_REQUESTS = 64  # under which a server compiles its kernels


@dataclass(slots=True)
class Preparation:
    """All steps of one session. `started` starts a command, with its log and on so many nodes; `unpack` is what other
    nodes are told: the folder of baked caches on their own disks, and the tar that holds them."""

    folder: Path
    spec: Mapping[str, Any]
    load: Load
    dialect: ServingEngine
    port: int
    started: Callable[[str, Path, int], node.EngineProcess]
    measured: dict[str, Any]  # of the session; what it starts from is said there
    unpack: dict[str, str] = field(default_factory=dict)
    local: NodeFolder | None = None
    filling: Path | None = None

    def run(self) -> None:
        """Do what was not done before, and tell the engine, by its environment, where the results are."""
        for step in self.spec.get("prepare", ()):
            kept = self._kept(step)
            if step["step"] == BAKE:
                self._bake(step, kept)
                continue
            if not (kept / DONE).exists():
                self._run_step(step, kept)
            add_environment(self.folder, self._given(str(step["step"]), kept))

    def _bake(self, step: Mapping[str, Any], kept: Path) -> None:
        """Start from caches that are full, and say so; fill them first where there are none for this release, GPU and
        model, or they are damaged."""
        release, gpu = str(self.measured.get("engine_version") or ""), node.gpu_name()
        baked = Manifest.of(kept)
        if baked is not None and (why := baked.why_not(kept, release, gpu, str(step["key"]))):
            say(f"ridgeline: {kept} {why}: baked anew")
            baked = None
        store = str(step.get("store", FOLDER))
        if store == TAR:
            self.local = NodeFolder(kept.name)
            self.unpack |= {"folder": str(self.local.path), "tar": ""}
        if baked is None:
            started = time.monotonic()
            filled = self._filled(step, kept, store)
            if filled is None:
                return  # the failure is found again, and judged, in the run that counts
            ready_s, file = filled
            baked_s = round(time.monotonic() - started, 3)
            baked = Manifest(release, ready_s, baked_s, gpu, str(step["key"]), **file)
            baked.write(kept)
        elif self.local is not None:
            unpack(kept / baked.file, self.local.path)
        self._start_from(kept, baked, store)

    def _start_from(self, kept: Path, baked: Manifest, store: str) -> None:
        place, where = kept, str(kept / baked.file)
        if self.local is not None:
            place = self.local.path
            self.unpack["tar"] = where
            where += f", unpacked to {place}"
            add_environment(self.folder, {CACHES: str(place)})
        elif store == OVERLAY:
            place = Path(CACHES_INSIDE)
            add_environment(self.folder, {CACHES: "", IMAGE: where})
        add_environment(self.folder, self._caches(place))
        self.measured["baked"] = {**baked.as_json(), "folder": str(kept)}
        without = "" if baked.ready_s is None else f"; without them it was ready after {baked.ready_s:g} s"
        say(f"ridgeline: starts from caches baked in {where}{without}")

    def _filled(self, step: Mapping[str, Any], kept: Path, store: str) -> tuple[float | None, dict[str, Any]] | None:
        """Fill caches and keep them: how long that start took, and the file that holds them. None: it failed."""
        if store == FOLDER:
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            found = self._fill(step, self._caches(kept))
            if found is None:
                shutil.rmtree(kept, ignore_errors=True)
            return None if found is None else (found.get("ready_s"), {})
        if self.local is not None:
            place = seen = self.local.path
            suffix, make = ".tar", lambda path: make_tar(place, path)
        else:
            tool = image_tool()  # before hours are spent on what it is to hold
            self.filling = root = kept / f".filling-{os.getpid()}"  # where all nodes see it
            seen, place = Path(CACHES_INSIDE), root / CACHES_INSIDE.lstrip("/")
            suffix, make = image_suffix(tool), lambda path: make_image(tool, root, path)
        place.mkdir(parents=True, mode=0o700)
        found = self._fill(step, {CACHES: str(place), **self._caches(seen)})
        return None if found is None else (found.get("ready_s"), packed(kept, suffix, make))

    def give_back(self) -> None:
        """The disk space of what this session filled or unpacked."""
        if self.local is not None:
            self.local.give_back()
        if self.filling is not None:
            shutil.rmtree(self.filling, ignore_errors=True)

    def _caches(self, place: Path) -> dict[str, str]:
        """Those that the study does not place itself."""
        places = self.dialect.cache_variables.items()
        return {name: str(place / folder) for name, folder in places if name not in os.environ}

    def _fill(self, step: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any] | None:
        """The trial's own command once, with other traffic; when it was ready, where that was seen. None: it failed."""
        add_environment(self.folder, env)
        log, found = self.folder / "prepare.log", dict[str, Any]()
        process = self.started(str(step["start"]), log, int(step.get("nodes", 1)))
        exit_diagnosis = ExitDiagnosis(self.dialect, log)
        try:
            if self.spec["serves"]:
                limit_s = float(self.spec["ready_limit_s"])
                found["ready_s"] = await_ready(process, self.port, log, self.dialect, exit_diagnosis, limit_s)
                plan = plan_of(self.load, self.port, None, self.dialect)
                send_other(
                    plan, min(_BAKE_REQUESTS, self.load.requests), self.load.concurrency or _BAKE_REQUESTS, number=2
                )
            else:
                measure_offline(process, log, self.dialect.offline_mark, exit_diagnosis, found)
        except EngineFailed:
            return None
        finally:
            process.stop()
            (self.folder / OFFLINE_RESULT).unlink(missing_ok=True)
        return found

    def _given(self, name: str, kept: Path) -> dict[str, str]:
        """How the engine finds what a step kept: by the file it is given, or by the folder."""
        step = self.dialect.steps.get(name)
        return {step.variable: str(kept / step.file)} if step and step.variable else {}

    def _kept(self, step: Mapping[str, Any]) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "prepared"
        gpu = "".join(c if c.isalnum() else "-" for c in node.gpu_name()) or "no-gpu"
        return cache / f"{step['step']}-{gpu}-{step['key']}"

    def _run_step(self, step: Mapping[str, Any], kept: Path) -> None:
        partial = kept.with_name(f".{kept.name}.{os.getpid()}")
        partial.mkdir(parents=True)
        started = time.monotonic()
        try:
            add_environment(self.folder, {KEEP: str(partial)})
            code = self._exit_code(step, partial)
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

    def _exit_code(self, step: Mapping[str, Any], partial: Path) -> int | None:
        log = self.folder / "prepare.log"
        process = self.started(str(step["start"]), log, int(step.get("nodes", 1)))
        try:
            if step["serves"]:
                return self._record(process, log, partial)
            if not step["own"] and self.spec["serves"]:
                return self._come_up(process)
            return process.wait(_STEP_S)
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
        send_other(plan, min(_RECORD_REQUESTS, self.load.requests), self.load.concurrency or 64)
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
        if why := node.post(self.port, path, {}, _ANSWER_S):
            raise EngineFailed(FailureCause("died", 0, f"preparation eplb: {why}"), 1)


def say(line: str) -> None:
    """To the run's stderr, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _move(partial: Path, kept: Path) -> None:
    """Into its place, unless a run elsewhere was faster."""
    try:
        partial.rename(kept)
    except OSError:
        if not (kept / DONE).exists():
            raise
