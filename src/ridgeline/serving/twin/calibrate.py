"""`ridgeline calibrate`: from logs and measured rows to a site's calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.factors import NAMES, Factors
from ridgeline.serving.twin.fit import RUN_NOISE, FactorFit, Observation, fit
from ridgeline.serving.twin.log_steps import observations, read_run
from ridgeline.serving.twin.measured import Measured, read_rows
from ridgeline.serving.twin.simulate import SimulationResult, simulate

# How far the first token of the same load differs between two runs on one machine.
TTFT_NOISE = 0.15

READ: dict[str, Callable[[SimulationResult], float | None]] = {
    "total_tok_s": lambda r: r.summary.total_tok_s,
    "duration_s": lambda r: r.summary.duration_s,
    "latency_s": lambda r: r.summary.duration_s,
    "ttft_s": lambda r: r.last_ttft_s,
    "ttft_p95_s": lambda r: r.summary.ttft_ms.p95 / 1000 if r.summary.ttft_ms else None,
    "itl_p95_s": lambda r: r.summary.itl_ms.p95 / 1000 if r.summary.itl_ms else None,
}


def calibrate(paths: Sequence[Path], *, model: str | None = None, gpu: str | None = None) -> FactorFit:
    """Factors of the site that these files come from: SGLang logs, and CSV files of measured rows."""
    if not paths:
        raise InputError("nothing to calibrate from; give --from with one or more SGLang logs or CSV files")
    points: list[Observation] = []
    for path in paths:
        if path.suffix.lower() == ".csv":
            rows = [row for row in read_rows(path, model=model, gpu=gpu) if row.result == "ok"]
            points += [point for row in rows for point in row_observations(row)]
        else:
            points += observations(read_run(path, model=model, gpu=gpu))
    if not points:
        raise InputError(
            f"{', '.join(map(str, paths))}: no row with result ok and one of {', '.join(READ)}; nothing to fit"
        )
    return fit(points, [path.name for path in paths])


def row_observations(row: Measured) -> list[Observation]:
    """Each metric of a row is one point, on one simulation. First tokens speak of prefill and what stands before it,
    all other figures of the whole: metrics of a kind share the weight of one point."""
    first = [_first_token(metric) for metric in row.values]

    @lru_cache(maxsize=2 * len(NAMES) + 1)
    def run(factors: Factors) -> SimulationResult:
        try:
            return simulate(row.deployment, row.traffic, Calibration(factors=factors))
        except InputError as error:
            raise InputError(f"{row.source}: {error}") from None

    return [
        _observation(row, metric, value, 1.0 / first.count(_first_token(metric)), run)
        for metric, value in row.values.items()
    ]


def _observation(
    row: Measured, metric: str, value: float, weight: float, run: Callable[[Factors], SimulationResult]
) -> Observation:
    def predict(factors: Factors) -> float:
        return max(1e-9, READ[metric](run(factors)) or 1e-9)

    noise = TTFT_NOISE if _first_token(metric) else RUN_NOISE
    return Observation(f"{row.source} {metric}", value, predict, noise, weight)


def _first_token(metric: str) -> bool:
    return metric.startswith("ttft")
