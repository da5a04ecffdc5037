"""Searches with a twin: node-hours until a setting within 2% of the best is chosen, on clusters whose truth is hidden.

    python -m benchmarks.search.clusters --tables FOLDER [--seeds 30] [--samplers guided,reversed,tpe,random]

Eight clusters of 8 to 104 GPUs, offline throughput or goodput (hidden.py); the seed of a race also draws the truth, one
of `--truths`. Runs have heavy-tailed noise (3%, one in twenty four times that), on four nodes of which one is 8%
slower. `guided` is guided by the twin as it comes, `reversed` by the same twin with its order turned round, `blind` by
nothing, `misled` by an earlier study that learned the reverse of the truth. FOLDER keeps what the twin says: the first
call works for minutes. Every race goes on to `--trials`, and those that found nothing until then to `--at-most`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from benchmarks.search.hidden import CLUSTERS, Hidden  # noqa: E402
from benchmarks.search.race import CLOSE, Noise, Race, race  # noqa: E402
from ridgeline import catalog  # noqa: E402
from ridgeline.records.lesson import Lesson  # noqa: E402
from ridgeline.records.space import Point  # noqa: E402

NOISE = Noise(heavy_tail=0.05)
EARLIER = 30  # lessons of a misleading earlier study
WATCHED = 4  # trials between two looks at whether the search would have ended
Claimed = tuple[str, int | None, float | None]
Job = tuple[int, int, int, int, int, str, Path]


@lru_cache(maxsize=32)
def _hidden(number: int, tables: Path, truth: int) -> Hidden:
    return Hidden(CLUSTERS[number], tables, truth)


def _sampler(name: str, hidden: Hidden, seed: int) -> Any:
    kind = "guided" if name in ("reversed", "blind", "misled") else name
    sampler = catalog.part("samplers", kind)(hidden.study.study.space, seed, {}, hidden.refusal)
    if name in ("guided", "reversed"):
        sampler.expect(hidden.outlook(turned=name == "reversed"))
    if name == "misled":
        sampler.recall(_misleading(hidden, seed))
    return sampler


def _misleading(hidden: Hidden, seed: int) -> list[Lesson]:
    """An earlier study that learned the reverse of the truth."""
    drawn = random.Random(f"earlier {seed}").sample(list(hidden.legal), EARLIER)
    return [
        Lesson(point, None if value is None else math.exp(-value)) for point in drawn for value in [hidden.truth(point)]
    ]


class _Claim:
    """When the search would have ended, and by how much the best of all was better than the best tried by then."""

    def __init__(self, hidden: Hidden) -> None:
        self._hidden = hidden
        self._best, self._tried = -math.inf, 0
        self.at: int | None = None
        self.missed: float | None = None

    def truth(self, point: Point) -> float | None:
        value = self._hidden.truth(point)
        self._tried += 1
        self._best = self._best if value is None else max(self._best, value)
        return value

    def watch(self, sampler: Any) -> bool:
        """Listens only: the race goes on."""
        if self.at is None and self._tried and self._tried % WATCHED == 0:
            prospect = sampler.prospect()
            if prospect is not None and prospect.over:
                self.at, self.missed = self._tried, math.expm1(-self._best)
        return False


def _never(sampler: Any) -> bool:
    return False


def one(job: Job) -> tuple[int, Race, Claimed]:
    number, seed, truth, trials, at_most, name, tables = job
    hidden = _hidden(number, tables, truth)
    sampler, baseline = _sampler(name, hidden, seed), hidden.study.study.baseline
    if (value := hidden.truth(baseline)) is not None:
        sampler.tell(Lesson(baseline, math.exp(value)))
    claim = _Claim(hidden)
    watch = claim.watch if name == "guided" else _never
    result = race(sampler, name, seed, claim.truth, trials, NOISE, hidden.node_hours, math.exp, watch, at_most=at_most)
    return number, result, (name, claim.at, claim.missed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--truths", type=int, default=3)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--at-most", type=int, default=120)
    parser.add_argument("--samplers", default="guided,reversed,blind,tpe,random")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", default=list(range(len(CLUSTERS))))
    parser.add_argument("--out", type=Path, help="every race as a JSON line; races that are there already are kept")
    asked = parser.parse_args()
    asked.tables.mkdir(parents=True, exist_ok=True)
    races, claims = kept(asked.out)
    have = {(number, r.sampler, r.seed) for number, r in races}
    jobs = [
        (number, seed, seed % asked.truths, asked.trials, asked.at_most, name, asked.tables)
        for seed in range(asked.seeds)
        for number in asked.only
        for name in asked.samplers.split(",")
        if (number, name, seed) not in have
    ]
    with ProcessPoolExecutor(asked.processes) as pool:
        for number, result, claim in pool.map(one, jobs):
            races.append((number, result))
            claims.append(claim)
            if asked.out:
                row = {"cluster": number, "claim": claim[1:], **asdict(result)}
                with asked.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    show(races, asked.trials)
    show_claims(claims)


def kept(path: Path | None) -> tuple[list[tuple[int, Race]], list[Claimed]]:
    if path is None or not path.exists():
        return [], []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["regret"] = {int(n): value for n, value in row["regret"].items()}
    claims = [(row["sampler"], *row.pop("claim")) for row in rows]
    return [(row.pop("cluster"), Race(**row)) for row in rows], claims


def show_claims(claims: Sequence[Claimed]) -> None:
    """A search that ends says that nothing untried is more than 2% better than what it tried: was that so?"""
    print()
    for name in dict.fromkeys(name for name, _, _ in claims):
        ended = [(at, missed) for own, at, missed in claims if own == name and at is not None and missed is not None]
        if ended:
            right = sum(missed <= CLOSE for _, missed in ended)
            middle = statistics.median(at for at, _ in ended)
            print(f"{name}: {len(ended)} would have ended, in the middle at {middle:.0f}; {right} were right")


def show(races: Sequence[tuple[int, Race]], trials: int) -> None:
    names = list(dict.fromkeys(r.sampler for _, r in races))
    hours: dict[tuple[int, str], float] = {}
    crashes: dict[tuple[int, str], float] = {}
    for number in sorted({number for number, _ in races}):
        print(f"\n{CLUSTERS[number].name}")
        print("  sampler    node-hours to 2% (quartiles)   trials   found   regret at 20   at 40   crashes     ask")
        for name in names:
            rows = [r for n, r in races if n == number and r.sampler == name]
            low, middle, high = statistics.quantiles((hours_of(r) for r in rows), n=4, method="inclusive")
            hours[number, name], crashes[number, name] = middle, statistics.mean(r.crashes for r in rows)
            reached = statistics.median(r.found_at or r.trials + 1 for r in rows)
            found = sum(r.found_at is not None and r.found_at <= trials for r in rows)
            at = [statistics.median(r.regret[n] for r in rows) for n in (20, 40)]
            ask = statistics.mean(r.ask_ms for r in rows)
            print(
                f"  {name:9}  {middle:8.2f} ({low:6.2f} to {high:6.2f})   {reached:6.1f}   {found:3}/{len(rows)}"
                f"   {at[0]:8.1%}   {at[1]:8.1%}   {crashes[number, name]:6.1f}   {ask:4.0f} ms"
            )
    print("\nagainst random and tpe, cluster by cluster: median node-hours, and crashes")
    for name, peer in [(n, p) for n in names if n not in ("tpe", "random") for p in ("tpe", "random") if p in names]:
        ratios = [hours[n, name] / hours[n, peer] for n, own in hours if own == name]
        fewer = [crashes[n, name] / max(crashes[n, peer], 1e-9) for n, own in hours if own == name]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"  {name} / {peer}: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f} ({each}); "
            f"crashes {statistics.median(fewer):.2f}, worst {max(fewer):.2f}"
        )


def hours_of(result: Race) -> float:
    """What was paid until it was found; all that was paid where it never was."""
    return result.cost if result.cost_at is None else result.cost_at


if __name__ == "__main__":
    main()
