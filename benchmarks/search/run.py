"""What a sampler is worth: trials until a setting within 2% of the optimum is chosen, regret on the way, crashes.

    python -m benchmarks.search.run TABLES [--samplers guided,tpe,random] [--seeds 30] [--trials 80] [--claims]

TABLES is a folder of CSV files (see tables.py). One noisy run per setting: 3% noise, on four nodes of which one is 8%
slower. "Chosen" is what looks best so far. A race that never got there counts as
one trial more than it had. Peers (smac, optuna-gp) run where this file's Python has them installed.

`--only` names tables; `cut-TABLE` is a part of one and `made-FAMILY` a made-up space, another for each seed (made.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # two processes on two cores: each keeps to one

from benchmarks.search import peers  # noqa: E402
from benchmarks.search.made import cut, made  # noqa: E402
from benchmarks.search.race import CLOSE, LOOKS, Noise, Race, race  # noqa: E402
from benchmarks.search.tables import Table, read_tables  # noqa: E402
from benchmarks.search.verdict import capped, show_ratios, show_regrets  # noqa: E402

_tables: dict[str, Table] = {}


def _load(folder: Path) -> None:
    _tables.update({table.name: table for table in read_tables(folder)})


def _table(name: str, seed: int) -> Table:
    if name.startswith("made-"):
        return made(name.removeprefix("made-"), seed)
    return cut(_tables[name.removeprefix("cut-")], seed) if name.startswith("cut-") else _tables[name]


def _little_left(sampler: Any) -> bool:
    prospect = sampler.prospect() if hasattr(sampler, "prospect") else None
    return prospect is not None and prospect.over


def _never(sampler: Any) -> bool:
    return False


def _one(job: tuple[str, str, int, int, float, bool, Mapping[str, object]]) -> tuple[str, Race]:
    name, sampler_name, seed, trials, spread, claims, options = job
    table = _table(name, seed)
    make = peers.made_by(sampler_name)
    sampler = make(table.space, seed, options, lambda point: None)
    left = _little_left if claims else _never
    return name, race(
        sampler, sampler_name, seed, table.truth, trials, Noise(spread), little_left=left, limit=table.limit
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--samplers", default="guided,tpe,random")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0, help="seeds that a version was chosen on prove little")
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--claims", action="store_true", help="note when a sampler says that little is left to find")
    parser.add_argument("--only", default="", help="tables, parts of them (cut-TABLE) or made-up spaces (made-FAMILY)")
    parser.add_argument("--jobs", type=int, default=2, help="races at a time, a process each")
    parser.add_argument("--options", type=json.loads, default={}, help="of the samplers, as JSON")
    parser.add_argument("--out", type=Path, help="every race as a JSON line; races that are there already are kept")
    parser.add_argument("--beside", type=Path, help="races of an earlier --out that are shown beside these")
    asked = parser.parse_args()
    _load(asked.tables)
    names = asked.only.split(",") if asked.only else list(_tables)
    races = _kept(asked.out)
    have = {(name, r.sampler, r.seed) for name, r in races}
    jobs = [
        (name, sampler, seed, asked.trials, asked.noise, asked.claims, asked.options)
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds)
        for name in names
        for sampler in asked.samplers.split(",")
        if (name, sampler, seed) not in have
    ]
    with ProcessPoolExecutor(asked.jobs, initializer=_load, initargs=(asked.tables,)) as pool:
        running = {pool.submit(_one, job): job for job in jobs}
        for done in as_completed(running):
            if (error := done.exception()) is not None:
                print(f"{running[done][:3]} raised {error!r} and is left out")
                continue
            name, result = done.result()
            races.append((name, result))
            if asked.out:
                with asked.out.open("a") as file:
                    file.write(json.dumps({"table": name, **asdict(result)}) + "\n")
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    races += [(name, one) for name, one in _kept(asked.beside) if name in names and one.seed in seeds]
    races.sort(key=lambda named: (named[0], named[1].sampler, named[1].seed))
    show(races, asked.trials)
    show_ratios(races, asked.trials)
    show_regrets(races)
    if asked.claims:
        _show_claims(races)


def _show_claims(races: Iterable[tuple[str, Race]]) -> None:
    """Where a search said that nothing untried is more than 2% better, and would have ended: was that so?"""
    made = [(name, one) for name, one in races if one.claimed_at is not None]
    held = sum(one.missed <= CLOSE for _, one in made)
    print(f"\n{len(made)} races said that little is left; in {held} nothing untried was more than 2% better")
    for name, one in made:
        print(f"  {name:24} seed {one.seed}, after {one.claimed_at} trials: {one.missed:.1%} was left")


def _kept(path: Path | None) -> list[tuple[str, Race]]:
    if path is None or not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for by_trials in ("regret", "confirmed"):
            row[by_trials] = {int(n): value for n, value in row.get(by_trials, {}).items()}
    return [(row.pop("table"), Race(**row)) for row in rows]


def show(races: Iterable[tuple[str, Race]], trials: int) -> None:
    groups: dict[str, dict[str, list[Race]]] = {}
    for name, one in races:
        groups.setdefault(name, {}).setdefault(one.sampler, []).append(one)
    head = "  ".join(f"at {n}" for n in LOOKS)
    for name, by_sampler in groups.items():
        print(f"\n{name}")
        print(f"  sampler     trials to 2% (quartiles)   found   median regret {head}   crashes   seen-true   ask")
        for sampler, rows in by_sampler.items():
            reached = sorted(r.found_at or trials + 1 for r in rows)
            low, middle, high = statistics.quantiles(reached if rows[1:] else 2 * reached, n=4, method="inclusive")
            found = sum(r.found_at is not None for r in rows)
            regrets = "  ".join(f"{statistics.median(r.regret[n] for r in rows):6.1%}" for n in LOOKS)
            crashes, promised = (statistics.mean(v) for v in zip(*((r.crashes, r.promised) for r in rows), strict=True))
            ask_ms = statistics.mean(r.ask_ms for r in rows)
            print(
                f"  {sampler:11} {capped(middle, trials):>5} ({capped(low, trials)} to {capped(high, trials)})"
                f"   {found:3}/{len(rows)}   {regrets}   {crashes:5.1f}   {promised:6.1%}   {ask_ms:4.0f} ms"
            )


if __name__ == "__main__":
    main()
