"""What a study may say to the samplers, beside `sampler`, `seed` and `sentinel_every`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from ridgeline.errors import InputError
from ridgeline.study.forms import DefaultText, ExpressionText, Form, ValueUnit, read_form

F = TypeVar("F", bound=Form)


class GridOptions(Form):
    """`sampler: grid` tries every legal point once; every knob needs listed values."""

    whose = "the sampler grid"
    order: Literal["listed", "shuffled"] = Field(
        default="listed",
        description="`listed`: as the study lists them, the last knob fastest. `shuffled`: in an order that the seed "
        "decides, so that a campaign cut short has seen a fair share.",
    )


class RandomOptions(Form):
    """`sampler: random` spreads points evenly over the space, whatever was measured. It has no options."""

    whose = "the sampler random"


class GuidedOptions(Form):
    """`sampler: guided` models what it observed and tries what promises most for its cost."""

    whose = "the sampler guided"
    startup: Annotated[int, ValueUnit("trials")] = Field(
        default=6, ge=1, description="Space-filling trials before it learns; none where a twin or a formula guides it."
    )
    worth: float = Field(
        default=0.02,
        ge=0,
        lt=1,
        description="The search ends when the chance that an untried setting beats the best by more than this share "
        "is under 5%; 0: only the budget ends it.",
    )
    expect: Annotated[ExpressionText, DefaultText("what the workload predicts")] = Field(
        default="",
        description="A formula over settings for the goal's metric, as far as you know it, such as `threads * block`. "
        "The search begins where it is best and learns how far to trust it.",
    )


class TpeOptions(Form):
    """`sampler: tpe` tries more of what went well and keeps away from what failed."""

    whose = "the sampler tpe"
    startup: Annotated[int, ValueUnit("trials")] = Field(
        default=10, ge=1, description="Space-filling trials before it learns."
    )


def read_options(form: type[F], options: Mapping[str, object]) -> F:
    """InputError names the first option that is wrong, as `option: what; remedy`."""
    read, problems = read_form(form, options, Path())
    if problems:
        raise InputError(f"{'.'.join(map(str, problems[0].where))}: {problems[0].message}")
    return read
