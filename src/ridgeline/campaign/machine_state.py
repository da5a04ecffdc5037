"""What the machine was like while runs were measured: how busy others kept it, and how its clocks are set.

Kept with a gate's reference, and held against the gate's own runs: a program is not slower because the machine is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgeline.files import text_of
from ridgeline.records.json_form import JsonForm
from ridgeline.records.run import Run

_CPU = Path("/sys/devices/system/cpu")
_CORES_APART, _SHARE_APART = (
    0.15,
    0.05,
)  # cores of others, and of all cores: what is less makes no difference to be seen
_TICK_S = 0.01  # the kernel's counters go by it, on each run
_THROTTLED_APART = 0.01  # of the time


@dataclass(frozen=True, slots=True)
class MachineState(JsonForm):
    """`others` is how many cores other programs and guests kept busy on average, `stolen` the part of the guests,
    `throttled` the share of time that a CPU quota held everything up; over `watched_s` seconds in `runs` runs."""

    JSON_DIGITS = 4
    others: float
    stolen: float
    throttled: float
    watched_s: float
    runs: int
    cores: int

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
    for name in before:
        if name in now and now[name] != before[name]:
            return f"{name} {before[name]}, now {now[name]}"
    return ""
