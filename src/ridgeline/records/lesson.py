"""What a sampler is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.records.space import Point


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one finished trial teaches. `score` is larger-is-better; None when the setting itself failed."""

    point: Point
    score: float | None


@dataclass(frozen=True, slots=True)
class Proposal:
    point: Point
    why: str = ""
