"""Do the stated rates of a gate hold? References and gates drawn from several kinds of noise.

    python benchmarks/over_time/gate.py [--gates 500] [--csv noise.csv] [--slower 3] [--seed 0]
        [--only TEXT] [--walks 60000] [--in-turn]

For each gate a reference is measured as `ridgeline ci gate --update` does, then one gate of the same program and one of
a program slower by what the gate says it finds. Stated: 1 false alarm in 100, 90% found. Each of the three is a session
of its own: runs that depend on the one before begin anew in it. `--in-turn`: no reference, but the old program in turn
with the new one, as `--against-command` does, in one session.
Most of the time goes into simulating the limits; `--walks 20000` takes a third of it, and limits that are less exact.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from ridgeline.stats import gate
from ridgeline.stats.gate import FEWEST_REFERENCE, gate_plan, judge_gate, judge_pairs, pairs_plan, reference_wanted

Session = Callable[[random.Random], Iterator[float]]  # the runs of one session, for ever


def alone(draw: Callable[[random.Random], float]) -> Session:
    """Runs that do not depend on each other."""

    def session(rng: random.Random) -> Iterator[float]:
        while True:
            yield draw(rng)

    return session


def following(share: float, spread: float) -> Session:
    """Each run's deviation keeps this share of the last one's: a neighbour, a warm machine, a cache."""

    def session(rng: random.Random) -> Iterator[float]:
        at = rng.gauss(0.0, spread)
        while True:
            yield math.exp(at)
            at = share * at + math.sqrt(1 - share**2) * rng.gauss(0.0, spread)

    return session


def warming(by: float, over: float, spread: float) -> Session:
    """Every session becomes slower by `by`, most of it within `over` runs."""

    def session(rng: random.Random) -> Iterator[float]:
        for run in itertools.count():
            yield (1 + by * (1 - math.exp(-run / over))) * rng.lognormvariate(0.0, spread)

    return session


def staying(stay: float, apart: float, spread: float) -> Session:
    """Two modes, and the next run is in the same one with this probability: a turbo, a placement of memory."""

    def session(rng: random.Random) -> Iterator[float]:
        slow = rng.random() < 0.5
        while True:
            yield (1 + apart if slow else 1.0) * rng.lognormvariate(0.0, spread)
            slow = slow == (rng.random() < stay)

    return session


def student(spread: float, rng: random.Random) -> float:
    """Student's t with two degrees of freedom: no variance at all."""
    return math.exp(spread * rng.gauss(0.0, 1.0) / math.sqrt(rng.expovariate(1.0)))


SHAPES: dict[str, Session] = {
    "normal, 5%": alone(lambda rng: rng.lognormvariate(0.0, 0.05)),
    "normal, 1%": alone(lambda rng: rng.lognormvariate(0.0, 0.01)),
    "two modes, 6% apart": alone(lambda rng: rng.choice((0.97, 1.03)) * rng.lognormvariate(0.0, 0.01)),
    "one in ten 25% slower": alone(lambda rng: (1.25 if rng.random() < 0.1 else 1) * rng.lognormvariate(0.0, 0.02)),
    "long tail": alone(lambda rng: 1.0 + 0.03 * rng.expovariate(1.0) ** 2),
    "tails without variance": alone(lambda rng: student(0.02, rng)),
    "one clock tick in 40": alone(lambda rng: round(40 * rng.lognormvariate(0.0, 0.03)) / 40),
    "follows by 0.3, 3%": following(0.3, 0.03),
    "follows by 0.6, 3%": following(0.6, 0.03),
    "follows by 0.9, 3%": following(0.9, 0.03),
    "modes that stay, 0.8": staying(0.8, 0.04, 0.01),
    "warms up by 2%": warming(0.02, 10.0, 0.02),
    "slower by 4% an hour": warming(0.04, 100.0, 0.02),
    "30% load, on and off": staying(0.85, 0.3, 0.02),
}
MOST_STORED, MOST_RUNS = 1000, 600
MOST_PAIRS = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gates", type=int, default=500)
    parser.add_argument("--csv", default="")
    parser.add_argument("--slower", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first gate; the next have the next ones")
    parser.add_argument("--only", default="", help="only the kinds of noise with this in their name")
    parser.add_argument("--walks", type=int, default=gate._WALKS, help="by which the limits are simulated")
    parser.add_argument("--in-turn", action="store_true", help="pairs of old and new instead of a reference")
    asked = parser.parse_args()
    gate._WALKS = asked.walks
    shapes = dict(SHAPES)
    if asked.csv:
        with Path(asked.csv).open(newline="") as file:
            values = [float(row["value"]) for row in csv.DictReader(file)]
        shapes["measured"] = alone(lambda rng: rng.choice(values))
    print(f"{'noise':22} stored   most  finds   false alarms   runs   found   runs")
    for name, session in shapes.items():
        if asked.only in name:
            (measure_in_turn if asked.in_turn else measure)(name, session, asked)


def measure_in_turn(name: str, session: Session, asked: argparse.Namespace) -> None:
    most, finds, alarms, quiet_runs, found, slow_runs = [], [], 0, [], 0, []
    for seed in range(asked.seed, asked.seed + asked.gates):
        rng = random.Random(seed)
        runs = session(rng)
        drawn = [(next(runs), next(runs)) for _ in range(MOST_PAIRS)]
        pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in drawn]
        plan = pairs_plan(pairs, "minimize", asked.slower / 100, most_pairs=MOST_PAIRS)
        quiet = judge_pairs(plan, pairs, "minimize")
        slowed = judge_pairs(plan, [(old, new * (1 + plan.slower)) for old, new in pairs], "minimize")
        alarms, found = alarms + bool(quiet.slower), found + bool(slowed.slower)
        for into, value in ((most, plan.most_runs), (finds, plan.slower), (quiet_runs, quiet.runs)):
            into.append(value)
        slow_runs.append(slowed.runs)
    means = [statistics.fmean(each) for each in (most, finds, quiet_runs, slow_runs)]
    print(
        f"{name:22}      - {means[0]:6.0f} {means[1]:6.1%} {alarms / asked.gates:14.1%} {means[2]:6.0f} "
        f"{found / asked.gates:7.1%} {means[3]:6.0f}",
        flush=True,
    )


def wanted_by(stored: list[float], slower: float) -> int:
    return reference_wanted(stored, "minimize", slower, 0.01, 0.9, MOST_STORED)


def measure(name: str, session: Session, asked: argparse.Namespace) -> None:
    stored_runs, most, finds, alarms, quiet_runs, found, slow_runs = [], [], [], 0, [], 0, []
    for seed in range(asked.seed, asked.seed + asked.gates):
        rng = random.Random(seed)
        reference = session(rng)
        stored = list(itertools.islice(reference, FEWEST_REFERENCE))
        while (wanted := wanted_by(stored, asked.slower / 100)) > len(stored):
            stored += itertools.islice(reference, wanted - len(stored))
        plan = gate_plan(stored, "minimize", asked.slower / 100, most_runs=MOST_RUNS)
        quiet = judge_gate(plan, stored, list(itertools.islice(session(rng), plan.most_runs)), "minimize")
        slow = [value * (1 + plan.slower) for value in itertools.islice(session(rng), plan.most_runs)]
        slowed = judge_gate(plan, stored, slow, "minimize")
        alarms, found = alarms + bool(quiet.slower), found + bool(slowed.slower)
        stored_runs.append(len(stored))
        most.append(plan.most_runs)
        finds.append(plan.slower)
        quiet_runs.append(quiet.runs)
        slow_runs.append(slowed.runs)
    means = [statistics.fmean(each) for each in (stored_runs, most, finds, quiet_runs, slow_runs)]
    print(
        f"{name:22} {means[0]:6.0f} {means[1]:6.0f} {means[2]:6.1%} {alarms / asked.gates:14.1%} {means[3]:6.0f} "
        f"{found / asked.gates:7.1%} {means[4]:6.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
