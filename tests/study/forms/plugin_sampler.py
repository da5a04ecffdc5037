"""Samplers as a plugin would bring them: one with a form of its options, one without."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ridgeline.records.space import Space
from ridgeline.samplers.base import Refusal
from ridgeline.samplers.fixed import RandomSampler
from ridgeline.study.forms import Form


class MineOptions(Form):
    """Options of a sampler of one's own."""

    whose = "mine"
    radius: int = Field(default=1, ge=1, description="How far it looks.")


class FormlessSampler(RandomSampler):
    form = None  # type: ignore[assignment]

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        super().__init__(space, seed, {}, refusal)


class MineSampler(FormlessSampler):
    form = MineOptions  # type: ignore[assignment]
