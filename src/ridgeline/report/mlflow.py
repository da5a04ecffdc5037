"""A study as an experiment in MLflow's file store: plain folders that `mlflow ui` opens, written without MLflow."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.files import in_one_step
from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.study.history import History

FINISHED, FAILED = 3, 4
LONGEST_VALUE = 6000  # of a parameter, as MLflow holds it
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_. -]")


def write_mlflow(study: Study, history: History, folder: Path) -> int:
    """How many runs were written into the store in this folder. Written again, the study's experiment is replaced."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder with --out, such as mlruns")
    number = str(uuid.uuid5(uuid.NAMESPACE_URL, f"ridgeline:{history.root}").int % 10**18)
    place = folder / number
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with in_one_step(place) as partial:
            partial.mkdir()
            _experiment(partial, place, number, study, history)
            for run in history.runs.values():
                _run(partial, place, history.trials[run.trial], run)
            shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); name another folder with --out") from None
    return len(history.runs)


def _experiment(partial: Path, place: Path, number: str, study: Study, history: History) -> None:
    times = [_ms(run.ending.started_s) for run in history.runs.values()] or [0]
    meta = {
        "artifact_location": place.absolute().as_uri(),
        "creation_time": min(times),
        "experiment_id": number,
        "last_update_time": max(times),
        "lifecycle_stage": "active",
        "name": study.name,
    }
    _meta(partial, meta)
    _texts(
        partial / "tags", {"mlflow.note.content": study.question, "goal": f"{study.goal.direction} {study.goal.metric}"}
    )


def _run(partial: Path, place: Path, trial: Trial, run: Run) -> None:
    assert run.outcome is not None
    run_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{run.folder}#{run.number}").hex
    name = f"{run.number:04d} {trial.stage.value} {trial.label}"[:200]
    meta = {
        "artifact_uri": (place.absolute() / run_id / "artifacts").as_uri(),
        "end_time": _ms(run.ending.ended_s),
        "entry_point_name": "",
        "experiment_id": place.name,
        "lifecycle_stage": "active",
        "run_id": run_id,
        "run_name": name,
        "run_uuid": run_id,
        "source_name": "",
        "source_type": 4,
        "source_version": "",
        "start_time": _ms(run.ending.started_s),
        "status": FINISHED if run.outcome.kind == "ok" else FAILED,
        "tags": [],
        "user_id": "ridgeline",
    }
    folder = partial / run_id
    for part in ("artifacts", "metrics", "params", "tags"):
        (folder / part).mkdir(parents=True)
    _meta(folder, meta)
    _link_files(run.folder, folder / "artifacts")
    _texts(folder / "params", {k: str(v)[:LONGEST_VALUE] for k, v in trial.settings.items() if v is not None})
    at = _ms(run.ending.ended_s)
    figures = {**run.metrics, "duration_s": run.ending.duration_s, "node_hours": run.node_hours}
    _texts(folder / "metrics", {k: f"{at} {float(v)!r} 0\n" for k, v in figures.items() if isinstance(v, int | float)})
    tags = {"mlflow.runName": name, "stage": trial.stage.value, "trial": str(trial.number), "proposer": trial.proposer}
    tags |= {"why": trial.why, "outcome": run.outcome.kind.value, "reason": str(run.outcome), **dict(run.texts)}
    _texts(folder / "tags", tags)


def _link_files(run_folder: Path, artifacts: Path) -> None:
    """Links, so that deleting the run in MLflow deletes nothing of the study; and no `env`, which is private."""
    shown = [run_folder / name for name in ("run.sh", "result.json", "stdout", "stderr")]
    for file in (*shown, *(sorted(run_folder.glob("*.log")) if run_folder.is_dir() else ())):
        if file.is_file():
            (artifacts / file.name).symlink_to(file.absolute())


def _meta(folder: Path, meta: Mapping[str, Any]) -> None:
    # JSON is YAML, and quotes what YAML would take for something else
    (folder / "meta.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in meta.items()))


def _texts(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        safe = _NOT_IN_NAMES.sub("_", name).strip(". ") or "_"
        (folder / safe[:200]).write_text(text)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
