"""`ridgeline twin calibrate`: from logs, measured rows and results of benches to a site's calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.files import beginning_of
from ridgeline.serving.traffic.traffic import AllAtOnce
from ridgeline.serving.twin.calibration import NAMES, Calibration, Factors, ValidatedSetting, merged
from ridgeline.serving.twin.fit import RUN_NOISE, FactorFit, FitObservation, fit
from ridgeline.serving.twin.log_steps import observations, read_run
from ridgeline.serving.twin.measured import METRICS, Measured, read_rows
from ridgeline.serving.twin.metrics_pages import is_pages
from ridgeline.serving.twin.metrics_windows import read_windows
from ridgeline.serving.twin.over_time import OverTime, Sitting, over_time
from ridgeline.serving.twin.reach import at_once
from ridgeline.serving.twin.served_runs import StatedServer, load_of, read_served_runs
from ridgeline.serving.twin.simulate import SimulationResult, simulate

# How far the first token of the same load differs between two runs on one machine.
TTFT_NOISE = 0.15
# Loads that differ by less than this are one load.
_OTHER_LOAD = 1.5


@dataclass(frozen=True, slots=True)
class _MeasuredFile:
    """What one file says: points for the fit, the settings they were measured on, and remarks for the user."""

    sittings: tuple[Sitting, ...]
    rows: tuple[Measured, ...] = ()
    logged: tuple[ValidatedSetting, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def points(self) -> list[FitObservation]:
        return [point for sitting in self.sittings for point in sitting.points]


@dataclass(frozen=True, slots=True)
class SiteFit(FactorFit):
    """The fit, and each sitting beside it and the calibration before, where there was one or were several."""

    over_time: OverTime | None = None

    def as_json(self) -> dict[str, object]:
        seen = {} if self.over_time is None else {"over_time": self.over_time.as_json()}
        return FactorFit.as_json(self) | seen


def calibrate(
    paths: Sequence[Path],
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    server_flags: str = "",
    before: Calibration | None = None,
) -> SiteFit:
    """Factors of the site that these files come from: SGLang logs, CSV files of measured rows, results of benches,
    pages of metrics.

    `model` and `gpu` stand in where a file does not say, and `engine` with its release, which no log says;
    `server_flags` are those of a bench's server. `before` is the calibration to compare the new one with.
    """
    if not paths:
        raise InputError(
            "nothing to calibrate from; give --from with one or more logs, CSV files or bench results, or --metrics "
            "with the address of a server"
        )
    stated = StatedServer(model, gpu, engine, server_flags)
    found = [_evidence(path, stated) for path in paths]
    points = [point for each in found for point in each.points]
    if not points:
        raise InputError(
            f"{', '.join(map(str, paths))}: no row with result ok and one of {', '.join(METRICS)}; nothing to fit"
        )
    fitted = fit(points, [path.name for path in paths])
    scenes = [scene for each in found for scene in each.logged]
    served = {row.source: _scene(row, fitted.calibration) for each in found for row in each.rows}
    scenes += served.values()
    calibration = replace(fitted.calibration, scope=merged(scenes))
    remarks = [
        *dict.fromkeys(remark for each in found for remark in each.remarks),
        *_one_load(calibration.scope, found),
    ]
    if before is not None and (other := _elsewhere(before, calibration)):
        before, remarks = None, [*remarks, other]
    sittings = [sitting for each in found for sitting in each.sittings]
    compared = len(sittings) > 1 or before is not None
    loads = {source: scene.most for source, scene in served.items()}
    seen = over_time(sittings, loads, before, calibration.factors) if compared else None
    return SiteFit(calibration, fitted.points, fitted.learned, tuple(remarks), seen)


def _elsewhere(before: Calibration, now: Calibration) -> str:
    """Why the calibration before can't be compared; empty: it can."""
    there, here = ({(s.gpu, s.engine) for s in each.scope} for each in (before, now))
    if not there or not here or there & here:
        return ""
    gpu, engine = min(there)
    return f"the calibration before was measured on {gpu.upper()} with {engine}: not compared"


def _evidence(path: Path, stated: StatedServer) -> _MeasuredFile:
    if path.suffix.lower() == ".csv":
        rows = [row for row in read_rows(path, model=stated.model, gpu=stated.gpu) if row.result == "ok"]
        points = tuple(point for row in rows if row.values for point in row_observations(row))
        return _MeasuredFile((Sitting(path.name, None, points),), tuple(row for row in rows if row.values))
    if is_pages(path):
        windows, left_out = read_windows(path, stated)
        return replace(_of_rows(windows), remarks=tuple(left_out))
    if path.is_dir() or _is_json(path):
        runs = read_served_runs(path, stated)
        return replace(_of_rows(runs), remarks=tuple(f"{run.source}: {run.note}" for run in runs if run.note))
    run = read_run(path, model=stated.model, gpu=stated.gpu, engine=stated.engine)
    batches = [line.running for line in run.log.decodes]
    scene = ValidatedSetting.of(run.deployment, min(batches, default=0), max(batches, default=0))
    named = ":" in (stated.engine or "")
    unnamed = (
        f"{path.name}: a log does not name its release, taken as {scene.release}; give --engine {scene.engine}:RELEASE"
    )
    sitting = Sitting(path.name, None, tuple(observations(run)))
    return _MeasuredFile((sitting,), logged=(scene,), remarks=() if named else (unnamed,))


def _of_rows(rows: Sequence[Measured]) -> _MeasuredFile:
    sittings = (Sitting(row.source, row.at_s, tuple(row_observations(row))) for row in rows)
    return _MeasuredFile(tuple(sittings), tuple(rows))


def _scene(row: Measured, calibration: Calibration) -> ValidatedSetting:
    result = simulate(row.deployment, row.traffic, calibration)
    under_way = at_once(result.summary, row.deployment.layout)
    return ValidatedSetting.of(row.deployment, under_way, under_way)


def _one_load(scope: Sequence[ValidatedSetting], found: Sequence[_MeasuredFile]) -> tuple[str, ...]:
    """What cannot be told apart where a server was seen under one load only."""
    served = [row for each in found for row in each.rows if not isinstance(row.traffic.pace, AllAtOnce)]
    if not served or any(s.most > _OTHER_LOAD * max(s.fewest, 0.1) for s in scope):
        return ()
    return (
        f"one load only ({load_of(served[0])}): how latencies grow with load is the priors' word; add a run at half or "
        "twice of it",
    )


def _is_json(path: Path) -> bool:
    """A log may be long; what begins like JSON, or is named so, is a result."""
    named = next((suffix.lower() for suffix in reversed(path.suffixes) if suffix != ".gz"), "")
    if named in (".json", ".jsonl"):
        return True
    try:
        return beginning_of(path, 64).lstrip()[:1] in ("{", "[") and named != ".log"
    except OSError:
        return False


def row_observations(row: Measured) -> list[FitObservation]:
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
) -> FitObservation:
    def predict(factors: Factors) -> float:
        return max(1e-9, METRICS[metric](run(factors)) or 1e-9)

    noise = math.hypot(TTFT_NOISE if _first_token(metric) else RUN_NOISE, row.noise.get(metric, 0.0))
    of_one_phase = metric.startswith(("ttft", "tpot", "itl"))
    return FitObservation(f"{row.source} {metric}", value, predict, noise, weight, of_one_phase)


def _first_token(metric: str) -> bool:
    return metric.startswith("ttft")
