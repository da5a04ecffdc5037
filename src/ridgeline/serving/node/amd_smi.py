"""What AMD's tools say about its GPUs: amd-smi, or rocm-smi where only that is installed.

The readers take what the tools print; `read_gpus` runs them. Whatever a GPU or a release does not tell ("N/A") is None.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LIMIT_S = 60.0  # amd-smi is a Python program and takes seconds on a node of eight
_UNITS = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30}
_ROCM_SMI = (
    "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--showuse", "--showpower", "--showtemp",
    "--showclocks", "--showpids", "--json",
)  # fmt: skip
# rocm-smi calls the power of an MI300 current and that of an MI200 average
_ROCM_POWER = ("Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)")


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """`processes` are those that hold memory of it; `throttled` names what slows it down now."""

    name: str
    driver: str = ""
    total_bytes: float | None = None
    used_bytes: float | None = None
    util: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None  # of the hottest spot
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    correctable: float | None = None  # memory and RAS errors since the driver was loaded
    uncorrectable: float | None = None
    xgmi_uncorrectable: float | None = None
    throttled: tuple[str, ...] = ()
    pcie: str = ""  # '16 x 32 GT/s'
    processes: tuple[str, ...] = ()


def read_gpus() -> list[AmdGpu]:
    """All GPUs of a host with AMD's driver. OSError says why there is none."""
    if shutil.which("amd-smi"):
        static, metric, process = (_asked("amd-smi", part, "--json") for part in ("static", "metric", "process"))
        if gpus := from_amd_smi(static, metric, process):
            return gpus
        raise OSError("amd-smi shows no GPU; see `amd-smi list`")
    if shutil.which("rocm-smi"):
        if gpus := from_rocm_smi(_asked("rocm-smi", *_ROCM_SMI)):
            return gpus
        raise OSError("rocm-smi shows no GPU; see `rocm-smi`")
    raise OSError("AMD's driver is loaded, but neither amd-smi nor rocm-smi was found; put ROCm's bin on the PATH")


def _asked(*command: str) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(command)} did not answer within {_LIMIT_S:g} s; a GPU may hang") from None


def from_amd_smi(static: str, metric: str, process: str = "") -> list[AmdGpu]:
    facts, held = _by_gpu(static), _by_gpu(process)
    return [_gpu(facts.get(n, {}), now, held.get(n, {})) for n, now in sorted(_by_gpu(metric).items())]


def _gpu(facts: Mapping[str, Any], now: Mapping[str, Any], held: Mapping[str, Any]) -> AmdGpu:
    ecc, pcie = _part(now, "ecc"), _part(now, "pcie")
    clocks = _part(now, "clock")
    driver = _part(facts, "driver")
    width, speed = _number(pcie.get("width")), _number(pcie.get("speed"))
    return AmdGpu(
        name=_text(_part(facts, "asic").get("market_name")) or "AMD GPU",
        driver=_text(driver.get("version") or driver.get("driver_version")),
        total_bytes=_number(_part(now, "mem_usage").get("total_vram")),
        used_bytes=_number(_part(now, "mem_usage").get("used_vram")),
        util=_share(_number(_part(now, "usage").get("gfx_activity"))),
        power_w=_number(_part(now, "power").get("socket_power")),
        temperature_c=_number(_part(now, "temperature").get("hotspot")),
        # an MI300 has a clock for each of its eight dies
        sm_mhz=_highest(_number(_part(clocks, name).get("clk")) for name in clocks if name.startswith("gfx_")),
        memory_mhz=_number(_part(clocks, "mem_0").get("clk")),
        correctable=_number(ecc.get("total_correctable_count")),
        uncorrectable=_number(ecc.get("total_uncorrectable_count")),
        # xgmi_err stays N/A from MI300 on: its faults are RAS errors of this block (ROCm/rocm-systems, issue 11468)
        xgmi_uncorrectable=_number(_part(_part(now, "ecc_blocks"), "XGMI_WAFL").get("uncorrectable_count")),
        throttled=tuple(_throttled(now)),
        pcie=f"{width:g} x {speed:g} GT/s" if width and speed else "",
        processes=tuple(_named(held)),
    )


def _throttled(now: Mapping[str, Any]) -> Iterable[str]:
    """From MI300 on each reason has a status of its own; older GPUs have one word."""
    if _part(now, "power").get("throttle_status") == "THROTTLED":
        yield "power or temperature"
    for name, status in _part(now, "throttle").items():
        if name.endswith("_violation_status") and str(status) == "ACTIVE":
            yield name.removesuffix("_violation_status").replace("_", " ")


def _named(held: Mapping[str, Any]) -> Iterable[str]:
    """Where nothing runs, a sentence stands in place of the process."""
    for entry in held.get("process_list") or ():
        info = entry.get("process_info") if isinstance(entry, dict) else None
        if isinstance(info, dict):
            yield f"{_text(info.get('name')) or 'process'} {info.get('pid')}"


def from_rocm_smi(text: str) -> list[AmdGpu]:
    document = _document(text)
    if not isinstance(document, dict):
        return []
    system = _part(document, "system")
    cards = [(int(name[4:]), card) for name, card in document.items() if re.fullmatch(r"card\d+", name)]
    running = [f"{held.split(',')[0]} {name[3:]}" for name, held in system.items() if _holds_memory(name, held)]
    return [_card(card, _text(system.get("Driver version")), tuple(running)) for _, card in sorted(cards)]


def _holds_memory(name: str, held: object) -> bool:
    """'PID710898': 'sglang::schedul, 1, 200145596416, ...' is a name, a number of GPUs, bytes of memory."""
    columns = str(held).split(",")
    return name.startswith("PID") and len(columns) > 2 and bool(_number(columns[2].strip()))


def _card(card: Mapping[str, Any], driver: str, running: tuple[str, ...]) -> AmdGpu:
    watts = (_number(card.get(name)) for name in _ROCM_POWER)
    return AmdGpu(
        name=_text(card.get("Card Series") or card.get("Card series") or card.get("Card Model")) or "AMD GPU",
        driver=driver,
        total_bytes=_number(card.get("VRAM Total Memory (B)")),
        used_bytes=_number(card.get("VRAM Total Used Memory (B)")),
        util=_share(_number(card.get("GPU use (%)"))),
        power_w=next((value for value in watts if value is not None), None),
        temperature_c=_number(card.get("Temperature (Sensor junction) (C)")),
        sm_mhz=_megahertz(card.get("sclk clock speed:")),
        memory_mhz=_megahertz(card.get("mclk clock speed:")),
        processes=running,
    )


def _by_gpu(text: str) -> dict[int, Mapping[str, Any]]:
    """Until ROCm 7 a list, from then on under gpu_data; `process` is a list in both."""
    document = _document(text)
    rows: Any = document.get("gpu_data") if isinstance(document, dict) else document
    return {row["gpu"]: row for row in rows or () if isinstance(row, dict) and isinstance(row.get("gpu"), int)}


def _document(text: str) -> Any:
    """Warnings may stand before it."""
    begin = re.search(r"^[\[{]", text, re.MULTILINE)
    try:
        return json.loads(text[begin.start() :]) if begin else None
    except ValueError:
        return None


def _part(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = node.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) and value != "N/A" else ""


def _number(value: object) -> float | None:
    """A plain figure, a figure in text, or {"value": 612, "unit": "W"}; sizes in bytes."""
    said: Any = value
    if isinstance(value, dict):
        said, unit = value.get("value"), _UNITS.get(str(value.get("unit")), 1.0)
    else:
        unit = 1.0
    try:
        return float(said) * unit
    except (TypeError, ValueError):
        return None


def _megahertz(value: object) -> float | None:
    found = re.fullmatch(r"\(?(\d+)[Mm][Hh]z\)?", str(value))
    return float(found[1]) if found else None


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def faults_of(gpus: Sequence[AmdGpu]) -> tuple[list[str], list[str]]:
    """What must not be used so, and what to look at: errors that nothing corrected; throttling, links that differ."""
    broken, doubtful = [], []
    usual = max((gpu.pcie for gpu in gpus), key=[gpu.pcie for gpu in gpus].count, default="")
    for number, gpu in enumerate(gpus):
        if gpu.uncorrectable:
            broken.append(f"gpu{number} {gpu.uncorrectable:,.0f} uncorrectable memory errors")
        if gpu.xgmi_uncorrectable:
            broken.append(f"gpu{number} {gpu.xgmi_uncorrectable:,.0f} uncorrectable XGMI errors")
        if gpu.correctable:
            doubtful.append(f"gpu{number} {gpu.correctable:,.0f} corrected memory errors")
        if gpu.throttled:
            doubtful.append(f"gpu{number} throttled: {', '.join(gpu.throttled)}")
        if gpu.pcie != usual:
            doubtful.append(f"gpu{number} PCIe {gpu.pcie or 'unknown'}, the others {usual or 'unknown'}")
    return broken, doubtful
