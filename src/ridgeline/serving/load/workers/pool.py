"""Several workers at once, each a process with its own event loop, merged into one result."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path

from ridgeline.errors import RidgelineError, SiteError
from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.workers.assignment import Assignment, LoadResult, split_over_workers
from ridgeline.serving.load.workers.worker import OpenWorker, run_worker, stopped_by_signals
from ridgeline.serving.traffic.traffic import Arrival

# time to open connections; all processes begin to send at one moment after it
_OPENING_S = 0.5


def run_workers(count: int, assignment: Assignment) -> LoadResult:
    """Sends the assignment with `count` new processes."""
    parts_to_send = [part for part in split_over_workers(assignment, count) if part.arrivals]
    workers = [_started(_worker_main, part) for part in parts_to_send]
    with stopped_by_signals(partial(_interrupt, workers)):
        merged = _merge_results(_gather(workers))
    if assignment.records_path is not None:
        _join_files(assignment.records_path, count)
    return merged


def _started(main: Callable[[Pipe, Assignment], None], part: Assignment) -> tuple[BaseProcess, Pipe]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, part), name=f"ridgeline-load-{part.worker}")
    process.start()
    theirs.close()
    return process, ours


class OpenPool:
    """Several workers whose load goes on and is changed on the way, as one `OpenWorker`."""

    def __init__(self, count: int, assignment: Assignment, start_s: float) -> None:
        self._path, self._count = assignment.records_path, count
        self._workers = [_started(_open_main, part) for part in split_over_workers(assignment, count)]
        self._around = contextlib.ExitStack()
        self._around.enter_context(stopped_by_signals(partial(_interrupt, self._workers)))
        for _, pipe in self._workers:
            _receive(pipe)  # each says it is ready
        for _, pipe in self._workers:
            pipe.send(start_s)

    def change(self, assignment: Assignment) -> None:
        for (_, pipe), part in zip(self._workers, split_over_workers(assignment, self._count), strict=True):
            _send(pipe, ("change", part))

    def extend(self, arrivals: tuple[Arrival, ...]) -> None:
        for k, (_, pipe) in enumerate(self._workers):
            _send(pipe, ("extend", arrivals[k :: self._count]))

    def run_until(self, at_s: float) -> LoadResult:
        for _, pipe in self._workers:
            _send(pipe, ("run_until", at_s))
        return _merge_results([_receive(pipe) for _, pipe in self._workers])

    def close(self) -> str:
        for _, pipe in self._workers:
            _send(pipe, ("close", None))
        problems = [_receive(pipe) for _, pipe in self._workers]
        for process, _ in self._workers:
            process.join()
        self._around.close()
        if self._path is not None:
            _join_files(self._path, self._count)
        return next((str(p) for p in problems if p), "")


def _send(pipe: Pipe, message: tuple[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):  # it died: `run_until` counts it among the lost
        pipe.send(message)


def _open_main(pipe: Pipe, assignment: Assignment) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send("ready")
        worker = OpenWorker(assignment, pipe.recv())
        while True:
            what, value = pipe.recv()
            if what == "close":
                pipe.send(worker.close())
                return
            answer = getattr(worker, what)(value)
            if what == "run_until":
                pipe.send(answer)
    except (BrokenPipeError, EOFError):
        return  # the parent is gone; nobody wants the result


def _merge_results(received: Sequence[object]) -> LoadResult:
    """One result from several whose clocks are the same host's; records in order of number. What is no result is a
    worker that died."""
    parts = [part for part in received if isinstance(part, LoadResult)]
    if not parts:
        raise SiteError("every load process died; nothing was measured", transient=True)
    out = LoadResult([], ClientStats(), min(p.start_s for p in parts), lost_workers=len(received) - len(parts))
    for part in parts:
        assert part.start_s == out.start_s, "every worker is told the same start"
        out.records += part.records
        out.stats.merge(part.stats)
        out.interrupted |= part.interrupted
        out.unfinished += part.unfinished
        out.lag_s += part.lag_s
        out.under_way += part.under_way
        out.paused += part.paused
        out.unsent |= part.unsent
        out.cache_reports += part.cache_reports
        out.coalesced += part.coalesced
        out.time_slices = out.time_slices or part.time_slices
        out.records_problem = out.records_problem or part.records_problem
    order = sorted(range(len(out.records)), key=lambda k: out.records[k].number)
    out.records = [out.records[k] for k in order]
    if len(out.lag_s) == len(order):
        out.lag_s = array("d", (out.lag_s[k] for k in order))
    return out


def _gather(workers: list[tuple[BaseProcess, Pipe]]) -> list[object]:
    for _, pipe in workers:
        _receive(pipe)  # each says it is ready, so a slow start delays all and spoils none
    start_s = time.monotonic() + _OPENING_S
    for _, pipe in workers:
        pipe.send(start_s)
    found = []
    for process, pipe in workers:
        found.append(_receive(pipe))
        process.join()
        if isinstance(found[-1], RidgelineError):
            raise found[-1]
    return found


def _receive(pipe: Pipe) -> object:
    try:
        return pipe.recv()
    except EOFError:
        return None  # the process died: its records are lost, those of the others are not


def _worker_main(pipe: Pipe, assignment: Assignment) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send("ready")
        start_s = pipe.recv()
        pipe.send(run_worker(replace(assignment, start_at_s=start_s)))
    except RidgelineError as bad:
        pipe.send(bad)
    except (BrokenPipeError, EOFError):
        return  # the parent is gone; nobody wants the result


def _interrupt(workers: list[tuple[BaseProcess, Pipe]]) -> None:
    for process, _ in workers:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGTERM)


def _join_files(path: Path, workers: int) -> None:
    parts = [path.with_name(f"{path.name}.{k}") for k in range(workers)]
    with path.open("wb") as whole:
        for part in parts:
            if part.exists():
                whole.write(part.read_bytes())
                part.unlink()
