"""What a known smaller problem is worth to the search of a larger one: trials to 2% with and without it.

    python -m benchmarks.search.sizes TABLES [--seeds 30] [--trials 40] [--known 80] [--pairs small:large,...]

TABLES is a folder of CSV files (tables.py). `--known` random settings of the small table are what the earlier study
measured, with the same noise. `misled` is told the reverse of the large table instead: what that costs against `alone`
is what a misleading source costs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from benchmarks.search.race import LOOKS, Noise, Race, race  # noqa: E402
from benchmarks.search.tables import Table, read_table  # noqa: E402
from ridgeline.records.observation import Observation  # noqa: E402
from ridgeline.samplers.guided.sampler import GuidedSampler  # noqa: E402

PAIRS = "omp-bt_nas-smlprob:omp-bt_nas-lrgprob,omp-bt_nas-medprob:omp-bt_nas-lrgprob,omp-hpcg-smlprob:omp-hpcg-medprob"
HOW = ("alone", "from small", "misled")


def earlier(table: Table, known: int, seed: int, sign: float = 1.0) -> list[Observation]:
    """What a study of this table measured: random settings, once each; with `sign` -1 the reverse of it."""
    rng, noise = random.Random(f"known {seed}"), Noise()
    found = []
    for key in rng.sample(sorted(table.cost), min(known, len(table.cost))):
        point = json.loads(key)
        value = table.truth(point)
        if value is not None:
            found.append(Observation(point, -math.exp(-sign * (value + noise.draw(rng)))))
    return found


def raced(how: str, small: Table, large: Table, seed: int, trials: int, known: int) -> Race:
    sampler = GuidedSampler(large.space, seed, {}, lambda point: None)
    if how == "from small":
        sampler.recall(earlier(small, known, seed))
    if how == "misled":
        sampler.recall(earlier(large, known, seed, sign=-1.0))
    return race(sampler, how, seed, large.truth, trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--known", type=int, default=80)
    parser.add_argument("--pairs", default=PAIRS)
    asked = parser.parse_args()
    looks = [look for look in LOOKS if look <= asked.trials]
    for pair in asked.pairs.split(","):
        small, large = (read_table(asked.tables / f"{name}.csv") for name in pair.split(":"))
        print(f"\n{small.name} to {large.name}: median trials to 2%, found, median regret at {looks}")
        for how in HOW:
            seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
            rows = [raced(how, small, large, seed, asked.trials, asked.known) for seed in seeds]
            reached = statistics.median(row.found_at or asked.trials + 1 for row in rows)
            found = sum(row.found_at is not None for row in rows)
            regrets = "  ".join(f"{statistics.median(row.regret[look] for row in rows):6.1%}" for look in looks)
            print(f"  {how:11} {reached:5.1f}   {found}/{len(rows)}   {regrets}", flush=True)


if __name__ == "__main__":
    main()
