"""What races say together: trials against a yardstick's, table by table and over all tables, with intervals."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.search.race import LOOKS, Race

YARDSTICK = "tpe"
RIVALS = ("tpe", "random")  # nobody should be better off with the better of these two
DRAWS = 2_000  # of the bootstrap over seeds
Reached = Mapping[str, Mapping[str, Sequence[int]]]  # trials to 2%, by sampler and table


def capped(number: float, trials: int) -> str:
    return f">{trials}" if number > trials else f"{number:.1f}"


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the medians."""
    return statistics.median(one) / statistics.median(other)


def over_tables(one: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]]) -> float:
    """The middle of the ratios of medians, over the tables that both raced."""
    return statistics.median(ratio(one[name], other[name]) for name in one if name in other)


def _drawn(reached: Mapping[str, Sequence[int]], rng: random.Random) -> dict[str, list[int]]:
    return {name: rng.choices(values, k=len(values)) for name, values in reached.items()}


def interval(one: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]]) -> tuple[float, float]:
    """90%, by drawing seeds again; the tables stay as they are."""
    rng = random.Random(0)
    found = sorted(over_tables(_drawn(one, rng), _drawn(other, rng)) for _ in range(DRAWS))
    return found[int(0.05 * DRAWS)], found[int(0.95 * DRAWS)]


def show_ratios(races: Iterable[tuple[str, Race]], trials: int) -> None:
    reached: dict[str, dict[str, list[int]]] = {}
    crashes: dict[str, dict[str, list[int]]] = {}
    for name, one in races:
        reached.setdefault(one.sampler, {}).setdefault(name, []).append(one.found_at or trials + 1)
        crashes.setdefault(one.sampler, {}).setdefault(name, []).append(one.crashes)
    if YARDSTICK not in reached:
        return
    yardstick = reached[YARDSTICK]
    for sampler in [sampler for sampler in reached if sampler != YARDSTICK]:
        print(f"\n{sampler} against {YARDSTICK}: median trials, 90% interval over seeds; crashes")
        shared = [name for name in reached[sampler] if name in yardstick]
        for name in shared:
            low, high = interval({name: reached[sampler][name]}, {name: yardstick[name]})
            told = f"{ratio(reached[sampler][name], yardstick[name]):.2f} ({low:.2f} to {high:.2f})"
            print(f"  {name:24} {told}   {_crash_ratio(crashes[sampler][name], crashes[YARDSTICK][name])}")
        if shared:
            low, high = interval(reached[sampler], yardstick)
            print(
                f"  {'the middle of all':24} {over_tables(reached[sampler], yardstick):.2f} ({low:.2f} to {high:.2f})"
            )


def _crash_ratio(own: Sequence[int], theirs: Sequence[int]) -> str:
    return f"{statistics.mean(own) / statistics.mean(theirs):.2f}" if any(theirs) else "none"


def show_regrets(races: Iterable[tuple[str, Race]]) -> None:
    """Median true regret after so many trials, against that of the better of the rivals."""
    regrets: dict[str, dict[str, list[Race]]] = {}
    for name, one in races:
        regrets.setdefault(name, {}).setdefault(one.sampler, []).append(one)
    for sampler in sorted({sampler for own in regrets.values() for sampler in own} - set(RIVALS)):
        print(f"\n{sampler}: median regret after {', '.join(map(str, LOOKS))} trials, and against the better rival's")
        for name, own in regrets.items():
            if sampler in own and all(rival in own for rival in RIVALS):
                print(f"  {name:24} {'   '.join(_against(own, sampler, look) for look in LOOKS)}")


def _against(own: Mapping[str, Sequence[Race]], sampler: str, look: int) -> str:
    """'4.7% 0.85 (0.60 to 1.10)'"""
    at = {name: [race.regret[look] for race in own[name]] for name in (sampler, *RIVALS)}
    rng = random.Random(0)

    def found(draw: bool) -> float:
        middle = {n: statistics.median(rng.choices(v, k=len(v)) if draw else v) for n, v in at.items()}
        return middle[sampler] / max(min(middle[rival] for rival in RIVALS), 1e-9)

    drawn = sorted(found(True) for _ in range(DRAWS // 4))
    low, high = drawn[len(drawn) // 20], drawn[-len(drawn) // 20 - 1]
    return f"{statistics.median(at[sampler]):7.1%} {found(False):5.2f} ({low:.2f} to {high:.2f})"
