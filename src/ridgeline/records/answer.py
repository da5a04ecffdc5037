"""What a campaign says so far: one record that terminal, `best`, `status`, JSON and report all read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.records.space import Point, Settings

CONFIRMED = "confirmed"  # better than the reference, shown in fresh runs
KEEP_BASELINE = "keep-baseline"  # nothing is better than the baseline, as far as was looked
NOTHING_PASSED = "nothing-passed"  # no setting passed the guards


@dataclass(frozen=True, slots=True)
class Gain:
    """A setting over the reference as a ratio, oriented so that above 1 is better; `text` is how it is said."""

    ratio: float
    low: float | None
    high: float | None
    level: float
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Candidate:
    """The setting an answer speaks of, with its own value and interval, never another setting's.

    `label` says what it is in this kind of campaign: the best of the search, setting B, the value for production;
    `short` is its name in a line of the status, empty where it has none.
    """

    label: str
    trial: int
    point: Point
    settings: Settings
    value: float
    gain: Gain | None = None
    confirmed: bool = False
    short: str = ""

    def as_json(self, metric: str) -> dict[str, Any]:
        return {
            "trial": self.trial,
            "point": dict(self.point),
            "settings": dict(self.settings),
            metric: self.value,
            "confirmed": self.confirmed,
            "ratio": None if self.gain is None else self.gain.ratio,
            "low": None if self.gain is None else self.gain.low,
            "high": None if self.gain is None else self.gain.high,
        }


@dataclass(frozen=True, slots=True)
class Reference:
    """What candidates are held against: the baseline, or setting A. `value` is None before it has passed once."""

    label: str
    point: Point
    value: float | None
    short: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Candidate, interval and verdict of a campaign of this `kind`.

    `conclusion` is None while the campaign goes on; `facts` is what JSON says beside the headline, by its key.
    """

    kind: str
    conclusion: str | None
    headline: str
    reference: Reference
    candidate: Candidate | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    offers: bool = True  # the candidate is a setting to paste, if perhaps an unconfirmed one
    paste: str = ""  # the candidate as a person types it; in the journal once it is the setting to use

    @property
    def confirmed(self) -> bool:
        return self.candidate is not None and self.candidate.confirmed

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "headline": self.headline,
            "verdict": self.conclusion,
            "confirmed": self.confirmed,
            **self.facts,
            "settings": None if self.candidate is None else dict(self.candidate.point),
            "paste": self.paste,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a campaign is. `of` and `runs_left` are None where only time or node-hours end it."""

    stage: str
    done: int
    of: int | None
    unit: str  # what is counted: trials or runs
    runs_left: int | None
