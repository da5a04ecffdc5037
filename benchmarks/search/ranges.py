"""Whether the range stated for a trial before it runs holds what is measured: share inside, and how wide it is.

    python -m benchmarks.search.ranges [--tables FOLDER] [--clusters FOLDER] [--example 3] [--seeds 3]

Nominal is 90%. Three kinds of search: over the tables of `--tables` without a prior (tables.py, 3% noise, one of four
nodes 8% slower), over hidden clusters by the twin (hidden.py; FOLDER keeps what the twin says, the first call works
for minutes), and whole campaigns of example 04, one for each of so many seeds. Only trials that passed and of which
something was predicted count; the first ten of a search are shown apart.

- `stated`: what a campaign states (stats/stated_range.py), widened by the errors of the search so far;
- `model`: 1.645 of the model's own standard deviations, the noise of a run included;
- `constant`: one width for all trials of a search, from its errors so far (before: a quarter), around the prediction.

The width is half of the range against the predicted value, in logs: 5% is 0.95 to 1.05 times it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from benchmarks.search import clusters  # noqa: E402
from benchmarks.search.hidden import CLUSTERS  # noqa: E402
from benchmarks.search.race import USUAL, Noise, as_cost  # noqa: E402
from benchmarks.search.tables import read_table  # noqa: E402
from ridgeline import catalog  # noqa: E402
from ridgeline.records.observation import Observation  # noqa: E402
from ridgeline.records.space import Point  # noqa: E402
from ridgeline.records.trial import PredictedRange, Stage  # noqa: E402
from ridgeline.stats.stated_range import LEVEL, widening  # noqa: E402
from ridgeline.study.history import read_history  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "04-deepseek-r1-16-gpus"

EARLY = 10  # trials of a search that are shown apart
NORMAL_90 = 1.645
AT_FIRST = 0.25  # constant width, in logs, before a search has shown an error
SAMPLED = ("convolution-a100", "dedispersion-a4000", "hsmgp-num", "llvm", "redis", "rs-6d-c3-obj1")


@dataclass(frozen=True)
class Predicted:
    """One trial of a search: the error of its prediction and the model's standard deviation, both in logs."""

    error: float
    spread: float


def widths(search: Sequence[Predicted]) -> dict[str, list[float]]:
    """By way of stating it: half the range of each trial, from what came before it."""
    found: dict[str, list[float]] = {"stated": [], "model": [], "constant": []}
    for number, trial in enumerate(search):
        before = search[:number]
        found["stated"].append(widening(each.error / each.spread for each in before) * trial.spread)
        found["model"].append(NORMAL_90 * trial.spread)
        sizes = sorted([AT_FIRST, *(abs(each.error) for each in before)])
        found["constant"].append(sizes[min(len(sizes) - 1, math.ceil(LEVEL * (len(sizes) + 1)) - 1)])
    return found


def searched(
    sampler: Any,
    seed: int,
    truth: Callable[[Point], float | None],
    trials: int,
    noise: Noise,
    score_of: Callable[[float], float],
    cost_of: Callable[[Point, float | None], float] = lambda point, value: 1.0,
) -> list[Predicted]:
    """As `race` runs it; what was predicted of each trial that passed."""
    rng, found = random.Random(f"noise {seed}"), []
    for _ in range(trials):
        proposal = sampler.ask()
        if proposal is None:
            break
        value, drawn = truth(proposal.point), noise.draw(rng)
        if value is None:
            sampler.tell(Observation(proposal.point, None))
            continue
        score, said = score_of(value + drawn), proposal.predicted
        sampler.tell(Observation(proposal.point, score, cost_of(proposal.point, value)))
        if said is not None:
            assert said.in_logs, "scores of these spaces are all of one sign"
            found.append(Predicted(math.log(score / said.score), said.spread))
    return found


def over_table(path: Path, seed: int, trials: int) -> list[Predicted]:
    table = read_table(path)
    sampler = catalog.part("samplers", "guided")(table.space, seed, {}, lambda point: None)
    return searched(sampler, seed, table.truth, trials, USUAL, as_cost)


def over_cluster(number: int, how: str, truth: int, trials: int, folder: Path) -> list[Predicted]:
    clusters.prepare((number, -1, folder))
    clusters.prepare((number, truth, folder))
    hidden = clusters._hidden(number, folder, truth)
    sampler = clusters._sampler(how, (number, truth, truth, trials, trials, how, folder))
    baseline = hidden.study.study.baseline
    if (value := hidden.truth(baseline)) is not None:
        sampler.tell(Observation(baseline, math.exp(value)))
    return searched(sampler, truth, hidden.truth, trials, clusters.NOISE, math.exp, hidden.node_hours)


def of_example(seed: int) -> list[tuple[PredictedRange, float]]:
    """Example 04 without its confirmation: what was stated of each trial that passed, and what it measured."""
    text = (EXAMPLE / "study.yaml").read_text().replace("sites/", f"{EXAMPLE}/sites/")
    text = text.replace("search: {seed: 5}", f"search: {{seed: {seed}}}").replace("{top: 3, blocks: 5}", "{top: 0}")
    with tempfile.TemporaryDirectory(prefix="ridgeline-ranges-") as home:
        study, out = Path(home) / "study.yaml", Path(home) / "out"
        study.write_text(text)
        command = [sys.executable, "-m", "ridgeline", "tune", str(study), "--out", str(out)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode > 1:  # 1: nothing is confirmed here
            raise SystemExit(ran.stderr)
        runs = read_history(out).ok_runs(Stage.SEARCH)
    return [(trial.predicted, run.metrics["total_tok_s"]) for trial, run in runs if trial.predicted is not None]


def show(name: str, searches: Iterable[Sequence[Predicted]]) -> None:
    searches = list(searches)
    for way in ("stated", "model", "constant"):
        early, late, sizes = [], [], []
        for search in searches:
            halves = widths(search)[way]
            inside = [abs(trial.error) <= half for trial, half in zip(search, halves, strict=True)]
            early += inside[:EARLY]
            late += inside[EARLY:]
            sizes += halves
        shown = [f"{sum(each)} of {len(each)} ({_share(each)})" for each in (early + late, early, late)]
        print(f"| {name} | {way} | {' | '.join(shown)} | {statistics.median(sizes):.1%} |", flush=True)


def _share(inside: Sequence[bool]) -> str:
    return f"{statistics.mean(inside):.0%}" if inside else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--only", default=",".join(SAMPLED), help="tables by name")
    parser.add_argument("--clusters", type=Path)
    parser.add_argument("--number", type=int, nargs="*", default=[4, 5], help="clusters by number")
    parser.add_argument("--priors", default="guided", help="as samplers of clusters.py: guided, reversed, misled, ...")
    parser.add_argument("--example", type=int, default=0, help="campaigns of example 04")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=40)
    asked = parser.parse_args()
    print(f"| search | range | inside | first {EARLY} | later | half width |\n|---|---|---|---|---|---|")
    for seed in range(5, 5 + asked.example):
        found = of_example(seed)
        inside = [stated.holds(measured) for stated, measured in found]
        print(f"seed {seed}, in its journal: {sum(inside)} of {len(inside)}; first {EARLY}: {sum(inside[:EARLY])}")
        show(f"example 04, seed {seed}", [[Predicted(s.error(m) * s.spread, s.spread) for s, m in found]])
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    if asked.tables:
        for name in asked.only.split(","):
            show(name, [over_table(asked.tables / f"{name}.csv", seed, asked.trials) for seed in seeds])
    if asked.clusters:
        asked.clusters.mkdir(parents=True, exist_ok=True)
        for number in asked.number:
            for how in asked.priors.split(","):
                found = [over_cluster(number, how, t, asked.trials, asked.clusters) for t in range(asked.seeds)]
                show(f"{CLUSTERS[number].name}, {how}", found)


if __name__ == "__main__":
    main()
