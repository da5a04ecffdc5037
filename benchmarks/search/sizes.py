"""What a known smaller problem is worth to the search of a larger one: trials to 2% with and without it.

    python -m benchmarks.search.sizes TABLES [--seeds 30] [--trials 40] [--known 80] [--pairs small:large,...]

TABLES is a folder of CSV files (tables.py). `--known` random settings of the small table are what the earlier study
measured, with the same noise. `misled` is told the reverse of the large table instead: what that costs against `alone`
is what a misleading source costs, as a ratio of the medians with a 90% interval over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from benchmarks.search.race import LOOKS, Noise, Race, race  # noqa: E402
from benchmarks.search.tables import Table, read_table  # noqa: E402
from ridgeline.records.observation import Observation  # noqa: E402
from ridgeline.samplers.guided.sampler import GuidedSampler  # noqa: E402

PAIRS = "omp-bt_nas-smlprob:omp-bt_nas-lrgprob,omp-bt_nas-medprob:omp-bt_nas-lrgprob,omp-hpcg-smlprob:omp-hpcg-medprob"
HOW = ("alone", "from small", "misled")
DRAWS = 2_000  # of the bootstrap over seeds


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


def against(rows: Sequence[Race], alone: Sequence[Race], look: int) -> str:
    """'1.05 (0.80 to 1.30)': median regret over that of the same seeds alone."""
    pairs = [(one.regret[look], other.regret[look]) for one, other in zip(rows, alone, strict=True)]
    rng = random.Random(0)

    def ratio(some: Sequence[tuple[float, float]]) -> float:
        one, other = (statistics.median(each) for each in zip(*some, strict=True))
        return one / max(other, 1e-9)

    drawn = sorted(ratio(rng.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    return f"{ratio(pairs):.2f} ({drawn[DRAWS // 20]:.2f} to {drawn[-DRAWS // 20 - 1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--known", type=int, default=80)
    parser.add_argument("--pairs", default=PAIRS)
    parser.add_argument("--how", default=",".join(HOW), help="the first is what the others are compared with")
    parser.add_argument("--jobs", type=int, default=1, help="races at a time, a process each")
    asked = parser.parse_args()
    looks = [look for look in LOOKS if look <= asked.trials]
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    with ProcessPoolExecutor(asked.jobs) as pool:
        for pair in asked.pairs.split(","):
            small, large = (read_table(asked.tables / f"{name}.csv") for name in pair.split(":"))
            print(
                f"\n{small.name} to {large.name}: median trials to 2%, found, median regret at {looks}, the ratio of it"
            )
            alone: list[Race] = []
            for how in asked.how.split(","):
                jobs = [pool.submit(raced, how, small, large, seed, asked.trials, asked.known) for seed in seeds]
                rows = [job.result() for job in jobs]
                alone = alone or rows
                show(how, rows, alone, looks, asked.trials)


def show(how: str, rows: Sequence[Race], alone: Sequence[Race], looks: Sequence[int], trials: int) -> None:
    reached = statistics.median(row.found_at or trials + 1 for row in rows)
    found = sum(row.found_at is not None for row in rows)
    regrets = "  ".join(
        f"{statistics.median(row.regret[look] for row in rows):6.1%} {against(rows, alone, look)}" for look in looks
    )
    print(f"  {how:11} {reached:5.1f}   {found}/{len(rows)}   {regrets}", flush=True)


if __name__ == "__main__":
    main()
