"""Holds this node's GPUs to the limits of a setting while its engine runs, and gives back what was there before.

nvidia-smi sets them, and refuses where the job may not: in most containers, and wherever jobs do not run as root. What
a GPU was held to before is kept in a file beside the run folders until it is given back, so that a session that was
killed costs nobody a limit: the next one on that GPU knows what it had.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ridgeline.files import read_text, write_whole
from ridgeline.serving.engines.failures import FailureCause
from ridgeline.serving.hardware.gpu_limits import CLOCK, POWER_LIMIT
from ridgeline.serving.node.nvml import query
from ridgeline.serving.workloads.engine.session.process import EngineFailed, say

_LIMIT_S = 60.0
_EQUAL_W = 1.0  # drivers round
_REMEDY = (
    "run the job as root (in a container with --cap-add SYS_ADMIN), have the site set it by its batch system, or leave "
    "the knob out"
)


@contextmanager
def held_gpus(asked: Mapping[str, float | None], runs: Path) -> Iterator[dict[str, dict[str, float]]]:
    """GPUs of this job under these limits, by knob; None is the driver's default. EngineFailed says why they are not.

    `runs` is the folder of the run folders. Yields what was set, by the GPU's identity.
    """
    if not asked:
        yield {}
        return
    try:
        gpus = [_LimitedGpu(runs, *row) for row in query(_COLUMNS, visible_only=True)]
    except OSError as error:
        raise _refused(str(error)) from None
    try:
        yield {gpu.uuid: gpu.hold(asked) for gpu in gpus}
    finally:
        for gpu in gpus:
            gpu.give_back()


_COLUMNS = ("uuid", "power.limit", "power.default_limit")


class _LimitedGpu:
    def __init__(self, runs: Path, uuid: str, limit: str, default: str) -> None:
        self.uuid, self._default = uuid, default
        self._kept = runs / f"gpu-limits-{uuid}.json"  # what it had, while it has something else
        self._before = {POWER_LIMIT: limit}
        if self._kept.exists():
            self._before = json.loads(read_text(self._kept))
        self._touched: set[str] = set()

    def hold(self, asked: Mapping[str, float | None]) -> dict[str, float]:
        write_whole(self._kept, json.dumps(self._before) + "\n")
        found = {}
        if POWER_LIMIT in asked:
            watts = asked[POWER_LIMIT]
            found[POWER_LIMIT] = self._set_power(self._default if watts is None else f"{watts:.0f}")
        if CLOCK in asked:
            mhz = asked[CLOCK]
            self._set(CLOCK, "--reset-gpu-clocks" if mhz is None else f"--lock-gpu-clocks={mhz:.0f},{mhz:.0f}")
            found |= {} if mhz is None else {CLOCK: mhz}
        return found

    def _set_power(self, watts: str) -> float:
        """Some drivers say that they did it and did not."""
        self._set(POWER_LIMIT, f"--power-limit={watts}")
        now = query(("power.limit",), gpu=self.uuid)[0][0]
        try:
            if abs(float(now) - float(watts)) < _EQUAL_W:
                return float(now)
        except ValueError:
            pass  # [N/A]: said below
        raise _refused(f"GPU {self.uuid} was to be limited to {watts} W and is at {now}")

    def _set(self, knob: str, option: str) -> None:
        if said := _nvidia_smi(self.uuid, option):
            raise _refused(f"nvidia-smi {option}: {said}")
        self._touched.add(knob)

    def give_back(self) -> None:
        undo = {POWER_LIMIT: f"--power-limit={self._before[POWER_LIMIT]}", CLOCK: "--reset-gpu-clocks"}
        failed = [said for knob in sorted(self._touched) if (said := _nvidia_smi(self.uuid, undo[knob]))]
        if failed:
            say(f"ridgeline: GPU {self.uuid} keeps the limits of this run: {'; '.join(failed)}")
        else:
            self._kept.unlink(missing_ok=True)


def _nvidia_smi(uuid: str, option: str) -> str:
    """Why it did not; empty where it did."""
    command = ["nvidia-smi", f"--id={uuid}", option]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    refused = next((line for line in lines if "not supported" in line), "")
    if done.returncode:
        return lines[0] if lines else f"it ended with {done.returncode}"
    return refused


def _refused(why: str) -> EngineFailed:
    return EngineFailed(FailureCause("gpu-limits", 0, f"{why}; {_REMEDY}", at_start=True))
