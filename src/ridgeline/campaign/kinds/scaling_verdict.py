"""How a setting scaled: the verdict, and the table and curves that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ridgeline.records.exhibit import Curve, CurveFigure, CurvePoint, TextTable
from ridgeline.records.space import Point
from ridgeline.stats.scaling import Law, ScalingStep
from ridgeline.stats.wording import metric_text
from ridgeline.study.codec import VerdictLine


@dataclass(frozen=True, slots=True)
class ScaledSize(ScalingStep):
    """A step with the mean of the goal's metric there."""

    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalingVerdict:
    """Speed-up and efficiency by size with intervals, and where more stops paying."""

    conclusion: str
    headline: str
    over: str = ""
    metric: str = ""
    setting: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[ScaledSize, ...] = ()
    law: Law | None = None
    pays_to: int | None = None
    sure: bool = False
    level: float = 0.95
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def recommended(self) -> Point | None:
        return None  # how large it should be is for the person to say

    def details(self) -> dict[str, Any]:
        if not self.steps:
            return {"failed": dict(self.failed)}
        found = {name: value for name, value in asdict(self).items() if name not in ("conclusion", "headline")}
        return found | {"law": None if self.law is None else asdict(self.law) | {"name": self.law.name}}

    @classmethod
    def from_line(cls, line: VerdictLine) -> ScalingVerdict:
        known = {each.name: line.details[each.name] for each in fields(cls) if each.name in line.details}
        known["steps"] = tuple(ScaledSize(**row) for row in known.get("steps", ()))
        if law := known.get("law"):
            known["law"] = Law(**{each.name: law[each.name] for each in fields(Law)})
        return cls(line.conclusion, line.headline, **known)


def scaling_table(verdict: ScalingVerdict) -> TextTable:
    head = (verdict.over, "runs", verdict.metric, "speed-up", "efficiency")
    rows = tuple(_row(step, first=at == 0) for at, step in enumerate(verdict.steps))
    notes = tuple(f"{size}: {reason}" for size, reason in verdict.failed.items())
    return TextTable("Scaling", head, rows, notes=notes)


def _row(step: ScaledSize, first: bool) -> tuple[str, ...]:
    speed, share = f"{step.speedup:.2f}", f"{step.efficiency:.0%}"
    if not first and step.speedup_low is not None and step.efficiency_low is not None:
        speed += f" ({step.speedup_low:.2f} to {step.speedup_high:.2f})"
        share += f" ({step.efficiency_low:.0%} to {step.efficiency_high:.0%})"
    return str(step.size), str(step.runs), metric_text(step.mean), speed, share


def law_text(law: Law) -> str:
    between = "" if law.serial_low is None else f" ({law.serial_low:.0%} to {law.serial_high:.0%})"
    return f"{law.name}: {law.serial:.0%} serial{between}"


def scaling_figures(verdict: ScalingVerdict) -> tuple[CurveFigure, ...]:
    """Speed-up and efficiency against size, each with what perfect scaling would give."""
    sizes = [step.size for step in verdict.steps]
    speed = tuple(CurvePoint(s.size, s.speedup, s.speedup_low, s.speedup_high) for s in verdict.steps)
    share = tuple(CurvePoint(s.size, s.efficiency, s.efficiency_low, s.efficiency_high) for s in verdict.steps)
    perfect = tuple(CurvePoint(size, size / sizes[0]) for size in sizes)
    full = tuple(CurvePoint(size, 1.0) for size in sizes)
    return (
        CurveFigure(
            "Speed-up", verdict.over, "speed-up", (Curve("measured", speed), Curve("perfect", perfect, ideal=True))
        ),
        CurveFigure(
            "Efficiency", verdict.over, "efficiency", (Curve("measured", share), Curve("perfect", full, ideal=True))
        ),
    )
