"""Holds this node's GPUs to the limits of a setting while its engine runs, and gives back what was there before.

nvidia-smi sets them, or refuses: in most containers, and wherever jobs do not run as root. What is to be undone is kept
in the user's cache until it was, so that the next session on a GPU, of whatever study, undoes what a killed one left. A
power limit is given back as it was; nobody can ask a driver for its locked clock, so a clock is unlocked.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ridgeline.files import read_text, write_whole
from ridgeline.serving.engines.failures import FailureCause
from ridgeline.serving.hardware.gpu_limits import CLOCK, POWER_LIMIT
from ridgeline.serving.node.nvml import query
from ridgeline.serving.workloads.engine.session.process import EngineFailed, say, users_cache

_LIMIT_S = 20.0
_EQUAL_W = 1.0  # drivers round
_COLUMNS = ("uuid", "power.limit", "power.default_limit")


@contextmanager
def held_gpus(asked: Mapping[str, float | None]) -> Iterator[dict[str, dict[str, float]]]:
    """GPUs of this job under these limits, by knob; None is the driver's default. EngineFailed says why they are not.

    Yields what holds each GPU, by its identity.
    """
    if not asked and not any(_records().glob("*.json")):
        yield {}
        return
    gpus = _gpus() if asked else _gpus_if_any()
    try:
        for gpu in gpus:
            if left := gpu.give_back():
                raise _broken(f"GPU {gpu.uuid} is still held to what a session that was killed set: {left}")
        yield {gpu.uuid: gpu.hold(asked) for gpu in gpus} if asked else {}
    finally:
        with _undisturbed():
            for gpu in gpus:
                if left := gpu.give_back():
                    say(f"ridgeline: GPU {gpu.uuid} keeps the limits of this run: {left}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Who is asked to end while a limit is given back ends after that."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if asked:
            signal.raise_signal(signal.SIGTERM)


def _gpus_if_any() -> list[_HeldGpu]:
    """The records may be of another node: many share their users' caches."""
    try:
        return _gpus()
    except EngineFailed:
        return []


def _gpus() -> list[_HeldGpu]:
    try:
        return [_HeldGpu(*row) for row in query(_COLUMNS, visible_only=True)]
    except FileNotFoundError as error:
        raise _refused(str(error)) from None
    except OSError as error:
        raise _broken(str(error)) from None


def _records() -> Path:
    return users_cache() / "gpu-limits"


class _HeldGpu:
    def __init__(self, uuid: str, limit: str, default: str) -> None:
        self.uuid, self._limit, self._default = uuid, limit, default
        self._record = _records() / f"{uuid}.json"
        self._undo: dict[str, str] = {}  # by knob: the option that brings back what was there
        if self._record.exists():
            try:
                self._undo = {str(knob): str(option) for knob, option in json.loads(read_text(self._record)).items()}
            except (ValueError, AttributeError):  # something held it, and nobody knows what it had
                self._undo = {POWER_LIMIT: f"--power-limit={default}", CLOCK: _UNLOCK}

    def hold(self, asked: Mapping[str, float | None]) -> dict[str, float]:
        found = {}
        if POWER_LIMIT in asked:
            watts = asked[POWER_LIMIT]
            found[POWER_LIMIT] = self._hold_power(self._default if watts is None else f"{watts:.0f}")
        if (mhz := asked.get(CLOCK)) is not None:
            self._set(CLOCK, f"--lock-gpu-clocks={mhz:.0f},{mhz:.0f}", _UNLOCK)
            found[CLOCK] = mhz
        elif CLOCK in asked and (said := self._nvidia_smi(_UNLOCK)):
            # who may not unlock it could not lock it either
            say(f"ridgeline: the clock of GPU {self.uuid} is taken to be unlocked: {said}")
        return found

    def _hold_power(self, watts: str) -> float:
        """Some drivers say that they did it and did not."""
        if not _equal(self._limit, watts):
            self._set(POWER_LIMIT, f"--power-limit={watts}", f"--power-limit={self._limit}")
            self._limit = query(("power.limit",), gpu=self.uuid)[0][0]
        if not _equal(self._limit, watts):
            raise _refused(f"GPU {self.uuid} was to be limited to {watts} W and is at {self._limit}")
        return float(self._limit)

    def _set(self, knob: str, option: str, undo: str) -> None:
        # first what undoes it: whatever ends us meanwhile, or nvidia-smi, the next session finds it
        self._keep({**self._undo, knob: undo})
        if said := self._nvidia_smi(option):
            self._forget(knob)
            raise _refused(f"nvidia-smi {option}: {said}")

    def give_back(self) -> str:
        """Why it could not be; empty where nothing holds it any more."""
        failed = []
        for knob, option in dict(self._undo).items():
            try:
                said = self._nvidia_smi(option)
                if not said:
                    self._limit = option.partition("=")[2] if knob == POWER_LIMIT else self._limit
                    self._forget(knob)
            except (EngineFailed, OSError) as error:
                said = str(error)
            if said:
                failed.append(f"nvidia-smi {option}: {said}")
        return "; ".join(failed)

    def _forget(self, knob: str) -> None:
        self._keep({known: back for known, back in self._undo.items() if known != knob})

    def _keep(self, undo: Mapping[str, str]) -> None:
        self._undo = dict(undo)
        if undo:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._record, json.dumps(self._undo) + "\n")
        else:
            self._record.unlink(missing_ok=True)

    def _nvidia_smi(self, option: str) -> str:
        """Why it did not; empty where it did. EngineFailed where nobody knows."""
        command = ["nvidia-smi", f"--id={self.uuid}", option]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _broken(str(error)) from None
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        if done.returncode:
            return lines[0] if lines else f"it ended with {done.returncode}"
        return next((line for line in lines if "not supported" in line), "")


_UNLOCK = "--reset-gpu-clocks"


def _equal(limit: str, watts: str) -> bool:
    try:
        return abs(float(limit) - float(watts)) < _EQUAL_W
    except ValueError:  # [N/A]
        return False


def _broken(why: str) -> EngineFailed:
    return EngineFailed(FailureCause("gpu-broken", 0, why, at_start=True))


def _refused(why: str) -> EngineFailed:
    return EngineFailed(FailureCause("gpu-limits", 0, why, at_start=True))
