"""What a sampler is worth: crashes paid and the true speed of the setting it would hand to the confirmation.

    python benchmarks/samplers.py [--trials 60] [--seeds 20] [--noise 0.03]

Three toy spaces with known truth. One noisy run per setting, as in a campaign; a setting in the failing region costs
a trial and tells nothing but that it failed. "Found" is the true speed of the setting that looked best, as a share of
the best there is; "seen" is the same as the search saw it (the winner's curse is the gap).
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline import catalog
from ridgeline.records.expression import Expression
from ridgeline.records.observation import Observation
from ridgeline.records.space import Discrete, Point, Rule, Space


@dataclass(frozen=True)
class Toy:
    """`truth` is the log speed of a point, None where the setting fails."""

    name: str
    space: Space
    truth: Callable[[Point], float | None]


def number(point: Point, name: str) -> float:
    value = point[name]
    assert isinstance(value, int | float)
    return float(value)


def stencil() -> Toy:
    space = Space(
        (
            Discrete("block", tuple(2**i for i in range(3, 11)), True),
            Discrete("threads", tuple(range(1, 17)), True),
            Discrete("schedule", ("static", "dynamic", "guided"), False),
            Discrete("unroll", (1, 2, 4, 8), True),
        ),
        {},
    )

    def truth(point: Point) -> float:
        threads = number(point, "threads")
        speed = math.log(threads / (1 + 0.05 * threads + 0.006 * threads**2))
        speed -= 0.08 * (math.log2(number(point, "block")) - 7) ** 2
        speed -= {"static": 0.0, "dynamic": 0.1, "guided": 0.04}[str(point["schedule"])]
        return speed - 0.02 * (math.log2(number(point, "unroll")) - 2) ** 2

    return Toy("stencil, nothing fails", space, truth)


def serving() -> Toy:
    space = Space(
        (
            Discrete("tp", (1, 2, 4, 8, 16), True),
            Discrete("pp", (1, 2, 4), True),
            Discrete("running", tuple(2**i for i in range(6, 13)), True, log=True),
            Discrete("memory", tuple(round(0.70 + 0.02 * i, 2) for i in range(13)), True),
            Discrete("backend", ("fa3", "flashinfer", "triton"), False),
            Discrete("page", (1, 16, 32, 64), True, when=Expression.parse("backend == 'fa3'")),
        ),
        {},
        (Rule(Expression.parse("tp * pp not in (8, 16)"), "use one whole node or both"),),
    )

    def truth(point: Point) -> float | None:
        tp, pp = number(point, "tp"), number(point, "pp")
        running, memory = number(point, "running"), number(point, "memory")
        if memory + 0.02 * (math.log2(running) - 6) > 0.945 or (tp * pp == 8 and memory < 0.8):
            return None
        speed = 0.12 * min(math.log2(running), 6 + 30 * (memory - 0.7)) + 0.1 * math.log2(tp * pp)
        speed -= (
            0.05 * (math.log2(tp) - 3) ** 2 + {"fa3": 0.0, "flashinfer": 0.05, "triton": 0.2}[str(point["backend"])]
        )
        return speed + (0.02 if point.get("page") == 16 else 0.0)

    return Toy("serving, half fails", space, truth)


def nuisance() -> Toy:
    """Two knobs matter, six do nothing: most flags of most programs."""
    knobs = [Discrete("a", tuple(range(12)), True), Discrete("b", tuple(range(12)), True)]
    knobs += [Discrete(f"flag{i}", (False, True), False) for i in range(6)]

    def truth(point: Point) -> float | None:
        a, b = number(point, "a"), number(point, "b")
        if a + b > 17:
            return None
        return -0.01 * (a - 9) ** 2 - 0.015 * (b - 7) ** 2

    return Toy("two knobs matter of eight", Space(tuple(knobs), {}), truth)


@dataclass(frozen=True)
class Score:
    crashes: int
    found: float
    seen: float
    ask_ms: float


def search(toy: Toy, sampler_name: str, seed: int, trials: int, noise: float, best: float) -> Score:
    options = {"order": "shuffled"} if sampler_name == "grid" else {}
    sampler = catalog.part("samplers", sampler_name)(toy.space, seed, options, lambda point: None)
    rng = random.Random(f"noise {seed}")
    crashes, spent = 0, 0.0
    results: list[tuple[float, float]] = []
    for _ in range(trials):
        start = time.perf_counter()
        proposal = sampler.ask()
        spent += time.perf_counter() - start
        if proposal is None:
            break
        truth = toy.truth(proposal.point)
        if truth is None:
            crashes += 1
            sampler.tell(Observation(proposal.point, None))
            continue
        value = math.exp(truth + rng.gauss(0, noise))
        results.append((value, truth))
        sampler.tell(Observation(proposal.point, value))
    seen, truth = max(results, default=(0.0, -math.inf))
    return Score(crashes, math.exp(truth - best), seen / math.exp(best), 1000 * spent / trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.03)
    arguments = parser.parse_args()
    print(f"{arguments.trials} trials, {arguments.seeds} seeds, noise {arguments.noise:.0%}; +- is one standard error")
    for toy in (stencil(), serving(), nuisance()):
        legal = [point for point in toy.space.points() if toy.space.refusal(point) is None]
        truths = [truth for truth in map(toy.truth, legal) if truth is not None]
        print(f"\n{toy.name}: {len(legal):,} legal points, {1 - len(truths) / len(legal):.0%} of them fail")
        print("  sampler   crashes paid    found (of best)    seen     ask")
        for name in ("grid", "random", "guided"):
            scores = [
                search(toy, name, seed, arguments.trials, arguments.noise, max(truths))
                for seed in range(arguments.seeds)
            ]
            crashes, found = [s.crashes for s in scores], [s.found for s in scores]
            error = statistics.stdev(found) / math.sqrt(len(found))
            seen = statistics.mean(s.seen for s in scores)
            ask_ms = statistics.mean(s.ask_ms for s in scores)
            print(
                f"  {name:8} {statistics.mean(crashes):8.1f}        {statistics.mean(found):7.1%} +- {error:.1%}"
                f"   {seen:7.1%}  {ask_ms:5.1f} ms"
            )


if __name__ == "__main__":
    main()
