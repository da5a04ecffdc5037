"""A key is declared once: its default is the record's, and the record is made without a list of fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from pydantic import Field as Key
from pydantic import ValidationError

from ridgeline.nwchem.form import NwchemForm
from ridgeline.study.forms import Duration, FieldName, Form, Lines
from ridgeline.study.schema import BaselineForm, BudgetForm, BuildsForm, ConfirmForm, JobForm, ProfileForm, SearchForm
from ridgeline.study.site_file import PricesForm, SiteForm

FORMS = (
    BaselineForm,
    SearchForm,
    ConfirmForm,
    ProfileForm,
    BudgetForm,
    JobForm,
    BuildsForm,
    PricesForm,
    SiteForm,
    NwchemForm,
)


@dataclass(frozen=True)
class Limits:
    runs: int
    wall_s: float = 90.0
    names: tuple[str, ...] = ("a",)
    marks: dict[str, int] = field(default_factory=lambda: {"x": 1})
    worked_out: bool = False


class LimitsForm(Form):
    makes = Limits

    runs: int = Key(description="How many.")
    wall: Annotated[Duration, FieldName("wall_s")] = Key(description="How long.")
    names: Lines = Key(description="Which.")
    marks: dict[str, int] = Key(description="Marks.")


def test_a_key_without_a_default_of_its_own_has_the_records() -> None:
    form = LimitsForm.model_validate({"runs": 3})
    assert (form.wall, form.names, form.marks) == (90.0, ["a"], {"x": 1})
    assert form.record() == Limits(3)
    given = LimitsForm.model_validate({"runs": 3, "wall": "2m", "names": "b"})
    assert given.record(worked_out=True) == Limits(3, 120.0, ("b",), worked_out=True)
    assert form.marks is not LimitsForm.model_validate({"runs": 1}).marks, "no two forms share a mapping"
    with pytest.raises(ValidationError, match="runs"):
        LimitsForm.model_validate({})
    assert LimitsForm.model_json_schema()["required"] == ["runs"]


def test_a_key_that_no_field_of_the_record_takes_is_refused_when_the_form_is_written() -> None:
    with pytest.raises(TypeError, match=r"StrayForm\.stray is not a field of Limits"):

        class StrayForm(Form):
            makes = Limits

            stray: int = Key(description="Nowhere to go.")


def test_a_default_that_the_record_has_is_refused_in_the_form() -> None:
    with pytest.raises(TypeError, match=r"TwiceForm\.wall_s repeats the default of its record"):

        class TwiceForm(Form):
            makes = Limits

            wall_s: float = Key(default=90.0, description="Stated twice.")


@pytest.mark.parametrize("form", FORMS)
def test_keys_of_studies_and_sites_have_the_defaults_of_their_records(form: type[Form]) -> None:
    assert form.makes is not None
    needed = {name: needed_value(form, name) for name, key in form.model_fields.items() if key.is_required()}
    made = form.model_validate(needed).record()
    assert made == form.makes(**{form.target(name): tuple_of(value) for name, value in needed.items()})


def needed_value(form: type[Form], name: str) -> Any:
    return {"make": ["cc x.c"], "keep": ["x"], "tool": "perf"}[name]


def tuple_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
