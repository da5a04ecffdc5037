"""The study file, version 1, as pydantic models: types, limits and a description of every key.

Only the boundary knows pydantic. What a model cannot say alone (a baseline inside the space, names that exist) is said
in study_file.py, where lines are known.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Tag, WithJsonSchema

from ridgeline.errors import InputError
from ridgeline.records.expression import is_number
from ridgeline.records.study import Budget, Builds, JobLimits
from ridgeline.records.task import TaskRules
from ridgeline.study.forms.form import (
    TEXT_OR_MAPPING,
    Accepts,
    DefaultText,
    Duration,
    Entry,
    ExpressionText,
    FieldName,
    Form,
    Lines,
    Single,
    Size,
    Text,
    ValueUnit,
    Variable,
    accepted_by,
)
from ridgeline.study.site_form import PricesForm
from ridgeline.study.space_form import KnobForm
from ridgeline.study.stage_forms import ConfirmForm, NotifyForm, SearchForm, StagesForm


def _switch_as_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _site(value: object) -> object:
    if not isinstance(value, str | dict) or not value:
        raise ValueError(f"{value!r} is not a site; write `local`, a site's name, a path to a site file, or a mapping")
    return value


SiteChoice = Annotated[
    Any,
    BeforeValidator(_site),
    Accepts("`local`, a site's name, the path of a site file, or the site itself as a mapping"),
    WithJsonSchema({"type": ["string", "object"]}),
]
Point = Annotated[dict[str, Single], Accepts("a mapping of knobs to values")]


class WorkloadForm(Form):
    """The program and how to run and read it; keys besides `kind` belong to that workload."""

    model_config = ConfigDict(extra="allow")
    kind: str = Field(description="Which workload: `command` for any program, or a named one.")


class RuleForm(Form):
    """A rule that refuses points before anything runs."""

    refuse: ExpressionText = Field(description="Points for which this expression holds are never run.")
    because: str = Field(description="The reason, shown to people.", min_length=1)


class GoalForm(Form):
    """What is best: exactly one of the two keys."""

    maximize: Annotated[str | None, DefaultText("`minimize` is given")] = Field(
        default=None, description="The metric whose largest value is best."
    )
    minimize: Annotated[str | None, DefaultText("`maximize` is given")] = Field(
        default=None, description="The metric whose smallest value is best."
    )


class ToleranceForm(Form):
    """How far a value may be off: abs + rel x |reference|."""

    abs_: float = Field(default=0.0, alias="abs", ge=0, description="The absolute part, in the metric's unit.")
    rel: float = Field(default=0.0, ge=0, description="The relative part, as a share: 0.001 is 0.1%.")


def _reference(value: object) -> object:
    if value == "baseline" or (is_number(value)):
        return value
    raise ValueError(f"{value!r} is not a reference; write `baseline` or a number")


class GuardForm(Form):
    """Closeness of a metric to the baseline's value or to a number."""

    metric: str = Field(description="The metric that must be close.")
    within: ToleranceForm = Field(description="The tolerance.")
    of: Annotated[
        Any,
        BeforeValidator(_reference),
        Accepts("`baseline` or a number"),
        WithJsonSchema({"anyOf": [{"const": "baseline"}, {"type": "number"}]}),
    ] = Field(default="baseline", description="What it is compared with: `baseline`, or a number.")


GuardChoice = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[GuardForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
    FieldName,
    Accepts("a sentence such as `error < 1e-6`, or a mapping"),
]


class BudgetForm(Form):
    """Limits of the whole campaign; what is not named is not limited."""

    makes = Budget

    trials: Annotated[int | None, ValueUnit("trials"), DefaultText("40 where nothing else is limited")] = Field(
        ge=0, description="Search trials; baseline and confirmation runs are extra."
    )
    wall: Annotated[Duration | None, FieldName("wall_s"), DefaultText("no limit")] = Field(
        description="Wall-clock time while `ridgeline` is running and a run is in flight, time in the queue included.",
    )
    node_hours: Annotated[float | None, ValueUnit("node-hours"), DefaultText("no limit")] = Field(
        gt=0, description="Nodes x hours over all runs, retries included."
    )
    grant: Annotated[Text, DefaultText("none")] = Field(
        description="The file of a grant that studies and people share: `ridgeline grant create` makes one."
    )


CountOf = Annotated[ExpressionText | None, Accepts("a whole number, or an expression that gives one")]


class JobForm(Form):
    """What one run asks of the site. The counts may be expressions over settings."""

    makes = JobLimits

    nodes: Annotated[CountOf, DefaultText("1")] = Field(description="Nodes of a run.")
    ranks_per_node: Annotated[CountOf, DefaultText("1")] = Field(description="MPI ranks on each node.")
    cores: Annotated[CountOf, DefaultText("the site decides")] = Field(description="Cores on each node.")
    gpus: Annotated[CountOf, DefaultText("0")] = Field(description="GPUs on each node.")
    limit: Annotated[Duration, FieldName("limit_s")] = Field(
        description="A run that takes longer is ended and counts as a time-out."
    )
    silence: Annotated[Duration | None, FieldName("silence_limit_s"), DefaultText("no limit")] = Field(
        description="A run that writes nothing for this long is ended as a hang."
    )
    output: Annotated[Size, Field(gt=0), FieldName("output_bytes"), DefaultText("1 GiB")] = Field(
        description="A run whose stdout, stderr and logs are larger in all is ended as a crash."
    )
    retries: Annotated[int, ValueUnit("attempts")] = Field(
        ge=0, description="Further attempts after a node's or the site's fault."
    )
    modules: Annotated[Lines, DefaultText("the site's alone")] = Field(
        description="Modules loaded after the site's, for runs and builds; {knob} fields allowed, such as gcc/{gcc}.",
    )


def margin_of(rule: str) -> float:
    """`equivalent within 1.5%` as a share. InputError says what is wrong."""
    found = re.fullmatch(r"equivalent\s+within\s+(\d+(?:\.\d*)?|\.\d+)\s*%", rule.strip())
    if found is None:
        raise InputError(f"{rule!r} is not a rule to stop by; write `equivalent within 1.5%`")
    margin = float(found[1]) / 100
    if not 0 < margin < 0.5:
        raise InputError(f"{rule!r}: the margin must be above 0% and below 50%; write e.g. `equivalent within 1.5%`")
    return margin


StopRule = Annotated[str, accepted_by(margin_of)]

BuildText = Annotated[
    str,
    BeforeValidator(_switch_as_text),
    Accepts("text"),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]


def _inside_the_build(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        path = PurePosixPath(pattern)
        if path.is_absolute() or ".." in path.parts or "\0" in pattern:
            raise ValueError(f"{pattern!r} leads out of the build's folder; name what the build leaves in it")
        try:
            any(NOWHERE.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            if pattern.strip():  # an empty list of names is reported elsewhere
                raise ValueError(f"{pattern!r} is not a pattern of file names ({error}); correct it") from None
    return patterns


NOWHERE = Path("/nowhere/to/look")  # a pattern is only read here


class BuildsForm(Form):
    """How a variant of the program is built from settings; each distinct one is built once."""

    makes = Builds

    make: Lines = Field(description="Shell commands with {knob} fields; one text or a list of lines.")
    keep: Annotated[Lines, AfterValidator(_inside_the_build)] = Field(
        description="Files or globs to keep of the build; everything else is removed."
    )
    sources: Annotated[Lines, DefaultText("files that the commands name")] = Field(
        description="Files or globs beside the study file that the commands need."
    )
    env: dict[Variable, BuildText] = Field(description="Environment of the build commands; {knob} fields allowed.")
    limit: Annotated[Duration, FieldName("limit_s")] = Field(description="A build that takes longer is ended.")
    where: Literal["here", "site"] = Field(
        description="`here`: on this machine, one by one; `site`: as its jobs, with its modules, several at once.",
    )


def _flag(text: str) -> str:
    if not re.fullmatch(r"--?[A-Za-z][\w-]*", text):
        raise InputError(f"{text!r} is not a flag; write it as it is typed, such as --enable-torch-compile")
    return text


Flag = Annotated[str, accepted_by(_flag)]


class TaskForm(Form):
    """Rules that somebody else set; refused before anything runs, and checked again in what the engine applied."""

    makes = TaskRules

    forbidden_flags: Annotated[list[Flag], Accepts("a list such as [--enable-torch-compile]"), DefaultText("none")] = (
        Field(description="Flags that no job may have, as they are typed.")
    )
    forbidden_env: Annotated[list[str], Accepts("a list of variables such as [NCCL_*]"), DefaultText("none")] = Field(
        description="Variables that no job may set; * stands for anything."
    )
    model: Annotated[str | None, DefaultText("any")] = Field(description="The model that must be loaded.")
    seed: Annotated[int | None, DefaultText("any")] = Field(description="The seed of the prompts.")
    prompts: Annotated[int | None, ValueUnit("prompts"), DefaultText("any")] = Field(
        ge=1, description="How many prompts each run must answer."
    )
    wall: Annotated[Duration | None, FieldName("wall_s"), DefaultText("no limit")] = Field(
        description="The longest that a job may take."
    )
    nodes: Annotated[list[str], Accepts("a list of nodes such as [dgx001, dgx002]"), DefaultText("any")] = Field(
        description="Nodes that jobs may run on; * stands for anything. Where each is named, jobs ask for them."
    )


class StudyForm(Form):
    """A Ridgeline study file, version 1."""

    version: Annotated[Literal[1], Accepts("1, the version this Ridgeline reads")] = Field(
        description="The version of this format: 1."
    )
    name: Annotated[str, Accepts("text of letters, digits, dots, dashes and underscores, at most 100")] = Field(
        description="A short name; it becomes a folder's name.", max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    )
    question: str = Field(default="", description="The question in words, shown on top of the report.")
    workload: WorkloadForm = Field(description="The program: how to run it and what to read from it.")
    site: SiteChoice = Field(
        default="local",
        description="Where it runs: `local`, a site file's path, a known site's name, or the site itself.",
    )
    secrets: Annotated[list[Variable], Accepts("a list of variables such as [HF_TOKEN]"), DefaultText("none")] = Field(
        default=[],
        description="Variables of your environment that hold keys or passwords: referred to, never written down.",
    )
    prices: Annotated[PricesForm | None, DefaultText("the site's")] = Field(
        default=None,
        description="What hours and energy cost; gives the metrics `dollars`, `joules`, `co2_g`.",
    )
    space: Annotated[dict[str, KnobForm], Entry("KNOB"), Accepts("a mapping of knobs to their values")] = Field(
        description="The knobs: name to values, range, or one fixed value."
    )
    derived: Annotated[dict[str, ExpressionText], Accepts("a mapping of names to expressions")] = Field(
        default={}, description="Values computed from knobs: name to expression."
    )
    rules: Annotated[list[RuleForm], Accepts("a list of mappings")] = Field(
        default=[], description="Points that must never run, each with the reason."
    )
    goal: Annotated[GoalForm, Accepts("a mapping such as {maximize: gflops}")] = Field(
        description="The metric to maximize or minimize."
    )
    second_goal: Annotated[
        GoalForm | None, Accepts("a mapping such as {minimize: ttft_p95_ms}"), DefaultText("none")
    ] = Field(default=None, description="What is traded against the goal; the answer then shows the front of both.")
    guards: list[GuardChoice] = Field(default=[], description="Conditions without which a result does not count.")
    baseline: Annotated[Point, DefaultText("required where a knob has several values")] = Field(
        default={}, description="The setting used today; every knob with more than one value is named."
    )
    presets: Annotated[list[Point], Accepts("a list of settings")] = Field(
        default=[], description="Settings to try first."
    )
    groups: Annotated[dict[str, list[str]], Entry("GROUP"), Accepts("a mapping of names to lists of knobs")] = Field(
        default={},
        description="Knobs that belong together, in the order of their impact; others are grouped by their names.",
    )
    budget: BudgetForm = Field(default=BudgetForm.model_construct(), description="What the campaign may cost.")
    stages: StagesForm = Field(default=StagesForm.model_construct(), description="How thorough each stage is.")
    search: Annotated[SearchForm | None, DefaultText("`stages.search`")] = Field(
        default=None, description="Short for stages.search."
    )
    confirm: Annotated[ConfirmForm | None, DefaultText("`stages.confirm`")] = Field(
        default=None, description="Short for stages.confirm."
    )
    stop_when: Annotated[
        StopRule | None, Accepts("`equivalent within 1.5%`"), DefaultText("the best few are confirmed")
    ] = Field(
        default=None,
        description="`equivalent within 1.5%`: compare every setting that passed, and stop once each is shown to "
        "differ from the baseline by less than that, or to be better or worse.",
    )
    job: JobForm = Field(default=JobForm.model_construct(), description="What one run asks of the site.")
    task: Annotated[TaskForm | None, DefaultText("no rules but the study's own")] = Field(
        default=None, description="Rules of a task that somebody else set: what is forbidden and what is fixed."
    )
    notify: Annotated[NotifyForm, DefaultText("nobody")] = Field(
        default=NotifyForm.model_construct(), description="Whom to tell that the campaign has ended, and how."
    )
    builds: Annotated[BuildsForm | None, DefaultText("nothing is built")] = Field(
        default=None, description="How variants of the program are built."
    )
