"""What a launcher starts on each node of several: `python -m` this module, with FOLDER/SCRIPT.

Rank 0 is the engine that is measured. The others serve it and cannot end by themselves: those of SGLang wait until
their schedulers die, ignore SIGTERM, and leave with an error code. So rank 0 writes down how it ended, and the
others are ended when it has, or when the session says so. Their own end is a failure only while rank 0 needs them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from ridgeline.records.launch import own_rank
from ridgeline.serving.workloads.engine.session import process as node
from ridgeline.serving.workloads.engine.session.baked import unpack
from ridgeline.serving.workloads.engine.session.network import node_variables

RANKS = "ranks.json"  # what the session tells all ranks of one start
POLL_S = 0.5
_LINGER_S = 10.0  # for the other ranks to end by themselves, once rank 0 has
_OTHERS_GRACE_S = 5.0


def main(arguments: list[str]) -> int:
    script = Path(arguments[0])
    folder, rank = script.parent, own_rank(os.environ)
    ranks = json.loads((folder / RANKS).read_text())
    env = node_variables(ranks["head"], ranks["interface"], ranks["host_variable"])
    sys.stdout.write(f"ridgeline: rank {rank} {' '.join(f'{name}={value}' for name, value in env.items())}\n")
    sys.stdout.flush()
    caches = ranks.get("caches", {}) if rank else {}  # on rank 0's node the session sees to them
    if caches.get("tar"):
        unpack(Path(caches["tar"]), Path(caches["folder"]))
    elif caches:
        Path(caches["folder"]).mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = node.EngineProcess(f"sh {script.name}", folder, None, env)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    marks = RankMarks(folder, str(ranks["start"]))
    try:
        return _first(engine, marks) if rank == 0 else _other(engine, marks, rank)
    finally:
        engine.stop(node.GRACE_S if rank == 0 else _OTHERS_GRACE_S)
        if caches:
            shutil.rmtree(caches["folder"], ignore_errors=True)


def _first(engine: node.EngineProcess, marks: RankMarks) -> int:
    while (code := engine.wait(POLL_S)) is None:
        if marks.stopping:
            engine.stop()
    marks.write("ended", code)
    return 128 - code if code < 0 else code


def _other(engine: node.EngineProcess, marks: RankMarks, rank: int) -> int:
    while (code := engine.wait(POLL_S)) is None:
        if marks.stopping:
            return 0
        if marks.ended is not None:
            engine.wait(_LINGER_S)
            return 0
    if marks.ended is None and not marks.stopping:
        marks.write(f"failed-{rank}", code)
    return 0


class RankMarks:
    """Small files of one start, by which the ranks and the session tell each other how it goes. Each start has its own
    names: a file system may show another node an old file for a while."""

    def __init__(self, folder: Path, start: str) -> None:
        self._folder, self._start = folder, start

    def write(self, what: str, code: int = 0) -> None:
        path = self._path(what)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(f"{code}\n")
        partial.replace(path)

    @property
    def ended(self) -> int | None:
        """How rank 0 ended."""
        return self._code("ended")

    @property
    def stopping(self) -> bool:
        return self._code("stop") is not None

    @property
    def failed(self) -> int | None:
        """How the first of the other ranks that ended before rank 0 did so."""
        found = sorted(self._folder.glob(f"rank-{self._start}-failed-*[0-9]"))
        return _read(found[0]) if found else None

    def remove(self) -> None:
        for path in self._folder.glob(f"rank-{self._start}-*"):
            path.unlink(missing_ok=True)

    def _path(self, what: str) -> Path:
        return self._folder / f"rank-{self._start}-{what}"

    def _code(self, what: str) -> int | None:
        next(self._folder.iterdir(), None)  # makes a network file system look again
        return _read(self._path(what))


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
