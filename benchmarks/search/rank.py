"""How well the model orders settings that it has not seen, after a few random ones: a quick look before any race.

    python -m benchmarks.search.rank TABLES [--only NAMES] [--draws 8]

Rank correlation of predicted and true scores over the better half of a table, mean over draws.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

from benchmarks.search.race import Noise  # noqa: E402
from benchmarks.search.tables import Table, read_tables  # noqa: E402
from ridgeline.samplers.guided.features import Features  # noqa: E402
from ridgeline.samplers.guided.gaussian import Array  # noqa: E402
from ridgeline.samplers.guided.model import Blend, ObservedData  # noqa: E402

OBSERVED = (8, 16, 32)
MOST = 1_500  # rows of a table that are looked at


def ranks(values: Array) -> Array:
    return np.argsort(np.argsort(values))


def correlation(table: Table, observed: int, draw: int) -> float:
    keys = random.Random(0).sample(sorted(table.cost), min(MOST, len(table.cost)))
    truth = np.array([math.log(table.best / table.cost[key]) for key in keys])
    features = Features(table.space)
    rows = features.of([json.loads(key) for key in keys])
    some = np.random.default_rng([draw, observed]).permutation(len(keys))[:observed]
    noise, rng = Noise(), random.Random(draw)
    seen = ObservedData(rows[some], truth[some] + np.array([noise.draw(rng) for _ in some]), None, None)
    others = np.setdiff1d(np.flatnonzero(truth > np.median(truth)), some)
    mean, _ = Blend(seen, features.columns).at(rows[others], None)
    return float(np.corrcoef(ranks(mean), ranks(truth[others]))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--draws", type=int, default=8)
    asked = parser.parse_args()
    print(f"{'':24} after {', '.join(map(str, OBSERVED))} random settings")
    for table in read_tables(asked.tables):
        if not asked.only or table.name in asked.only.split(","):
            found = [np.mean([correlation(table, n, draw) for draw in range(asked.draws)]) for n in OBSERVED]
            print(f"{table.name:24} {'  '.join(f'{each:5.2f}' for each in found)}", flush=True)


if __name__ == "__main__":
    main()
