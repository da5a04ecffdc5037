"""Recipes: guided orders of studies. A wing writes each stage from what the one before it came to; nothing runs here.

A recipe is a part of the catalog's room `recipes`: a function of its name, what it was given and the stage before.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline import catalog
from ridgeline.campaign.status import read_status
from ridgeline.errors import InputError
from ridgeline.records.space import Point
from ridgeline.records.study import Study

AFTER = "after"


@dataclass(frozen=True, slots=True)
class StageBefore:
    """A finished stage: its study, and the setting to go on with, which is the baseline where nothing was better."""

    stage: str
    study: Study
    point: Point
    folder: Path


@dataclass(frozen=True, slots=True)
class RecipeStage:
    """The text of a study file, and which stage it is in a few words. After the last there is nothing to write."""

    name: str
    text: str
    about: str
    last: bool


Recipe = Callable[[str, Mapping[str, str], StageBefore | None], RecipeStage]


def write_stage(name: str, words: Sequence[str]) -> RecipeStage:
    """The first stage from KEY=VALUE words, or the one after a finished study; further words change what was given."""
    recipe: Recipe = catalog.part("recipes", name)
    given = dict(_pair(name, word) for word in words)
    if (folder := given.pop(AFTER, None)) is None:
        return recipe(name, given, None)
    before, earlier = _finished(name, Path(folder))
    return recipe(name, {**earlier, **given}, before)


def _pair(name: str, word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not value:
        raise InputError(f"{word!r}: the recipe {name} takes KEY=VALUE; without any it lists them")
    return key, value


def _finished(name: str, path: Path) -> tuple[StageBefore, Mapping[str, str]]:
    now = read_status(path)
    made, answer = now.study.recipe, now.answer
    if made is None or made.name != name:
        whose = "a study that no recipe wrote" if made is None else f"a study of the recipe {made.name}"
        raise InputError(f"{AFTER}={path}: {whose}; name the folder of a stage that `tune --recipe {name}` wrote")
    if (point := answer.to_use) is None or (answer.lacks and not answer.keep):
        remedy = answer.next_step or f"ridgeline resume {shlex.quote(str(path))}"
        why = answer.lacks or "its question was not which setting to use"
        raise InputError(f"{AFTER}={path}: nothing is confirmed to go on from: {why}; first: {remedy}")
    return StageBefore(made.stage, now.study, point, path), made.given
