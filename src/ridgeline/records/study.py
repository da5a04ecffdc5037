"""The question: what to run, what may change, what to maximise, what must hold, how much it may cost."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Literal

from ridgeline.records.expression import Expression, ExpressionError, is_number
from ridgeline.records.guard import Guard
from ridgeline.records.measurement import Reading
from ridgeline.records.run import Ending, Job, Resources
from ridgeline.records.site import LOCAL, Site
from ridgeline.records.space import Point, Settings, Space
from ridgeline.records.template import render, render_env

# The rules of a task that somebody else set: what a competition or a benchmark forbids and fixes.

BREAKS = "breaks the task's rules: "  # begins the reason of a run that is refused for it
_ASSIGNED = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=")


@dataclass(frozen=True, slots=True)
class TaskRules:
    """None and empty are no rule. `forbidden_env` and `nodes` may be patterns such as NCCL_*; `wall_s` is per job."""

    forbidden_flags: tuple[str, ...] = ()
    forbidden_env: tuple[str, ...] = ()
    model: str | None = None
    seed: int | None = None
    prompts: int | None = None
    wall_s: float | None = None
    nodes: tuple[str, ...] = ()

    @property
    def named_nodes(self) -> tuple[str, ...]:
        """The allowed nodes, where each is named; nothing where a pattern is among them."""
        return () if any(set("*?[") & set(name) for name in self.nodes) else self.nodes

    def flags_in(self, texts: Iterable[str]) -> list[str]:
        """Which forbidden flags these commands hold, as words of their own."""
        joined = "\n".join(texts)
        return [flag for flag in self.forbidden_flags if re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", joined)]

    def variables_in(self, texts: Iterable[str], names: Iterable[str] = ()) -> list[str]:
        """Which forbidden variables these commands set, or are among these names."""
        found = dict.fromkeys((*(name for text in texts for name in _ASSIGNED.findall(text)), *names))
        return [name for name in found if any(fnmatchcase(name, pattern) for pattern in self.forbidden_env)]

    def broken_by(self, ending: Ending, reading: Reading) -> Iterator[str]:
        """What a run broke, by what its program says that it applied, what it measured, and where it was."""
        for flag in self.switched_on(reading.applied):
            yield f"the engine applied {flag}, which the task forbids"
        model = reading.applied.get("model_path", reading.applied.get("model"))
        if self.model is not None and model is not None and PurePath(str(model)).name != PurePath(self.model).name:
            yield f"the engine loaded {model}, the task is about {self.model}"
        answered = reading.metrics.get("successful_requests")
        if self.prompts is not None and answered is not None and answered != self.prompts:
            yield f"{answered:.0f} prompts were answered, the task has {self.prompts}"
        if self.wall_s is not None and ending.duration_s > self.wall_s:
            yield f"it took {ending.duration_s:.0f} s, the task allows {self.wall_s:.0f} s"
        if outside := [node for node in ending.nodes if not self.allows_node(node)]:
            yield f"it ran on {', '.join(outside)}, the task allows {', '.join(self.nodes)}"

    def switched_on(self, applied: Mapping[str, object]) -> list[str]:
        """Forbidden switches that are on. The value of a flag that takes one may be the engine's own default."""
        return [flag for flag in self.forbidden_flags if applied.get(flag.lstrip("-").replace("-", "_")) is True]

    def allows_node(self, name: str) -> bool:
        short = name.partition(".")[0]
        return not self.nodes or any(fnmatchcase(name, each) or fnmatchcase(short, each) for each in self.nodes)

    def fixed(self) -> Mapping[str, int | str]:
        """What the study's workload must say, by our names."""
        values = {"model": self.model, "seed": self.seed, "prompts": self.prompts}
        return {name: value for name, value in values.items() if value is not None}


# Who is told: of a service, what `keep` sees and does; of a campaign, that it ended.


@dataclass(frozen=True, slots=True)
class NotifyChoice:
    """Every channel that is named is used."""

    webhook: str = ""
    webhook_env: str = ""  # the variable that holds the webhook's address, which is often a secret
    command: str = ""
    most_an_hour: int = 20

    @property
    def ways(self) -> list[str]:
        configured = {"webhook": self.webhook or self.webhook_env, "command": self.command}
        return [way for way, value in configured.items() if value]


NOBODY = NotifyChoice()


DEFAULT_SAMPLER = "guided"


@dataclass(frozen=True, slots=True)
class Goal:
    metric: str
    direction: Literal["maximize", "minimize"]

    def score(self, value: float) -> float:
        """Larger is better, whatever the direction."""
        return value if self.direction == "maximize" else -value


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a whole campaign; None is no limit. `trials` counts search trials only. `grant` is the file of a grant
    that it shares with other studies (study/grant.py); what is relative starts beside the study file."""

    trials: int | None = None
    wall_s: float | None = None
    node_hours: float | None = None
    grant: str = ""


@dataclass(frozen=True, slots=True)
class BaselineStage:
    repeats: int = 3


@dataclass(frozen=True, slots=True)
class SearchStage:
    """`named`: whether the study itself chose the sampler; where it did not, a campaign goes on with what it began."""

    sampler: str = DEFAULT_SAMPLER
    options: Mapping[str, object] = field(default_factory=dict)
    sentinel_every: int = 8  # search trials between two repeats of the baseline; 0 for none
    seed: int = 0
    named: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ConfirmStage:
    """`top` settings against the baseline in `blocks` interleaved blocks; `level` is the confidence of the interval.

    A block has `repeats` rounds, each of every setting once in an order drawn for it; one where runs cost hours.
    `warmup` says when a block begins with a run that does not count: `auto` where its node may be cold.
    """

    top: int = 3
    blocks: int = 5
    repeats: int = 2
    level: float = 0.95
    warmup: Literal["auto", "always", "never"] = "auto"


@dataclass(frozen=True, slots=True)
class ProfileStage:
    """One run of the baseline and one of the best setting under a profiler; mpip and ipm preload `library`.

    `torch` (an engine's own profiler) and `nsys` record `steps` steps of the server, `after_s` seconds into the load.
    What takes longer than `limit_s` is cut off, and traces of more than `size_bytes` are deleted.
    """

    tool: str
    library: str = ""
    steps: int = 20
    after_s: float = 5.0
    limit_s: float = 300.0
    size_bytes: int = 500_000_000


COUNTS = ("nodes", "ranks_per_node", "cores", "gpus")  # of `JobLimits`


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What a job asks of the site. Expressions over settings, so that a knob may decide nodes or ranks."""

    nodes: Expression | None = None
    ranks_per_node: Expression | None = None
    cores: Expression | None = None
    gpus: Expression | None = None
    limit_s: float = 3600.0
    silence_limit_s: float | None = None
    retries: int = 2
    output_bytes: int = 1 << 30  # that a run may write to stdout, stderr and the logs that are read
    disk_bytes: int = 100 << 30  # that the run's folder may take, with all that it writes there
    modules: tuple[str, ...] = ()  # loaded after the site's; may name knobs
    optional: frozenset[str] = frozenset()  # `Space.optional` of the study

    def loaded(self, settings: Settings) -> tuple[str, ...]:
        """The modules of these settings; a text that comes to nothing loads none."""
        return tuple(name for text in self.modules if (name := render(text, settings, self.optional).strip()))

    def resources(self, settings: Settings) -> Resources:
        """What a job of these settings asks for. ExpressionError or ValueError says which value makes no sense."""
        asked = {
            name: _whole(name, expression, settings)
            for name in COUNTS
            if (expression := getattr(self, name)) is not None
        }
        return Resources(**asked)


def _whole(name: str, expression: Expression, settings: Settings) -> int:
    value = expression.evaluate(settings)
    if not is_number(value) or value != int(value):
        raise ExpressionError(f"job.{name} = {expression.text} gives {value!r}, not a whole number")
    return int(value)


@dataclass(frozen=True, slots=True)
class Builds:
    """How a variant is built from settings: once per distinct rendered text, pruned to `keep`.

    `sources` are files or globs beside the study file; `where` is `here` or `site`: as jobs of the site.
    """

    make: tuple[str, ...]
    keep: tuple[str, ...]
    sources: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 3600.0
    where: Literal["here", "site"] = "here"
    optional: frozenset[str] = frozenset()  # `Space.optional` of the study

    def commands(self, settings: Settings) -> list[str]:
        return [render(line, settings, self.optional) for line in self.make]

    def environment(self, settings: Settings) -> dict[str, str]:
        return render_env(self.env, settings, self.optional)


@dataclass(frozen=True, slots=True)
class FromRecipe:
    """Which stage of which recipe wrote the study, and from what: the recipe's own words, from which it goes on."""

    name: str
    stage: str
    given: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """`kind` names a workload of the catalog; `options` are what the study file says to it."""

    kind: str
    options: Mapping[str, object]


@dataclass(frozen=True)
class Study:
    name: str
    workload: WorkloadChoice
    space: Space
    goal: Goal
    baseline: Point
    folder: Path  # the study file's folder: relative paths in it start here
    question: str = ""
    site: Site = LOCAL
    guards: tuple[Guard, ...] = ()
    presets: tuple[Point, ...] = ()
    budget: Budget = Budget()
    baseline_stage: BaselineStage = BaselineStage()
    search: SearchStage = SearchStage()
    confirm: ConfirmStage = ConfirmStage()
    # `stop_when: equivalent within 1.5%`, as a share: all settings that passed are compared, until each is decided
    equivalent_within: float | None = None
    task: TaskRules | None = None  # rules that somebody else set
    profile: ProfileStage | None = None
    job: JobLimits = JobLimits()
    builds: Builds | None = None
    second_goal: Goal | None = None  # traded against the first; settings are still ranked by the first
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # knobs that belong together, by a name
    notify: NotifyChoice = NOBODY
    recipe: FromRecipe | None = None  # that wrote it
    home: Path | None = None  # where its author's file is, once the study is a copy in a campaign's folder
    # what the programs that it names said of themselves when it ran, by program. None: they may be asked. A study
    # folder that is opened to be read may be a stranger's, and then none of them is started
    recorded: Mapping[str, object] | None = None

    @property
    def origin(self) -> Path:
        """Where names of what is never copied start: engines, models, checkouts."""
        return self.home or self.folder

    def completed(self, job: Job, settings: Settings) -> Job:
        """The job as a workload prepared it, with the modules of these settings."""
        return replace(job, modules=self.job.loaded(settings))

    @property
    def grant(self) -> Path | None:
        """The file of the grant that its runs are paid from."""
        named = Path(self.budget.grant).expanduser()
        return Path(os.path.normpath(self.origin.absolute() / named)) if self.budget.grant else None

    @property
    def needed_metrics(self) -> set[str]:
        """What a run must have measured to count: the goal's metric, and all that guards name."""
        return {self.goal.metric, *(name for guard in self.guards for name in guard.names)}
