"""The machine beside the program: what a stranger needs to believe and repeat a campaign, and how busy others kept it.

The receipt is taken each time a campaign is opened and kept in the journal's `opened` event. On a cluster the runs are
elsewhere; which nodes they had stands in each run's own ending. The state of the machine while runs were measured is
kept with a gate's reference, and held against the gate's own runs: a program is not slower because the machine is.
"""

from __future__ import annotations

import math
import os
import platform
import shlex
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ridgeline import __version__
from ridgeline.files import text_of
from ridgeline.records.run import Run
from ridgeline.records.secrets import masked
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.study.history import History
from ridgeline.workloads.base import Workload

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
    """Name and driver of each NVIDIA GPU, from the driver's own files: nvidia-smi wakes every GPU that sleeps, which
    takes seconds on a large node."""
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


_ENOUGH_CPU = 0.8  # of its time a thread that computes has a core on a quiet machine; the rest is start and files
_BRIEF_S = 0.02  # a shell and the files of a run take some milliseconds of it


def _busy_text(run: Run, goal: str = "") -> str:
    """What says that other programs took cores from this run, and what to do; empty where nothing does.

    The executor leaves the load average before the run (`load_before`) and the machine's cores (`cores`) in its usage.
    A modelled run is not slowed by its neighbours.
    """
    if any(m.origin == "modelled" for m in run.measurements):
        return ""
    usage, wall_s = run.ending.usage, run.ending.duration_s
    load, cores, cpu_s = usage.get("load_before"), usage.get("cores"), usage.get("cpu_s")
    if load is None or not cores:
        return ""
    threads = run.resources.cores or 1
    waits = "ready_s" in run.metrics  # a server waits for requests and GPUs: its CPU time does not say what it lacked
    enough_s = 0.0 if waits else _ENOUGH_CPU * wall_s * threads
    starved = cpu_s is not None and cpu_s < enough_s and load + threads > cores
    if load < cores and not starved:
        return ""
    text = f"busy machine: load average {load:.1f} on {cores:.0f} cores before the first run"
    if starved:
        text += f", which got {cpu_s:.1f} s of CPU time in {wall_s:.1f} s"
    stop = "stop them or pin to free cores" if waits else "stop them, pin to free cores, or make `cpu_s` the goal"
    if goal == "cpu_s":  # they still take caches, memory bandwidth and clock
        return f"{text}; other programs also make CPU time longer: stop them or pin to free cores"
    return f"{text}; other programs slow down what is timed: {stop}"


def busy_machine(history: History, goal: str) -> str:
    """As `_busy_text`, of the first run of the baseline that passed; `goal` is the metric that is judged by."""
    first = next(iter(history.ok_runs(Stage.BASELINE)), None)
    return "" if first is None else _busy_text(first[1], goal)


def brief_runs(study: Study, history: History) -> str:
    """What says that runs are too short for their wall time; empty where that is not the goal, or they are not."""
    runs = history.ok_runs(Stage.BASELINE, Stage.SEARCH, Stage.CONFIRM) if study.goal.metric == "wall_s" else ()
    walls_s = [run.metrics["wall_s"] for _, run in runs]
    if not walls_s or (typical := median(walls_s)) >= _BRIEF_S:
        return ""
    return (
        f"a run takes {typical * 1000:.2g} ms, and starting a shell for it is some of that: let a run repeat the work "
        "for 0.1 s or more, or differences look smaller than they are"
    )


_CPU = Path("/sys/devices/system/cpu")
_CORES_APART, _SHARE_APART = 0.15, 0.05  # cores of others, and of all cores: less makes no difference to be seen
_TICK_S = 0.01  # the kernel's counters go by it, on each run
_THROTTLED_APART = 0.01  # of the time


@dataclass(frozen=True, slots=True)
class MachineState:
    """`others` is how many cores other programs and guests kept busy on average, `stolen` the part of the guests,
    `throttled` the share of time that a CPU quota held everything up; over `watched_s` seconds in `runs` runs."""

    others: float
    stolen: float
    throttled: float
    watched_s: float
    runs: int
    cores: int

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, content: object) -> MachineState | None:
        try:
            return cls(**content)  # type: ignore[arg-type]
        except TypeError:
            return None

    @property
    def _unsure(self) -> float:
        """Cores by which `others` may be wrong."""
        return 2 * _TICK_S * math.sqrt(self.runs) / self.watched_s

    def busier_than(self, other: MachineState | None) -> str:
        """What others took here and not there, in words; empty where that makes no difference to be seen.

        Of a reference that does not say it, a quiet machine is assumed.
        """
        before = other or MachineState(0.0, 0.0, 0.0, math.inf, 0, self.cores)
        apart = max(_CORES_APART, _SHARE_APART * self.cores) + self._unsure + before._unsure
        if self.others - before.others > apart:
            guests = f", {self.stolen:.1f} of it by other guests of the host" if self.stolen > self.others / 4 else ""
            return f"others kept {self.others:.1f} of {self.cores} cores busy{guests}, {before.others:.1f}"
        if self.throttled - before.throttled > _THROTTLED_APART:
            return f"a CPU quota held everything up for {self.throttled:.0%} of the time, {before.throttled:.0%}"
        return ""


def machine_state(runs: Iterable[Run]) -> MachineState | None:
    """Over these runs together; None where none of them was watched, as under a batch system."""
    usages = [usage for run in runs if (usage := run.ending.usage).get("watched_s") and usage.get("cores")]
    watched_s = sum(usage["watched_s"] for usage in usages)
    if not watched_s:
        return None
    others, stolen, throttled = (
        max(0.0, sum(usage.get(name, 0.0) for usage in usages) / watched_s)
        for name in ("others_cpu_s", "stolen_cpu_s", "throttled_s")
    )
    return MachineState(others, stolen, throttled, watched_s, len(usages), int(usages[0]["cores"]))


def clock_settings() -> dict[str, str]:
    """How the clocks of this machine are set, where it says so: the governor, the highest frequency, boost."""
    homes = sorted(_CPU.glob("cpu[0-9]*/cpufreq"))
    found = {
        "governor": " ".join(sorted({text_of(home / "scaling_governor").strip() for home in homes} - {""})),
        "highest kHz": " ".join(sorted({text_of(home / "scaling_max_freq").strip() for home in homes} - {""})),
        "boost": text_of(_CPU / "cpufreq/boost").strip(),
        "no turbo": text_of(_CPU / "intel_pstate/no_turbo").strip(),
    }
    return {name: value for name, value in found.items() if value}


def clocks_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The first setting that is another now, in words; what either does not say is not held against it."""
    changed = (
        f"{name} {before[name]}, now {now[name]}" for name in before if now.get(name, before[name]) != before[name]
    )
    return next(changed, "")
