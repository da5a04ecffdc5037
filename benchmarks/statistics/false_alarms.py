"""How often the verdict calls equal settings different, and what it can see: campaigns with every kind of noise.

    python benchmarks/statistics/false_alarms.py [TABLE ...] [--campaigns 2000]

The order of a block's runs (`stats/compare.py`), the verdict (`stats/compare.py`) and the share of the error that
a look may spend (`campaign/extension.py`) are the real ones; `before` is protocol 2: settings began blocks in
turn, and nodes counted for little. A run's log speed is noise, plus the effect of the block's node, plus a drift along
the block or a wave over all runs, plus what a setting has on a node of its own. A false alarm is any candidate called
better or worse although all settings are the same; of equivalence (`stats/equivalence.py`) any candidate called
equivalent although it differs by more than the margin.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.campaign.confirmation import error_share
from ridgeline.stats.compare import PROTOCOL, Block, Confirmation, Verdict, confirm, order_of_block
from ridgeline.stats.equivalence import equivalence, share_left
from ridgeline.stats.equivalence import looks as early_looks
from ridgeline.study.codec import Extension
from ridgeline.study.history import History

Noise = Callable[[random.Random], Iterator[float]]


def plain(rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.gauss(0, 0.02)


def heavy(rng: random.Random) -> Iterator[float]:
    while True:
        yield (
            0.02 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3)
        )  # Student's with three degrees of freedom


def remembering(rng: random.Random) -> Iterator[float]:
    value = 0.0
    while True:
        value = 0.6 * value + 0.8 * rng.gauss(0, 0.02)
        yield value


def spiky(rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.gauss(0, 0.02) - (0.2 if rng.random() < 0.05 else 0.0)


def skewed(rng: random.Random) -> Iterator[float]:
    while True:
        yield 0.03 * (math.exp(0.5) - math.exp(rng.gauss(0, 1)))


@dataclass(frozen=True)
class World:
    """`first` is what the first run of a block loses, `own` what each setting has on each node alone."""

    noise: Noise = plain
    candidate_noise: Noise | None = None  # of the first candidate; None: as all
    first: float = 0.0
    own: float = 0.0
    drift: float = 0.005  # along a block, from run to run
    wave: float = 0.0  # its height, with a period of so many blocks and any phase
    period: float = 2.0
    nodes: int = 1
    gains: dict[int, float] = field(default_factory=dict)

    def blocks(self, rng: random.Random, top: int, blocks: int, seed: int, protocol: int = PROTOCOL) -> list[Block]:
        names = ["baseline", *(f"c{number}" for number in range(1, top + 1))]
        noise = self.noise(rng)
        other = noise if self.candidate_noise is None else self.candidate_noise(rng)
        own = self.own_speeds(rng, names)
        made = []
        phase = rng.random() * 2 * math.pi
        for number in range(blocks):
            effect, slope = rng.gauss(0, 0.05), rng.gauss(0, self.drift)
            runs: dict[str, list[float]] = {name: [] for name in names}
            for place, which in enumerate(order_of_block(len(names), number, 2, seed, protocol)):
                name = names[which]
                turns = (number + place / (2 * len(names))) / self.period
                log = effect + slope * place + own[name, number % self.nodes] + next(other if which == 1 else noise)
                log += math.log1p(self.gains.get(which, 0.0)) + (math.log1p(-self.first) if place == 0 else 0.0)
                log += self.wave * math.sin(2 * math.pi * turns + phase)
                runs[name].append(100 * math.exp(log))
            base, where = runs.pop("baseline"), (f"n{number % self.nodes}",)
            order = order_of_block(len(names), number, 2, seed, protocol) if protocol > 2 else ()
            made.append(Block(number, where, base, runs, order=tuple(names[w] if w else None for w in order)))
        return made

    def own_speeds(self, rng: random.Random, names: Sequence[str]) -> dict[tuple[str, int], float]:
        """What each setting has on each node alone: the first that a campaign draws."""
        return {(name, node): rng.gauss(0, self.own) for name in names for node in range(self.nodes)}


def alarm(result: Confirmation) -> bool:
    return any(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in result.comparisons.values())


def judged(blocks: list[Block], protocol: int = PROTOCOL, looks: int = 1) -> Confirmation:
    history = History(Path())
    history.extensions = [Extension(blocks=1)] * (looks - 1)
    history.extensions_compared = {*range(1, looks)}
    return confirm(blocks, 0.95, share=error_share(history), protocol=protocol)


BOTH = (2, PROTOCOL)


def rate(campaigns: int, world: World, top: int, blocks: int, protocol: int) -> float:
    """The share of campaigns with a false alarm; every one draws its own order."""
    alarms = 0
    for number in range(campaigns):
        made = world.blocks(random.Random(f"{number} {top} {blocks}"), top, blocks, number, protocol)
        alarms += alarm(judged(made, protocol))
    return alarms / campaigns


def seen(campaigns: int, world: World, top: int, blocks: int, protocol: int) -> float:
    """The share of campaigns that the first candidate wins."""
    won = 0
    for number in range(campaigns):
        made = world.blocks(random.Random(f"power {number}"), top, blocks, number, protocol)
        won += judged(made, protocol).winner == "c1"
    return won / campaigns


def waves(campaigns: int) -> None:
    print("\nFalse alarms under a wave of 5% of so many blocks, any phase, one candidate (before -> now)\n")
    periods = {"1": 1.0, "2": 2.0, "3": 3.0, "4": 4.0, "6": 6.0, "2.718": math.e}
    print("| blocks | " + " | ".join(periods) + " |\n" + "|---" * (1 + len(periods)) + "|")
    for blocks in (3, 5, 8):
        worlds = [World(wave=0.05, period=period) for period in periods.values()]
        cells = (" -> ".join(f"{rate(campaigns, world, 1, blocks, p):.1%}" for p in BOTH) for world in worlds)
        print(f"| {blocks} | {' | '.join(cells)} |", flush=True)


def first_run(campaigns: int) -> None:
    print("\nFalse alarms where the first run of a block is slower (before -> now)\n")
    effects = (0.0, 0.01, 0.02, 0.05, 0.10)
    print("| candidates | blocks | " + " | ".join("none" if not e else f"{e:.0%}" for e in effects) + " |")
    print("|---" * (2 + len(effects)) + "|")
    for top in (1, 3):
        for blocks in (3, 5, 8):
            cells = []
            for effect in effects:
                before, now = (rate(campaigns, World(first=effect), top, blocks, protocol) for protocol in BOTH)
                cells.append(f"{before:.1%} -> {now:.1%}")
            print(f"| {top} | {blocks} | {' | '.join(cells)} |", flush=True)


def noise(campaigns: int) -> None:
    print("\nFalse alarms by kind of noise, one candidate (before -> now)\n")
    kinds: dict[str, World] = {
        "plain": World(),
        "heavy tails (t, 3 degrees of freedom)": World(noise=heavy),
        "each run 0.6 of the one before": World(noise=remembering),
        "5% of the runs 20% slow": World(noise=spiky),
        "the candidate's skewed (log-normal)": World(candidate_noise=skewed),
    }
    print("| noise | 3 blocks | 5 blocks | 8 blocks |\n|---|---|---|---|")
    for name, world in kinds.items():
        cells = [
            " -> ".join(f"{rate(campaigns, world, 1, blocks, protocol):.1%}" for protocol in BOTH)
            for blocks in (3, 5, 8)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def nodes(campaigns: int) -> None:
    print(
        "\nSettings, equal over all nodes, that differ by so much on each, called different in 8 blocks (before -> now;"
    )
    print("in brackets what is said of the nodes of the blocks alone); and +5% seen where nodes don't matter\n")
    spreads, claims, wrong = (0.0, 0.01, 0.02, 0.05), 0, 0
    print("| nodes | " + " | ".join(f"{own:.0%}" for own in spreads) + " | +5%, 5 blocks | +5%, 8 blocks |")
    print("|---" * (3 + len(spreads)) + "|")
    for count in (1, 2, 3, 4, 8):
        cells = []
        for own in spreads:
            world, general, alone = World(own=own, nodes=count), 0, 0
            for number in range(campaigns):
                seed = f"{number} 1 8"
                judged_now = judged(world.blocks(random.Random(seed), 1, 8, number)).comparisons["c1"]
                if judged_now.verdict not in (Verdict.BETTER, Verdict.WORSE):
                    continue
                about_these = count == 1 or judged_now.only_here
                alone, general = alone + about_these, general + (not about_these)
                if about_these and own:
                    speeds = world.own_speeds(random.Random(seed), ("baseline", "c1"))
                    true = sum(speeds["c1", node] - speeds["baseline", node] for node in range(count))
                    claims, wrong = claims + 1, wrong + ((true > 0) != (judged_now.verdict is Verdict.BETTER))
            cells.append(
                f"{rate(campaigns, world, 1, 8, 2):.1%} -> {general / campaigns:.1%} [{alone / campaigns:.1%}]"
            )
        gained = World(gains={1: 0.05}, nodes=count)
        for blocks in (5, 8):
            cells.append(" -> ".join(f"{seen(campaigns, gained, 1, blocks, p):.0%}" for p in BOTH))
        print(f"| {count} | {' | '.join(cells)} |", flush=True)
    print(f"\nOf {claims} claims about the nodes of the blocks alone, on which settings differ, {wrong} were wrong.")


def looks(campaigns: int) -> None:
    print("\nFalse alarms at any look, 5 blocks and then extended by so many (before -> now)\n")
    print("| extended by | 1 look | 2 looks | 3 looks | 4 looks |\n|---|---|---|---|---|")
    for more in (1, 3, 5):
        rates = []
        for protocol in BOTH:
            at_any = [0, 0, 0, 0]
            for number in range(campaigns):
                made = World().blocks(random.Random(f"look {number}"), 1, 5 + more * 3, number, protocol)
                cried = [alarm(judged(made[: 5 + more * at], protocol, at + 1)) for at in range(4)]
                at_any = [so_far + any(cried[: at + 1]) for at, so_far in enumerate(at_any)]
            rates.append([alarms / campaigns for alarms in at_any])
        cells = [f"{before:.1%} -> {now:.1%}" for before, now in zip(*rates, strict=True)]
        print(f"| {more} | {' | '.join(cells)} |", flush=True)


def power(campaigns: int) -> None:
    gains = (0.02, 0.05, 0.10)
    print("\nCampaigns that see a gain of the first candidate, noise of a run 2% (before -> now)\n")
    print("| candidates | blocks | nodes | drift a run | " + " | ".join(f"+{gain:.0%}" for gain in gains) + " |")
    print("|---" * (4 + len(gains)) + "|")
    rows = [(top, blocks, 1, 0.005) for top in (1, 3) for blocks in (3, 5, 8)]
    rows += [(1, 5, 1, 0.02), (3, 5, 1, 0.02)]
    rows += [(1, blocks, nodes, 0.005) for nodes in (2, 3, 4, 8) for blocks in (5, 8)]
    for top, blocks, nodes, drift in rows:
        cells = []
        for gain in gains:
            world = World(gains={1: gain}, nodes=nodes, drift=drift)
            cells.append(" -> ".join(f"{seen(campaigns // 2, world, top, blocks, p):.0%}" for p in BOTH))
        print(f"| {top} | {blocks} | {nodes} | {drift:.1%} | {' | '.join(cells)} |", flush=True)


def equivalents(campaigns: int) -> None:
    """The verdict of `stop_when: equivalent within 1.5%`, with all its looks, at the edge of the margin and within."""
    margin, kinds = 0.015, {"plain": World(), "heavy tails": World(noise=heavy), "on 3 nodes": World(nodes=3)}
    print("\nCampaigns that call a setting equivalent (within 1.5%) that differs by 1.51%, and that call all equal")
    print("settings equivalent; noise of a run 0.5%, so many settings, stopping at the first look that decides\n")
    print("| noise | settings | blocks | beyond the margin, called equivalent | no effect, all called equivalent |")
    print("|---|---|---|---|---|")
    for name, kind in kinds.items():
        for top in (1, 6, 24):
            for blocks in (5, 12):
                planned = {**early_looks(blocks), blocks: share_left(blocks, blocks)}
                called = []
                for gain in (margin + 0.0001, 0.0):
                    gains = {n: gain if n % 2 else 1 / (1 + gain) - 1 for n in range(1, top + 1)}
                    world, times = replace(kind, noise=quarter(kind.noise), gains=gains), 0
                    for number in range(campaigns):
                        made = world.blocks(random.Random(f"equal {number} {top}"), top, blocks, number)
                        found = (equivalence(made[:n], margin, share=0.8 * part) for n, part in planned.items())
                        if gain:
                            times += any(t.decision == "equivalent" for one in found for t in one.tests)
                        else:
                            times += any(one.holds for one in found)
                    called.append(times / campaigns)
                print(f"| {name} | {top} | {blocks} | {called[0]:.1%} | {called[1]:.0%} |", flush=True)


def quarter(noise: Noise) -> Noise:
    def quieter(rng: random.Random) -> Iterator[float]:
        for value in noise(rng):
            yield value / 4

    return quieter


TABLES: dict[str, Callable[[int], None]] = {
    "waves": waves,
    "first-run": first_run,
    "noise": noise,
    "nodes": nodes,
    "looks": looks,
    "power": power,
    "equivalence": equivalents,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all of them by default")
    parser.add_argument("--campaigns", type=int, default=2000)
    arguments = parser.parse_args()
    error = 2 * math.sqrt(0.05 * 0.95 / arguments.campaigns)
    print(f"{arguments.campaigns} campaigns a cell (a rate near 5% is known to +-{error:.1%})")
    for name in arguments.tables or TABLES:
        TABLES[name](arguments.campaigns)


if __name__ == "__main__":
    main()
