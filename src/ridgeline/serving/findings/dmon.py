"""`nvidia-smi dmon`: idle GPUs, one GPU behind the others, clocks held down by power or heat.

A table with one row a GPU and sample, whichever columns were asked for (-s), with -o T or D too. Sums are kept for each
GPU, so a night of samples takes no more memory than a minute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited
from ridgeline.diagnose.readers.lines import number, whole
from ridgeline.records.finding import Finding

_MOST_GPUS = 1024


@dataclass(slots=True)
class _DmonColumn:
    """One column of one GPU over time."""

    count: int = 0
    total: float = 0.0
    least: float = float("inf")
    most: float = float("-inf")

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class _DmonGpu:
    """`busy` are samples in which kernels ran (sm above 5%), `busy_clock` their clock."""

    index: int
    line: int
    text: str
    samples: int = 0
    busy: int = 0
    columns: dict[str, _DmonColumn] = field(default_factory=dict)
    busy_clock: _DmonColumn = field(default_factory=_DmonColumn)
    violations: dict[str, tuple[int, str]] = field(default_factory=dict)
    violated: dict[str, int] = field(default_factory=dict)

    def mean(self, name: str) -> float | None:
        column = self.columns.get(name)
        return column.mean if column and column.count else None


_VIOLATIONS = ("pviol", "tviol")  # power and heat: what held the clock down
_BUSY = 5.0


def _read_dmon(lines: Iterable[str]) -> tuple[_DmonGpu, ...]:
    """GPUs in the order of their index; rows that are cut or garbled are skipped."""
    columns: list[str] = []
    gpus: dict[int, _DmonGpu] = {}
    for line_number, raw in enumerate(lines, 1):
        words = raw[:2000].split()
        if words[:1] == ["#"] or (words and words[0].startswith("#")):
            names = " ".join(words).lstrip("# ").split()
            if "gpu" in names:
                columns = names
        elif columns and len(words) == len(columns):
            _row(dict(zip(columns, words, strict=True)), line_number, raw, gpus)
    return tuple(gpus[index] for index in sorted(gpus))


def _row(row: dict[str, str], line: int, text: str, gpus: dict[int, _DmonGpu]) -> None:
    index = whole(row.get("gpu"))
    if index is None or not 0 <= index < _MOST_GPUS:
        return
    gpu = gpus.setdefault(index, _DmonGpu(index, line, text[:2000]))
    values = {name: value for name, cell in row.items() if name != "gpu" and (value := number(cell)) is not None}
    gpu.samples += 1
    for name, value in values.items():
        gpu.columns.setdefault(name, _DmonColumn()).add(value)
    if values.get("sm", 0.0) > _BUSY:
        gpu.busy += 1
        if "pclk" in values:
            gpu.busy_clock.add(values["pclk"])
    for name in _VIOLATIONS:
        if values.get(name, 0.0) > 0:
            gpu.violated[name] = gpu.violated.get(name, 0) + 1
            gpu.violations.setdefault(name, (line, text[:2000]))


_FEWEST = 5  # samples of a GPU below which nothing is said


def _analyze(source: str, lines: Iterable[str]) -> list[Finding]:
    gpus = [gpu for gpu in _read_dmon(lines) if gpu.samples >= _FEWEST]
    rules = (_idle, _behind, _held_down, _slow_clock, _overall)
    return cited(source, {}, [claim for rule in rules for claim in rule(gpus)])


def _idle(gpus: list[_DmonGpu]) -> list[RawFinding]:
    """Of all GPUs together; one that is idle alone is behind the others."""
    used = [gpu for gpu in gpus if gpu.mean("sm") is not None]
    samples = sum(gpu.samples for gpu in used)
    busy = sum(gpu.busy for gpu in used)
    if not used or busy >= 0.7 * samples:
        return []
    idlest = min(used, key=lambda g: g.busy / g.samples)
    return [
        RawFinding(
            f"no kernel ran in {1 - busy / samples:.0%} of the samples of {_counted(used)}",
            (_quote(idlest),),
            "Look for start-up, compilation and host-bound phases in the program's log; more load or a larger batch "
            "may fill the gaps. `sm` only says that a kernel ran, not that it filled the GPU.",
            share=1 - busy / samples,
            key="dmon.idle",
        )
    ]


def _behind(gpus: list[_DmonGpu]) -> list[RawFinding]:
    means = [(gpu.mean("sm") or 0.0, gpu) for gpu in gpus if gpu.mean("sm") is not None]
    if len(means) < 2:
        return []
    ordered = sorted(mean for mean, _ in means)
    usual = ordered[len(ordered) // 2]
    low = [(mean, gpu) for mean, gpu in means if mean < 0.7 * usual]
    if not low or usual < 20 or len(low) > len(means) // 2:
        return []
    least, gpu = min(low, key=lambda m: m[0])
    top = max(means, key=lambda m: m[0])[1]
    return [
        RawFinding(
            f"GPU {gpu.index} is at {least:.0f}% while the others are at {usual:.0f}%",
            (_quote(gpu), _quote(top)),
            "Without work of its own: check the layout and CUDA_VISIBLE_DEVICES. With work: it waits less because the "
            "others wait for it, so look at its clocks, its PCIe link and `ridgeline site preflight`.",
            "warning",
            share=1 - least / usual,
            key="dmon.behind",
        )
    ]


def _held_down(gpus: list[_DmonGpu]) -> list[RawFinding]:
    claims = []
    for column, what, advice in _HOLDS:
        held = [gpu for gpu in gpus if gpu.violated.get(column, 0) >= max(2, gpu.samples // 20)]
        if held:
            worst = max(held, key=lambda g: g.violated[column] / g.samples)
            line, text = worst.violations[column]
            share = worst.violated[column] / worst.samples
            claims.append(
                RawFinding(
                    f"{what} held down the clock of {len(held)} of {len(gpus)} GPUs, of GPU {worst.index} in "
                    f"{share:.0%} of its samples",
                    (Quote(line, "", text),),
                    advice,
                    "warning",
                    key=f"dmon.{column}",
                )
            )
    return claims


_HOLDS = (
    (
        "pviol",
        "the power limit",
        "See nvidia-smi -q -d POWER: a limit below the default costs clock; else it is normal.",
    ),
    ("tviol", "heat", "The GPU is too hot: look at fans, airflow and neighbours; compare the node with its peers."),
)


def _slow_clock(gpus: list[_DmonGpu]) -> list[RawFinding]:
    """GPUs that work at a lower clock than the fastest of the same node."""
    clocked = [gpu for gpu in gpus if gpu.busy_clock.count >= _FEWEST]
    if not clocked:
        return []
    best = max(gpu.busy_clock.most for gpu in clocked)
    slow = min(clocked, key=lambda g: g.busy_clock.mean)
    lost = 1 - slow.busy_clock.mean / best if best > 0 else 0.0
    if lost < 0.1:
        return []
    return [
        RawFinding(
            f"GPU {slow.index} worked at {slow.busy_clock.mean:.0f} MHz on average, {lost:.0%} below the best clock",
            (_quote(slow),),
            "Power, heat or a locked clock: nvidia-smi -q -d CLOCK,PERFORMANCE says which. Kernels bound by memory "
            "lose less than this.",
            share=lost,
            key="dmon.slow-clock",
        )
    ]


def _overall(gpus: list[_DmonGpu]) -> list[RawFinding]:
    if not gpus:
        return []
    parts = []
    for name, label, unit in (("sm", "sm", "%"), ("mem", "memory", "%"), ("pwr", "power", " W"), ("fb", "used", " MB")):
        means = [mean for gpu in gpus if (mean := gpu.mean(name)) is not None]
        if means:
            parts.append(f"{label} {sum(means) / len(means):.0f}{unit}")
    if not parts:
        return []
    return [
        RawFinding(
            f"{_counted(gpus)} over {max(g.samples for g in gpus)} samples: {', '.join(parts)} on average",
            (_quote(gpus[0]),),
            "High sm with low power and memory means small or waiting kernels: profile a few seconds with nsys.",
            "note",
            key="dmon.overall",
        )
    ]


def _counted(gpus: list[_DmonGpu]) -> str:
    return "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"


def _quote(gpu: _DmonGpu) -> Quote:
    return Quote(gpu.line, "", gpu.text)


def _portray(lines: Iterable[str]) -> LogSummary:
    figures = []
    for gpu in _read_dmon(lines):
        for name, unit in (("sm", "%"), ("mem", "%"), ("pwr", "W"), ("pclk", "MHz"), ("gtemp", "C")):
            if (mean := gpu.mean(name)) is not None:
                figures.append(SummaryFigure(f"GPU {gpu.index} {name}, mean", mean, unit))
    return LogSummary(tuple(figures))


ANALYZER = Analyzer(
    "dmon",
    "nvidia-smi dmon",
    re.compile(r"^#(?:\s?Date\s{1,9}Time|\s?Time)?\s{0,9}gpu\s{1,9}\w.{0,300}$"),
    _analyze,
    _portray,
)
