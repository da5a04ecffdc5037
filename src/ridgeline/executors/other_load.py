"""What others did on this machine while a run of ours lasted: the kernel's counters before and after it.

Busy cores less the CPU time of the run and of this process are others'. So a program that keeps every core busy itself
does not look like a busy machine, as it would by the load average. What a hypervisor took for other guests (steal) is
among others', as far as it is counted.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ridgeline.executors.processes import CGROUP, OWN_GROUPS, now_s
from ridgeline.files import text_of

_STAT = Path("/proc/stat")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class MachineCounters:
    """Seconds since boot, over all cores: idle, and taken by the hypervisor; throttled by the quota of this group;
    used by this process."""

    at_s: float
    cores: int
    idle_s: float
    stolen_s: float
    throttled_s: float
    own_s: float


def machine_counters() -> MachineCounters | None:
    """None where the machine does not count, as in some containers."""
    cores, idle_s, stolen_s = 0, None, 0.0
    for line in text_of(_STAT).splitlines():
        name, *ticks = line.split()
        if name == "cpu" and len(ticks) >= 8 and all(map(str.isdigit, ticks[:8])):
            idle_s, stolen_s = (int(ticks[3]) + int(ticks[4])) / _TICKS_PER_S, int(ticks[7]) / _TICKS_PER_S
        cores += name.startswith("cpu") and name != "cpu"
    if idle_s is None or not cores:
        return None
    return MachineCounters(now_s(), cores, idle_s, stolen_s, _throttled_s(), time.process_time())


def load_between(before: MachineCounters, after: MachineCounters, run_cpu_s: float) -> dict[str, float]:
    """As an ending keeps it: how long was looked, and the CPU time of others meanwhile; empty where that was no time,
    or the counters stood still."""
    took_s = after.at_s - before.at_s
    idle_s = after.idle_s - before.idle_s
    if took_s <= 0 or idle_s < 0 or before.cores != after.cores or (idle_s == 0 and after.idle_s == 0):
        return {}
    busy_s = max(0.0, took_s * after.cores - idle_s)
    others_s = busy_s - run_cpu_s - (after.own_s - before.own_s)
    return {
        "watched_s": round(took_s, 4),
        "others_cpu_s": round(others_s, 4),  # below 0 by a tick of a core: only the sum over many runs is exact
        "stolen_cpu_s": round(after.stolen_s - before.stolen_s, 4),
        "throttled_s": round(after.throttled_s - before.throttled_s, 4),
    }


def _throttled_s() -> float:
    """How long this control group was kept from its cores because its quota was used up, version 2 or 1."""
    for line in text_of(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        home = CGROUP / "cpu" if controllers else CGROUP
        for folder in (home / path.strip().lstrip("/"), home):
            fields = dict(row.split(None, 1) for row in text_of(folder / "cpu.stat").splitlines() if " " in row)
            for name, unit in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
                if fields.get(name, "").strip().isdigit():
                    return int(fields[name]) / unit
    return 0.0
