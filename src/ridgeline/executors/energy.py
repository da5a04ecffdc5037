"""The energy of a run by the meters of its node, as run.sh reads them: counters of RAPL and the GPUs, or power.

Counters of RAPL turn over within minutes to hours, so they are also read while the run lasts. Samples are kept outside
of the run folder until the end: a file that grows there would be taken for a sign of life of the program.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from ridgeline.executors.base import EXIT_FILE
from ridgeline.records.site import BATCH_METER, BOARD_METER, GPU_METER, Site
from ridgeline.study.state_files import state_text

ENERGY_FILE = f"{EXIT_FILE}.energy"  # not `energy`, which programs call a file of their own
NVML_LIBRARY = "libnvidia-ml.so.1"
POWERCAP = "/sys/class/powercap"
_OF_A_NODE = ("rapl", GPU_METER, "nvidia-smi", BOARD_METER)
_BOARD = "ipmitool dcmi power reading"
_SMI_ENDED = "nvidia-smi ended before the run"
_SPARSEST_S = 10.0  # between two samples of power: the slowest tools take a few seconds, and one that hangs, for ever

# `core` and `uncore` are parts of their package, `psys` is the whole machine on some laptops: none is to be added to it
_COUNTERS = """\
for zone in {powercap}/intel-rapl:*; do
  read -r name < $zone/name && read -r count < $zone/energy_uj && read -r most < $zone/max_energy_range_uj || continue
  case $name in package-* | dram) echo "rapl ${{zone##*/}} $count $most" ;; esac
done 2>/dev/null"""

# Millijoules of each GPU since its driver was loaded (Volta and later), `none` of one that does not tell. No command
# prints them, so a Python without packages asks the driver's library.
_GPU_COUNTERS = f"""\
import ctypes, os
nvml = ctypes.CDLL("{NVML_LIBRARY}")
nvml.nvmlInit_v2()
gpus = ctypes.c_uint()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(gpus))
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
for name in visible.split(",") if visible else range(gpus.value):
    gpu, count, name = ctypes.c_void_p(), ctypes.c_ulonglong(), str(name).strip()
    if name.isdigit():
        found = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(gpu))
    else:
        found = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(gpu))
    told = found == 0 and nvml.nvmlDeviceGetTotalEnergyConsumption(gpu, ctypes.byref(count)) == 0
    print("nvml", name, count.value if told else "none")"""


def meters_begin(site: Site, keep_state: str) -> str:
    """Text of run.sh before the command; empty where no meter of the node is asked for."""
    if not set(site.prices.meters) & set(_OF_A_NODE):
        return ""
    lines = [f"if {keep_state}; then", "ridgeline_energy=$(mktemp)"]
    # -9: a shell that has not yet become `sleep` would forget any other signal
    ended = "trap 'kill -9 $! 2>/dev/null; exit 0' USR1 TERM"
    began = ' >> "$ridgeline_energy" 2>/dev/null < /dev/null &\nridgeline_meters="$ridgeline_meters $!"'
    if "rapl" in site.prices.meters:
        lines += [
            f"ridgeline_counters='{_COUNTERS.format(powercap=POWERCAP)}'",
            'sh -c "$ridgeline_counters" >> "$ridgeline_energy"',
            f'( {ended}\n  while :; do sleep 30 & wait $!; sh -c "$ridgeline_counters"; done\n){began}',
        ]
    if GPU_METER in site.prices.meters:
        lines += [
            f"ridgeline_gpu_counters='{_GPU_COUNTERS}'",
            'python3 -c "$ridgeline_gpu_counters" >> "$ridgeline_energy" 2>/dev/null',
        ]
    if "nvidia-smi" in site.prices.meters:
        # nobody waits for it: where a GPU hangs, it may heed no signal
        lines += [
            f"( {ended}",
            "  nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i $CUDA_VISIBLE_DEVICES} -l 1 --query-gpu=index,power.draw \\",
            f"    --format=csv,noheader,nounits & wait $!; echo {_SMI_ENDED}\n){began}",
        ]
    if BOARD_METER in site.prices.meters:
        # a board controller takes a new sample every second or so, and some take as long to answer
        lines.append(f"( {ended}\n  while :; do {_BOARD} & wait $!; sleep 1 & wait $!; done\n){began}")
    return "".join(f"{line}\n" for line in [*lines, "fi"])


def meters_end(site: Site, keep_state: str) -> str:
    """The same after it, and after its end was noted: meters take no part of the run's time. Leaves `code` as it is."""
    if not set(site.prices.meters) & set(_OF_A_NODE):
        return ""
    last = 'sh -c "$ridgeline_counters" >> "$ridgeline_energy"\n' if "rapl" in site.prices.meters else ""
    if GPU_METER in site.prices.meters:
        last += 'python3 -c "$ridgeline_gpu_counters" >> "$ridgeline_energy" 2>/dev/null\n'
    # USR1: run.sh has a trap of its own for TERM, and a shell that has just begun still has that of its parent
    return f"""\
if {keep_state}; then
{last}kill -USR1 $ridgeline_meters 2>/dev/null
wait $ridgeline_meters 2>/dev/null
cat "$ridgeline_energy" > {ENERGY_FILE}
rm -f "$ridgeline_energy"
fi
"""


# What a sampled meter prints: the GPU where it says which, and watts if it tells them. A board without a sensor says
# 0 Watts (openbmc/phosphor-host-ipmid, issue 167), and one with it may still call its readings deactivated.
_SAMPLES = {
    "nvidia-smi": re.compile(r"^(\d+), (?:([\d.]+)|.*)$", re.MULTILINE),
    BOARD_METER: re.compile(r"^( *)Instantaneous power reading: +([1-9]\d*) Watts", re.MULTILINE),
}


def measured_joules(folder: Path, meters: Sequence[str], elapsed_s: float) -> float | None:
    """What the meters of the node counted, added up; None where one of them left nothing that says so."""
    text = state_text(folder, ENERGY_FILE)
    joules = [
        _drawn(text, meter, elapsed_s) if meter in _SAMPLES else _counted(text, meter)
        for meter in meters
        if meter in _OF_A_NODE
    ]
    known = [found for found in joules if found is not None]
    return sum(known) if joules and len(known) == len(joules) else None


def meters_missing_here(meters: Sequence[str]) -> list[str]:
    """Of these meters, what this machine does not have or may not read."""
    missing = []
    counters = list(Path(POWERCAP).glob("intel-rapl:*/energy_uj"))
    if "rapl" in meters and not any(os.access(counter, os.R_OK) for counter in counters):
        why = "may be read by root alone" if counters else "are not there, as in most virtual machines"
        missing.append(f"rapl: the counters {POWERCAP}/intel-rapl:*/energy_uj {why}")
    if GPU_METER in meters and not _loads(NVML_LIBRARY):
        missing.append(f"{GPU_METER}: {NVML_LIBRARY}, the library of NVIDIA's driver, is not on this machine")
    if "nvidia-smi" in meters and shutil.which("nvidia-smi") is None:
        missing.append("nvidia-smi: not on the PATH of this machine")
    if BOARD_METER in meters:
        missing += _board_missing()
    if BATCH_METER in meters:
        missing.append(f"{BATCH_METER}: jobs do not run under a batch system here")
    return missing


def _board_missing() -> list[str]:
    """A board controller is asked once: to many it is open for root alone, and some have no power sensor."""
    try:
        done = subprocess.run(
            _BOARD.split(), capture_output=True, text=True, errors="replace", timeout=30.0, check=False
        )
    except FileNotFoundError:
        return [f"{BOARD_METER}: ipmitool is not on the PATH of this machine"]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{BOARD_METER}: `{_BOARD}` does not answer ({error})"]
    if _SAMPLES[BOARD_METER].search(done.stdout):
        return []
    last = (done.stderr.strip() or "it reads 0 Watts: the board has no power sensor").splitlines()[-1]
    return [f"{BOARD_METER}: `{_BOARD}` gives no reading ({last})"]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _counted(text: str, meter: str) -> float | None:
    """What every counter went up from its first sample to its last; RAPL's say where they begin again."""
    unit = 1e6 if meter == "rapl" else 1e3
    counters: dict[str, list[int]] = {}
    largest: dict[str, int] = {}
    for name, count, most in re.findall(rf"^{meter} (\S+) (\d+)(?: (\d+))?$", text, re.MULTILINE):
        counters.setdefault(name, []).append(int(count))
        largest[name] = int(most or 0)
    silent = re.search(rf"^{meter} \S+ none$", text, re.MULTILINE)
    if silent or not counters or any(len(counts) < 2 for counts in counters.values()):
        return None
    steps = [
        later - earlier if later >= earlier else later + largest[name] - earlier
        for name, counts in counters.items()
        for earlier, later in pairwise(counts)
    ]
    return sum(steps) / unit if min(steps) >= 0 else None  # a driver that was loaded again counts from 0


def _drawn(text: str, meter: str, elapsed_s: float) -> float | None:
    """Mean power of each GPU, or of the node, over the time that the run took; None where one was watched for less."""
    watts: dict[str, list[float]] = {}
    for where, value in _SAMPLES[meter].findall(text):
        watts.setdefault(where, []).extend([float(value)] if value else [])
    fewest = min(map(len, watts.values()), default=0)
    if not fewest or fewest * _SPARSEST_S < elapsed_s or (meter == "nvidia-smi" and _SMI_ENDED in text):
        return None
    return sum(map(fmean, watts.values())) * elapsed_s
