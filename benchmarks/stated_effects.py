"""How often "what brought it" is right: campaigns over made-up spaces whose every effect is known.

    python benchmarks/stated_effects.py [--campaigns 40] [--noise 0.03] [--disturbed 0.05]

A space has 3 to 7 knobs; two of five do nothing, others act alone or together with another. A few runs are disturbed
(20 to 60% slow). An effect that is stated (its interval excludes none) is real when moving that knob alone, at the
baseline or at the winner, changes the speed in the stated direction; it is covered when one of the two lies inside the
stated interval. "Seen" is the share of effects above 5% that were stated.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline import catalog
from ridgeline.records.observation import Observation
from ridgeline.records.space import Discrete, Point, Space
from ridgeline.stats.contribution import Contribution, contributions

Truth = Callable[[Point], float]


@dataclass(frozen=True)
class Campaign:
    baseline: Point
    winner: Point
    trials: list[tuple[Point, float]]
    truth: Truth


def knobs_of(rng: random.Random) -> list[Discrete]:
    made = []
    for number in range(rng.randint(3, 7)):
        count, ordered = rng.choice([2, 2, 3, 4, 5, 8]), rng.random() < 0.5
        values = tuple(2**n for n in range(count)) if ordered else tuple(f"v{n}" for n in range(count))
        made.append(Discrete(f"k{number}", values, ordered))
    return made


def truth_over(knobs: list[Discrete], rng: random.Random) -> Truth:
    sizes = {knob.name: 0.0 if rng.random() < 0.4 else rng.choice([0.02, 0.1, 0.3, 0.6]) for knob in knobs}
    alone = {knob.name: {v: rng.gauss(0, sizes[knob.name]) for v in knob.values} for knob in knobs}
    acting = [knob for knob in knobs if sizes[knob.name]]
    together = [
        (a.name, b.name, {pair: rng.gauss(0, size) for pair in itertools.product(a.values, b.values)})
        for a, b in itertools.combinations(acting, 2)
        if rng.random() < 0.35
        for size in [rng.choice([0.1, 0.3])]
    ]

    def truth(point: Point) -> float:
        both = sum(table[point[a], point[b]] for a, b, table in together)
        return sum(alone[name][value] for name, value in point.items()) + both

    return truth


def campaign(seed: int, sampler_name: str, trials: int, noise: float, disturbed: float) -> Campaign:
    rng = random.Random(seed)
    knobs = knobs_of(rng)
    truth = truth_over(knobs, rng)
    baseline: Point = {knob.name: rng.choice(knob.values) for knob in knobs}
    sampler = catalog.part("samplers", sampler_name)(Space(tuple(knobs), {}), seed, {}, lambda point: None)

    def run(point: Point) -> tuple[Point, float]:
        slow = rng.uniform(0.4, 0.8) if rng.random() < disturbed else 1.0
        value = slow * math.exp(truth(point) + rng.gauss(0, noise))
        sampler.tell(Observation(point, value))
        return point, value

    seen = [run(baseline), run(baseline)]
    for _ in range(trials):
        proposal = sampler.ask(())
        if proposal is None:
            break
        seen.append(run(proposal.point))
    return Campaign(baseline, max(seen[2:], key=lambda trial: trial[1])[0], seen, truth)


def true_changes(of: Campaign, part: Contribution) -> tuple[float, float]:
    """Moving the knobs alone: away from the baseline, and on to the winner."""
    here = dict(of.baseline) | {name: of.winner[name] for name in part.knobs}
    there = dict(of.winner) | {name: of.baseline[name] for name in part.knobs}
    return of.truth(here) - of.truth(of.baseline), of.truth(of.winner) - of.truth(there)


def score(of: Campaign) -> Counter[str]:
    counts: Counter[str] = Counter()
    for part in contributions(of.baseline, of.winner, of.trials, "maximize"):
        changes = true_changes(of, part)
        large = max(map(abs, changes)) > 0.05
        counts["large"] += large
        if part.detectable:
            sign = math.copysign(1.0, part.change)
            low, high = math.log1p(part.low), math.log1p(part.high)
            counts["stated"] += 1
            counts["seen"] += large
            counts["real"] += max(sign * change for change in changes) > 0.005
            counts["covered"] += low <= max(changes) and high >= min(changes)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=40)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--disturbed", type=float, default=0.05)
    asked = parser.parse_args()
    print("sampler  trials  stated   real  covered   seen")
    total: Counter[str] = Counter()
    for sampler, trials in itertools.product(("random", "guided"), (8, 12, 20, 40, 60)):
        counts: Counter[str] = Counter()
        for seed in range(asked.campaigns):
            counts += score(campaign(1000 * seed + trials, sampler, trials, asked.noise, asked.disturbed))
        print(f"{sampler:7}  {trials:6}  {line(counts)}")
        total += counts
    print(f"all              {line(total)}")


def line(counts: Counter[str]) -> str:
    stated, large = max(1, counts["stated"]), max(1, counts["large"])
    shares = f"{counts['real'] / stated:6.1%}  {counts['covered'] / stated:7.1%} {counts['seen'] / large:6.1%}"
    return f"{counts['stated']:6} {shares}"


if __name__ == "__main__":
    main()
