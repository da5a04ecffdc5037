"""What races on the hidden clusters come to: medians, ratios and kept claims, with bootstrap intervals over seeds."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.search.race import BUDGETS, CLOSE, Race

DRAWS = 1_000
PEERS = ("tpe", "random", "blind")
TWIN_GUIDED = "guided"  # beside which it is shown what the twin's own order and one who knows the physics would find
Claimed = tuple[str, int | None, float | None]  # sampler; when it would have ended; by how much better the best was
Rows = Mapping[tuple[int, str], Sequence[Race]]  # by cluster and sampler


def hours_of(result: Race) -> float:
    """What was paid until it was found; all that was paid where it never was."""
    return result.cost if result.cost_at is None else result.cost_at


def middle_hours(rows: Sequence[Race]) -> float:
    return statistics.median(map(hours_of, rows))


def mean_crashes(rows: Sequence[Race]) -> float:
    return statistics.mean(row.crashes for row in rows)


def interval(draw: Callable[[random.Random], float]) -> tuple[float, float]:
    """90% of what is drawn."""
    rng = random.Random(0)
    drawn = sorted(draw(rng) for _ in range(DRAWS))
    return drawn[DRAWS // 20], drawn[-DRAWS // 20 - 1]


def again(rows: Sequence[Race], rng: random.Random) -> Sequence[Race]:
    return rng.choices(rows, k=len(rows))


def show(races: Sequence[tuple[int, Race]], names_of: Sequence[str], trials: int) -> None:
    rows: dict[tuple[int, str], list[Race]] = {}
    for number, result in races:
        rows.setdefault((number, result.sampler), []).append(result)
    names = list(dict.fromkeys(result.sampler for _, result in races))
    for number in sorted({number for number, _ in races}):
        print(f"\n{names_of[number]}")
        print("  sampler    node-hours to 2% (90% interval)  trials   found   regret at 20   at 40   crashes     ask")
        for name in names:
            if (number, name) in rows:
                print(_line(name, rows[number, name], trials))
    print("\nratios of median node-hours and of crashes, with 90% intervals over seeds: clusters in their order")
    for name in names:
        for peer in PEERS:
            if name not in PEERS[:2] and name != peer and peer in names:
                _show_ratio(rows, name, peer)


def _line(name: str, rows: Sequence[Race], trials: int) -> str:
    low, high = interval(lambda rng: middle_hours(again(rows, rng)))
    reached = statistics.median(row.found_at or row.trials + 1 for row in rows)
    found = sum(row.found_at is not None and row.found_at <= trials for row in rows)
    at = [statistics.median(row.regret[n] for row in rows) for n in (20, 40)]
    ask = statistics.mean(row.ask_ms for row in rows)
    return (
        f"  {name:9}  {middle_hours(rows):8.2f} ({low:7.2f} to {high:7.2f})   {reached:6.1f}   {found:3}/{len(rows)}"
        f"   {at[0]:8.1%}   {at[1]:8.1%}   {mean_crashes(rows):6.1f}   {ask:4.0f} ms"
    )


def _show_ratio(rows: Rows, name: str, peer: str) -> None:
    clusters = sorted(number for number, own in rows if own == name and (number, peer) in rows)

    def ratios(rng: random.Random | None = None) -> list[float]:
        def hours(number: int, who: str) -> float:
            return middle_hours(rows[number, who] if rng is None else again(rows[number, who], rng))

        return [hours(number, name) / hours(number, peer) for number in clusters]

    def crashes(rng: random.Random | None = None) -> float:
        def all_of(who: str) -> float:
            return sum(mean_crashes(rows[n, who] if rng is None else again(rows[n, who], rng)) for n in clusters)

        return all_of(name) / max(all_of(peer), 1e-9)

    found = ratios()
    low, high = interval(lambda rng: statistics.median(ratios(rng)))
    worst = interval(lambda rng: max(ratios(rng)))
    fewer = interval(crashes)
    print(
        f"  {name} / {peer}: median {statistics.median(found):.2f} ({low:.2f} to {high:.2f}), "
        f"worst {max(found):.2f} ({worst[0]:.2f} to {worst[1]:.2f}); {', '.join(f'{ratio:.2f}' for ratio in found)}; "
        f"crashes {crashes():.2f} ({fewer[0]:.2f} to {fewer[1]:.2f})"
    )


@dataclass(frozen=True)
class Bounds:
    """Of one truth: log speeds over that of the best. `twin` and `physics` are the best of as many settings as the
    budget allows: those that the twin puts first, and those that one who knows the physics would try (oracle.py)."""

    baseline: float
    twin: Mapping[int, float]
    physics: Mapping[int, float]


def show_small_budgets(races: Sequence[tuple[int, Race]], bounds: Mapping[tuple[int, int], Bounds]) -> None:
    """What a confirmation after few trials gains over the baseline, as a share of what one after the most gains, or
    where no race had the most, of the largest gain there is; `bounds` by cluster and seed."""
    fewer, most = BUDGETS[:-1], BUDGETS[-1]
    fair = [(number, one) for number, one in races if bounds[number, one.seed].baseline > -math.inf]
    whole = any(most in one.confirmed for _, one in fair)
    of = f"of that after {most}" if whole else "of the largest there is"
    print(f"\nconfirmed gain over the baseline after {fewer} trials, as a share {of}, all races together")

    def gains(own: Bounds, found: Mapping[int, float], last: float) -> dict[int, float]:
        return {n: math.expm1(max(0.0, v - own.baseline)) for n, v in {**found, most: last}.items()}

    for name in dict.fromkeys(one.sampler for _, one in fair):
        rows = [
            (bounds[number, one.seed], one.confirmed, one.confirmed[most] if whole else 0.0)
            for number, one in fair
            if one.sampler == name and (most in one.confirmed or not whole)
        ]
        if rows:
            _show_shares(name, [gains(*row) for row in rows])
        if rows and name == TWIN_GUIDED:
            _show_shares("the twin's order", [gains(own, own.twin, last) for own, _, last in rows])
            _show_shares("physics known", [gains(own, own.physics, last) for own, _, last in rows])


def _show_shares(name: str, gains: Sequence[Mapping[int, float]]) -> None:
    fewer, most = BUDGETS[:-1], BUDGETS[-1]
    print(f"  {name}: {'; '.join(_share(n, most, gains) for n in fewer)}; {len(gains)} races")


def _share(budget: int, most: int, gains: Sequence[Mapping[int, float]]) -> str:
    def share(rows: Sequence[Mapping[int, float]]) -> float:
        return sum(row.get(budget, 0.0) for row in rows) / max(sum(row[most] for row in rows), 1e-9)

    low, high = interval(lambda rng: share(rng.choices(gains, k=len(gains))))
    return f"{budget}: {share(gains):.2f} ({low:.2f} to {high:.2f})"


def show_claims(claims: Sequence[Claimed]) -> None:
    """A search that ends says that nothing untried is more than 2% better than what it tried: was that so?"""
    print("\nsearches that would have ended by themselves, and were right that nothing untried was 2% better")
    for name in dict.fromkeys(name for name, _, _ in claims):
        own = [claim for claim in claims if claim[0] == name]
        ended = [(at, missed) for _, at, missed in own if at is not None and missed is not None]
        if ended:
            right = [missed <= CLOSE for _, missed in ended]
            low, high = interval(lambda rng, right=right: statistics.mean(rng.choices(right, k=len(right))))
            middle = statistics.median(at for at, _ in ended)
            print(
                f"  {name}: {len(ended)} of {len(own)}, in the middle at {middle:.0f}; "
                f"{statistics.mean(right):.0%} right ({low:.0%} to {high:.0%})"
            )
