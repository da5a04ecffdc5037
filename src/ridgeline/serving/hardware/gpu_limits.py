"""What GPUs are held to: a limit of power and a locked clock, as `nvidia-smi -pl` and `-lgc` set them.

A study varies them as the knobs `gpu_power_limit` (watts) and `gpu_clock` (MHz), set before its engine starts;
`default` leaves GPUs as they are found. Behind a GPU's name, h200@500W or h200@500W@1500MHz, they say how its operator
keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.records.expression import Value, is_number

POWER_LIMIT, CLOCK = LIMIT_KNOBS = ("gpu_power_limit", "gpu_clock")
AS_FOUND = "default"  # the value that sets no limit
_UNITS = {POWER_LIMIT: "watts", CLOCK: "MHz"}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?) ?(w|mhz)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """None: its own."""

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
    if value == AS_FOUND or (is_number(value) and value > 0):
        return ""
    return f"{value!r} is no limit; give a number of {_UNITS[name]} above zero, or {AS_FOUND}"


def asked_limits(settings: Mapping[str, Value | None]) -> dict[str, float]:
    """What a setting asks for, by knob; without what it leaves as GPUs are found. InputError where a value, derived
    perhaps, is none."""
    asked = {}
    for name in LIMIT_KNOBS:
        if (value := settings.get(name)) is None:
            continue
        if wrong := wrong_limit(name, value):
            raise InputError(f"{name}: {wrong}")
        if is_number(value):
            asked[name] = float(value)
    return asked


def limits_at(settings: Mapping[str, Value | None], usual: GpuLimits) -> GpuLimits:
    """Those of a setting, on GPUs that are usually held to others."""
    asked = asked_limits(settings)
    return GpuLimits(asked.get(POWER_LIMIT, usual.power_w), asked.get(CLOCK, usual.clock_mhz))


def limit_commands(settings: Mapping[str, Value | None]) -> list[str]:
    """What a person types on a node, as root, before the engine starts."""
    options = {POWER_LIMIT: "--power-limit={0:.0f}", CLOCK: "--lock-gpu-clocks={0:.0f},{0:.0f}"}
    return [f"nvidia-smi {options[name].format(value)}" for name, value in asked_limits(settings).items()]


def held_while_pasted(settings: Mapping[str, Value | None]) -> list[str]:
    """Lines before a pasted server, in a shell of its own, that also give each GPU its own limit back when it ends."""
    asked, ours = asked_limits(settings), "nvidia-smi ${CUDA_VISIBLE_DEVICES:+--id=$CUDA_VISIBLE_DEVICES}"
    if not asked:
        return []
    each = 'while read -r gpu watts; do nvidia-smi --id="${gpu%,}" --power-limit="$watts"; done'
    undo = {POWER_LIMIT: f'echo "$limits" | {each}', CLOCK: f"{ours} --reset-gpu-clocks"}
    before = [f"limits=$({ours} --query-gpu=uuid,power.limit --format=csv,noheader,nounits)"]
    return [
        *(before if POWER_LIMIT in asked else ()),
        # not every sh heeds EXIT when it is interrupted
        f"trap '{'; '.join(undo[name] for name in asked)}' EXIT HUP INT TERM",
        *(command.replace("nvidia-smi", ours) for command in limit_commands(settings)),
    ]
