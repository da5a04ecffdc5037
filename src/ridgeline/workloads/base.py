"""The seam: how to run a program and read it.

A workload is made from a study and its site (`Factory`). It promises:
- `problems` names everything in the study that this workload cannot accept, without touching the site;
- `refusal` says before a run is spent why a setting cannot work (None: try it);
- `prepare` fills `folder` and returns the job; called again with the same trial it writes the same files;
- `read` returns the same reading when called again on the same folder, and never raises for a program's bad output:
  it puts the reason into `Reading.problem`.
A workload with an attribute `pasted_whole = True` promises that `paste` differs wherever two jobs differ in more than
what is built and asked of the site; of others run folders are compared to see whether two settings are the same job.
One with an attribute `pasted_as` ('to serve with it') pastes something else than what a run starts, and says for what.
One with `templates()` yields every text in which it fills {knob} fields, each with its place in the study file: `check`
refuses those that would lose their knob (`records/template.py`).
A workload may have `remarks(settings)`: sentences about what it will find out on the node, shown by `ridgeline check`;
and `in_place`: its options that name what stays where it is (engines, models) and is never copied with a study.
Metrics among its `run_times` are the time that a run takes: one that has lasted longer cannot come out shorter.
One with `profiles = True` starts a trial of the stage `profile` under the study's profiler, and leaves files in the run
folder that an analyzer reads.
One with `programs()` gives what the programs that a study names say of themselves (release, flags), by program: kept in
the journal, and handed back as `Study.recorded` where a study folder is only read. Then it starts none of them.
A factory with an attribute `form` (a `forms.form.Form` of its keys in a study) has them completed by editors and listed
in the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from ridgeline.records.measurement import Reading
from ridgeline.records.observation import Expectation
from ridgeline.records.outcome import Signature
from ridgeline.records.problem import Problem
from ridgeline.records.run import Job, Run
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial


class Workload(Protocol):
    signatures: Sequence[Signature]
    logs: Sequence[str]  # files of the run folder in which signatures are looked for, in this order

    def problems(self) -> list[Problem]: ...

    def refusal(self, settings: Settings) -> str | None: ...

    def prepare(self, trial: Trial, folder: Path) -> Job: ...

    def read(self, run: Run) -> Reading: ...

    def paste(self, settings: Settings) -> str:
        """The setting as a person would type it: flags, environment, input lines."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """What a workload with a model of memory may add: the search for an edge then begins beside the foreseen one."""

    def foreseen_failure(self, settings: Settings) -> str | None:
        """Why this setting will probably fail. Unlike a refusal, a doubt does not keep it from being run."""
        ...


@runtime_checkable
class Predicting(Protocol):
    """What a workload with a model of speed may add: a sampler that listens begins where the model expects most."""

    def expectation(self, settings: Settings) -> Expectation | None:
        """What the goal's metric is expected to be here, and the chance to pass; None where the model cannot say."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """What a workload may add whose runs write the goal's metric while they last: clearly bad ones are ended early."""

    streams: bool  # whether runs of this study do

    def streamed(self, folder: Path) -> Sequence[float]:
        """The goal's values so far, oldest first; of an ended run all. Never raises for what a program wrote."""
        ...


@runtime_checkable
class Sensitive(Protocol):
    """What a predicting workload may add: how its answer would move, were what it rests on otherwise."""

    def sensitivities(self, settings: Settings) -> tuple[float, ...]:
        """Log of the factor on the goal's metric, were each assumption one standard deviation off. The same assumptions
        at every setting; empty where there is nothing to say here."""
        ...


class WorkloadFactory(Protocol):
    def __call__(self, study: Study) -> Workload: ...
