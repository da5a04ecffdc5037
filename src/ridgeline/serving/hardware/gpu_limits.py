"""What GPUs are held to: a limit of power and a locked clock, as `nvidia-smi -pl` and `-lgc` set them.

A study varies them as the knobs `gpu_power_limit` (watts) and `gpu_clock` (MHz), set before its engine starts. Behind
a GPU's name, h200@500W or h200@500W@1500MHz, they say how its operator keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.records.expression import Value, is_number

POWER_LIMIT, CLOCK = LIMIT_KNOBS = ("gpu_power_limit", "gpu_clock")
BY_DEFAULT = "default"  # the value that undoes a limit
_UNITS = {POWER_LIMIT: "watts", CLOCK: "MHz"}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?) ?(w|mhz)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """None: as the driver has it by default."""

    power_w: float | None = None
    clock_mhz: float | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """500W and 1500MHz, as far as they are set."""
        said = ((self.power_w, "W"), (self.clock_mhz, "MHz"))
        return tuple(f"{value:g}{unit}" for value, unit in said if value is not None)

    def __bool__(self) -> bool:
        return bool(self.words)


NO_LIMITS = GpuLimits()


def parse_limits(name: str, written: list[str]) -> GpuLimits:
    """Of the words behind a GPU's name, each a number with its unit."""
    found: dict[str, float] = {}
    for word in written:
        said = _WRITTEN.fullmatch(word.strip())
        if said is None or said[2].lower() in found or not float(said[1]):
            raise InputError(
                f"GPU {name!r}: cannot read @{word}; write one limit of power as @500W, one locked clock as @1500MHz"
            )
        found[said[2].lower()] = float(said[1])
    return GpuLimits(found.get("w"), found.get("mhz"))


def wrong_limit(name: str, value: Value) -> str:
    """Why a knob cannot have this value; empty where it can."""
    if value == BY_DEFAULT or (is_number(value) and value > 0):
        return ""
    return f"{value!r} is no limit; give a number of {_UNITS[name]} above zero, or {BY_DEFAULT}"


def asked_limits(settings: Mapping[str, Value | None]) -> dict[str, float | None]:
    """What a setting asks for, by knob; None: the driver's default. A knob that it lacks is left as it is. InputError
    where a value, derived perhaps, is none."""
    asked = {name: value for name in LIMIT_KNOBS if (value := settings.get(name)) is not None}
    for name, value in asked.items():
        if wrong := wrong_limit(name, value):
            raise InputError(f"{name}: {wrong}")
    return {name: None if value == BY_DEFAULT else float(value) for name, value in asked.items()}


def limits_at(settings: Mapping[str, Value | None], usual: GpuLimits) -> GpuLimits:
    """Those of a setting, on GPUs that are usually held to others."""
    asked = asked_limits(settings)
    return GpuLimits(asked.get(POWER_LIMIT, usual.power_w), asked.get(CLOCK, usual.clock_mhz))
