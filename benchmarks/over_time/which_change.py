"""Which version became slower? Planted changes in noisy histories: ours beside bisecting with medians.

    python benchmarks/over_time/which_change.py [--histories 40] [--noise normal|CSV] [--slower 3] [--versions 64]
        [--seed 0]

`normal` is 5% log-normal noise; a CSV with a column `value` is drawn from, around its mean log. Bisecting with medians
measures both ends k times, takes the middle of their medians as the limit, and then k runs of the middle version at
each step, as a script for `git bisect run` would; it always names a version, also where nothing changed.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path

from ridgeline.stats.change_points import FOUND, Observed, change_posterior, next_step

Noise = Callable[[random.Random], float]
MOST_RUNS = 3000


def ours(levels: list[float], noise: Noise, slower: float, rng: random.Random) -> tuple[int | None, int]:
    """The change that is named, or none; and the runs."""
    runs: list[Observed] = []
    block = 0
    while len(runs) < MOST_RUNS:
        step, pair = next_step(runs, len(levels), slower, [1.0] * len(levels))
        if pair is None:
            found = change_posterior(runs, len(levels)).found if step == FOUND else ()
            return (found[0] if len(found) == 1 else None if not found else -1), len(runs)
        a, b = pair
        for place in (a, b, b, a) if block % 2 else (b, a, a, b):
            runs.append(Observed(place, levels[place] + noise(rng), block))
        block += 1
    return None, len(runs)


def by_medians(levels: list[float], noise: Noise, each: int, rng: random.Random) -> tuple[int | None, int]:
    def measured(place: int) -> float:
        return statistics.median(levels[place] + noise(rng) for _ in range(each))

    good, bad, runs = 0, len(levels) - 1, 2 * each
    limit = (measured(good) + measured(bad)) / 2
    while bad - good > 1:
        middle = (good + bad) // 2
        runs += each
        good, bad = (good, middle) if measured(middle) > limit else (middle, bad)
    return good, runs


def noise_of(name: str) -> Noise:
    if name == "normal":
        return lambda rng: rng.gauss(0.0, 0.05)
    with Path(name).open(newline="") as file:
        logs = [math.log(float(row["value"])) for row in csv.DictReader(file)]
    mean = statistics.fmean(logs)
    return lambda rng: rng.choice(logs) - mean


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=40)
    parser.add_argument("--noise", default="normal")
    parser.add_argument("--slower", type=float, default=3.0)
    parser.add_argument("--versions", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the first history; the next have the next ones")
    asked = parser.parse_args()
    noise, slower, versions = noise_of(asked.noise), asked.slower / 100, asked.versions
    rng = random.Random(1)
    spread = statistics.pstdev(noise(rng) for _ in range(2000))
    print(f"{asked.histories} histories of {versions} versions, {asked.slower:g}% slower at one, noise {spread:.1%}")
    print(f"{'':22} right pair   runs   named one where nothing changed   runs")
    ways: dict[str, Callable[[list[float], random.Random], tuple[int | None, int]]] = {
        "ridgeline ci bisect": lambda levels, rng: ours(levels, noise, slower, rng)
    }
    for each in (3, 5, 25, 101, 201):
        ways[f"medians of {each}"] = lambda levels, rng, each=each: by_medians(levels, noise, each, rng)  # type: ignore[misc]
    for name, way in ways.items():
        right, runs, alarms, null_runs = 0, 0, 0, 0
        count = asked.histories if name == "ridgeline ci bisect" else max(asked.histories, 200)
        for seed in range(asked.seed, asked.seed + count):
            rng = random.Random(seed)
            at = rng.randrange(versions - 1)
            found, took = way([math.log1p(slower) if place > at else 0.0 for place in range(versions)], rng)
            right, runs = right + (found == at), runs + took
            found, took = way([0.0] * versions, rng)
            alarms, null_runs = alarms + (found is not None), null_runs + took
        shares = (right / count, runs / count, alarms / count, null_runs / count)
        print("{:22} {:10.1%} {:6.0f} {:33.1%} {:6.0f}".format(name, *shares), flush=True)


if __name__ == "__main__":
    main()
