"""An engine over several nodes as the session sees it: one process, which ended as its rank 0 did."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from ridgeline.workloads.engine.session import process as node
from ridgeline.workloads.engine.session.rank import RANKS, RankMarks

# for rank 0 to end after another rank did: its schedulers may be going down together, in order
FOLLOWS_S = 30.0
ENDS_S = 30.0  # for all ranks and the launcher, once they are asked to end


class SpanningEngine(node.EngineProcess):
    """`command` is the launcher's. What it leaves with says nothing: other ranks end with errors when all went well."""

    starts = 0

    def __init__(
        self, command: str, folder: Path, log: Path, env: Mapping[str, str], network: Mapping[str, str]
    ) -> None:
        SpanningEngine.starts += 1
        start = f"{os.getpid()}-{SpanningEngine.starts}"
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
        return failed or 1 if time.monotonic() - self._failed_s > FOLLOWS_S else None

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
