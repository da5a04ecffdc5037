"""Holds this node's GPUs to the limits of a setting while its engine runs, and gives back what was there before.

nvidia-smi sets them, or refuses: in most containers, and wherever jobs do not run as root. What was set, and what
undoes it, is kept in the user's cache, so that the user's next session on a GPU, of whatever study, undoes what a
killed one left; a lock tells which sessions still run. A power limit is given back as it was, unless somebody has
changed it meanwhile; nobody can ask a driver for its locked clock, so a clock is unlocked.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ridgeline.files import read_text, write_whole
from ridgeline.serving.engines.failures import FailureCause
from ridgeline.serving.hardware.gpu_limits import CLOCK, POWER_LIMIT
from ridgeline.serving.node.nvml import query
from ridgeline.serving.workloads.engine.session.process import EngineFailed, say, users_cache
from ridgeline.study.lock import LockHeld, StudyLock, holder_of

_LIMIT_S = 20.0
_EQUAL_W = 1.0  # drivers round
_ENDINGS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def held_gpus(asked: Mapping[str, float]) -> Iterator[dict[str, dict[str, float]]]:
    """GPUs of this job under these limits, by knob. EngineFailed says why they are not.

    Yields what holds each GPU, by its identity.
    """
    if not asked and not any(_records().glob("*.json")):
        yield {}
        return
    with ExitStack() as locks:
        gpus = _gpus() if asked else [gpu for gpu in _gpus_if_any() if gpu.recorded]
        for gpu in gpus:
            locks.callback(gpu.lock().release)
            gpu.recall()
        for gpu, left in _given_back(gpus):
            raise _broken(f"{gpu} is still held to what a session that was killed set: {left}; let root do it, then "
                          f"remove {gpu.record}")  # fmt: skip
        try:
            yield {gpu.uuid: gpu.hold(asked) for gpu in gpus} if asked else {}
        finally:
            with _undisturbed():
                for gpu, left in _given_back(gpus):
                    say(f"ridgeline: {gpu} keeps the limits of this run: {left}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Who is asked to end while limits are given back ends after that. So does nvidia-smi, which batch systems ask too:
    what a process starts inherits the signals that it blocks."""
    asked: list[int] = []
    handlers = {ending: signal.signal(ending, lambda number, _: asked.append(number)) for ending in _ENDINGS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for ending, handler in handlers.items():
            signal.signal(ending, handler)
        for number in asked[:1]:
            signal.raise_signal(number)


def _gpus_if_any() -> list[_HeldGpu]:
    """The records may be of another node: many share their users' caches."""
    try:
        return _gpus()
    except EngineFailed:
        return []


def _gpus() -> list[_HeldGpu]:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        raise _refused(_SLICES)  # which nvidia-smi does not know by that name
    try:
        return [_HeldGpu(uuid, mig) for uuid, mig in query(("uuid", "mig.mode.current"), visible_only=True)]
    except FileNotFoundError as error:
        raise _refused(str(error)) from None
    except OSError as error:
        raise _broken(str(error)) from None


_SLICES = "slices of a GPU (MIG) share its limits with those of others"


def _given_back(gpus: Sequence[_HeldGpu]) -> list[tuple[_HeldGpu, str]]:
    """GPUs that could not be given back, and why; all at once, since whoever asked us to end does not wait for long."""
    with ThreadPoolExecutor(max(1, len(gpus))) as pool:
        return [(gpu, left) for gpu, left in zip(gpus, pool.map(_HeldGpu.give_back, gpus), strict=True) if left]


def _records() -> Path:
    return users_cache() / "gpu-limits"


class _HeldGpu:
    def __init__(self, uuid: str, mig: str) -> None:
        self.uuid, self._mig = uuid, mig
        self.record = _records() / f"{uuid}.json"
        self._kept: dict[str, dict[str, str]] = {}  # by knob: what it was `set` to, and the option to `undo` that

    def __str__(self) -> str:
        return f"GPU {self.uuid}"

    @property
    def recorded(self) -> bool:
        return self.record.exists()

    def lock(self) -> StudyLock:
        self.record.parent.mkdir(parents=True, exist_ok=True)
        lock = StudyLock(self.record.with_suffix(".lock"))
        try:
            lock.acquire()
        except LockHeld:
            who = holder_of(lock.path)
            why = f"{self} is held to limits by another session: process {who.get('pid')} on {who.get('host')}"
            raise EngineFailed(FailureCause("gpu-in-use", 0, why, at_start=True)) from None
        return lock

    def recall(self) -> None:
        """What a session that was killed has set."""
        if not self.recorded:
            return
        try:
            kept = json.loads(read_text(self.record))
            self._kept = {str(knob): {"set": str(was["set"]), "undo": str(was["undo"])} for knob, was in kept.items()}
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            raise _broken(f"{self.record} cannot be read: see what holds {self}, then remove that file") from None

    def hold(self, asked: Mapping[str, float]) -> dict[str, float]:
        if self._mig == "Enabled":
            raise _refused(f"{self}: {_SLICES}")
        found = {}
        if (watts := asked.get(POWER_LIMIT)) is not None:
            found[POWER_LIMIT] = self._hold_power(f"{watts:.0f}")
        if (mhz := asked.get(CLOCK)) is not None:
            self._set(CLOCK, f"{mhz:.0f}", f"--lock-gpu-clocks={mhz:.0f},{mhz:.0f}", "--reset-gpu-clocks")
            found[CLOCK] = mhz
        return found

    def _hold_power(self, watts: str) -> float:
        before = now = self._power_limit()
        if not re.fullmatch(r"[\d.]+", before):  # [N/A], and then nobody could give it back
            raise _refused(f"{self} does not tell its power limit: {before}")
        if not _equal(before, watts):
            undo = f"--power-limit={before}"
            self._set(POWER_LIMIT, watts, f"--power-limit={watts}", undo)
            now = self._power_limit()
            self._keep({**self._kept, POWER_LIMIT: {"set": now, "undo": undo}})
        if not _equal(now, watts):
            # some drivers say that they did it and did not; without persistence mode, they forget it at once
            raise _refused(f"{self} was to be limited to {watts} W and is at {now}; is its persistence mode on?")
        return float(now)

    def _set(self, knob: str, value: str, option: str, undo: str) -> None:
        # first what undoes it: whatever ends us meanwhile, or nvidia-smi, the next session finds it
        self._keep({**self._kept, knob: {"set": value, "undo": undo}})
        if said := self._nvidia_smi(option):
            self._forget(knob)
            raise _refused(f"nvidia-smi {option}: {said}")

    def give_back(self) -> str:
        """Why it could not be; empty where nothing of ours holds it any more."""
        failed = []
        for knob, kept in dict(self._kept).items():
            try:
                said = "" if knob == POWER_LIMIT and self._changed(kept["set"]) else self._nvidia_smi(kept["undo"])
                if not said:
                    self._forget(knob)
            except (EngineFailed, OSError) as error:
                said = str(error)
            if said:
                failed.append(f"nvidia-smi {kept['undo']}: {said}")
        return "; ".join(failed)

    def _changed(self, watts: str) -> bool:
        """Somebody, or a restart of the node, has undone it: what was there before may no longer be what is wanted."""
        if _equal(now := self._power_limit(), watts):
            return False
        say(f"ridgeline: {self} is limited to {now} W, no longer to the {watts} W of a run: left so")
        return True

    def _power_limit(self) -> str:
        try:
            return query(("power.limit",), gpu=self.uuid, limit_s=_LIMIT_S)[0][0]
        except OSError as error:
            raise _broken(str(error)) from None

    def _forget(self, knob: str) -> None:
        self._keep({known: kept for known, kept in self._kept.items() if known != knob})

    def _keep(self, kept: Mapping[str, dict[str, str]]) -> None:
        self._kept = dict(kept)
        if kept:
            write_whole(self.record, json.dumps(self._kept) + "\n")
        else:
            self.record.unlink(missing_ok=True)

    def _nvidia_smi(self, option: str) -> str:
        """Why it did not; empty where it did. EngineFailed where nobody knows."""
        command = ["nvidia-smi", f"--id={self.uuid}", option]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _broken(str(error)) from None
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        if done.returncode:
            return lines[0] if lines else f"it ended with {done.returncode}"
        return next((line for line in lines if "not supported" in line), "")


def _equal(limit: str, watts: str) -> bool:
    try:
        return abs(float(limit) - float(watts)) < _EQUAL_W
    except ValueError:  # [N/A]
        return False


def _broken(why: str) -> EngineFailed:
    return EngineFailed(FailureCause("gpu-broken", 0, why, at_start=True))


def _refused(why: str) -> EngineFailed:
    return EngineFailed(FailureCause("gpu-limits", 0, why, at_start=True))
