"""The mutations of `scripts/mutants` still apply: each old text is there once, and so are the tests to run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
MUTANTS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["promise"])
def test_a_mutation_still_applies(mutant: dict[str, Any]) -> None:
    assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1
    assert mutant["new"] != mutant["old"]
    assert all((ROOT / test).exists() for test in mutant["tests"].split())


def test_every_promise_is_named_once() -> None:
    promises = [mutant["promise"] for mutant in MUTANTS]
    assert sorted(set(promises)) == sorted(promises)
