"""What a stranger needs to believe and repeat a campaign: the machine it was driven from, versions, seed, command.

Taken each time a campaign is opened and kept in the journal's `opened` event. On a cluster the runs are elsewhere;
which nodes they had stands in each run's own ending.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline import __version__
from ridgeline.files import text_of
from ridgeline.records.secrets import masked
from ridgeline.records.study import Study
from ridgeline.workloads.base import Workload

# nvidia-smi wakes every GPU that sleeps, which takes seconds on a large node; a campaign does not wait for that
_NVIDIA_SMI_PATIENCE_S = 2.0
PROC = Path("/proc")


def controller(study: Study, workload: Workload) -> dict[str, Any]:
    """Who takes up a campaign, with the receipt."""
    facts = receipt(study, workload.programs())
    return {"host": socket.gethostname(), "pid": os.getpid(), "version": __version__, "receipt": facts}


def receipt(study: Study, programs: Mapping[str, Any]) -> dict[str, Any]:
    """As the journal keeps it. What the machine does not tell is left out; nothing here raises.

    `programs`: what those that the study names say of themselves. Whoever reads the folder later asks none of them.
    """
    gpus = _gpus()
    facts: dict[str, Any] = {
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "gpus": [name for name, _ in gpus],
        "driver": next((driver for _, driver in gpus), None),
        "kernel": platform.release(),
        "load": _load(),
        "ridgeline": __version__,
        "python": platform.python_version(),
        "seed": study.search.seed,
        "command": _command_line(),
        "programs": dict(programs) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _command_line() -> str:
    if Path(sys.argv[0]).name in ("ridgeline", "__main__.py"):
        return masked(shlex.join(["ridgeline", *sys.argv[1:]]))
    return masked(shlex.join(sys.orig_argv))


def _cpu_model() -> str | None:
    for line in text_of(PROC / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Processor", "cpu"):  # x86, ARM, POWER
            return value.strip()
    return platform.processor() or platform.machine() or None


def _load() -> list[float] | None:
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return None


def _gpus() -> list[tuple[str, str]]:
    """Name and driver of each GPU; from the driver's own files where they are there, since that takes no time."""
    return _gpus_by_driver() or _gpus_by_nvidia_smi()


def _gpus_by_driver() -> list[tuple[str, str]]:
    version = next(
        (line for line in text_of(PROC / "driver/nvidia/version").splitlines() if line.startswith("NVRM")), ""
    )
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
    driver = next((word for word in version.split() if word.count(".") >= 1 and word[0].isdigit()), "")
    found = []
    for file in sorted((PROC / "driver/nvidia/gpus").glob("*/information")):
        names = [line.partition(":")[2].strip() for line in text_of(file).splitlines() if line.startswith("Model:")]
        found += [(name, driver) for name in names if driver]
    return found


def _gpus_by_nvidia_smi() -> list[tuple[str, str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asks = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(asks, capture_output=True, text=True, timeout=_NVIDIA_SMI_PATIENCE_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rpartition(",") for line in output.splitlines()]
    return [(name.strip(), driver.strip()) for name, comma, driver in rows if comma]
