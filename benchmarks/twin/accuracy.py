"""How far the twin is from published and own measurements: fit on at most two rows of a site, judged on the others.

    python benchmarks/twin/accuracy.py [--measured FOLDER] [--log SGLANG_LOG]

Prints the table of rows in benchmarks/twin/README.md. Nothing here is asserted; tests/twin keeps the promises.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.serving.engines.settings import DEFAULTS
from ridgeline.serving.twin.calibrate import calibrate, row_observations
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.fit import fit
from ridgeline.serving.twin.measured import METRICS, Measured, read_rows
from ridgeline.serving.twin.simulate import DoesNotFit, simulate

HERE = Path(__file__).parent
LOG = HERE.parents[1] / "tests" / "samples" / "sglang" / "offline-llama8b-h200-default.log"
# what the disaggregation study's scripts set
# two-node groups of that study ran the same engine whether prefill and decode were together or apart
SAME_ENGINE = {"split-2": "colocated"}
STUDY = replace(DEFAULTS, max_running_requests=128, mem_fraction=0.81, radix_cache=False)

# the bound that judges a metric, and its unit over the metric's
BOUNDS = {
    "total_tok_s": ("total_tok_s", 1),
    "latency_s": ("duration_s", 1),
    "ttft_s": ("ttft_last_ms", 1000),
    "ttft_p95_s": ("ttft_p95_ms", 1000),
    "itl_p95_s": ("itl_p95_ms", 1000),
}


@dataclass(frozen=True)
class Line:
    site: str
    use: str
    name: str
    metric: str
    measured: float
    before: float  # predicted from the priors alone
    after: float  # predicted with the site's calibration
    inside: bool

    @property
    def error(self) -> float:
        return self.after / self.measured - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, default=HERE / "measured")
    parser.add_argument("--log", type=Path, default=LOG)
    words = parser.parse_args()
    lines: list[Line] = []
    verdicts: list[tuple[str, str, str]] = []
    known: dict[str, Calibration] = {}
    for file, options in (
        ("offline.csv", {"model": "deepseek-r1"}),
        ("own-h200.csv", {}),
        ("colocated-h800.csv", {"model": "deepseek-v3", "settings": STUDY}),
        ("disaggregated.csv", {"model": "deepseek-v3", "settings": STUDY}),
    ):
        rows = read_rows(words.measured / file, **options)
        sites, uses = _column(words.measured / file, "site"), _column(words.measured / file, "use")
        for site in dict.fromkeys(sites):
            chosen = [(use, row) for s, use, row in zip(sites, uses, rows, strict=True) if s == site]
            calibration = known[site] = known.get(SAME_ENGINE.get(site, "")) or _calibration(site, chosen, words.log)
            lines += _lines(site, chosen, calibration)
            verdicts += [_verdict(row) for _, row in chosen if row.result != "ok"]
            shown = "  ".join(f"{k} {v:.2f}" for k, v in calibration.factors.as_json().items())
            print(f"{site}: {shown}  spread {calibration.spread:.2f}")
    print()
    _table(lines)
    _summary(lines, verdicts)


def _column(path: Path, name: str) -> list[str]:
    with path.open() as file:
        return [row[name] for row in csv.DictReader(file)]


def _calibration(site: str, rows: Sequence[tuple[str, Measured]], log: Path) -> Calibration:
    if site == "own":
        return calibrate([log]).calibration
    points = [p for use, row in rows if use == "fit" for p in row_observations(row)]
    return fit(points, [site]).calibration


def _lines(site: str, rows: Sequence[tuple[str, Measured]], calibration: Calibration) -> list[Line]:
    found = []
    for use, row in rows:
        if row.result != "ok":
            continue
        before, after = (simulate(row.deployment, row.traffic, c) for c in (Calibration(), calibration))
        for metric, value in row.values.items():
            old, new = METRICS[metric](before) or math.nan, METRICS[metric](after) or math.nan
            bound, unit = BOUNDS[metric]
            low, high = after.interval[bound]
            inside = low <= value * unit <= high
            traffic = row.traffic.lengths
            what = f"{row.deployment.layout} {row.note}"
            if hasattr(traffic, "input_tokens"):
                what = (
                    f"{row.deployment.layout} {row.traffic.requests} x {traffic.input_tokens}/{traffic.output_tokens}"
                )
            found.append(Line(site, use, what.strip(), metric, value, old, new, inside))
    return found


def _verdict(row: Measured) -> tuple[str, str, str]:
    try:
        said = simulate(row.deployment, row.traffic).verdict
    except DoesNotFit as no:
        said = no.plan.verdict
    return f"{row.deployment} mem {row.deployment.settings.mem_fraction}", row.result, said


def _table(lines: Sequence[Line]) -> None:
    print("| site | row | metric | measured | priors alone | calibrated | error | in interval |")
    print("|---|---|---|---|---|---|---|---|")
    for n in lines:
        mark = " (fitted)" if n.use == "fit" else ""
        error = f"{n.error:+.0%}" if abs(n.error) < 1 else f"x{n.after / n.measured:.2f}"
        print(
            f"| {n.site} | {n.name}{mark} | {n.metric} | {n.measured:,.5g} | {n.before:,.5g} | {n.after:,.5g} "
            f"| {error} | {'yes' if n.inside else 'no'} |"
        )


def _summary(lines: Sequence[Line], verdicts: Sequence[tuple[str, str, str]]) -> None:
    speed = [n for n in lines if n.metric == "total_tok_s"]
    checked = [n for n in speed if n.use == "check"]
    print(
        f"\nthroughput, {len(checked)} unfitted rows: median error {_median(checked):.1%}, worst "
        f"{max(abs(n.error) for n in checked):.1%}"
    )
    print(
        f"throughput, priors alone, {len(speed)} rows: median error "
        f"{statistics.median(abs(n.before / n.measured - 1) for n in speed):.1%}"
    )
    print(f"order of settings, DeepSeek-R1, Kendall tau: {_tau(speed):.2f}")
    ttft = [n for n in lines if n.metric.startswith("ttft") and n.use == "check"]
    for site in dict.fromkeys(n.site for n in ttft):
        mine = [n for n in ttft if n.site == site]
        near = sum(1 / 1.5 <= n.after / n.measured <= 1.5 for n in mine)
        print(f"TTFT, {site}: {near} of {len(mine)} unfitted rows within a factor of 1.5")
    unfitted = [n for n in lines if n.use == "check"]
    latency = [n for n in unfitted if n.metric == "latency_s"]
    for name, group in (("throughput", checked), ("latency", latency), ("TTFT", ttft), ("all metrics", unfitted)):
        print(f"interval (nominal 90%), {name}: {sum(n.inside for n in group)} of {len(group)} inside")
    for where, result, said in verdicts:
        print(f"memory: {where}: measured {result}, predicted {said}")


def _median(lines: Sequence[Line]) -> float:
    return statistics.median(abs(n.error) for n in lines)


def _tau(lines: Sequence[Line]) -> float:
    """Over all pairs of settings of one model. Repeats are averaged; pairs measured within 2% have no order."""
    agree = total = 0
    settings: list[tuple[float, float]] = []
    for after in dict.fromkeys(n.after for n in lines if n.site != "own"):
        same = [n.measured for n in lines if n.after == after]
        settings.append((statistics.mean(same), after))
    for k, (measured, after) in enumerate(settings):
        for other, guessed in settings[k + 1 :]:
            if abs(measured / other - 1) >= 0.02:
                total += 1
                agree += 1 if (measured - other) * (after - guessed) > 0 else -1
    return agree / total


if __name__ == "__main__":
    main()
