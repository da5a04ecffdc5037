"""What short trials save: example 04 with whole trials and with short ones first, by node-hours and by what was found.

    .venv/bin/python -m benchmarks.search.short_trials [--seeds 3] [--requests 500]

The cluster is simulated, so the node-hours are those that the same campaign would take on a real one. Random proposals,
so that both ways try the same settings in the same order and differ in nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from ridgeline.records.trial import Stage
from ridgeline.study.history import History, read_history

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "04-deepseek-r1-16-gpus"


def study_text(seed: int, requests: int | None) -> str:
    text = (EXAMPLE / "study.yaml").read_text().replace("sites/", f"{EXAMPLE}/sites/")
    short = "" if requests is None else f", short: {{traffic.requests: {requests}}}"
    text = text.replace("search: {seed: 5}", f"search: {{sampler: random, sentinel_every: 0, seed: {seed}{short}}}")
    text = text.replace("successful_requests == 2000", "successful_requests > 0")
    return text.replace("confirm: {top: 3, blocks: 5}", "confirm: {top: 0}")


def search(seed: int, requests: int | None) -> History:
    with tempfile.TemporaryDirectory(prefix="ridgeline-short-") as home:
        (Path(home) / "study.yaml").write_text(study_text(seed, requests))
        out = Path(home) / "out"
        command = [sys.executable, "-m", "ridgeline", "tune", str(Path(home) / "study.yaml"), "--out", str(out)]
        told = subprocess.run(command, capture_output=True, text=True)
        if told.returncode > 1:  # 1: nothing is confirmed here
            raise SystemExit(told.stderr)
        return read_history(out)


def spent(history: History) -> float:
    searched = (Stage.SEARCH, Stage.SHORT)
    return sum(run.node_hours for run in history.runs.values() if history.trials[run.trial].stage in searched)


def best(history: History) -> float:
    return max(run.metrics["total_tok_s"] for _, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=500)
    asked = parser.parse_args()
    print(f"{'seed':>4}  {'trials':<22}{'node-hours':>10}  {'best tok/s':>10}  {'whole runs':>10}")
    for seed in range(1, asked.seeds + 1):
        for name, requests in (("whole", None), (f"short, {asked.requests} of 2000", asked.requests)):
            found = search(seed, requests)
            whole = found.count(Stage.SEARCH)
            print(f"{seed:>4}  {name:<22}{spent(found):>10.2f}  {best(found):>10,.0f}  {whole:>10}", flush=True)


if __name__ == "__main__":
    main()
