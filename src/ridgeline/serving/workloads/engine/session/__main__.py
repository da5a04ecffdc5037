"""On the node: `python -m ridgeline.serving.workloads.engine.session session.json`, started by a job's run.sh.

Start the engine, wait until it serves, warm it up with other traffic, measure, stop everything, see that memory and
port are back, and write measured.json. When the engine fails, the last line on stderr names the cause and the line of
engine.log that shows it, and the exit code is not 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.diagnose.readers.failures import SESSION_ENDED
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import ReadError, RidgelineError, SiteError
from ridgeline.files import write_whole
from ridgeline.records.run import OWN_LOG, PACKAGES_FILE
from ridgeline.serving import ports
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.failures import FailureCause
from ridgeline.serving.engines.install import installed_packages, installed_version
from ridgeline.serving.traffic.requests import REQUESTS
from ridgeline.serving.workloads.engine.options import Load
from ridgeline.serving.workloads.engine.reading import MEASURED
from ridgeline.serving.workloads.engine.session import process as node
from ridgeline.serving.workloads.engine.session.held_gpus import held_gpus
from ridgeline.serving.workloads.engine.session.load import (
    DYING_S,
    POLL_S,
    STOPPED,
    ask_questions,
    await_ready,
    measure,
    measure_offline,
    plan_of,
    send_other,
)
from ridgeline.serving.workloads.engine.session.prepare import Preparation, make_files, remove_files
from ridgeline.serving.workloads.engine.session.process import EngineFailed, ExitDiagnosis, say
from ridgeline.serving.workloads.engine.session.profile import ProfileWindow, require_profiler
from ridgeline.serving.workloads.engine.session.rank import RANKS, RankMarks, head_address, hosts_of_job

# for rank 0 to end after another rank did: its schedulers may be going down together, in order
_FOLLOWS_S = 30.0
ENDS_S = 45.0  # for all ranks and the launcher, once they are asked to end, and for the limits of their GPUs


class _SpanningEngine(node.EngineProcess):
    """`command` is the launcher's. What it leaves with says nothing: other ranks end with errors when all went well."""

    starts = 0

    def __init__(
        self, command: str, folder: Path, log: Path, env: Mapping[str, str], network: Mapping[str, object]
    ) -> None:
        _SpanningEngine.starts += 1
        start = f"{os.getpid()}-{_SpanningEngine.starts}"
        self._marks = RankMarks(folder, start)
        self._failed_s: float | None = None
        (folder / RANKS).write_text(json.dumps({**network, "start": start}) + "\n")
        super().__init__(command, folder, log, env)

    @property
    def exit_code(self) -> int | None:
        launcher = super().exit_code
        if (code := self._marks.ended) is not None:
            return code
        if launcher is not None:
            # it could not start rank 0, or rank 0 was lost
            return self._marks.failed or launcher or 1
        if (failed := self._marks.failed) is None:
            return None
        self._failed_s = self._failed_s or time.monotonic()
        return failed or 1 if time.monotonic() - self._failed_s > _FOLLOWS_S else None

    def wait(self, timeout_s: float) -> int | None:
        until = time.monotonic() + timeout_s
        while (code := self.exit_code) is None and time.monotonic() < until:
            time.sleep(min(0.1, timeout_s))
        return code

    def stop(self, grace_s: float = node.GRACE_S) -> list[int]:
        """Tell all ranks by file, since not every launcher passes signals on; then end the launcher."""
        self._marks.write("stop")
        until = time.monotonic() + ENDS_S
        while super().exit_code is None and time.monotonic() < until:
            time.sleep(0.1)
        left = super().stop(grace_s)
        self._marks.remove()
        return left


_WARMUP, _WARMUP_AT_ONCE = 64, 16
# a log that comes in blocks would show a mark long after the fact
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
# more than this of a GPU in use before we start is somebody else's run
_BUSY_SHARE, FREE_S = 0.1, 30.0
STOPPED_BACK_S = 5.0


class Session:
    """One run of one engine in one folder."""

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self.folder, self.spec = folder, spec
        self.load = Load(**{**spec["load"], "slos": tuple(spec["load"]["slos"])})
        self.dialect: ServingEngine = catalog.part("engines", str(spec["engine"]))
        self.log = folder / OWN_LOG
        self.port = ports.claim(self.dialect.port_offsets, self.dialect.name)
        self.nodes = int(spec.get("nodes", 1))
        self.head = ""
        self.measured: dict[str, Any] = {}
        self.exit_diagnosis = ExitDiagnosis(self.dialect, self.log)
        self.preparation = Preparation(folder, spec, self.load, self.dialect, self.port, self.started, self.measured)

    def run(self) -> None:
        """Everything, from an empty node to an empty node. Failed says why there is no measurement."""
        self.log.write_bytes(b"")
        before = self._require_free_gpus()
        self.measured["engine_version"] = self._engine_version()
        self._write_packages()
        interface = str(self.spec.get("interface", ""))
        self.head = head_address(interface, hosts_of_job(os.environ)) if self.nodes > 1 else "127.0.0.1"
        back_s = node.BACK_S
        try:
            make_files(
                self.folder,
                self.load,
                (self.port, ports.claim(self.dialect.rendezvous_offsets, f"{self.dialect.name}-rendezvous")),
                self.head,
                model=str(self.spec["model"]),
                make_model=bool(self.spec["make_model"]),
                decoys=None if self.spec["serves"] else self.dialect.decoys,
            )
            self.preparation.run()
            self._once()
        except SystemExit:
            back_s = STOPPED_BACK_S  # we were asked to end, and shall be ended if we do not
            raise
        finally:
            remove_files(self.folder)
            seconds, missing = node.await_return(self.port, before, back_s, self.log.touch)
            self.measured["back_s"] = round(seconds, 3)
            if missing:
                self.measured["not_back"] = missing
                say(f"ridgeline: {missing} {back_s:.0f} s after the engine was stopped")
            self._write()

    def _engine_version(self) -> str:
        python = str(self.spec.get("python") or "")
        known = (installed_version(python, package) for package in self.dialect.packages) if python else iter(())
        return next((version for version in known if version), "")

    def _write_packages(self) -> None:
        """What runs of two releases have to be compared by, once one of them is slower."""
        found = installed_packages(str(self.spec.get("python") or ""))
        text = "".join(f"{name}=={release}\n" for name, release in found.items())
        if text:
            write_whole(self.folder / PACKAGES_FILE, text, survives_power_cut=False)

    def _once(self) -> None:
        if profile := self.spec.get("profile"):
            require_profiler(self.folder, profile)
        if self.nodes > 1:  # each holds its own (rank.py)
            self._run_engine()
            return
        with held_gpus(self._limits) as held:
            if held:
                self.measured["gpu_limits"] = held
            self._run_engine()

    @property
    def _limits(self) -> Mapping[str, float]:
        found: Mapping[str, float] = self.spec.get("gpu_limits", {})
        return found

    def _run_engine(self) -> None:
        engine = self.started(str(self.spec["start"]), self.log, self.nodes)
        try:
            if self.spec["serves"]:
                self._serve(engine)
            else:
                measure_offline(engine, self.exit_diagnosis, self.measured)
        except EngineFailed as failed:
            early = "ready_s" not in self.measured
            raise EngineFailed(replace(failed.cause, at_start=early), failed.exit_code) from failed
        finally:
            if left := engine.stop():
                say(f"ridgeline: processes {left} of the engine do not end")

    def started(self, command: str, log: Path, nodes: int) -> node.EngineProcess:
        if nodes == 1:
            return node.EngineProcess(command, self.folder, log, _UNBUFFERED)
        network = {
            "head": self.head,
            "interface": str(self.spec.get("interface", "")),
            "host_variable": self.dialect.host_variable,
            "gpu_limits": self._limits,
        }
        return _SpanningEngine(command, self.folder, log, _UNBUFFERED, network)

    def _serve(self, engine: node.EngineProcess) -> None:
        limit_s = float(self.spec["ready_limit_s"])
        self.measured["ready_s"] = await_ready(engine, self.port, self.exit_diagnosis, limit_s)
        plan = plan_of(self.load, self.port, self.folder / REQUESTS, self.dialect)
        warmup = min(_WARMUP, self.load.requests) if self.load.warmup is None else self.load.warmup
        if warmup:
            send_other(plan, warmup, self.load.concurrency or _WARMUP_AT_ONCE)
        self.measured["measured_from_line"] = sum(1 for _ in TextFile(self.log))
        if profile := self.spec.get("profile"):
            window = ProfileWindow(self.folder, self.port, self.dialect, profile, engine)
            window.record(plan, lambda: measure(engine, self.port, plan, self.exit_diagnosis, self.measured))
            return
        measure(engine, self.port, plan, self.exit_diagnosis, self.measured)
        if not self.spec.get("questions") and not self.spec.get("perplexity"):
            return
        self.measured["measured_to_line"] = sum(1 for _ in TextFile(self.log))
        try:
            ask_questions(f"http://127.0.0.1:{self.port}", self.folder, self.spec, self.measured)
        except SiteError:
            # vLLM's server answers 500 for some seconds after its engine died
            if not node.healthy(self.port):
                engine.wait(DYING_S)
            if engine.wait(POLL_S) is not None:
                raise self.exit_diagnosis.failed(engine.exit_code or 1) from None
            raise

    def _require_free_gpus(self) -> list[tuple[int, int]] | None:
        """Memory in use before we start; a run that has just ended may still be giving back its own."""
        until = time.monotonic() + FREE_S
        while True:
            memory = node.gpu_memory_bytes()
            busy = [
                f"GPU {n} holds {used / 2**30:.1f} GiB"
                for n, (used, total) in enumerate(memory or ())
                if used > _BUSY_SHARE * total
            ]
            if not busy:
                return memory
            if time.monotonic() > until:
                raise EngineFailed(FailureCause("gpu-in-use", 0, f"{'; '.join(busy)} before we start"))
            self.log.touch()
            time.sleep(POLL_S)

    def _write(self) -> None:
        write_whole(self.folder / MEASURED, json.dumps(self.measured, indent=1) + "\n", survives_power_cut=False)


def main(arguments: list[str]) -> int:
    path = Path(arguments[0]).resolve()
    # a job that is asked to stop must still stop its engine
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    try:
        spec = json.loads(path.read_text())
        Session(path.parent, spec).run()
    except EngineFailed as failed:
        say(failed.cause.marked_line(OWN_LOG))
        code = failed.exit_code
        return 128 - code if code < 0 else code or 1
    except (RidgelineError, ReadError, OSError) as error:
        say(f"{SESSION_ENDED}{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
