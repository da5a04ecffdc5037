"""What a campaign says so far: one record that terminal, `best`, `status`, JSON and report all read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.records.space import Point, Settings

CONFIRMED = "confirmed"  # better than the reference, shown in fresh runs
EQUIVALENT = "equivalent"  # no setting differs from the baseline by more than the study's margin
KEEP_BASELINE = "keep-baseline"  # nothing is better than the baseline, as far as was searched
NOTHING_PASSED = "nothing-passed"  # no setting passed the guards
UNCONFIRMED = "unconfirmed"  # too few interleaved runs, or none, for a verdict
UNFINISHED = "unfinished"  # the budget ended before the question was answered
OVER_LIMIT = "over the limit: "  # before the limits of the question that a setting breaks


@dataclass(frozen=True, slots=True)
class Gain:
    """A setting over the reference as a ratio, oriented so that above 1 is better.

    `text` is how it is said: '1.05x (95%: 1.03 to 1.07)'.
    """

    ratio: float
    low: float | None
    high: float | None
    level: float
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Candidate:
    """The setting an answer is about, with its own value and interval, never another setting's.

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
    """What candidates are held against: the baseline, or setting A.

    `value` comes from the same runs as the candidate's, and is None before it has passed once.
    """

    label: str
    point: Point
    value: float | None
    short: str = ""


@dataclass(frozen=True, slots=True)
class BrokenLimit:
    """A limit of the question (`slo: ttft_p95_ms=2000`) that the candidate does not keep over all requests of a run.

    `measured` is the mean over its runs, `reference` that of the reference's; None where nobody measured it.
    """

    metric: str
    limit: float
    measured: float
    reference: float | None
    text: str  # 'TTFT p95 2,302 ms (limit 2,000)'

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Answer:
    """Candidate, interval and verdict of a campaign of this `kind`: every face shows these, and nothing else.

    `conclusion` is None while the campaign goes on; `facts` is what JSON says beside the headline, by its key.
    `keep`: nothing is better, as far as is known, so the reference is the setting to use. `refuted` says what fresh
    runs made of the search's favourite where the candidate is another one.
    """

    kind: str
    conclusion: str | None
    headline: str
    reference: Reference
    candidate: Candidate | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    offers: bool = True  # the candidate is a setting to paste, if perhaps an unconfirmed one
    paste: str = ""  # the setting to use as a person types it; in the journal once it is confirmed
    reference_paste: str = ""  # likewise the reference, to compare with
    pasted_as: str = ""  # what the pasted text is for, where it is not what was measured: 'to serve with this setting'
    repeat: str = ""  # then also the command that does again what was measured
    keep: bool = False
    not_better: str = ""  # of a setting that was asked about: why it is not to be used, once that is known
    worse: bool = False  # it is shown to be worse
    undecided: bool = False  # what was measured is too little for a verdict about it
    refuted: str = ""
    change: str = ""  # '302 -> 317 steps/s, 1.05x (95%: 1.03 to 1.07)': reference, candidate and its interval
    unit: str = ""  # of the goal's metric
    simulated: bool = False  # the figures come from a model, nothing was measured
    stopped: str = ""  # what ended the campaign before it had an answer, where that was no person
    broken: tuple[BrokenLimit, ...] = ()  # limits of the question that the candidate breaks
    model_error: str = ""  # of simulated figures: how far the model itself may be off
    unproven: str = ""  # why the verdict that an earlier release gave does not stand by today's rules
    next_step: str = ""  # the command that would lead to a verdict where there is none, as it is typed

    @property
    def confirmed(self) -> bool:
        return self.candidate is not None and self.candidate.confirmed

    @property
    def statement(self) -> str:
        """The headline with what it rests on and which limits of the question it breaks: nobody shows less of it."""
        text, over = self.headline, f"{OVER_LIMIT}{' and '.join(map(str, self.broken))}"
        if self.conclusion == CONFIRMED:
            how = f"Confirmed{' in simulation' if self.simulated else ''}"
            text = f"{how}, but {over}; {text}" if self.broken else f"{how}: {text}"
        elif self.broken and self.keep:
            text = f"{text}; {self.reference.label} is {over}"
        elif self.broken:
            text = f"{over}; {text}" if self.conclusion else f"the best so far is {over}; {text}"
        if self.simulated and self.conclusion and self.conclusion != CONFIRMED:
            text = f"Simulated: {text}"
        return f"{text}; {self.model_error}" if self.model_error and self.conclusion else text

    @property
    def lacks(self) -> str:
        """Why there is no setting to change to, in a sentence; empty where the question was answered."""
        if self.conclusion is None and self.stopped:
            return f"there is no answer: {self.stopped}"
        if self.conclusion is None:
            return "there is no answer yet: the study is not over"
        if self.conclusion == NOTHING_PASSED:
            return self.headline
        if self.not_better:
            return self.not_better
        if self.unproven:
            return self.headline
        if self.conclusion in (UNCONFIRMED, UNFINISHED):
            return f"there is no answer: {self.headline}"
        if self.keep:
            return f"no better setting was found; keep {self.reference.label}"
        return self.headline if self.candidate is None else ""

    @property
    def to_use(self) -> Point | None:
        if self.keep:
            return self.reference.point
        return None if self.candidate is None else self.candidate.point

    @property
    def to_use_label(self) -> str:
        return self.reference.label if self.keep or self.candidate is None else self.candidate.label

    def reservations(self) -> dict[str, Any]:
        """What JSON says against taking the headline as it stands: read `answered` before anything else."""
        return {
            "answered": not self.lacks,
            "lacks": self.lacks,
            "statement": self.statement,
            "broken_limits": [asdict(limit) for limit in self.broken],
            "model_error": self.model_error,
            "not_provable": self.unproven,
            "next_step": self.next_step,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "headline": self.headline,
            "verdict": self.conclusion,
            "confirmed": self.confirmed,
            "keep_baseline": self.keep,
            "change": self.change,
            "unit": self.unit,
            "simulated": self.simulated,
            "refuted": self.refuted,
            **self.reservations(),
            **self.facts,
            "settings": None if self.to_use is None else dict(self.to_use),
            "paste": self.paste,
            "pasted_as": self.pasted_as,
            "repeat": self.repeat,
            "reference": {
                "label": self.reference.label,
                "point": dict(self.reference.point),
                "paste": self.reference_paste,
            },
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a campaign is. `of` and `runs_left` are None where only time or node-hours end it."""

    stage: str
    done: int
    of: int | None
    unit: str  # what is counted: trials or runs
    runs_left: int | None
