"""What happens on the node: `python -m ridgeline.workloads.session session.json`, started by a job's run.sh.

Start the engine, wait until it serves, warm it up with other traffic, measure, stop everything, see that memory and
port are back, and write measured.json. When the engine fails, the last line on stderr names the cause and the line of
engine.log that shows it, and the exit code is not 0.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ridgeline.errors import ReadError, RidgelineError
from ridgeline.readers.lines import TextFile
from ridgeline.serving.traffic import Traffic
from ridgeline.workloads import session_engine as node
from ridgeline.workloads.engine_dialect import ENGINE_LOG, OFFLINE_RESULT, Dialect
from ridgeline.workloads.engine_failures import Cause, cause_of
from ridgeline.workloads.engine_install import installed_version
from ridgeline.workloads.engine_options import Load
from ridgeline.workloads.engine_reading import MEASURED, REQUESTS
from ridgeline.workloads.session_files import ENVIRONMENT, make_files, remove_files

LOOK_S = 0.5
DYING_S = 30.0  # an engine whose scheduler died gathers evidence for some seconds before it ends itself
STOPPED = 128 + signal.SIGTERM
# a log that comes in blocks would show a mark long after the fact
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
# more than this of a GPU in use before we start is somebody else's run
BUSY_SHARE, FREE_S = 0.1, 30.0
PREPARE_LIMIT_S = 4 * 3600.0


class Failed(Exception):  # noqa: N818  the engine's failure, not ours
    def __init__(self, cause: Cause, exit_code: int = 1) -> None:
        super().__init__(cause.text)
        self.cause, self.exit_code = cause, exit_code


class Watcher(Protocol):
    def start(self) -> object: ...
    def stop(self) -> Mapping[str, float]: ...


class Session:
    """One run of one engine in one folder."""

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self.folder, self.spec = folder, spec
        self.load = Load(**{**spec["load"], "slos": tuple(spec["load"]["slos"])})
        self.dialect = dialect_named(str(spec["engine"]))
        self.log = folder / ENGINE_LOG
        self.port = node.free_port()
        self.measured: dict[str, Any] = {}
        self.oom_kills = node.host_oom_kills()

    def run(self) -> None:
        """Everything, from an empty node to an empty node. Failed says why there is no measurement."""
        self.log.write_bytes(b"")
        before = self._require_free_gpus()
        python = str(self.spec.get("python") or "")
        self.measured["engine_version"] = installed_version(python, self.dialect.package) if python else ""
        try:
            make_files(
                self.folder,
                self.load,
                (self.port, node.free_port()),
                model=str(self.spec["model"]),
                make_model=bool(self.spec["make_model"]),
                data_for="" if self.spec["serves"] else self.dialect.name,
            )
            for step in self.spec.get("prepare", ()):
                self._prepare(step)
            self._once()
        finally:
            remove_files(self.folder)
            seconds, missing = node.await_return(self.port, before)
            self.measured["back_s"] = round(seconds, 3)
            if missing:
                self.measured["not_back"] = missing
                say(f"ridgeline: {missing} {node.BACK_S:.0f} s after the engine was stopped")
            self._write()

    def _once(self) -> None:
        engine = node.EngineProcess(str(self.spec["start"]), self.folder, self.log, UNBUFFERED)
        try:
            if self.spec["serves"]:
                self._serve(engine)
            else:
                self._offline(engine)
        finally:
            if left := engine.stop():
                say(f"ridgeline: processes {left} of the engine do not end")

    def _serve(self, engine: node.EngineProcess) -> None:
        from ridgeline.serving.load.bench import Plan, bench
        from ridgeline.serving.load.route import parse_route
        from ridgeline.serving.requests import Slo

        self._await_ready(engine)
        traffic = self.load.recipe()
        plan = Plan(
            route=parse_route(f"http://127.0.0.1:{self.port}", interface="completions"),
            traffic=traffic,
            ignore_eos=True,
            slos=tuple(map(Slo.parse, self.load.slos)),
            workers=self.load.workers,
            keep_path=self.folder / REQUESTS,
            salt=self.load.seed,
            timeout_s=300.0,
        )
        self._warm_up(plan)
        self.measured["measured_from_line"] = _count_lines(self.log)
        watcher = _watcher(self.folder)
        result = bench(plan)
        self._stop_watching(watcher)
        _heed(result)
        if result.summary.ok < result.summary.requests and not node.healthy(self.port):
            engine.wait(DYING_S)
        if engine.exit_code is not None:
            raise Failed(self._cause(engine.exit_code), engine.exit_code)
        if not result.summary.ok:
            kinds = ", ".join(f"{kind} x {count}" for kind, count in result.summary.errors.items())
            raise Failed(Cause("no-answer", 0, f"no request succeeded ({kinds})"))
        self.measured["summary"] = result.as_json()

    def _warm_up(self, plan: Any) -> None:
        """Other lengths and other words than the measured traffic, so that nothing measured is in a cache."""
        from dataclasses import replace

        from ridgeline.serving.load.bench import bench
        from ridgeline.serving.traffic import ClosedLoop

        count = self.load.warmup if self.load.warmup is not None else min(64, self.load.requests)
        if count:
            at_once = min(count, self.load.concurrency or 16)
            traffic: Traffic = replace(
                plan.traffic, requests=count, pace=ClosedLoop(at_once), seed=plan.traffic.seed + 7919
            )
            _heed(bench(replace(plan, traffic=traffic, salt=plan.salt + 7919, keep_path=None, workers=1, slos=())))

    def _await_ready(self, engine: node.EngineProcess) -> None:
        started = time.monotonic()
        limit_s = float(self.spec["ready_limit_s"])
        while not (node.healthy(self.port) and self._log_says_ready()):
            if engine.exit_code is not None:
                raise Failed(self._cause(engine.exit_code), engine.exit_code)
            if time.monotonic() - started > limit_s:
                raise Failed(Cause("not-ready", 0, f"not ready after {limit_s:g} s"))
            time.sleep(LOOK_S)
        self.measured["ready_s"] = round(time.monotonic() - started, 3)

    def _log_says_ready(self) -> bool:
        mark = self.dialect.ready_line
        return not mark or any(mark in line for line in TextFile(self.log))

    def _offline(self, engine: node.EngineProcess) -> None:
        """The engine's own offline benchmark; it warms itself up, and is watched from its start mark on."""
        started = time.monotonic()
        watcher: Watcher | None = None
        tail = _Tail(self.log)
        while (code := engine.wait(LOOK_S)) is None:
            if watcher is None and tail.holds("Benchmark...", "Processed prompts"):
                self.measured["ready_s"] = round(time.monotonic() - started, 3)
                watcher = _watcher(self.folder)
        self._stop_watching(watcher)
        if code != 0:
            raise Failed(self._cause(code), code)

    def _stop_watching(self, watcher: Watcher | None) -> None:
        if watcher is not None:
            self.measured["monitor"] = dict(watcher.stop())

    def _cause(self, code: int) -> Cause:
        """Why the engine ended: what its log says, or how it died."""
        if node.host_oom_kills() > self.oom_kills:
            return Cause("host-oom", 0, "the kernel ended a process of this job for its memory (oom-kill)")
        log = self.dialect.read(TextFile(self.log))
        if found := cause_of(log.failures, log.weights_loaded):
            return found
        lines = [(n, line) for n, line in enumerate(TextFile(self.log), 1) if line.strip()]
        number, text = lines[-1] if lines else (0, "it wrote nothing")
        if "No module named" in text or code == 127:
            return Cause("missing", number, text)
        if code < 0:
            return Cause("signal", number, f"died by {_signal_name(-code)}; its last line: {text}")
        return Cause("died", number, f"exit code {code}; its last line: {text}")

    def _require_free_gpus(self) -> list[tuple[int, int]] | None:
        """Memory in use before we start; a run that has just ended may still be giving back its own."""
        until = time.monotonic() + FREE_S
        while True:
            memory = node.gpu_memory_bytes()
            busy = [
                f"GPU {n} holds {used / 2**30:.1f} GiB"
                for n, (used, total) in enumerate(memory or ())
                if used > BUSY_SHARE * total
            ]
            if not busy:
                return memory
            if time.monotonic() > until:
                raise Failed(Cause("gpu-in-use", 0, f"{'; '.join(busy)} before we start"))
            time.sleep(LOOK_S)

    def _prepare(self, step: Mapping[str, str]) -> None:
        """Run a one-time step unless it was done for this model, layout, engine and GPU."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "prepared"
        name = "".join(c if c.isalnum() else "-" for c in node.gpu_name()) or "no-gpu"
        done = cache / f"{step['step']}-{name}-{step['key']}"
        if done.exists():
            return
        log, started = self.folder / "prepare.log", time.monotonic()
        command = step["command"] or str(self.spec["start"])
        if step["command"]:
            command = f". ./{ENVIRONMENT} && {command}"
        process = node.EngineProcess(command, self.folder, log, UNBUFFERED)
        try:
            code = process.wait(PREPARE_LIMIT_S) if step["command"] else self._rehearse(process)
        finally:
            process.stop()
        if code != 0 and not step["command"]:
            return  # a rehearsal's failure is found again, and judged, in the run that counts
        if code != 0:
            raise Failed(Cause("died", 0, f"preparation {step['step']} ended with {code}; see prepare.log"), 1)
        cache.mkdir(parents=True, exist_ok=True)
        done.write_text(f"{time.monotonic() - started:.0f} s\n")
        (self.folder / OFFLINE_RESULT).unlink(missing_ok=True)

    def _rehearse(self, process: node.EngineProcess) -> int | None:
        """The trial's own engine once, for its caches only."""
        if not self.spec["serves"]:
            return process.wait(PREPARE_LIMIT_S)
        until = time.monotonic() + float(self.spec["ready_limit_s"])
        while process.exit_code is None and time.monotonic() < until:
            if node.healthy(self.port):
                return 0
            time.sleep(LOOK_S)
        return process.exit_code

    def _write(self) -> None:
        partial = self.folder / f".{MEASURED}.partial"
        partial.write_text(json.dumps(self.measured, indent=1) + "\n")
        partial.rename(self.folder / MEASURED)


def _heed(result: Any) -> None:
    """The load generator takes a signal as the end of its run; for us it is the end of everything."""
    if result.interrupted:
        sys.exit(STOPPED)


class _Tail:
    """Looks for words in what a log gained since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, 0

    def holds(self, *words: str) -> bool:
        with self._path.open("rb") as stream:
            stream.seek(max(0, self._seen - 100))
            text = stream.read().decode("utf-8", "replace")
            self._seen = stream.tell()
        return any(word in text for word in words)


def dialect_named(name: str) -> Dialect:
    if name == "sglang":
        from ridgeline.workloads.sglang_dialect import SGLANG

        return SGLANG
    from ridgeline.workloads.vllm_dialect import VLLM

    return VLLM


def _watcher(folder: Path) -> Watcher | None:
    """GPU and host use are sampled into the run folder where that part is there."""
    try:
        monitor = importlib.import_module("ridgeline.serving.monitor").Monitor(folder)
    except ModuleNotFoundError:
        return None
    monitor.start()
    return monitor  # type: ignore[no-any-return]


def _count_lines(path: Path) -> int:
    return sum(1 for _ in TextFile(path))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    path = Path(arguments[0]).resolve()
    # a job that is told to stop must still stop its engine
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    try:
        spec = json.loads(path.read_text())
        Session(path.parent, spec).run()
    except Failed as failed:
        say(failed.cause.said(ENGINE_LOG))
        code = failed.exit_code
        return 128 - code if code < 0 else code or 1
    except (RidgelineError, ReadError, OSError) as error:
        say(f"ridgeline: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
