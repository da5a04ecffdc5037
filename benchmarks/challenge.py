"""The three teams' best results beside ours, in simulation: how many runs until we have as much.

    python benchmarks/challenge.py [--seeds 3] [--trials 16]

Each team's system (benchmarks/twin/measured/offline.csv) is a simulated site, and the campaign that of
examples/09-challenge: the same space, from the team's own starting point, with 1% noise and nodes that differ by 1%.
`as published`: runs, the baseline's among them, until one measured at least 98% of the team's best figure. `as the twin
has it`: until one measured at least 98% of what the twin gives the team's best setting on the same site; this
comparison does not depend on how well the twin knows that system. `listed`: rows of the report, and repeats named in
them.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import ridgeline
from ridgeline.campaign.check import check_study
from ridgeline.records.trial import Stage
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
    best: dict[str, Any]  # its best setting, as far as the report says it
    start: dict[str, Any]


START = {"tp": 16, "pp": 1, "attn_dp": 1, "max_running_requests": 1024, "mem_fraction_static": 0.80}
TEAMS = (
    Team("kisarazu", "h100", 2, START, START | {"max_running_requests": 256}),
    Team("monash", "h200", 1, START | {"tp": 4, "pp": 2, "attn_dp": 4}, START | {"tp": 8}),
    Team("sustech", "h200", 2, START | {"tp": 8, "pp": 2, "attn_dp": 2}, START),
)


def published(team: Team) -> tuple[float, int]:
    """Its best figure, and how many runs its report lists."""
    with ROWS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["site"] == team.name]
    repeats = sum(2 for row in rows if "median of three" in row["note"])
    return max(float(row["total_tok_s"]) for row in rows if row["result"] == "ok"), len(rows) + repeats


def study(team: Team, trials: int, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(STUDY.read_text())
    gpus = 8 * team.nodes
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
        "baseline": team.start,
        "rules": [{"refuse": f"tp * pp != {gpus}", "because": "use all"}, {"refuse": "attn_dp > tp", "because": "a"}],
        "job": {"nodes": team.nodes, "gpus": 8, "limit": "10m"},
        "budget": {"trials": trials},
        "search": {"seed": seed, "sentinel_every": 0},
        "stages": {"baseline": {"repeats": 1}},
        "confirm": {"top": 0},
    }
    found["task"].pop("nodes")
    return found


def measured(team: Team, trials: int, seed: int, folder: Path) -> list[float]:
    """What each run measured, in order; nothing for one that failed."""
    ridgeline.tune(study(team, trials, seed), out=folder)
    history = read_history(folder)
    good = {run.number: run.metrics["total_tok_s"] for _, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH)}
    return [good.get(number, 0.0) for number in history.runs]


def twin_value(team: Team, folder: Path) -> float:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study(team, 1, 0)))
    found = check_study(path)
    expected = found.workload.expectation(found.study.space.settings(team.best))
    assert expected is not None and expected.mean is not None
    return expected.mean


def until(values: list[float], wanted: float) -> int | None:
    return next((number for number, value in enumerate(values, 1) if value >= CLOSE * wanted), None)


def shown(counts: list[int | None]) -> str:
    known = [number for number in counts if number is not None]
    text = f"{statistics.median(known):g}" if known else "not reached"
    return text if len(known) == len(counts) else f"{text} ({len(known)} of {len(counts)} seeds)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=16)
    asked = parser.parse_args()
    print("| team | its best, tok/s | runs listed | a third | its setting in the twin | our best (simulated) |", end="")
    print(" runs until 98%: as published | as the twin has it |\n|---|---|---|---|---|---|---|---|")
    for team in TEAMS:
        best, listed = published(team)
        with tempfile.TemporaryDirectory(prefix="challenge-") as folder:
            own = twin_value(team, Path(folder))
            runs = [measured(team, asked.trials, seed, Path(folder) / f"{seed}") for seed in range(asked.seeds)]
        ours = statistics.median(max(values) for values in runs)
        counts = [shown([until(values, wanted) for values in runs]) for wanted in (best, own)]
        print(
            f"| {team.name} | {best:,.0f} | {listed} | {listed / 3:.1f} | {own:,.0f} | {ours:,.0f} | "
            f"{counts[0]} | {counts[1]} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
