"""A claim about a run, with the lines that show it, the time at stake, what to do about it and the knobs to try."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ridgeline.records.expression import Value
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm
from ridgeline.records.outcome import Evidence

Severity = Literal["note", "advice", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class KnobToTry:
    """Advice that a study can test: values for one knob, of which `current` is what ran.

    `program` says whose knob it is, as the name of its workload begins.
    """

    program: str
    name: str
    values: tuple[Value, ...]
    current: Value = field(metadata=NOT_IN_JSON)

    def __post_init__(self) -> None:
        if self.current not in self.values or len(self.values) < 2:
            raise ValueError(f"{self.name}: {self.values} offers nothing beside {self.current!r}")


@dataclass(frozen=True, slots=True)
class Finding(JsonForm):
    """`share` is the part of the run's time at stake, at most: 0 to 1, or None where it is not known.

    `key` is the same for the same finding of two files, whatever their figures are. `echo`: it says only that something
    failed, and is left out where another finding says what.
    """

    claim: str
    evidence: tuple[Evidence, ...]
    advice: str
    severity: Severity = "advice"
    share: float | None = None
    knobs: tuple[KnobToTry, ...] = ()
    key: str = ""
    echo: bool = field(default=False, metadata=NOT_IN_JSON)

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"a finding without evidence is an opinion: {self.claim}")
        if self.share is not None and not 0.0 <= self.share <= 1.0:
            raise ValueError(f"{self.claim}: a share of {self.share} is not between 0 and 1")


def most_at_stake_first(findings: list[Finding]) -> list[Finding]:
    """Faults, since nothing else counts in a run that failed; then by time at stake, unknown last; then notes."""
    place = {"fault": 0, "warning": 1, "advice": 1, "note": 2}
    known_worse = {"warning": 0, "advice": 1}

    def order(finding: Finding) -> tuple[int, float, int]:
        share = -1.0 if finding.share is None else finding.share
        return place[finding.severity], -share, known_worse.get(finding.severity, 0)

    return sorted(findings, key=order)
