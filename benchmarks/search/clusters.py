"""Searches with a twin: node-hours until a setting within 2% of the best is chosen, on clusters whose truth is hidden.

    python -m benchmarks.search.clusters --tables FOLDER [--seeds 30] [--jobs 16] [--samplers guided,tpe,random]

Eight clusters of 8 to 104 GPUs, offline throughput or goodput (hidden.py); the seed of a race also draws the truth,
with one of `--truths` physics. Runs have heavy-tailed noise (3%, one in twenty four times that), on four nodes of which
one is 8% slower. FOLDER keeps what the twin says: the first call works for minutes. Every race goes on to `--trials`,
and those that found nothing until then to `--at-most`. What few trials gain is shown beside what the twin's own order
and one who knows the physics would find (oracle.py).

- `guided`: by the twin as it comes; `reversed`: by the same twin with its order turned round; `muddled`: by the same
  twin, which takes every setting for another one, also as to what runs; `blind`: by nothing;
- `recalled`: by an earlier study of another truth of the same cluster; `misled`: by one that learned the reverse of
  this truth; `confused`: by one whose results belong to other settings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from benchmarks.search.hidden import CLUSTERS, Hidden, predicted  # noqa: E402
from benchmarks.search.oracle import best_of, by_physics, by_twin  # noqa: E402
from benchmarks.search.peers import made_by  # noqa: E402
from benchmarks.search.race import BUDGETS, Noise, Race, race  # noqa: E402
from benchmarks.search.standings import Bounds, Claimed, show, show_claims, show_small_budgets  # noqa: E402
from ridgeline.records.observation import Observation  # noqa: E402
from ridgeline.records.space import Point  # noqa: E402

NOISE = Noise(heavy_tail=0.05)
EARLIER = 30  # observations of an earlier study
WATCHED = 4  # trials between two looks at whether the search would have ended
TWINS = {"guided": "", "reversed": "turned", "muddled": "muddled"}
STUDIES = ("recalled", "misled", "confused")
Job = tuple[int, int, int, int, int, str, Path]


@lru_cache(maxsize=32)
def _hidden(number: int, tables: Path, physics: int, seed: int) -> Hidden:
    return Hidden(CLUSTERS[number], tables, physics, seed)


def _sampler(name: str, job: Job) -> Any:
    number, seed, physics, *_, tables = job
    hidden = _hidden(number, tables, physics, seed)
    kind = "guided" if name in TWINS or name in STUDIES or name == "blind" else name
    sampler = made_by(kind)(hidden.study.study.space, seed, {}, hidden.refusal)
    if name in TWINS:
        sampler.expect(hidden.prior(TWINS[name]))
    if name in STUDIES:
        taught = _hidden(number, tables, physics + 1, seed + 1) if name == "recalled" else hidden
        sampler.recall(_earlier(name, taught, random.Random(f"earlier {seed}")))
    return sampler


def _earlier(name: str, hidden: Hidden, rng: random.Random) -> list[Observation]:
    drawn = rng.sample(list(hidden.legal), EARLIER)
    values = [hidden.truth(point) for point in (rng.sample(drawn, EARLIER) if name == "confused" else drawn)]
    sign = -1.0 if name == "misled" else 1.0
    return [
        Observation(point, None if value is None else math.exp(sign * value))
        for point, value in zip(drawn, values, strict=True)
    ]


def _bounds(number: int, seed: int, physics: int, tables: Path) -> Bounds:
    hidden = _hidden(number, tables, physics, seed)
    fewer = BUDGETS[:-1]
    twin, known = by_twin(hidden, fewer[-1]), by_physics(CLUSTERS[number], tables, physics, fewer[-1])
    return Bounds(
        best_of(hidden, [hidden.study.study.baseline]),
        {budget: best_of(hidden, twin[:budget]) for budget in fewer},
        {budget: best_of(hidden, known[:budget]) for budget in fewer},
    )


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


def one(job: Job) -> tuple[int, Race, Claimed]:
    number, seed, physics, trials, at_most, name, tables = job
    hidden = _hidden(number, tables, physics, seed)
    sampler, baseline = _sampler(name, job), hidden.study.study.baseline
    if (value := hidden.truth(baseline)) is not None:
        sampler.tell(Observation(baseline, math.exp(value)))
    claim = _Claim(hidden)
    watch = claim.watch
    result = race(sampler, name, seed, claim.truth, trials, NOISE, hidden.node_hours, math.exp, watch, at_most=at_most)
    return number, result, (name, claim.at, claim.missed)


def prepare(pair: tuple[int, int, Path]) -> None:
    """What the twin and a truth say of a cluster, worked out before several processes ask for it."""
    number, truth, tables = pair
    predicted(CLUSTERS[number], tables, truth if truth >= 0 else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--truths", type=int, default=10)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--at-most", type=int, default=100)
    parser.add_argument("--samplers", default="guided,reversed,blind,tpe,random")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", default=list(range(len(CLUSTERS))))
    parser.add_argument("--out", type=Path, help="every race as a JSON line; races that are there already are kept")
    asked = parser.parse_args()
    asked.tables.mkdir(parents=True, exist_ok=True)
    races, claims = kept(asked.out)
    have = {(number, r.sampler, r.seed) for number, r in races}
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    jobs = [
        (number, seed, seed % asked.truths, asked.trials, asked.at_most, name, asked.tables)
        for seed in seeds
        for name in asked.samplers.split(",")
        for number in asked.only
        if (number, name, seed) not in have
    ]
    drawn = {seed % asked.truths for seed in seeds}
    truths = sorted({-1, *drawn, *({each + 1 for each in drawn} if "recalled" in asked.samplers else ())})
    with ProcessPoolExecutor(asked.jobs) as pool:
        list(pool.map(prepare, [(number, truth, asked.tables) for number in asked.only for truth in truths]))
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            number, result, claim = done.result()
            races.append((number, result))
            claims.append(claim)
            if asked.out:
                row = {"cluster": number, "claim": claim[1:], **asdict(result)}
                with asked.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    order = asked.samplers.split(",")
    races.sort(key=lambda race: (race[0], order.index(race[1].sampler) if race[1].sampler in order else 99))
    show(races, [cluster.name for cluster in CLUSTERS], asked.trials)
    ran = {(number, r.seed) for number, r in races}
    bounds = {each: _bounds(*each, each[1] % asked.truths, asked.tables) for each in ran}
    show_small_budgets(races, bounds)
    show_claims(sorted(claims, key=lambda claim: claim[0]))


def kept(path: Path | None) -> tuple[list[tuple[int, Race]], list[Claimed]]:
    if path is None or not path.exists():
        return [], []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for by_trials in ("regret", "confirmed"):
            row[by_trials] = {int(n): value for n, value in row.get(by_trials, {}).items()}
    claims = [(row["sampler"], *row.pop("claim")) for row in rows]
    return [(row.pop("cluster"), Race(**row)) for row in rows], claims


if __name__ == "__main__":
    main()
