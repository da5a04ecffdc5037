"""docs/reference is what the forms say, and the forms say everything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.study.forms import Accepts, Form, ValueUnit, field_shape, fields, noted
from ridgeline.study.schema import StudyForm
from ridgeline.study.site_file import SiteForm
from scripts.reference_pages import COMMAND, KeyRow, key_rows, pages

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
FORMS: list[type[Form]] = [
    StudyForm,
    SiteForm,
    *dict.fromkeys(form for room in ("workloads", "samplers", "executors") for form in catalog.forms(room).values()),
]
# numbers without a unit, or of any unit
PURE = {"seed", "rel", "abs", "level", "row", "multiplicity", "burstiness", "worth"}


def test_the_pages_are_as_the_forms_say() -> None:
    made = pages()
    assert {path.name for path in REFERENCE.glob("*.md")} == set(made), f"run {COMMAND}"
    for name, text in made.items():
        assert (REFERENCE / name).read_text() == text, f"docs/reference/{name} is outdated; run {COMMAND}"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_key_has_a_meaning_and_a_default(form: type[Form]) -> None:
    for row in key_rows(form):
        assert row.says.endswith("."), f"{row.key}: the description is a sentence"
        assert row.takes not in ("", "a value"), f"{row.key}: say what it takes"
        assert row.default or row.takes.startswith(("a mapping", "text such as")), f"{row.key}: and without it?"


def numbers(form: type[Form]) -> Iterator[tuple[str, str]]:
    for key, field in fields(form).items():
        shape = field_shape(field)
        if shape.bare in (int, float) and not any(isinstance(note, Accepts) for note in shape.notes):
            yield key, noted(shape.notes, ValueUnit)
        elif shape.form is not None:
            yield from numbers(shape.form)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_number_has_a_unit(form: type[Form]) -> None:
    assert [key for key, counted in numbers(form) if not counted and key not in PURE] == []


def test_every_form_of_the_catalog_has_a_page() -> None:
    text = "".join(pages().values())
    for kind, form in catalog.forms("workloads").items():
        assert f"kind: {kind}" in text
        assert all(f"`{row.key}`" in text for row in key_rows(form))
    assert all(f"## {name}\n" in pages()["samplers.md"] for name in catalog.TABLE["samplers"])
    assert all(f"## batch: {name}\n" in pages()["site.md"] for name in catalog.TABLE["executors"])


def test_keys_of_lists_and_mappings_are_opened() -> None:
    rows = {row.key: row for row in key_rows(StudyForm)}
    assert rows["rules[].refuse"].default == "required"
    assert rows["space.KNOB.times"] == KeyRow(
        "space.KNOB.times", "The factor between two values, such as 2 for 64, 128, 256.", "a number", "none"
    )
    assert rows["job.limit"].default == "`1h`"


@pytest.mark.parametrize(
    "module",
    [
        "ridgeline.serving.workloads.engine.session.__main__",
        "ridgeline.serving.engines.sglang.engine",
        "ridgeline.serving.engines.vllm.engine",
        "ridgeline.serving.workloads.twin.player",
        "ridgeline.serving.load.bench",
        "ridgeline.serving.load.workers.worker",
        "ridgeline.serving.node.monitor",
    ],
)
def test_what_runs_on_a_node_needs_no_pydantic(module: str) -> None:
    code = f"import sys; sys.modules['pydantic'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module} imports pydantic on the node:\n{done.stderr}"
