"""Why an engine ended: what its log says, what the kernel says, or how it died."""

from __future__ import annotations

from pathlib import Path

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.records.run import signal_name
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.failures import FailureCause, cause_of
from ridgeline.serving.workloads.engine.session import process as node


class EngineFailed(Exception):  # noqa: N818  the engine's failure, not ours
    def __init__(self, cause: FailureCause, exit_code: int = 1) -> None:
        super().__init__(cause.text)
        self.cause, self.exit_code = cause, exit_code


class ExitDiagnosis:
    """Looks at an engine that ended. Made before it starts, so that the kernel's count of kills can be compared."""

    def __init__(self, dialect: ServingEngine, log: Path) -> None:
        self._dialect, self._log = dialect, log
        self._oom_kills = node.host_oom_kills()

    def failed(self, code: int) -> EngineFailed:
        return EngineFailed(self._cause(code), code)

    def _cause(self, code: int) -> FailureCause:
        if node.host_oom_kills() > self._oom_kills:
            return FailureCause("host-oom", 0, "the kernel ended a process of this job for its memory (oom-kill)")
        log = self._dialect.read(TextFile(self._log))
        if found := cause_of(log.failures, log.weights_loaded):
            return found
        lines = [(n, line) for n, line in enumerate(TextFile(self._log), 1) if line.strip()]
        number, text = lines[-1] if lines else (0, "it wrote nothing")
        if "No module named" in text or code == 127:
            return FailureCause("missing", number, text)
        if code < 0:
            return FailureCause("signal", number, f"died by {signal_name(-code)}; its last line: {text}")
        return FailureCause("died", number, f"exit code {code}; its last line: {text}")
