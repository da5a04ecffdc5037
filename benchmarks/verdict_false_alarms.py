"""How often the confirm verdict cries wolf, and what it can see: simulated campaigns with noise, nodes and drift.

    python benchmarks/verdict_false_alarms.py [--campaigns 2000] [--noise 0.02]

Each campaign runs `blocks` palindromic blocks (baseline and `top` candidates, twice each). A run's time is log-normal
noise times the effect of the block's node, times a drift along the block, times an interaction of setting and node.
A false alarm is any candidate called better or worse although all settings are the same.
"""

from __future__ import annotations

import argparse
import math
import random

from ridgeline.stats.compare import Block, Verdict, confirm


def campaign(rng: random.Random, top: int, blocks: int, noise: float, gains: dict[str, float]) -> list[Block]:
    """Blocks of one simulated confirmation; `gains` are true speed-ups, as fractions, of candidates c0, c1..."""
    names = ["baseline", *(f"c{i}" for i in range(top))]
    made = []
    for number in range(blocks):
        node = rng.gauss(0, 0.05)
        slope = rng.gauss(0, 0.01)  # per run: a machine that warms up or fills up
        interaction = {name: rng.gauss(0, noise / 4) for name in names}
        order = [*names, *reversed(names)]
        runs: dict[str, list[float]] = {name: [] for name in names}
        for place, name in enumerate(order):
            log_rate = math.log1p(gains.get(name, 0.0)) + node + slope * place + interaction[name] + rng.gauss(0, noise)
            runs[name].append(100 * math.exp(log_rate))
        made.append(Block(number, (f"n{number % 2}",), runs.pop("baseline"), runs))
    return made


def false_alarms(campaigns: int, top: int, blocks: int, noise: float, first: int = 0) -> float:
    alarms = 0
    for seed in range(first, first + campaigns):
        result = confirm(campaign(random.Random(f"null {seed} {top} {blocks}"), top, blocks, noise, {}))
        alarms += any(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in result.comparisons.values())
    return alarms / campaigns


def power_and_coverage(campaigns: int, top: int, blocks: int, noise: float, gain: float) -> tuple[float, float]:
    """Share of campaigns that name the one better setting, and share of their intervals that hold the true ratio."""
    named = covered = winners = 0
    for seed in range(campaigns):
        rng = random.Random(f"power {seed} {top} {blocks} {gain}")
        result = confirm(campaign(rng, top, blocks, noise, {"c0": gain}))
        named += result.winner == "c0"
        if result.winner is not None:
            winners += 1
            winner = result.comparisons[result.winner]
            assert winner.low is not None
            assert winner.high is not None
            truth = 1 + (gain if result.winner == "c0" else 0.0)
            covered += winner.low <= truth <= winner.high
    return named / campaigns, covered / winners if winners else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--noise", type=float, default=0.02, help="standard deviation of a run, in logs")
    arguments = parser.parse_args()
    gains = (0.02, 0.05, 0.10)
    noise, campaigns = arguments.noise, arguments.campaigns
    error = 2 * math.sqrt(0.05 * 0.95 / campaigns)
    print(f"{campaigns} campaigns a row (a rate near 5% is known to +-{error:.1%})")
    print(f"noise of a run {noise:.1%}, node effects 5%, drift 1% a run, setting x node {noise / 4:.1%}")
    print("top blocks  false alarms   power at " + "  ".join(f"+{gain:.0%}".rjust(5) for gain in gains) + "   coverage")
    rates: dict[tuple[int, int], float] = {}
    for top in range(1, 6):
        for blocks in range(3, 9):
            rates[top, blocks] = false_alarms(campaigns, top, blocks, noise)
            seen = [power_and_coverage(campaigns // 4, top, blocks, noise, gain) for gain in gains]
            powers = "  ".join(f"{power:5.0%}" for power, _ in seen)
            print(f"{top:3d} {blocks:6d} {rates[top, blocks]:13.1%}            {powers} {seen[-1][1]:10.1%}")
    top, blocks = max(rates, key=lambda row: rates[row])
    print(f"mean of all rows {sum(rates.values()) / len(rates):.2%}; worst row {rates[top, blocks]:.1%}")
    again = false_alarms(10 * campaigns, top, blocks, noise, first=campaigns)
    print(f"the worst row again with {10 * campaigns} fresh campaigns: {again:.2%} (nominal 5%, limit 6%)")


if __name__ == "__main__":
    main()
