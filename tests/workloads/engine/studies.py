"""Studies of engines for tests, and the stand-in that plays SGLang in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.campaign.judge import judge
from ridgeline.executors.script import exit_record
from ridgeline.records.measurement import Reading
from ridgeline.records.outcome import Outcome
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.space import Discrete, Space
from ridgeline.records.study import Goal, Study, WorkloadChoice
from ridgeline.records.trial import Stage, Trial
from ridgeline.workloads.base import Workload

STANDIN = Path(__file__).parent / "standin"
SAMPLES = Path(__file__).parents[2] / "samples" / "sglang"


sglang_offline, sglang_serve, vllm_offline, vllm_serve = (
    catalog.part("workloads", kind) for kind in ("sglang-offline", "sglang-serve", "vllm-offline", "vllm-serve")
)


def study(
    folder: Path,
    kind: str = "sglang-offline",
    knobs: Mapping[str, list[Any]] | None = None,
    goal: str = "total_tok_s",
    **options: object,
) -> Study:
    chosen = {"model": "llama-8b", "load_format": "dummy", "engine": sys.executable, **options}
    if kind.endswith("serve") and "rate" not in chosen:
        chosen.setdefault("concurrency", 2)
    knobs = {"mem_fraction_static": [0.8]} if knobs is None else knobs
    space = Space(tuple(Discrete(name, values, ordered=False) for name, values in knobs.items()), {})
    baseline = {name: values[0] for name, values in knobs.items()}
    return Study("engines", WorkloadChoice(kind, chosen), space, Goal(goal, "maximize"), baseline, folder)


def trial(of: Study, **changes: Any) -> Trial:
    point = {**of.baseline, **changes}
    return Trial(1, point, of.space.settings(point), Stage.SEARCH, "test")


def with_standin(of: Study) -> Study:
    # also what is there already: a mutant of the session's code is found by it
    path = os.pathsep.join(filter(None, (str(STANDIN), os.environ.get("PYTHONPATH"))))
    options = {**of.workload.options, "env": {"PYTHONPATH": path, "XDG_CACHE_HOME": str(of.folder / "cache")}}
    return replace(of, workload=WorkloadChoice(of.workload.kind, options))


def run_for_real(
    workload: Workload, of: Study, folder: Path, stage: Stage = Stage.SEARCH, **changes: object
) -> tuple[Outcome, Reading]:
    """Prepare a trial, run its job as run.sh would, and judge it."""
    asked = replace(trial(of, **changes), stage=stage)
    job = workload.prepare(asked, folder)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        code = subprocess.run(
            ["sh", "-c", job.command], cwd=folder, env={**os.environ, **job.env}, stdout=out, stderr=err, check=False
        ).returncode
    ending = Ending(Cause.EXITED, code, code - 128 if code > 128 else None, started_s=1.0, ended_s=2.0)
    reading = workload.read(Run(1, 1, 1, folder, Resources(), ending))
    assert exit_record(folder) is None  # the job itself keeps no state files: run.sh does
    return judge(ending, reading, folder, workload.signatures, workload.logs, of, asked.settings, {}), reading
