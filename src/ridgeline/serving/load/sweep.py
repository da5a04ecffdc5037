"""A grid over concurrency, input and output length: one row per point, heat maps and the knee of each length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.json_form import JsonForm, in_json, plain
from ridgeline.serving.load.bench import BenchPlan, BenchResult
from ridgeline.serving.load.edge import take_off
from ridgeline.serving.traffic.traffic import ClosedLoop, Fixed

_ROUNDS = 4
_MAPPED = ("ttft_p50_ms", "itl_p50_ms", "output_tok_s", "requests_s")


@dataclass(frozen=True, slots=True)
class SweepGrid:
    concurrency: tuple[int, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SweepPoint(JsonForm):
    concurrency: int
    input_tokens: int
    output_tokens: int
    result: BenchResult = field(metadata=in_json(flat=True))

    def figure(self, name: str) -> float | None:
        s = self.result.summary
        if name in ("ttft_p50_ms", "itl_p50_ms"):
            spread = s.ttft_ms if name.startswith("ttft") else s.itl_ms
            return None if spread is None else round(spread.p50, 4)
        return round(float(getattr(s, name)), 4)


@dataclass(frozen=True, slots=True)
class Sweep:
    grid: SweepGrid
    points: tuple[SweepPoint, ...]
    interrupted: bool = False

    def as_json(self) -> dict[str, object]:
        return {
            "grid": plain(self.grid),
            "points": plain(self.points),
            "heatmaps": [self._heatmap(metric, o) for o in self.grid.output_tokens for metric in _MAPPED],
            "knees": self.knees(),
            "interrupted": self.interrupted,
        }

    def knees(self) -> list[dict[str, object]]:
        """For each pair of lengths, the concurrency at which TTFT is twice its unloaded value, and the prompt tokens
        that are then under way at once."""
        found: list[dict[str, object]] = []
        for o in self.grid.output_tokens:
            for i in self.grid.input_tokens:
                row = [p for p in self.points if (p.input_tokens, p.output_tokens) == (i, o) and not p.result.void]
                knee = take_off([(float(p.concurrency), p.figure("ttft_p50_ms")) for p in row])
                found.append(
                    {
                        "input_tokens": i,
                        "output_tokens": o,
                        "concurrency": None if knee is None else round(knee, 1),
                        "prompt_tokens_at_once": None if knee is None else round(knee * i),
                    }
                )
        return found

    def _heatmap(self, metric: str, output_tokens: int) -> dict[str, object]:
        cells = {(p.input_tokens, p.concurrency): p for p in self.points if p.output_tokens == output_tokens}
        rows = [
            [cells[i, c].figure(metric) if (i, c) in cells else None for c in self.grid.concurrency]
            for i in self.grid.input_tokens
        ]
        return {
            "metric": metric,
            "output_tokens": output_tokens,
            "x_concurrency": self.grid.concurrency,
            "y_input_tokens": self.grid.input_tokens,
            "z": rows,
        }


def parse_grid(text: str, plan: BenchPlan) -> SweepGrid:
    """`concurrency=1,8,64 input=128,1024 output=128`; an axis left out keeps the plan's own value."""
    lengths, pace = plan.traffic.lengths, plan.traffic.pace
    if not isinstance(lengths, Fixed):
        raise InputError("--sweep sets the lengths itself; leave --traffic out")
    axes: dict[str, tuple[int, ...]] = {
        "concurrency": (pace.concurrency,) if isinstance(pace, ClosedLoop) else (1, 4, 16, 64),
        "input": (lengths.input_tokens,),
        "output": (lengths.output_tokens,),
    }
    for part in text.replace(";", " ").split():
        name, _, values = part.partition("=")
        if name not in axes:
            raise InputError(f"--sweep {part!r}: unknown axis; use concurrency=1,8,64 input=128,1024 output=128")
        axes[name] = _whole_numbers(part, values)
    return SweepGrid(axes["concurrency"], axes["input"], axes["output"])


def _whole_numbers(part: str, values: str) -> tuple[int, ...]:
    try:
        numbers = sorted({int(v) for v in values.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise InputError(f"--sweep {part!r}: list whole numbers above zero, for example concurrency=1,8,64")
    return tuple(numbers)


def sweep(
    plan: BenchPlan,
    grid: SweepGrid,
    run: Callable[[BenchPlan], BenchResult],
    note: Callable[[SweepPoint], None] | None = None,
) -> Sweep:
    """Runs every point; Ctrl-C keeps those that have ended."""
    points: list[SweepPoint] = []
    for o in grid.output_tokens:
        for i in grid.input_tokens:
            for c in grid.concurrency:
                requests = max(_ROUNDS * c, min(plan.traffic.requests, 10 * c))
                traffic = replace(plan.traffic, lengths=Fixed(i, o), pace=ClosedLoop(c), requests=requests)
                result = run(replace(plan, traffic=traffic, records_path=_own_file(plan, c, i, o)))
                if result.interrupted:
                    return Sweep(grid, tuple(points), interrupted=True)
                points.append(SweepPoint(c, i, o, result))
                if note is not None:
                    note(points[-1])
    return Sweep(grid, tuple(points))


def _own_file(plan: BenchPlan, concurrency: int, inputs: int, outputs: int) -> Path | None:
    path = plan.records_path
    return None if path is None else path.with_name(f"{path.stem}-c{concurrency}-i{inputs}-o{outputs}{path.suffix}")
