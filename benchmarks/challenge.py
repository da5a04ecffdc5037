"""The three teams' best results beside ours, in simulation: how many runs until we have as much.

    python benchmarks/challenge.py [--seeds 3] [--trials 4]

Each team's system is a simulated site whose physics is fitted to at most two rows of its report (`fit` in
benchmarks/twin/measured/offline.csv), with 1% noise and nodes that differ by 1%. The search does not see that fit: it
is guided by the twin as it comes. The campaign is that of examples/09-challenge, with SGLang 0.5.3 as the teams had it.

`published`: runs until one measured at least 98% of the team's best figure. `in the twin`: until one measured at least
98% of what the fitted twin gives the team's best setting; that comparison does not depend on how well the twin knows
the speed of the system. Each of them twice:

- from the team's start: the campaign begins with the baseline, which counts as a run;
- rehearsed: the same campaign is run first on the twin as it comes, which takes no run of the cluster, and the one on
  the cluster begins with the setting that won there.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import ridgeline
from ridgeline import catalog
from ridgeline.records.run import Job
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.serving.twin.calibrate import row_observations
from ridgeline.serving.twin.calibration import write_calibration
from ridgeline.serving.twin.fit import fit
from ridgeline.serving.twin.measured import Measured, read_rows
from ridgeline.serving.twin.simulate import simulate
from ridgeline.serving.workloads.twin.workload import TwinWorkload
from ridgeline.study.history import read_history

HERE = Path(__file__).parent
ROWS = HERE / "twin" / "measured" / "offline.csv"
STUDY = HERE.parent / "examples" / "09-challenge" / "study-sglang.yaml"
CLOSE = 0.98


@dataclass(frozen=True)
class Team:
    name: str
    gpu: str
    nodes: int
    listed: int  # runs that its report gives or mentions
    start: dict[str, Any]


START = {"tp": 16, "pp": 1, "attn_dp": 1, "max_running_requests": 1024, "mem_fraction_static": 0.80}
TEAMS = (
    # four single runs, two settings three times each, a grammar back end and its own baseline
    Team("kisarazu", "h100", 2, 12, START | {"max_running_requests": 256}),
    # two environments, two layouts twice each, manual NCCL settings "between 2,000 and 9,500", so two at least
    Team("monash", "h200", 1, 8, START | {"tp": 8}),
    # two runs, and the one over which Tree with LL128 gained "about 10%"
    Team("sustech", "h200", 2, 3, START),
)


class HiddenTwin(TwinWorkload):
    """Runs have the physics of the study's `calibration`; what the search is told comes from a twin without it."""

    def __init__(self, study: Study) -> None:
        told = {name: value for name, value in study.workload.options.items() if name != "calibration"}
        super().__init__(replace(study, workload=replace(study.workload, options=told)))
        self._cluster = TwinWorkload(study)

    def prepare(self, trial: Trial, folder: Path) -> Job:
        return self._cluster.prepare(trial, folder)


def team_rows(team: Team) -> tuple[list[Measured], Measured]:
    """The rows to fit its site to, and the one with its best figure."""
    with ROWS.open(newline="") as file:
        labels = [(row["site"], row["use"]) for row in csv.DictReader(file)]
    rows = list(zip(labels, read_rows(ROWS, model="deepseek-r1"), strict=True))
    fitted = [row for label, row in rows if label == (team.name, "fit")]
    good = [row for (site, _), row in rows if site == team.name and row.result == "ok"]
    return fitted, max(good, key=lambda row: row.values["total_tok_s"])


def study(team: Team, start: Point, trials: int, seed: int, calibration: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(STUDY.read_text())
    found["workload"] |= {"version": "0.5.3"}
    if calibration is not None:
        found["workload"] |= {"kind": "hidden-twin", "calibration": str(calibration)}
    found |= {
        "name": f"challenge-{team.name}",
        "site": {
            "version": 1,
            "name": team.name,
            "batch": "simulated",
            "nodes": 4,
            "gpus_per_node": 8,
            "options": {"gpu": team.gpu, "fabric": "ib-ndr", "seed": seed, "spread": 0.01, "noise": 0.01},
        },
        "baseline": dict(start),
        "rules": [
            {"refuse": f"tp * pp != {8 * team.nodes}", "because": "use all"},
            {"refuse": "attn_dp > tp", "because": "attention DP splits a TP group"},
        ],
        "job": {"nodes": team.nodes, "gpus": 8, "limit": "10m"},
        "budget": {"trials": trials},
        "search": {"seed": seed, "sentinel_every": 0},
        "stages": {"baseline": {"repeats": 1}},
        "confirm": {"top": 0},
    }
    found["task"].pop("nodes")
    return found


def campaign(asked: dict[str, Any], folder: Path) -> list[tuple[Point, float]]:
    """The setting of each run and what it measured, in order; nothing for one that failed."""
    ridgeline.tune(asked, out=folder)
    history = read_history(folder)
    good = {run.number: run.metrics["total_tok_s"] for _, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH)}
    return [(history.trials[run.trial].point, good.get(number, 0.0)) for number, run in sorted(history.runs.items())]


def until(values: Sequence[float], wanted: float) -> int | None:
    return next((number for number, value in enumerate(values, 1) if value >= CLOSE * wanted), None)


def shown(counts: list[int | None]) -> str:
    known = [number for number in counts if number is not None]
    text = f"{statistics.median(known):g}" if known else "not reached"
    return text if len(known) == len(counts) else f"{text} ({len(known)} of {len(counts)} seeds)"


def line(team: Team, trials: int, seeds: int, folder: Path) -> str:
    fitted, best = team_rows(team)
    known = fit([point for row in fitted for point in row_observations(row)], [team.name]).calibration
    published = best.values["total_tok_s"]
    own = simulate(best.deployment, best.traffic, known).summary.total_tok_s
    truth = folder / "physics.json"
    write_calibration(known, truth)
    alone, rehearsed, ours = [], [], []
    for seed in range(seeds):
        runs = campaign(study(team, team.start, trials, seed, truth), folder / f"alone-{seed}")
        rehearsal = campaign(study(team, team.start, trials, seed, None), folder / f"rehearsal-{seed}")
        winner = max(rehearsal, key=lambda run: run[1])[0]
        after = campaign(study(team, winner, trials, seed, truth), folder / f"rehearsed-{seed}")
        alone.append([value for _, value in runs])
        rehearsed.append([value for _, value in after])
        ours.append(max(alone[-1]))
    counts = [
        shown([until(values, wanted) for values in each]) for each in (alone, rehearsed) for wanted in (published, own)
    ]
    figures = f"{published:,.0f} | {own:,.0f} | {statistics.median(ours):,.0f} | {team.listed} | {team.listed / 3:.1f}"
    return f"| {team.name} | {figures} | {' | '.join(counts)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=4)
    asked = parser.parse_args()
    catalog.TABLE["workloads"]["hidden-twin"] = f"{__name__}:{HiddenTwin.__name__}"
    head = "team", "its best, tok/s", "its setting in the twin", "our best (simulated)", "runs listed", "a third"
    head += "published", "in the twin", "rehearsed: published", "rehearsed: in the twin"
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for team in TEAMS:
        with tempfile.TemporaryDirectory(prefix="challenge-") as folder:
            print(line(team, asked.trials, asked.seeds, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
