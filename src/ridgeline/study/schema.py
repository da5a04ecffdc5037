"""The study file, version 1, as pydantic models: types, limits and a description of every key.

Only the boundary knows pydantic. What a model cannot say alone (a baseline inside the space, names that exist) is said
in study_file.py, where lines are known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from ridgeline.errors import InputError
from ridgeline.records.expression import Expression, Value, WrittenNumber, is_number, plain_number
from ridgeline.records.space import Continuous, Discrete, Knob
from ridgeline.records.study import (
    BaselineStage,
    Budget,
    Builds,
    ConfirmStage,
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
    Single,
    Size,
    Text,
    ValueUnit,
    Variable,
    accepted_by,
)
from ridgeline.study.site_file import PricesForm

# The stages of a campaign in a study file and whom to tell of its end, as forms; defaults are those of the records.


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
    sampler: str = Field(description="Who proposes settings: guided, grid, random, tpe, or a plugin's.")
    seed: int = Field(
        ge=0,
        description="Seeds all random choices: the same seed proposes the same settings for the same results.",
    )
    sentinel_every: Annotated[int, ValueUnit("trials")] = Field(
        ge=0, description="Trials between two repeats of the baseline; 0 for none."
    )
    in_stages: bool = Field(
        description="Search one group of knobs after the other, the rest as in the best setting so far."
    )
    short: Annotated[
        dict[str, Single], Accepts("a mapping such as {requests: 200}"), DefaultText("all trials run in full")
    ] = Field(
        description="Try settings on less work first; only promising ones run in full. Names derived values, or "
        "numbers of the workload.",
    )
    stop_early: Annotated[float | None, Accepts("a number above 1"), DefaultText("every run may finish")] = Field(
        gt=1, description="Stop a run that is clearly this many times worse than the best so far."
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
    limit: Annotated[Duration, FieldName("limit_s")] = Field(
        description="A torch trace or nsys report that isn't complete after this long is cut off."
    )
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

    webhook: Annotated[Text, DefaultText("none")] = Field(
        description="An address to POST each alert to, as JSON with `text` and its parts."
    )
    webhook_env: Annotated[Text, DefaultText("none")] = Field(
        description="The environment variable that holds that address, where it is a secret."
    )
    command: Annotated[Text, DefaultText("none")] = Field(
        description="A shell line: the alert in $RIDGELINE_ALERT, and as JSON on its input."
    )
    mail: Annotated[Text, DefaultText("none")] = Field(description="An address to write to.")
    mail_from: Annotated[Text, DefaultText("ridgeline at this machine")] = Field(
        description="The sender of these mails."
    )
    smtp: Text = Field(description="The server that takes them.")
    most_an_hour: Annotated[int, ValueUnit("alerts")] = Field(
        ge=1, description="More are counted, and the number sent with the next one."
    )


# Knobs as written in a study file, made into knobs of a space.

_MOST_VALUES = 100_000
_LARGEST_NUMBER = 1e15

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


def knob(name: str, form: Any, when: Expression | None, *, as_text: bool) -> Knob:
    """The knob that a form of the study file describes. ValueError says what is wrong with it.

    `as_text`: the program is given its values as text, so that one may be kept as it was written.
    """
    if isinstance(form, RangeForm):
        return _range(name, form, when)
    values = form.values if isinstance(form, ValuesForm) else form if isinstance(form, list) else [form]
    return _listed(name, values, when, as_text)


def _listed(name: str, values: Sequence[Value], when: Expression | None, as_text: bool) -> Knob:
    if not values:
        raise ValueError("no values; list at least one")
    written = [value for value in values if isinstance(value, WrittenNumber)]
    is_label = bool(written) and _are_labels([value for value in values if is_number(value)])
    if is_label and not as_text:
        number = plain_number(written[0])
        raise ValueError(f'{written[0]} would be passed on as {number}; write "{written[0]}" in quotes, or {number}')
    numbers = {str(value): value for value in values if is_number(value)} if written and as_text else {}
    values = [str(v) if str(v) in numbers else plain_number(v) for v in values]
    seen: set[tuple[bool, Value]] = set()
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a value a program can be given; write a finite number or quote it")
        if (isinstance(value, bool), value) in seen:
            raise ValueError(f"{value!r} is listed twice; list each value once")
        seen.add((isinstance(value, bool), value))
    ordered = all(is_number(value) or value in numbers for value in values)
    in_order = list(values)
    if ordered and not is_label:
        in_order.sort(key=lambda value: numbers.get(value, value))  # type: ignore[arg-type, return-value]
    return Discrete(
        name, tuple(in_order), ordered, when=when, listed=tuple(values), numbers={} if is_label else numbers
    )


_DECIMAL = re.compile(r"\d+(?:\.\d+)?")
_COMMIT = re.compile(r"(?=.{7,40}$)\d+e\d+")  # Git shortens to seven digits or more


def _are_labels(values: Sequence[float]) -> bool:
    """Whether these numbers are names, such as those of releases and commits.

    Read as releases they come in another order than as numbers (2.9, 2.10), or two are the same number (2.1, 2.10).
    """
    if len(set(values)) < len(values) or any(_COMMIT.fullmatch(str(value)) for value in values):
        return True
    if not all(_DECIMAL.fullmatch(str(value)) for value in values):
        return False
    by_release = sorted(values, key=lambda value: tuple(map(int, str(value).split("."))))
    return by_release != sorted(values)


def _range(name: str, form: RangeForm, when: Expression | None) -> Knob:
    low, high = form.from_, form.to
    if max(abs(low), abs(high)) > _LARGEST_NUMBER:
        raise ValueError(f"runs from {low} to {high}; numbers beyond {_LARGEST_NUMBER:g} are not accepted")
    if low > high:
        raise ValueError(f"runs from {low} to {high}, which is downwards; swap from and to")
    if form.step is not None and form.times is not None:
        raise ValueError("has both step and times; keep one")
    if (form.log or form.times is not None) and low <= 0:
        raise ValueError(f"starts at {low}; a logarithmic or geometric knob must start above 0")
    if form.times is not None:
        return Discrete(name, _geometric(low, high, form.times), ordered=True, log=True, when=when)
    whole = isinstance(low, int) and isinstance(high, int)
    if form.step is not None and not (whole and isinstance(form.step, int)):
        return Discrete(name, _stepped(low, high, form.step), ordered=True, log=form.log, when=when)
    if whole:
        step = form.step if isinstance(form.step, int) else 1
        if step < 1:
            raise ValueError(f"step {form.step} leads nowhere; it must be above 0")
        return Discrete(name, range(int(low), int(high) + 1, step), ordered=True, log=form.log, when=when)
    if low == high:
        return Discrete(name, (float(low),), ordered=True, when=when)
    return Continuous(name, float(low), float(high), form.log, when)


def _stepped(low: float, high: float, step: float) -> tuple[Value, ...]:
    if not step > 0:
        raise ValueError(f"step {step} leads nowhere; it must be above 0")
    if (high - low) / step > _MOST_VALUES:
        raise ValueError(f"step {step} makes more than {_MOST_VALUES} values; use a larger step or none")
    # decimal, so that 0.70 + 10 steps of 0.01 is the 0.8 that the study's author writes in the baseline
    start, width = Decimal(str(low)), Decimal(str(step))
    count = int((Decimal(str(high)) - start) / width) + 1
    return tuple(float(start + index * width) for index in range(count))


def _geometric(low: float, high: float, times: float) -> tuple[Value, ...]:
    if not times > 1:
        raise ValueError(f"times {times} leads nowhere; it must be above 1")
    if math.log(high / low) / math.log(times) > _MOST_VALUES:
        raise ValueError(f"times {times} makes more than {_MOST_VALUES} values; use a larger factor")
    whole = isinstance(low, int) and isinstance(times, int)
    values: list[Value] = []
    value, factor = Decimal(str(low)), Decimal(str(times))
    while value <= Decimal(str(high)):
        values.append(int(value) if whole else float(value))
        value *= factor
    return tuple(values)


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
    FieldName,
    Accepts("a sentence such as `error < 1e-6`, or a mapping"),
]


class BudgetForm(Form):
    """Limits of the whole campaign; what is not named is not limited."""

    makes = Budget
    elsewhere: ClassVar[Mapping[str, str]] = {
        "grant": "grants that several studies share are gone; remove it, and limit this study by `node_hours`"
    }

    trials: Annotated[int | None, ValueUnit("trials"), DefaultText("40 where nothing else is limited")] = Field(
        ge=0, description="Search trials; baseline and confirmation runs are extra."
    )
    wall: Annotated[Duration | None, FieldName("wall_s"), DefaultText("no limit")] = Field(
        description="Wall-clock time while `ridgeline` is running and a run is in flight, time in the queue included.",
    )
    node_hours: Annotated[float | None, ValueUnit("node-hours"), DefaultText("no limit")] = Field(
        gt=0, description="Nodes x hours over all runs, retries included."
    )


_CountOf = Annotated[ExpressionText | None, Accepts("a whole number, or an expression that gives one")]


class JobForm(Form):
    """What one run asks of the site. The counts may be expressions over settings."""

    makes = JobLimits

    nodes: Annotated[_CountOf, DefaultText("1")] = Field(description="Nodes of a run.")
    ranks_per_node: Annotated[_CountOf, DefaultText("1")] = Field(description="MPI ranks on each node.")
    cores: Annotated[_CountOf, DefaultText("the site decides")] = Field(description="Cores on each node.")
    gpus: Annotated[_CountOf, DefaultText("0")] = Field(description="GPUs on each node.")
    limit: Annotated[Duration, FieldName("limit_s")] = Field(
        description="A run that takes longer is ended and counts as a time-out."
    )
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


def _inside_the_build(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        path = PurePosixPath(pattern)
        if path.is_absolute() or ".." in path.parts or "\0" in pattern:
            raise ValueError(f"{pattern!r} leads out of the build's folder; name what the build leaves in it")
        try:
            any(_NOWHERE.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            if pattern.strip():  # an empty list of names is reported elsewhere
                raise ValueError(f"{pattern!r} is not a pattern of file names ({error}); correct it") from None
    return patterns


_NOWHERE = Path("/nowhere/to/look")  # a pattern is only read here


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
    env: dict[Variable, _BuildText] = Field(description="Environment of the build commands; {knob} fields allowed.")
    limit: Annotated[Duration, FieldName("limit_s")] = Field(description="A build that takes longer is ended.")
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
    site: _SiteChoice = Field(
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
        default=NotifyForm.model_construct(), description="Whom to tell that the campaign has ended, and how."
    )
    builds: Annotated[BuildsForm | None, DefaultText("nothing is built")] = Field(
        default=None, description="How variants of the program are built."
    )
