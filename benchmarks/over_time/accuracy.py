"""How often the accuracy guard is right, and how many questions it takes.

    python benchmarks/over_time/accuracy.py [--cases 4000] [--seed 1]

Each case is a setting that answers the same questions as the baseline: `differing` of its answers change between right
and wrong, and `lost` is what it loses net. Beside the guard: the same rule after all questions at once, which is what
most people do, and the two accuracies compared without pairing them. The last column is the share of a campaign's node
time that questions take: 24 settings asked once each, in 63 runs of 300 s (baseline, search, confirmation), at
20 answers a second (128 tokens each at 2,560 tokens a second); `--run-s` and `--answers-s` are yours.
"""

from __future__ import annotations

import argparse
import math
import random
from statistics import NormalDist

from ridgeline.stats.accuracy import ERROR, accuracy_change, looks

SETTINGS, RUNS = 24, 63  # of a campaign: 20 trials of a search, 3 of the baseline, 4 settings in 5 blocks of 2
ALLOWED, RIGHT = 0.02, 0.85  # what a setting may lose; the baseline's accuracy


def drawn(total: int, differing: float, lost: float, chance: random.Random) -> list[int]:
    """For each question: -1 broken, 1 fixed, 0 as before."""
    broken, fixed = (differing + lost) / 2, (differing - lost) / 2
    return chance.choices([-1, 1, 0], [broken, fixed, 1 - broken - fixed], k=total)


def guarded(changes: list[int]) -> tuple[bool, int]:
    for asked in looks(len(changes)):
        seen = changes[:asked]
        found = accuracy_change(asked, seen.count(-1), seen.count(1), len(changes), ALLOWED)
        if found.decision != "open":
            return found.decision == "kept", asked
    return False, len(changes)


def unpaired(changes: list[int]) -> bool:
    """Both accuracies, each with its own binomial error."""
    total, z = len(changes), NormalDist().inv_cdf(1 - ERROR)
    other = RIGHT + sum(changes) / total
    error = math.sqrt((RIGHT * (1 - RIGHT) + max(0.0, other * (1 - other))) / total)
    return other - RIGHT - z * error > -ALLOWED


def share_of_time(questions: float, total: int, run_s: float, answers_s: float) -> float:
    """The baseline answers all of them, every other setting as many as it takes; confirmation asks nobody again."""
    asking_s = (total + (SETTINGS - 1) * questions) / answers_s
    return asking_s / (asking_s + RUNS * run_s)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--cases", type=int, default=4000)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--run-s", type=float, default=300.0)
    ask.add_argument("--answers-s", type=float, default=20.0)
    asked = ask.parse_args()
    chance = random.Random(asked.seed)
    print(
        "| questions | answers that differ | lost | passes: guard | questions asked | passes: unpaired, all asked |"
        " time |"
    )
    print("|---|---|---|---|---|---|---|")
    for total in (760, 1570):
        for differing in (0.0, 0.01, 0.02, 0.05):
            for lost in (0.0, 0.02, 0.03):
                if lost > differing:
                    continue
                cases = [drawn(total, differing, lost, chance) for _ in range(asked.cases)]
                passed = [guarded(changes) for changes in cases]
                alone = sum(map(unpaired, cases)) / len(cases)
                share, needed = (sum(row[n] for row in passed) / len(passed) for n in (0, 1))
                cells = (total, f"{differing:.0%}", f"{lost:.0%}", f"{share:.1%}", f"{needed:.0f}", f"{alone:.1%}")
                cells = (*cells, f"{share_of_time(needed, total, asked.run_s, asked.answers_s):.1%}")
                print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
