"""A window under the engine's own profiler while it is loaded, bounded by steps, time and size.

The traces of a few hundred requests may take 40 GB: an engine is told how many steps to record, what it writes is
watched, and a trace that is too large, or never ends, is cut off.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from ridgeline.engines.base import PROFILE_FOLDER, ServingEngine
from ridgeline.engines.failures import FailureCause
from ridgeline.workloads.engine.session import process as node
from ridgeline.workloads.engine.session.causes import EngineFailed
from ridgeline.workloads.engine.session.load import POLL_S, send_other

_WRITE_S = 120.0  # for an engine to write what it has recorded, and to answer that it has stopped
_SETTLE_S = 5.0  # after that, for its files to be seen here
_MOST_AT_ONCE = 256


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
        self.traces.mkdir(exist_ok=True)
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
        self._problem = self._ask("/start_profile", self.dialect.profiler_body(steps, str(self.traces)), limit_s)
        last, stopped_s = -1, None
        while not self._problem:
            if (size := self._size) > self.asked["size_bytes"]:
                self._too_large()
                return
            now = time.monotonic()
            if size and size == last:
                # an engine answers only when it has written its trace
                self._ask("/stop_profile", {}, _WRITE_S)
                if self._size == size:
                    return
            elif stopped_s is None and now - opened > limit_s:
                self._ask("/stop_profile", {}, _WRITE_S)
                stopped_s = time.monotonic()
            elif stopped_s is not None and now - stopped_s > _SETTLE_S:
                self._problem = (
                    f"the engine's profiler left no trace of {steps} steps within {limit_s:g} s; ask for fewer steps, "
                    "or allow more time (stages.profile: steps, limit)"
                )
            last = size
            time.sleep(POLL_S)

    def _too_large(self) -> None:
        """The engine may still be writing: only without it does its disk space come back."""
        self._problem = (
            f"the traces of {self.asked['steps']} steps are larger than {self.asked['size_bytes'] / 1e6:g} MB and were "
            "deleted; ask for fewer steps, or allow more (stages.profile: steps, size)"
        )
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
        connection = HTTPConnection("127.0.0.1", self.port, timeout=limit_s)
        try:
            text = json.dumps(body) if body else None
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request("POST", path, text, headers)
            answer = connection.getresponse()
            said = answer.read(1000).decode("utf-8", "replace").strip()
        except (OSError, HTTPException) as error:
            return f"the engine's profiler: {path} was not answered ({error})"
        finally:
            connection.close()
        return "" if answer.status == 200 else f"the engine's profiler: {path} was answered with {answer.status} {said}"
