"""How sure a calibration on any two rows of a site is: every pair is fitted, and judged on the rows left out.

    python benchmarks/twin/left_out.py [--measured FOLDER] [--pairs 10]

`accuracy.py` fits two rows that its authors chose; this says how much rests on that choice. Pairs are taken in an order
shuffled once and for all; a split site takes about ten seconds a pair.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from accuracy import BOUNDS, HERE, STUDY, _column

from ridgeline.serving.twin.calibrate import row_observations
from ridgeline.serving.twin.fit import fit
from ridgeline.serving.twin.measured import METRICS, Measured, read_rows
from ridgeline.serving.twin.simulate import simulate

FILES = ("colocated-h800.csv", "disaggregated.csv")
NEAR = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, default=HERE / "measured")
    parser.add_argument("--pairs", type=int, default=10)
    words = parser.parse_args()
    for file in FILES:
        path = words.measured / file
        rows, sites = read_rows(path, model="deepseek-v3", settings=STUDY), _column(path, "site")
        for site in dict.fromkeys(sites):
            _judge(site, [r for s, r in zip(sites, rows, strict=True) if s == site and r.result == "ok"], words.pairs)


def _judge(site: str, rows: Sequence[Measured], most: int) -> None:
    pairs = list(combinations(range(len(rows)), 2))
    random.Random(1).shuffle(pairs)
    ratios: dict[str, list[float]] = {}
    inside = total = 0
    for pair in pairs[:most]:
        known = fit([p for n in pair for p in row_observations(rows[n])], [site]).calibration
        for number, row in enumerate(rows):
            if number in pair:
                continue
            result = simulate(row.deployment, row.traffic, known)
            for metric, value in row.values.items():
                bound, unit = BOUNDS[metric]
                low, high = result.interval[bound]
                inside, total = inside + (low <= value * unit <= high), total + 1
                if metric.startswith("ttft"):
                    ratios.setdefault(_name(row, value), []).append((METRICS[metric](result) or 0.0) / value)
    every = [r for found in ratios.values() for r in found]
    near = sum(1 / NEAR <= r <= NEAR for r in every)
    print(f"{site}: {min(most, len(pairs))} pairs, TTFT within {NEAR:g}x {near} of {len(every)}, ", end="")
    print(f"inside the interval {inside} of {total}")
    for name, found in ratios.items():
        middle = sorted(found)[len(found) // 2]
        print(f"    {name}: x{middle:.2f} (x{min(found):.2f} to x{max(found):.2f})")


def _name(row: Measured, value: float) -> str:
    lengths = row.traffic.lengths
    sizes = f"{getattr(lengths, 'input_tokens', '')}/{getattr(lengths, 'output_tokens', '')}"
    return f"{row.deployment.layout} {row.traffic.requests} x {sizes}, measured {value:g} s"


if __name__ == "__main__":
    main()
