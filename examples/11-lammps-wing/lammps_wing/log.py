"""What LAMMPS prints at the end of a run: speed, energy, and where the time went."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ridgeline.diagnose.base import Analyzer
from ridgeline.records.answer import Answer
from ridgeline.records.finding import Finding
from ridgeline.records.measurement import MetricDefinition
from ridgeline.records.outcome import Evidence
from ridgeline.records.study import Study
from ridgeline.report.figures.shapes import Axis, BarFigure, BarPart, BarRow
from ridgeline.report.figures.values import settings_shown
from ridgeline.study.history import History

LOG = "log.lammps"
PARTS = ("pair", "neigh", "comm", "output", "modify")
METRICS = (
    MetricDefinition("timesteps_s", "timesteps/s", "higher", "Timesteps a second, as LAMMPS prints it.", ("lammps",)),
    MetricDefinition("total_energy", "", "", "TotEng of the last step, in the script's units.", ("lammps",)),
    *(MetricDefinition(f"{part}_s", "s", "lower", f"Time in {part.title()}, mean over ranks.", ("lammps",))
      for part in PARTS),
)  # fmt: skip
_NUMBER = r"([-+\d.eE]+)"
_SPEED = re.compile(rf"^Performance:.*? {_NUMBER} timesteps/s", re.MULTILINE)
_PART = re.compile(rf"^(\w+) *\|[^|]*\| *{_NUMBER} *\|[^|]*\|[^|]*\| *{_NUMBER}", re.MULTILINE)
_MOST_COMM = 0.3  # of the time


def read_log(text: str) -> dict[str, float]:
    """Of the last run in the log; empty where it has none."""
    speeds = list(_SPEED.finditer(text))
    if not speeds:
        return {}
    found = {"timesteps_s": float(speeds[-1][1])}
    found |= {f"{m[1].lower()}_s": float(m[2]) for m in _PART.finditer(text, speeds[-1].end()) if m[1].lower() in PARTS}
    steps = [line.split() for line in text[: speeds[-1].start()].splitlines()]
    head = max((at for at, words in enumerate(steps) if "TotEng" in words), default=len(steps))
    rows = [words for words in steps[head + 1 :] if words and words[0].isdigit() and len(words) == len(steps[head])]
    return found | ({"total_energy": float(rows[-1][steps[head].index("TotEng")])} if rows else {})


def _findings(source: str, lines: Iterable[str]) -> list[Finding]:
    for number, line in enumerate(lines, 1):
        if (m := _PART.match(line)) and m[1] == "Comm" and float(m[3]) > 100 * _MOST_COMM:
            claim, advice = f"communication takes {m[3]}% of the run", "Use fewer ranks, or more atoms a rank."
            return [Finding(claim, (Evidence(source, number, line),), advice, share=min(1.0, float(m[3]) / 100))]
    return []


ANALYZER = Analyzer("lammps-log", "a log of LAMMPS", re.compile(r"^LAMMPS \("), _findings)


def section(study: Study, history: History, answer: Answer) -> Iterator[BarFigure]:
    rows = []
    for label, runs in settings_shown(study, history, answer):
        parts = [
            BarPart(part.title(), runs[-1].metrics[f"{part}_s"]) for part in PARTS if f"{part}_s" in runs[-1].metrics
        ]
        if parts:
            rows.append(BarRow(label, tuple(parts), f"{sum(part.value for part in parts):.1f} s"))
    if rows:
        yield BarFigure("lammps-time", "Where a run's time goes", "One run of each setting, by LAMMPS' own account.",
                        Axis("seconds", from_zero=True), tuple(rows))  # fmt: skip


def lammps_times(log: Path) -> None:
    """Show where the time of a LAMMPS run went.

    Example: ridgeline lammps times log.lammps
    """
    for name, value in read_log(log.read_text(errors="replace")).items():
        print(f"{name:<14} {value:g}")
