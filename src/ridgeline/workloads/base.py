"""The seam: how to run a program and read it.

A workload is a subclass of `Workload`, made from a study and its site (`WorkloadFactory`). It says how to prepare a run
and how to read it; all else has a default. A factory with an attribute `form` (a `study.forms.Form` of its keys in a
study) has them completed by editors and listed in the reference; one with `terms` (a function of a study) says which
limits those keys state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline import catalog
from ridgeline.errors import InputError, Problem, Where, near
from ridgeline.records.expression import Value
from ridgeline.records.measurement import COSTS, Reading
from ridgeline.records.observation import Expectation
from ridgeline.records.outcome import Signature
from ridgeline.records.run import Job, Run
from ridgeline.records.site import unpriced
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.template import field_names, unknown_fields
from ridgeline.records.trial import Trial

NO_WEIGHTS = "/path/to/real/weights"  # the model of a server that was measured without real ones


@dataclass(frozen=True, slots=True)
class ServedAs:
    """What a server has beside its knobs, as it can be deployed from any folder; `release` "" where nobody knows it.

    `model` is NO_WEIGHTS where none were measured: a place for people to name theirs.
    """

    model: str
    python: str
    release: str = ""
    flags: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a metric may be in what people use: `called` and `unit` are how it is said, 'p95' and 'ms'."""

    metric: str
    most: float
    called: str
    unit: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What a study asks of a result besides its goal, in the keys of its kind of workload."""

    limits: tuple[Limit, ...] = ()
    counted: str = ""  # what the goal counts where its name does not tell: 'requests answered within 2 s'
    to_keep: str = ""  # the command that finds what keeps the limits
    enough: Mapping[str, float] = field(default_factory=dict)  # knob -> value beyond which more of it changes nothing


def terms_of(study: Study) -> Terms:
    """None are known of a folder that was made by a part which is not installed here."""
    try:
        stated = getattr(catalog.part("workloads", study.workload.kind), "terms", None)
    except InputError:
        return Terms()
    found: Terms = Terms() if stated is None else stated(study)
    return found


class Workload(ABC):
    signatures: Sequence[Signature] = ()
    logs: Sequence[str] = ("stderr", "stdout")  # files of the run folder in which signatures are looked for, in order
    # `paste` differs wherever two jobs differ in more than what is built and asked of the site; of other workloads run
    # folders are compared to see whether two settings are the same job
    pasted_whole: bool = False
    pasted_as: str = ""  # what `paste` is for, where it is not what a run starts: 'to serve with this setting'
    # profilers under which a trial of the stage `profile` can run, leaving files that an analyzer reads
    profilers: Sequence[str] = ()
    # what its model of speed (`expectation`) is called; empty where it has none. A sampler that listens begins where it
    # expects most
    predicts: str = ""

    @abstractmethod
    def problems(self) -> list[Problem]:
        """Everything in the study that this workload cannot accept, without touching the site."""

    @abstractmethod
    def refusal(self, settings: Settings) -> str | None:
        """Why a setting cannot work, before a run is spent on it; None: try it."""

    @abstractmethod
    def prepare(self, trial: Trial, folder: Path) -> Job:
        """Fill `folder` and return the job; called again with the same trial it writes the same files."""

    @abstractmethod
    def read(self, run: Run) -> Reading:
        """The same reading when called again on the same folder. Never raises for a program's bad output: the reason
        is in `Reading.problem`."""

    @abstractmethod
    def paste(self, settings: Settings) -> str:
        """The setting as a person would type it: flags, environment, input lines."""

    def offered(self, settings: Settings) -> str:
        """What people are told to use: `paste`, unless that is good for measuring alone."""
        return self.paste(settings)

    def served_as(self, settings: Settings) -> ServedAs | None:
        """None where it is not a server."""
        return None

    @property
    def in_place(self) -> Sequence[str]:
        """Options that name what stays where it is (engines, models) and is never copied with a study."""
        return ()

    def templates(self) -> Iterable[tuple[Where, str]]:
        """Every text in which it fills {knob} fields, with its place in the study file: `check` refuses those that
        would lose their knob (`records/template.py`)."""
        return ()

    def remarks(self, settings: Settings) -> Sequence[str | Problem]:
        """What is assumed here and found out on the node, shown by `ridgeline check`; a `Problem` at its line."""
        return []

    def doubts(self) -> list[str]:
        """Why what it measures may not hold where it will be used: shown by `check`, and with every answer."""
        return []

    def programs(self) -> Mapping[str, object]:
        """What the programs that a study names say of themselves (release, flags), by program, and the shape of its
        model: kept in the journal, and handed back as `Study.recorded` where a study folder is only read. Then it
        starts none of them and needs nothing that was left where the campaign ran."""
        return {}

    def predicted_failure(self, settings: Settings) -> str | None:
        """Why this setting will probably fail, by a model of memory: the search for an edge begins beside it. Unlike a
        refusal, it does not keep the setting from being run."""
        return None

    def expectation(self, settings: Settings) -> Expectation | None:
        """What the goal's metric is expected to be here, and the chance to pass; None where the model cannot say."""
        return None

    def predictor(self) -> Workload | str:
        """Another workload that predicts this one (`expectation`), or why there is none; empty where nobody would look
        for one."""
        return ""

    def unmodelled(self) -> Sequence[str]:
        """Knobs of the study on which its expectation does not depend: to it their values all look alike."""
        return ()

    @property
    def highest(self) -> float | None:
        """A value of the goal's metric that no setting can exceed, such as what is sent to a server."""
        return None

    def sensitivities(self, settings: Settings) -> tuple[float, ...]:
        """How the expectation would move: the log of the factor on the goal's metric, were each assumption one standard
        deviation off. The same assumptions at every setting; empty where there is nothing to say here."""
        return ()


WorkloadFactory = Callable[[Study], Workload]


# Names that a study says to a workload: which something reads, and which nothing knows.


def metric_problems(study: Study, metrics: Iterable[str]) -> Iterator[Problem]:
    """Goals must be metrics of the workload or of the study's prices; guards may name knobs too."""
    own = list(metrics)
    offered = [*own, *(name for name in COSTS if name not in own)]
    known = [*offered, *study.space.names]
    goals = {"goal": study.goal, "second_goal": study.second_goal}
    for key, goal in ((key, goal) for key, goal in goals.items() if goal is not None):
        if goal.metric in COSTS and goal.metric not in own and (missing := unpriced(goal.metric, study.site)):
            yield Problem((key, goal.direction), missing)
        if goal.metric not in offered:
            said = f"{study.workload.kind} has no metric {goal.metric}; {near(goal.metric, offered)}"
            yield Problem((key, goal.direction), said)
    for index, guard in enumerate(study.guards):
        for name in sorted(guard.names - set(known)):
            yield Problem(("guards", index), f"{name} is not a metric, knob or derived value; {near(name, known)}")


def field_problems(study: Study, templates: Iterable[tuple[Where, str]], also: Iterable[str] = ()) -> Iterator[Problem]:
    """A template may name knobs, derived values, `also`, and {build} where something is built."""
    known = [*study.space.names, *also, *(["build"] if study.builds else [])]
    for where, text in templates:
        for name in unknown_fields(text, known):
            if name == "build":
                yield Problem(where, "{build} is the folder of the built program, but the study has no `builds`")
            else:
                yield Problem(where, f"{{{name}}} is not a knob or a derived value; {near(name, known)}")


def names_read(study: Study, templates: Iterable[str]) -> set[str]:
    """Knobs and derived values that these templates, builds, the job's sizes or other derived values read."""
    builds, job = study.builds, study.job
    texts = [*templates, *job.modules, *((*builds.make, *builds.env.values()) if builds else ())]
    sizes = (job.nodes, job.ranks_per_node, job.cores, job.gpus)
    expressions = (*(size for size in sizes if size is not None), *study.space.derived.values())
    return {name for text in texts for name in field_names(text)} | {n for e in expressions for n in e.names}
