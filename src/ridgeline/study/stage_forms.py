"""The stages of a campaign in a study file and whom to tell of its end, as forms; defaults are those of the records."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from ridgeline.records.notify import NotifyChoice
from ridgeline.records.study import BaselineStage, ConfirmStage, ProfileStage, SearchStage
from ridgeline.study.forms.form import (
    Accepts,
    DefaultText,
    Duration,
    FieldName,
    Form,
    Single,
    Size,
    Text,
    ValueUnit,
)


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
        ge=1, le=2, description="Runs of a setting in a block: 2 for ABBA, 1 for AB and BA in turn."
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
        description="The profiler; its findings are in the report. Of sglang and vllm: torch, their own, or nsys."
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
    """Whom to tell; each that is written is told."""

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
