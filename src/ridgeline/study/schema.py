"""The study file, version 1, as pydantic models: types, limits and a description of every key.

Only the boundary knows pydantic. What a model cannot say alone (a baseline inside the space, names that exist) is said
in study_file.py, where lines are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema
from pydantic.json_schema import models_json_schema

from ridgeline.errors import InputError
from ridgeline.records.expression import is_number
from ridgeline.records.measurement import known_metrics
from ridgeline.records.study import (
    BaselineStage,
    Budget,
    Builds,
    ConfirmStage,
    FromRecipe,
    JobLimits,
    NotifyChoice,
    ProfileStage,
    SearchStage,
    TaskRules,
)
from ridgeline.study.forms import (
    TEXT_OR_MAPPING,
    Accepts,
    DefaultText,
    Duration,
    Entry,
    ExpressionText,
    FieldName,
    Form,
    KnobValue,
    Lines,
    Number,
    Size,
    Text,
    ValueUnit,
    Variable,
    accepted_by,
)
from ridgeline.study.site_file import PricesForm, Secrets, SiteForm

# The stages of a campaign in a study file and whom to tell of its end, as forms; defaults are those of the records.


_NoneUnlessSaid = Annotated[Text, DefaultText("none")]
_Limit = Annotated[Duration, FieldName("limit_s")]


class BaselineForm(Form):
    """The first stage."""

    makes = BaselineStage

    repeats: Annotated[int, ValueUnit("runs")] = Field(
        ge=1, description="Runs of the baseline before the search starts."
    )


class SearchForm(Form):
    """The second stage; keys besides these are options of the sampler."""

    makes = SearchStage

    model_config = ConfigDict(extra="allow")
    sampler: str = Field(description="Who proposes settings: guided, grid, random, or a plugin's.")
    seed: int = Field(
        ge=0,
        description="Seeds all random choices: the same seed proposes the same settings for the same results.",
    )
    sentinel_every: Annotated[int, ValueUnit("trials")] = Field(
        ge=0, description="Trials between two repeats of the baseline; 0 for none."
    )


class ConfirmForm(Form):
    """The third stage: the best few against the baseline in fresh, interleaved runs."""

    makes = ConfirmStage

    top: Annotated[int, ValueUnit("settings")] = Field(
        ge=0, description="How many settings are confirmed; 0 skips the stage."
    )
    blocks: Annotated[int, ValueUnit("blocks")] = Field(
        ge=1, description="Blocks of interleaved runs; each runs every setting and the baseline."
    )
    repeats: Annotated[int, ValueUnit("runs")] = Field(
        ge=1, le=2, description="Runs of a setting in a block: one in each round, whose order is drawn."
    )
    level: float = Field(gt=0, lt=1, description="Confidence of the interval, as a share.")
    warmup: Literal["auto", "always", "never"] = Field(
        description="Whether a block begins with a run that does not count; auto: where its node was idle, something "
        "was built, or what ran there before is unknown.",
    )


class ProfileForm(Form):
    """A stage of its own: runs under a profiler, which are compared with nothing."""

    makes = ProfileStage

    tool: Literal["perf", "mpip", "ipm", "vtune", "torch", "nsys"] = Field(
        description="The profiler; its findings are in the report. Of servers: torch, their own, or nsys."
    )
    library: Annotated[str, DefaultText("found by the loader")] = Field(
        description="The library to preload for mpip and ipm."
    )
    steps: Annotated[int, ValueUnit("steps")] = Field(
        ge=1, description="Steps of the engine to record, by torch or nsys."
    )
    after: Annotated[Duration, FieldName("after_s")] = Field(
        description="How long the load runs before torch or nsys begins to record."
    )
    limit: _Limit = Field(description="A torch trace or nsys report that isn't complete after this long is cut off.")
    size: Annotated[Size, Field(gt=0), FieldName("size_bytes"), DefaultText("500 MB")] = Field(
        description="Torch traces or nsys reports larger than this, all ranks together, end the run and are deleted."
    )


class StagesForm(Form):
    """The three stages of a campaign."""

    baseline: BaselineForm = Field(
        default=BaselineForm.model_construct(), description="Measuring the baseline and its noise."
    )
    search: SearchForm | None = Field(default=None, description="Looking for better settings.")
    confirm: ConfirmForm | None = Field(default=None, description="Showing that the best really is better.")
    profile: Annotated[ProfileForm | None, DefaultText("no profile")] = Field(
        default=None, description="One run each of the baseline and the best setting under a profiler."
    )


class NotifyForm(Form):
    """Whom to notify; everybody named is notified."""

    whose = "notify"
    makes = NotifyChoice
    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("mail", "mail_from", "smtp"),
        'mails are gone; write `command: mail -s "$RIDGELINE_ALERT" me@example.org`, which gets the alert on its input',
    )

    webhook: _NoneUnlessSaid = Field(description="An address to POST each alert to, as JSON with `text` and its parts.")
    webhook_env: _NoneUnlessSaid = Field(
        description="The environment variable that holds that address, where it is a secret."
    )
    command: _NoneUnlessSaid = Field(
        description="A shell line: the alert in $RIDGELINE_ALERT, and as JSON on its input."
    )
    most_an_hour: Annotated[int, ValueUnit("alerts")] = Field(
        ge=1, description="More are counted, and the number sent with the next one."
    )


# Knobs as written in a study file.

_Condition = Annotated[ExpressionText | None, DefaultText("always")]


class ValuesForm(Form):
    """A knob with listed values."""

    values: Annotated[list[KnobValue], Accepts("a list of values")] = Field(
        description="The values to choose from; ordered when all are numbers."
    )
    when: _Condition = Field(default=None, description="The knob exists only where this expression holds.")


class RangeForm(Form):
    """A knob with a range: whole numbers, steps, a geometric row, or any number in between."""

    from_: Number = Field(alias="from", description="The first value.")
    to: Number = Field(description="The last value, included where a step reaches it.")
    step: Annotated[Number | None, DefaultText("1 for whole numbers, else any number")] = Field(
        default=None, description="The distance between two values."
    )
    times: Annotated[Number | None, DefaultText("none")] = Field(
        default=None, description="The factor between two values, such as 2 for 64, 128, 256."
    )
    log: bool = Field(default=False, description="Spread trials evenly over magnitudes instead of over values.")
    when: _Condition = Field(default=None, description="The knob exists only where this expression holds.")


def _fixed(value: object) -> object:
    if value is None:
        raise ValueError("is empty; it must be a list of values, a range such as {from: 1, to: 8}, or one fixed value")
    if isinstance(value, dict):
        keys = ", ".join(map(str, value)) or "nothing in it"
        raise ValueError(  # noqa: TRY004  pydantic reports values, not types
            f"is a mapping with {keys}; write its values as a list such as [1, 2, 4], or as a range such as "
            "{from: 1, to: 64} or {from: 1, to: 64, times: 2}"
        )
    return value


_Fixed = Annotated[Any, BeforeValidator(_fixed), WithJsonSchema({"type": ["string", "number", "boolean"]})]


def _knob_tag(value: object) -> str:
    if isinstance(value, list):
        return "<list>"
    if isinstance(value, dict) and "values" in value:
        return "<values>"
    if isinstance(value, dict) and {"from", "to", "step", "times"} & value.keys():
        return "<range>"
    return "<fixed>"


KnobForm = Annotated[
    Annotated[list[KnobValue], Tag("<list>")]
    | Annotated[ValuesForm, Tag("<values>")]
    | Annotated[RangeForm, Tag("<range>")]
    | Annotated[_Fixed, Tag("<fixed>")],
    Discriminator(_knob_tag),
    Accepts("a list of values, a mapping with `values` or a range, or one fixed value"),
]


def _switch_as_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _site(value: object) -> object:
    if not isinstance(value, str | dict) or not value:
        raise ValueError(f"{value!r} is not a site; write `local`, a site's name, a path to a site file, or a mapping")
    return value


_SiteChoice = Annotated[
    Any,
    BeforeValidator(_site),
    Accepts("`local`, a site's name, the path of a site file, or the site itself as a mapping"),
    WithJsonSchema({"type": ["string", "object"]}),
]
_Point = Annotated[dict[str, KnobValue], Accepts("a mapping of knobs to values")]


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


_GuardChoice = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[GuardForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
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
    grant: _NoneUnlessSaid = Field(
        description="The file of a grant that studies and people share: `ridgeline site grant create` makes one."
    )


_CountOf = Annotated[ExpressionText | None, Accepts("a whole number, or an expression that gives one")]


class JobForm(Form):
    """What one run asks of the site. The counts may be expressions over settings."""

    makes = JobLimits

    nodes: Annotated[_CountOf, DefaultText("1")] = Field(description="Nodes of a run.")
    ranks_per_node: Annotated[_CountOf, DefaultText("1")] = Field(description="MPI ranks on each node.")
    cores: Annotated[_CountOf, DefaultText("the site decides")] = Field(description="Cores on each node.")
    gpus: Annotated[_CountOf, DefaultText("0")] = Field(description="GPUs on each node.")
    limit: _Limit = Field(description="A run that takes longer is ended and counts as a time-out.")
    silence: Annotated[Duration | None, FieldName("silence_limit_s"), DefaultText("no limit")] = Field(
        description="A run that writes nothing for this long is ended as a hang."
    )
    output: Annotated[Size, Field(gt=0), FieldName("output_bytes"), DefaultText("1 GiB")] = Field(
        description="A run whose stdout, stderr and logs are larger in all is ended as a crash."
    )
    disk: Annotated[Size, Field(gt=0), FieldName("disk_bytes"), DefaultText("100 GiB")] = Field(
        description="A run whose folder takes more than this, whatever it writes there, is ended as a crash."
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


_StopRule = Annotated[str, accepted_by(margin_of)]

_BuildText = Annotated[
    str,
    BeforeValidator(_switch_as_text),
    Accepts("text"),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]


def _named(lines: list[str]) -> list[str]:
    if not any(line.strip() for line in lines):
        raise ValueError("is empty; name at least one")
    return lines


def _inside_the_build(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        path = PurePosixPath(pattern)
        if path.is_absolute() or ".." in path.parts or "\0" in pattern:
            raise ValueError(f"{pattern!r} leads out of the build's folder; name what the build leaves in it")
        try:
            any(_NOWHERE.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            raise ValueError(f"{pattern!r} is not a pattern of file names ({error}); correct it") from None
    return patterns


_NOWHERE = Path("/nowhere/to/look")  # a pattern is only read here


class BuildsForm(Form):
    """How a variant of the program is built from settings; each distinct one is built once."""

    makes = Builds

    make: Annotated[Lines, AfterValidator(_named)] = Field(
        description="Shell commands with {knob} fields; one text or a list of lines."
    )
    keep: Annotated[Lines, AfterValidator(_named), AfterValidator(_inside_the_build)] = Field(
        description="Files or globs to keep of the build; everything else is removed."
    )
    sources: Annotated[Lines, DefaultText("files that the commands name")] = Field(
        description="Files or globs beside the study file that the commands need."
    )
    env: dict[Variable, _BuildText] = Field(description="Environment of the build commands; {knob} fields allowed.")
    limit: _Limit = Field(description="A build that takes longer is ended.")
    where: Literal["here", "site"] = Field(
        description="`here`: on this machine, one by one; `site`: as its jobs, with its modules, several at once.",
    )


def _flag(text: str) -> str:
    if not re.fullmatch(r"--?[A-Za-z][\w-]*", text):
        raise InputError(f"{text!r} is not a flag; write it as it is typed, such as --enable-torch-compile")
    return text


_Flag = Annotated[str, accepted_by(_flag)]


class TaskForm(Form):
    """Rules that somebody else set; refused before anything runs, and checked again in what the engine applied."""

    makes = TaskRules

    forbidden_flags: Annotated[list[_Flag], Accepts("a list such as [--enable-torch-compile]"), DefaultText("none")] = (
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


class RecipeForm(Form):
    """What `ridgeline tune --recipe NAME after=FOLDER` goes on from; it changes nothing in this study."""

    makes = FromRecipe

    name: str = Field(description="The recipe that wrote the study.")
    stage: str = Field(description="Its stage that this study is.")
    given: Annotated[dict[str, Text], Accepts("a mapping of the recipe's words to their values")] = Field(
        description="What the recipe was given: model, GPUs, traffic."
    )


class StudyForm(Form):
    """A Ridgeline study file, version 1."""

    version: Annotated[Literal[1], Accepts("1, the version this Ridgeline reads")] = Field(
        description="The version of this format: 1."
    )
    name: Annotated[str, Accepts("text: letters, digits, dots, dashes and underscores, at most 100")] = Field(
        description="A short name; it becomes a folder's name.", max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    )
    question: str = Field(default="", description="The question in words, shown on top of the report.")
    workload: WorkloadForm = Field(description="The program: how to run it and what to read from it.")
    site: _SiteChoice = Field(
        default="local",
        description="Where it runs: `local`, a site file's path, a known site's name, or the site itself.",
    )
    secrets: Secrets = Field(
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
    guards: list[_GuardChoice] = Field(default=[], description="Conditions without which a result does not count.")
    baseline: Annotated[_Point, DefaultText("required where a knob has several values")] = Field(
        default={}, description="The setting used today; every knob with more than one value is named."
    )
    presets: Annotated[list[_Point], Accepts("a list of settings")] = Field(
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
        _StopRule | None, Accepts("`equivalent within 1.5%`"), DefaultText("the best few are confirmed")
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
        default=NotifyForm.model_construct(), description="Who is told that the campaign has ended, and how."
    )
    recipe: Annotated[RecipeForm | None, DefaultText("a person wrote the study")] = Field(
        default=None, description="The recipe that wrote the study, for its next stage."
    )
    builds: Annotated[BuildsForm | None, DefaultText("nothing is built")] = Field(
        default=None, description="How variants of the program are built."
    )


# The JSON schemas of study files, site files, and other files that name a site: for editors.

_Schema = dict[str, Any]
_Forms = Mapping[str, type[Form] | None]  # of all parts of a room by name; None for a part that offers none


def study_schema(workloads: _Forms, samplers: _Forms, executors: _Forms) -> _Schema:
    parts = dict.fromkeys(form for form in (*workloads.values(), *samplers.values()) if form is not None)
    defined = _definitions([StudyForm, *parts], executors)
    own = {form: defined.pop(form.__name__) for form in parts}  # their keys stand in the mapping that chooses them
    for chooser, key, offered in ((WorkloadForm, "kind", workloads), (SearchForm, "sampler", samplers)):
        common, usual = defined[chooser.__name__], chooser.model_fields[key].default
        variants = [_variant(key, name, common, own[form] if form else None, usual) for name, form in offered.items()]
        defined[chooser.__name__] = {"description": common["description"], "oneOf": variants}
    for key, better in (("maximize", "higher"), ("minimize", "lower")):
        # offered while typing, and no more: a study may declare metrics of its own
        defined["GoalForm"]["properties"][key]["examples"] = [
            m.name for m in known_metrics().values() if m.better == better
        ]
    return _document(StudyForm, "ridgeline-study-1", defined)


def file_schema(form: type[Form], name: str, executors: _Forms) -> _Schema:
    """Of a site file, or of one whose `site` is a name or the mapping itself, as a deployment file's."""
    return _document(form, name, _definitions([form], executors))


def _definitions(forms: Iterable[type[Form]], executors: _Forms) -> dict[str, _Schema]:
    """The schema of each form and of every form in it, by class name; a site's options are those of its executor."""
    options = {batch: form for batch, form in executors.items() if form is not None}
    wanted: dict[type[Form], None] = dict.fromkeys([*forms, SiteForm, *options.values()])
    _, document = models_json_schema([(form, "validation") for form in wanted], by_alias=True)
    defined: dict[str, _Schema] = document["$defs"]
    usual = SiteForm.model_fields["batch"].default
    defined["SiteForm"]["allOf"] = [
        {
            "if": {"properties": {"batch": {"const": batch}}, "required": [] if batch == usual else ["batch"]},
            "then": {"properties": {"options": _ref(form)}},
        }
        for batch, form in options.items()
    ]
    return defined


def _ref(form: type[Form]) -> _Schema:
    return {"$ref": f"#/$defs/{form.__name__}"}


def _variant(key: str, name: str, common: _Schema, own: _Schema | None, usual: object) -> _Schema:
    """The mapping with this value of `key`: the keys of all and its own, or any where it says none."""
    mine = own or {}
    chosen = {key: {"const": name, "description": common["properties"][key]["description"]}}
    required = [*common.get("required", []), *mine.get("required", []), *([] if name == usual else [key])]
    return {
        "title": name,
        "description": mine.get("description", ""),
        "type": "object",
        "properties": common["properties"] | mine.get("properties", {}) | chosen,
        "required": list(dict.fromkeys(required)),
        "additionalProperties": own is None,
    }


def _document(form: type[Form], name: str, defined: dict[str, _Schema]) -> _Schema:
    schema = defined.pop(form.__name__)
    if site := schema["properties"].get("site"):
        site |= {"type": ["string", "object"], "if": {"type": "object"}, "then": _ref(SiteForm)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name, **schema, "$defs": defined}
