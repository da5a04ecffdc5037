"""Do the stated rates of a gate hold? References and gates drawn from several kinds of noise.

    python benchmarks/over_time/gate.py [--gates 500] [--csv noise.csv] [--slower 3]

For each gate a reference is measured as `ridgeline gate --update` does, then one gate of the same program and one of a
program slower by what the gate says it finds. Stated: 1 false alarm in 100, 90% found.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
from collections.abc import Callable
from pathlib import Path

from ridgeline.stats.gate import gate_plan, judge_gate, reference_wanted

Noise = Callable[[random.Random], float]
SHAPES: dict[str, Noise] = {
    "normal, 5%": lambda rng: rng.lognormvariate(0.0, 0.05),
    "normal, 1%": lambda rng: rng.lognormvariate(0.0, 0.01),
    "two modes, 6% apart": lambda rng: rng.choice((0.97, 1.03)) * rng.lognormvariate(0.0, 0.01),
    "long tail": lambda rng: 1.0 + 0.03 * rng.expovariate(1.0) ** 2,
}
MOST_STORED, MOST_RUNS = 1000, 600


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gates", type=int, default=500)
    parser.add_argument("--csv", default="")
    parser.add_argument("--slower", type=float, default=3.0)
    asked = parser.parse_args()
    shapes = dict(SHAPES)
    if asked.csv:
        with Path(asked.csv).open(newline="") as file:
            values = [float(row["value"]) for row in csv.DictReader(file)]
        shapes["measured"] = lambda rng: rng.choice(values)
    print(f"{'noise':22} stored   most   false alarms   runs   found   runs")
    for name, noise in shapes.items():
        stored_runs, most, alarms, quiet_runs, found, slow_runs = [], [], 0, [], 0, []
        for seed in range(asked.gates):
            rng = random.Random(seed)
            stored = [noise(rng) for _ in range(12)]
            while (wanted := reference_wanted(stored, "minimize", asked.slower / 100, 0.01, 0.9, MOST_STORED)) > len(
                stored
            ):
                stored += [noise(rng) for _ in range(wanted - len(stored))]
            plan = gate_plan(stored, "minimize", asked.slower / 100, most_runs=MOST_RUNS)
            quiet = judge_gate(plan, stored, [noise(rng) for _ in range(plan.most_runs)], "minimize")
            slow = [noise(rng) * (1 + plan.slower) for _ in range(plan.most_runs)]
            slowed = judge_gate(plan, stored, slow, "minimize")
            alarms, found = alarms + bool(quiet.slower), found + bool(slowed.slower)
            stored_runs.append(len(stored))
            most.append(plan.most_runs)
            quiet_runs.append(quiet.runs)
            slow_runs.append(slowed.runs)
        means = [statistics.fmean(each) for each in (stored_runs, most, quiet_runs, slow_runs)]
        print(
            f"{name:22} {means[0]:6.0f} {means[1]:6.0f} {alarms / asked.gates:14.1%} {means[2]:6.0f} "
            f"{found / asked.gates:7.1%} {means[3]:6.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
