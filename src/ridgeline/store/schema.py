"""The study file, version 1, as pydantic models: types, limits and a description of every key.

Only the boundary knows pydantic. What a model cannot say alone (a baseline inside the space, names that exist) is said
in study_file.py, where lines are known.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)

from ridgeline.records.duration import parse_duration


def _lines(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_text(value: object) -> object:
    """Numbers and booleans written where text is meant, such as `derived: {ranks: 4}` or `env: {THREADS: 8}`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _as_expression(value: object) -> object:
    return repr(value) if isinstance(value, bool | int | float) else value


def _single(value: object) -> object:
    if value is None or isinstance(value, list | dict):
        shown = {"NoneType": "nothing", "list": "a list", "dict": "a mapping"}[type(value).__name__]
        raise ValueError(f"{shown} stands here; a single number, text or true/false is needed")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number; write one, without quotes or units")
    return value


def _site(value: object) -> object:
    if not isinstance(value, str | dict) or not value:
        raise ValueError(f"{value!r} is no site; write `local`, a site's name, a path to a site file, or a mapping")
    return value


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}], "examples": ["1h30m"]}),
]
Lines = Annotated[
    list[str],
    BeforeValidator(_lines),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Text = Annotated[
    str, BeforeValidator(_as_text), WithJsonSchema({"type": ["string", "number", "boolean"], "title": "Text"})
]
ExpressionText = Annotated[
    str,
    BeforeValidator(_as_expression),
    WithJsonSchema({"type": ["string", "number", "boolean"], "title": "Expression"}),
]
Single = Annotated[
    Any, BeforeValidator(_single), WithJsonSchema({"type": ["string", "number", "boolean"], "title": "Value"})
]
Number = Annotated[Any, BeforeValidator(_number), WithJsonSchema({"type": "number"})]
SiteChoice = Annotated[Any, BeforeValidator(_site), WithJsonSchema({"type": ["string", "object"]})]
PointForm = dict[str, Single]


class Form(BaseModel):
    """A mapping of the study file: every key is known and every value has its own type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ValuesForm(Form):
    """A knob with listed values."""

    values: list[Single] = Field(description="The values to choose from; ordered when all are numbers.")
    when: ExpressionText | None = Field(default=None, description="The knob exists only where this expression holds.")


class RangeForm(Form):
    """A knob with a range: whole numbers, steps, a geometric row, or any number in between."""

    from_: Number = Field(alias="from", description="The first value.")
    to: Number = Field(description="The last value, included where a step reaches it.")
    step: Number | None = Field(default=None, description="The distance between two values.")
    times: Number | None = Field(default=None, description="The factor between two values, such as 2 for 64, 128, 256.")
    log: bool = Field(default=False, description="Spread trials evenly over magnitudes instead of over values.")
    when: ExpressionText | None = Field(default=None, description="The knob exists only where this expression holds.")


def _knob_tag(value: object) -> str:
    if isinstance(value, list):
        return "<list>"
    if not isinstance(value, dict):
        return "<fixed>"
    return "<range>" if {"from", "to", "step", "times"} & value.keys() and "values" not in value else "<values>"


KnobForm = Annotated[
    Annotated[list[Single], Tag("<list>")]
    | Annotated[ValuesForm, Tag("<values>")]
    | Annotated[RangeForm, Tag("<range>")]
    | Annotated[Single, Tag("<fixed>")],
    Discriminator(_knob_tag),
]


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

    maximize: str | None = Field(default=None, description="The metric whose largest value is best.")
    minimize: str | None = Field(default=None, description="The metric whose smallest value is best.")


class ToleranceForm(Form):
    """How far a value may be off: abs + rel x |reference|."""

    abs_: float = Field(default=0.0, alias="abs", ge=0, description="Absolute part, in the metric's unit.")
    rel: float = Field(default=0.0, ge=0, description="Relative part, as a share: 0.001 is 0.1%.")


def _reference(value: object) -> object:
    if value == "baseline" or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{value!r} is no reference; write `baseline` or a number")


class GuardForm(Form):
    """Closeness of a metric to the baseline's value or to a number."""

    metric: str = Field(description="The metric that must be close.")
    within: ToleranceForm = Field(description="The tolerance.")
    of: Annotated[
        Any, BeforeValidator(_reference), WithJsonSchema({"anyOf": [{"const": "baseline"}, {"type": "number"}]})
    ] = Field(default="baseline", description="What it is compared with: `baseline`, or a number.")


def _guard_tag(value: object) -> str:
    return "<mapping>" if isinstance(value, dict) else "<sentence>"


GuardChoice = Annotated[
    Annotated[str, Tag("<sentence>")] | Annotated[GuardForm, Tag("<mapping>")], Discriminator(_guard_tag)
]


class BudgetForm(Form):
    """Limits of the whole campaign; what is not named is not limited."""

    trials: int | None = Field(
        default=None, ge=0, description="Search trials; baseline and confirmation runs are extra."
    )
    wall: Duration | None = Field(default=None, description="Time from the first run on.")
    node_hours: float | None = Field(default=None, gt=0, description="Nodes x hours over all runs, retries included.")


class BaselineForm(Form):
    """The first stage."""

    repeats: int = Field(default=3, ge=1, description="Runs of the baseline before the search starts.")


class SearchForm(Form):
    """The second stage; keys besides these are options of the sampler."""

    model_config = ConfigDict(extra="allow")
    sampler: str = Field(default="tpe", description="Who proposes settings: grid, random, tpe, or a plugin's.")
    seed: int = Field(default=0, ge=0, description="The same seed proposes the same settings for the same results.")
    sentinel_every: int = Field(default=8, ge=0, description="Trials between two repeats of the baseline; 0 for none.")


class ConfirmForm(Form):
    """The third stage: the best few against the baseline in fresh, interleaved runs."""

    top: int = Field(default=3, ge=0, description="How many settings are confirmed; 0 skips the stage.")
    blocks: int = Field(
        default=5, ge=1, description="Blocks of interleaved runs; each runs every setting and the baseline."
    )
    repeats: int = Field(
        default=2, ge=1, le=2, description="Runs of a setting in a block: 2 for ABBA, 1 for AB and BA in turn."
    )
    level: float = Field(default=0.95, gt=0, lt=1, description="Confidence of the interval.")


class StagesForm(Form):
    """The three stages of a campaign."""

    baseline: BaselineForm = Field(default=BaselineForm(), description="Measuring the baseline and its noise.")
    search: SearchForm | None = Field(default=None, description="Looking for better settings.")
    confirm: ConfirmForm | None = Field(default=None, description="Showing that the best really is better.")


class JobForm(Form):
    """What one run asks of the site. The counts may be expressions over settings."""

    nodes: ExpressionText | None = Field(default=None, description="Nodes of a run; 1 unless said.")
    ranks_per_node: ExpressionText | None = Field(default=None, description="MPI ranks on each node; 1 unless said.")
    cores: ExpressionText | None = Field(default=None, description="Cores on each node.")
    gpus: ExpressionText | None = Field(default=None, description="GPUs on each node.")
    limit: Duration = Field(default=3600.0, description="A run that takes longer is ended and counts as a time-out.")
    silence: Duration | None = Field(
        default=None, description="A run that writes nothing for so long is ended as a hang."
    )
    retries: int = Field(default=2, ge=0, description="Further attempts after a node's or the site's fault.")


class BuildsForm(Form):
    """How a variant of the program is built from settings; each distinct one is built once."""

    make: Lines = Field(description="Shell commands with {knob} fields; one text or a list of lines.")
    keep: Lines = Field(description="Files or globs to keep of the build; everything else is removed.")
    sources: Lines = Field(default=[], description="Files or globs beside the study file that the commands need.")
    env: dict[str, Text] = Field(default={}, description="Environment of the build commands; {knob} fields allowed.")
    limit: Duration = Field(default=3600.0, description="A build that takes longer is ended.")


class StudyForm(Form):
    """A Ridgeline study file, version 1."""

    version: Literal[1] = Field(description="The version of this format: 1.")
    name: str = Field(description="A short name; it becomes a folder name.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    question: str = Field(default="", description="The question in words, shown on top of the report.")
    workload: WorkloadForm = Field(description="The program: how to run it and what to read from it.")
    site: SiteChoice = Field(
        default="local",
        description="Where it runs: `local`, a site file's path, a known site's name, or the site itself.",
    )
    space: dict[str, KnobForm] = Field(description="The knobs: name to values, range, or one fixed value.")
    derived: dict[str, ExpressionText] = Field(
        default={}, description="Values computed from knobs: name to expression."
    )
    rules: list[RuleForm] = Field(default=[], description="What is never to be run, each with its reason.")
    goal: GoalForm = Field(description="The metric to maximize or minimize.")
    guards: list[GuardChoice] = Field(default=[], description="Conditions without which a result does not count.")
    baseline: PointForm = Field(
        default={}, description="The setting used today; every knob with more than one value is named."
    )
    presets: list[PointForm] = Field(default=[], description="Settings to try first.")
    budget: BudgetForm = Field(default=BudgetForm(), description="What the campaign may cost.")
    stages: StagesForm = Field(default=StagesForm(), description="How thorough each stage is.")
    search: SearchForm | None = Field(default=None, description="Short for stages.search.")
    confirm: ConfirmForm | None = Field(default=None, description="Short for stages.confirm.")
    job: JobForm = Field(default=JobForm(), description="What one run asks of the site.")
    builds: BuildsForm | None = Field(default=None, description="How variants of the program are built.")


def json_schema() -> dict[str, Any]:
    schema = StudyForm.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "ridgeline-study-1", **schema}
