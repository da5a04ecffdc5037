"""The energy of a run by the meters of its node, as run.sh reads them: RAPL's counters and the power of the GPUs.

Counters of RAPL turn over within minutes to hours, so they are also read while the run lasts. Samples are kept outside
of the run folder until the end: a file that grows there would be taken for a sign of life of the program.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from ridgeline.books import text_of_book
from ridgeline.records.site import BATCH_METER, Site

ENERGY_FILE = "energy"
POWERCAP = "/sys/class/powercap"
_OF_A_NODE = ("rapl", "nvidia-smi")

# `core` and `uncore` are parts of their package, `psys` is the whole machine on some laptops: none is to be added to it
_COUNTERS = """\
for zone in {powercap}/intel-rapl:*; do
  read -r name < $zone/name && read -r count < $zone/energy_uj && read -r most < $zone/max_energy_range_uj || continue
  case $name in package-* | dram) echo "rapl ${{zone##*/}} $count $most" ;; esac
done 2>/dev/null"""


def meters_begin(site: Site, keep_books: str) -> str:
    """Text of run.sh before the command; empty where no meter of the node is asked for."""
    if not set(site.prices.meters) & set(_OF_A_NODE):
        return ""
    lines = [f"if {keep_books}; then", "ridgeline_energy=$(mktemp)"]
    if "rapl" in site.prices.meters:
        lines += [
            f"ridgeline_counters='{_COUNTERS.format(powercap=POWERCAP)}'",
            'sh -c "$ridgeline_counters" >> "$ridgeline_energy"',
            # -9: a shell that has not yet become `sleep` would forget any other signal
            "( trap 'kill -9 $! 2>/dev/null; exit 0' USR1 TERM",
            '  while :; do sleep 30 & wait $!; sh -c "$ridgeline_counters"; done',
            ') >> "$ridgeline_energy" 2>/dev/null < /dev/null &',
            "ridgeline_meters=$!",
        ]
    if "nvidia-smi" in site.prices.meters:
        lines += [
            "nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i $CUDA_VISIBLE_DEVICES} -l 1 --query-gpu=index,power.draw \\",
            '  --format=csv,noheader,nounits >> "$ridgeline_energy" 2>/dev/null < /dev/null &',
            'ridgeline_meters="$ridgeline_meters $!"',
        ]
    return "".join(f"{line}\n" for line in [*lines, "fi"])


def meters_end(site: Site, keep_books: str) -> str:
    """The same after it; leaves `code` as it is."""
    if not set(site.prices.meters) & set(_OF_A_NODE):
        return ""
    last = 'sh -c "$ridgeline_counters" >> "$ridgeline_energy"\n' if "rapl" in site.prices.meters else ""
    # USR1: run.sh has a trap of its own for TERM, and a shell that has just begun still has that of its parent
    return f"""\
if {keep_books}; then
{last}kill -USR1 $ridgeline_meters 2>/dev/null
wait $ridgeline_meters 2>/dev/null
cat "$ridgeline_energy" > {ENERGY_FILE}
rm -f "$ridgeline_energy"
fi
"""


def measured_joules(folder: Path, meters: Sequence[str], elapsed_s: float) -> float | None:
    """What the meters of the node counted, added up; None where one of them left nothing that says so."""
    text, joules = text_of_book(folder, ENERGY_FILE), []
    for meter in (name for name in meters if name in _OF_A_NODE):
        joules += [_counted(text) if meter == "rapl" else _drawn(text, elapsed_s)]
    known = [found for found in joules if found is not None]
    return sum(known) if joules and len(known) == len(joules) else None


def meters_missing_here(meters: Sequence[str]) -> list[str]:
    """Of these meters, what this machine does not have or may not read."""
    missing = []
    counters = list(Path(POWERCAP).glob("intel-rapl:*/energy_uj"))
    if "rapl" in meters and not any(os.access(counter, os.R_OK) for counter in counters):
        why = "may be read by root alone" if counters else "are not there, as in most virtual machines"
        missing.append(f"rapl: the counters {POWERCAP}/intel-rapl:*/energy_uj {why}")
    if "nvidia-smi" in meters and shutil.which("nvidia-smi") is None:
        missing.append("nvidia-smi: not on the PATH of this machine")
    if BATCH_METER in meters:
        missing.append(f"{BATCH_METER}: jobs do not run under a batch system here")
    return missing


def _counted(text: str) -> float | None:
    """Microjoules of every zone from its first sample to its last, over each turn of the counter."""
    zones: dict[str, list[int]] = {}
    largest: dict[str, int] = {}
    for zone, count, most in re.findall(r"^rapl (\S+) (\d+) (\d+)$", text, re.MULTILINE):
        zones.setdefault(zone, []).append(int(count))
        largest[zone] = int(most)
    if not zones or any(len(counts) < 2 for counts in zones.values()):
        return None
    steps = (
        later - earlier if later >= earlier else later + largest[zone] - earlier
        for zone, counts in zones.items()
        for earlier, later in pairwise(counts)
    )
    return sum(steps) / 1e6


def _drawn(text: str, elapsed_s: float) -> float | None:
    """Mean power of each GPU over the time that the run took."""
    watts: dict[str, list[float]] = {}
    for gpu, value in re.findall(r"^(\d+), ([\d.]+)$", text, re.MULTILINE):
        watts.setdefault(gpu, []).append(float(value))
    return sum(map(fmean, watts.values())) * elapsed_s if watts else None
