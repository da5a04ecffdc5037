"""The seam: what to try next.

A sampler is made from a space, a seed and the study's options for it (`Factory`). Making one is cheap, and refuses a
space or options that it cannot work with: an InputError, of an option as `option: what; remedy`. A factory with an
attribute `form` (a `forms.form.Form` of its options) has them checked, completed by editors and listed in the
reference. It promises:
- `ask` returns a legal point that was neither told nor is pending, or None when there is none left;
- the answer depends only on the seed, the lessons told so far (in order) and `pending`, so that a killed campaign goes
  on as if nothing had happened;
- `tell` accepts any lesson, also of points it did not propose (baseline, presets, points of an earlier campaign).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ridgeline.records.lesson import Lesson, Proposal
from ridgeline.records.space import Point, Space

Refusal = Callable[[Point], str | None]  # why a point may not run; None: it may


class Sampler(Protocol):
    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None: ...

    def tell(self, lesson: Lesson) -> None: ...


class SamplerFactory(Protocol):
    def __call__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> Sampler: ...
