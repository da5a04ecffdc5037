"""`nvidia-smi dmon`: a table with one row a GPU and sample, whichever columns were asked for (-s), with -o T or D too.

Sums are kept for each GPU, so a night of samples takes no more memory than a minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ridgeline.readers.lines import number, whole

_MOST_GPUS = 1024


@dataclass(slots=True)
class DmonColumn:
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
class DmonGpu:
    """`busy` are samples in which kernels ran (sm above 5%), `busy_clock` their clock."""

    index: int
    line: int
    text: str
    samples: int = 0
    busy: int = 0
    columns: dict[str, DmonColumn] = field(default_factory=dict)
    busy_clock: DmonColumn = field(default_factory=DmonColumn)
    violations: dict[str, tuple[int, str]] = field(default_factory=dict)
    violated: dict[str, int] = field(default_factory=dict)

    def mean(self, name: str) -> float | None:
        column = self.columns.get(name)
        return column.mean if column and column.count else None


_VIOLATIONS = ("pviol", "tviol")  # power and heat: what held the clock down
_BUSY = 5.0


def read_dmon(lines: Iterable[str]) -> tuple[DmonGpu, ...]:
    """GPUs in the order of their index; rows that are cut or garbled are skipped."""
    columns: list[str] = []
    gpus: dict[int, DmonGpu] = {}
    for line_number, raw in enumerate(lines, 1):
        words = raw[:2000].split()
        if words[:1] == ["#"] or (words and words[0].startswith("#")):
            names = " ".join(words).lstrip("# ").split()
            if "gpu" in names:
                columns = names
        elif columns and len(words) == len(columns):
            _row(dict(zip(columns, words, strict=True)), line_number, raw, gpus)
    return tuple(gpus[index] for index in sorted(gpus))


def _row(row: dict[str, str], line: int, text: str, gpus: dict[int, DmonGpu]) -> None:
    index = whole(row.get("gpu"))
    if index is None or not 0 <= index < _MOST_GPUS:
        return
    gpu = gpus.setdefault(index, DmonGpu(index, line, text[:2000]))
    values = {name: value for name, cell in row.items() if name != "gpu" and (value := number(cell)) is not None}
    gpu.samples += 1
    for name, value in values.items():
        gpu.columns.setdefault(name, DmonColumn()).add(value)
    if values.get("sm", 0.0) > _BUSY:
        gpu.busy += 1
        if "pclk" in values:
            gpu.busy_clock.add(values["pclk"])
    for name in _VIOLATIONS:
        if values.get(name, 0.0) > 0:
            gpu.violated[name] = gpu.violated.get(name, 0) + 1
            gpu.violations.setdefault(name, (line, text[:2000]))
