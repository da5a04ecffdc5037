"""A study as an Optuna storage: a journal file that optuna-dashboard and Optuna's own plots open."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.files import in_one_step
from ridgeline.records.run import Run
from ridgeline.records.space import Continuous, Knob
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.study.history import History


def write_optuna(study: Study, history: History, out: Path) -> int:
    """How many runs were written as trials; a file that is there is replaced."""
    if out.is_dir():
        raise InputError(f"{out} is a folder; name a file with --out, such as optuna.log")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with in_one_step(out) as partial:
            storage = JournalStorage(JournalFileBackend(str(partial)))
            made = optuna.create_study(storage=storage, study_name=study.name, direction=study.goal.direction)
            made.set_user_attr("question", study.question)
            _name_the_goal(made, study.goal.metric)
            used = [history.trials[run.trial] for run in history.runs.values()]
            ways = {
                knob.name: _distribution(knob, [t.point.get(knob.name) for t in used]) for knob in study.space.knobs
            }
            made.add_trials([_trial(history.trials[run.trial], run, study, ways) for run in history.runs.values()])
            Path(f"{partial}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); name another file with --out") from None
    finally:
        optuna.logging.set_verbosity(before)
    return len(history.runs)


def _name_the_goal(made: Any, metric: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls its names of metrics experimental each time
        made.set_metric_names([metric])


def _distribution(knob: Knob, used: Iterable[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    known = [value for value in used if value is not None]
    inside = all(knob.contains(value) for value in known)
    if isinstance(knob, Continuous):
        low, high = min([knob.low, *known]), max([knob.high, *known])
        return FloatDistribution(low, high, log=knob.log)
    if isinstance(knob.values, range) and inside:
        return IntDistribution(knob.values[0], knob.values[-1], step=abs(knob.values.step))
    return CategoricalDistribution([*dict.fromkeys([*knob.values, *known])])


def _trial(trial: Trial, run: Run, study: Study, ways: dict[str, Any]) -> Any:
    from optuna.trial import FrozenTrial, TrialState

    assert run.outcome is not None
    value = run.metrics.get(study.goal.metric) if run.outcome.kind == "ok" else None
    params = {name: v for name, v in trial.point.items() if name in ways and v is not None}
    told: dict[str, Any] = {
        "stage": trial.stage.value,
        "trial": trial.number,
        "proposer": trial.proposer,
        "why": trial.why,
    }
    told |= {"outcome": run.outcome.kind.value, "reason": str(run.outcome), "folder": run.folder.name, **run.metrics}
    return FrozenTrial(
        number=run.number - 1,
        trial_id=run.number - 1,
        state=TrialState.FAIL if value is None else TrialState.COMPLETE,
        value=value,
        datetime_start=_when(run.ending.started_s),
        datetime_complete=_when(run.ending.ended_s),
        params=params,
        distributions={name: ways[name] for name in params},
        user_attrs=told,
        system_attrs={},
        intermediate_values={},
    )


def _when(seconds: float) -> datetime:
    # Optuna keeps local times without a zone
    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().replace(tzinfo=None)
