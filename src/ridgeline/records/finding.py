"""A claim about a run, with the lines that show it and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.records.outcome import Evidence

Severity = Literal["note", "advice", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    claim: str
    evidence: tuple[Evidence, ...]
    advice: str
    severity: Severity = "advice"

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"a finding without evidence is an opinion: {self.claim}")
