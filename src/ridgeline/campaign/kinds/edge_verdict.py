"""What a hunt for an edge found: the ladder it climbed, the largest safe value, the value for production."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.campaign.kinds.ladder import Number
from ridgeline.records.exhibit import TextTable, value_text
from ridgeline.records.space import Point
from ridgeline.stats.wording import metric_text
from ridgeline.study.codec import VerdictLine


@dataclass(frozen=True, slots=True)
class Rung:
    """What the runs of one value showed; `mean` of the goal's metric, over those that passed."""

    value: Number
    passed: int
    failed: int
    mean: float | None
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedValue:
    value: Number
    reason: str


@dataclass(frozen=True, slots=True)
class EdgeVerdict:
    """`edge` passed `edge_runs` times, `production` lies the margin below it at `point`; None where nothing passed."""

    conclusion: str
    headline: str
    knob: str
    margin: float
    runs: int
    failed_runs: int
    monotone: bool
    tried: tuple[Rung, ...]
    refused: tuple[RefusedValue, ...] = ()
    notes: tuple[str, ...] = ()
    first_failing: Number | None = None
    edge: Number | None = None
    edge_runs: int = 0
    production: Number | None = None
    point: Point | None = None
    price: float | None = None  # the share of the goal that the margin costs

    @property
    def recommended(self) -> Point | None:
        return self.point

    def details(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("conclusion", "headline")}

    @classmethod
    def from_line(cls, line: VerdictLine) -> EdgeVerdict:
        known = {name: value for name, value in line.details.items() if name in cls.__dataclass_fields__}
        known["tried"] = tuple(Rung(**{**row, "why": tuple(row["why"])}) for row in known["tried"])
        known["refused"] = tuple(RefusedValue(**row) for row in known.get("refused", ()))
        known["notes"] = tuple(known.get("notes", ()))
        return cls(line.conclusion, line.headline, **known)


def ladder_table(verdict: EdgeVerdict, metric: str) -> TextTable:
    rows = [_ladder_row(rung, verdict) for rung in verdict.tried]
    failed = frozenset(at for at, rung in enumerate(verdict.tried) if rung.failed)
    refused = tuple(f"{value_text(row.value)} was not run: {row.reason}" for row in _nearest_refused(verdict))
    return TextTable("The ladder", (verdict.knob, "runs", metric, "", "outcome"), tuple(rows), failed, notes=refused)


def _ladder_row(rung: Rung, verdict: EdgeVerdict) -> tuple[str, ...]:
    outcome = rung.why[0] if rung.why else "passed"
    if rung.why and rung.passed:
        outcome = f"{rung.passed} passed, {rung.failed} failed: {outcome}"
    names = {verdict.edge: "largest safe value", verdict.production: "for production"}
    if verdict.edge == verdict.production:
        names = {verdict.edge: "largest safe value, for production"}
    mean = "" if rung.mean is None else metric_text(rung.mean)
    return value_text(rung.value), str(rung.passed + rung.failed), mean, names.get(rung.value, ""), outcome


def _nearest_refused(verdict: EdgeVerdict) -> list[RefusedValue]:
    """The first refused value above what was tried: of a long ladder, all of them would say the same."""
    top = max((rung.value for rung in verdict.tried), default=0)
    return sorted((row for row in verdict.refused if row.value > top), key=lambda row: row.value)[:1]
