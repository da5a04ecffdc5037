"""A mapping read by a form: all problems at once, each at its place with a remedy, and the rest is still read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, Tag, model_validator

from ridgeline import catalog
from ridgeline.study.forms import (
    TEXT_OR_MAPPING,
    Accepts,
    Environment,
    FileBeside,
    Form,
    Lines,
    Text,
    ValueUnit,
    read_form,
)
from ridgeline.study.site_file import SiteForm


class InnerForm(Form):
    """A part."""

    size: int = Field(ge=1, description="How large.")
    unit: str = Field(default="", description="Of what.")


class OuterForm(Form):
    """The whole."""

    whose = "the example"
    elsewhere = {"gone": "it moved; use `name`"}  # noqa: RUF012  a constant of the class

    name: str = Field(description="What it is called.", examples=["wave"])
    count: Annotated[int, ValueUnit("waves")] = Field(default=1, ge=1, le=9, description="How many.")
    order: Literal["up", "down"] = Field(default="up", description="Which way.")
    parts: list[InnerForm] = Field(default=[], description="Its parts.")
    by_name: dict[str, InnerForm] = Field(default={}, description="Its parts by name.")
    choice: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[InnerForm, Tag("<mapping>")],
        TEXT_OR_MAPPING,
        Accepts("a name or a part"),
    ] = Field(default="", description="One part.")
    env: Environment = Field(default={}, description="Environment.")
    file: FileBeside = Field(default="", description="A file.")
    lines: Lines = Field(default=[], description="Lines.")
    text: Text = Field(default="", description="Text.")


def problems(tmp_path: Path, **given: object) -> dict[str, str]:
    _, found = read_form(OuterForm, {"name": "x", **given}, tmp_path, ("workload",))
    return {".".join(map(str, problem.where)): problem.message for problem in found}


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"cuont": 1}, "workload.cuont", "no such key of the example; did you mean count?"),
        ({"zzz": 1}, "workload.zzz", "no such key of the example; known: name, count, order"),
        ({"gone": 1}, "workload.gone", "it moved; use `name`"),
        ({"count": 0}, "workload.count", "is 0; it must be a whole number of waves, at least 1 and at most 9"),
        ({"count": True}, "workload.count", "is true; it must be a whole number of waves"),
        ({"count": 1.5}, "workload.count", "is 1.5; it must be a whole number of waves"),
        ({"order": "upp"}, "workload.order", "is 'upp'; it must be one of up, down"),
        ({"parts": {"size": 1}}, "workload.parts", "is a mapping; it must be a list of mappings"),
        ({"parts": [{"size": 1}, {"size": "x"}]}, "workload.parts.1.size", "it must be a whole number of at least 1"),
        ({"parts": [{"siz": 1}]}, "workload.parts.0.siz", "did you mean size?"),
        ({"by_name": {"a": {}}}, "workload.by_name.a.size", "this key is missing; add it"),
        ({"choice": [1]}, "workload.choice", "is a list; it must be a name or a part"),
        ({"choice": {"size": -1}}, "workload.choice.size", "at least 1"),
        ({"env": {"A-B": "1"}}, "workload.env.A-B", "is not a name for an environment variable"),
        ({"env": {"A": True}}, "workload.env.A", 'write "true" in quotes'),
        ({"env": "A=1"}, "workload.env", "it must be a mapping of `NAME: text` pairs"),
        ({"file": "none.dat"}, "workload.file", "none.dat is not in"),
        ({"lines": {"a": 1}}, "workload.lines", "it must be text, or a list of texts"),
        ({"text": {"a": 1}}, "workload.text", "is a mapping; it must be text"),
        ({"name": None}, "workload.name", "this key is missing; add it, for example `name: wave`"),
    ],
)
def test_a_problem_has_its_place_and_a_remedy(
    tmp_path: Path, given: dict[str, object], where: str, message: str
) -> None:
    found = problems(tmp_path, **given)
    assert list(found) == [where], "one mistake is one problem"
    assert message in found[where]


def test_all_problems_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    given = {
        "cuont": 1,
        "order": "x",
        "parts": [{"size": 1}, {"size": 0}],
        "by_name": {"good": {"size": 2}, "bad": {"size": 0}},
        "text": 7,
        "env": None,
    }
    form, found = read_form(OuterForm, given, tmp_path)
    places = [".".join(map(str, problem.where)) for problem in found]
    assert sorted(places) == ["by_name.bad.size", "cuont", "name", "order", "parts.1.size"]
    assert form.text == "7"
    assert form.by_name == {"good": InnerForm(size=2)}
    # a list with a wrong item is left out whole: a gap would shift the places of what is found in it later
    assert (form.parts, form.order, form.name, form.env) == ([], "up", None, {})
    assert given["by_name"] == {"good": {"size": 2}, "bad": {"size": 0}}, "what was given is not changed"


class PairForm(Form):
    """Two keys that need each other."""

    one: int = Field(default=0, description="The one.")
    other: int = Field(default=0, description="The other.")

    @model_validator(mode="after")
    def _both(self) -> PairForm:
        if not (self.one and self.other):
            raise ValueError("needs one and other; give both")
        return self


@pytest.mark.parametrize("given", [{}, {"one": 1}, {"one": "x"}])
@pytest.mark.timeout(20)
def test_a_condition_of_the_whole_form_is_told_and_ends(tmp_path: Path, given: dict[str, object]) -> None:
    form, found = read_form(PairForm, given, tmp_path, ("workload",))
    assert isinstance(form, PairForm)
    assert len(found) == 1
    assert found[0].where == (("workload", "one") if given.get("one") == "x" else ("workload",))


def test_a_misspelt_required_key_is_one_problem(tmp_path: Path) -> None:
    _, found = read_form(OuterForm, {"nmae": "x"}, tmp_path)
    assert [problem.where for problem in found] == [("nmae",)]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FORMS = sorted(
    {form for room in ("workloads", "samplers", "executors") for form in catalog.forms(room).values()}
    | {OuterForm, SiteForm},
    key=lambda form: form.__name__,
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@given(data=st.data())
def test_nothing_that_can_be_written_makes_a_form_fall_over(form: type[Form], data: st.DataObject) -> None:
    keys = st.sampled_from([field.alias or name for name, field in form.model_fields.items()] or ["x"])
    given = data.draw(st.dictionaries(keys | st.text(max_size=5), junk, max_size=6))
    read, found = read_form(form, given, Path("/nonexistent"))
    assert isinstance(read, form)
    for problem in found:
        if problem.where[0] == "slo":
            continue  # worded by Slo itself, which shows the right form
        assert ";" in problem.message or "?" in problem.message, f"no remedy in {problem}"
