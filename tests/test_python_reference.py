"""docs/reference/python.md has everything that `import ridgeline` offers, in the words of the code."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import ridgeline
from scripts.reference_pages import members

TEXT = (Path(__file__).parents[1] / "docs/reference/python.md").read_text()


def said(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


@pytest.mark.parametrize("name", ridgeline.__all__)
def test_every_public_name_is_there_with_its_docstring(name: str) -> None:
    thing = getattr(ridgeline, name)
    assert f"## ridgeline.{name}\n" in TEXT
    assert len(said(thing).split()) > 5, f"{name}: say what it does"
    assert said(thing) in " ".join(TEXT.split())
    if inspect.isfunction(thing):
        assert all(f"{parameter}:" in TEXT for parameter in inspect.signature(thing).parameters)


def test_every_public_member_of_a_result_is_there_with_its_docstring() -> None:
    found = dict(members(ridgeline.StudyResult))
    assert {"folder", "best", "confirmed", "gain", "runs", "figures", "report", "verify", "resume"} <= found.keys()
    for name in vars(ridgeline.StudyResult):
        if not name.startswith("_"):
            assert found[name], f"StudyResult.{name} has no docstring"
            assert f"`{name}" in TEXT
