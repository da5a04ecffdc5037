"""What a campaign says so far: one record that terminal, `best`, `status`, JSON and report all read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum, StrEnum
from typing import Any

from ridgeline.records.space import Point, Settings


class Conclusion(StrEnum):
    """What a campaign came to, in the journal's word. A kind that another package brings may have words of its own."""

    CONFIRMED = "confirmed"  # better than the reference, shown in fresh runs
    EQUIVALENT = "equivalent"  # no setting differs from the baseline by more than the study's margin
    NO_DIFFERENCE = "no-difference"  # none is to be seen, which is not to say that there is none
    KEEP_BASELINE = "keep-baseline"  # nothing is better than the baseline, as far as was searched
    WORSE = "worse"  # B than A
    NOTHING_PASSED = "nothing-passed"  # no setting passed the guards
    UNCONFIRMED = "unconfirmed"  # too few interleaved runs, or none, for a verdict
    UNFINISHED = "unfinished"  # the budget ended before the question was answered
    EDGE = "edge"  # the largest value that passes is known
    SCALED = "scaling"
    FOUND = "found"  # the change that made it slower
    NOT_REPRODUCED = "not-reproduced"  # no slowdown of that size here
    UNRESOLVED = "unresolved"  # runs or budget ended before the change was found
    NOT_SLOWER = "not-slower"
    SLOWER = "slower"
    CANNOT_JUDGE = "cannot-judge"
    MEASURED = "measured"  # a reference for later gates


class Standing(Enum):
    """What an answer is worth to whoever asked: what it lacks and how a verb ends follow from it."""

    OPEN = "there is no verdict yet"
    ANSWERED = "the question has its answer"
    KEEP = "nothing is better than the reference"
    NOT_BETTER = "what was asked about is not there, or not shown to be better"
    WORSE = "what was asked about is shown to be worse"
    UNDECIDED = "what was measured is too little for a verdict about it"
    UNCONFIRMED = "the campaign ended before it had its answer"


class Use(Enum):
    """Which setting is to be used, as far as is known."""

    CANDIDATE = "the candidate, if perhaps an unconfirmed one"
    REFERENCE = "the reference: nothing is better"
    NEITHER = "the question was not which setting to use, or that is not shown"


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
            **{name: getattr(self.gain, name, None) for name in ("ratio", "low", "high")},
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
    """A limit of the question that the candidate does not keep over all requests of a run.

    `measured` is the mean over its runs, `reference` that of the reference's; None where nobody measured it.
    """

    metric: str
    limit: float
    measured: float
    reference: float | None
    text: str  # 'latency p95 2,302 ms (limit 2,000)'

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Answer:
    """Candidate, interval and verdict of a campaign of this `kind`: every face shows these, and nothing else.

    `conclusion` is None while the campaign goes on; `facts` is what JSON says beside the headline, by its key.
    `shown` and `why` are of a setting that was asked about and is not to be used: worse, not better, or undecided.
    `refuted` says what fresh runs made of the search's favourite where the candidate is another one.
    """

    kind: str
    conclusion: str | None
    headline: str
    reference: Reference
    candidate: Candidate | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    use: Use = Use.CANDIDATE
    paste: str = ""  # the setting to use as a person types it; in the journal once it is confirmed
    reference_paste: str = ""  # likewise the reference, to compare with
    pasted_as: str = ""  # what the pasted text is for, where it is not what was measured: 'to serve with this setting'
    repeat: str = ""  # then also the command that does again what was measured
    shown: Standing | None = None
    why: str = ""
    refuted: str = ""
    change: str = ""  # '302 -> 317 steps/s, 1.05x (95%: 1.03 to 1.07)': reference, candidate and its interval
    unit: str = ""  # of the goal's metric
    simulated: bool = False  # the figures come from a model, nothing was measured
    stopped: str = ""  # what ended the campaign before it had an answer, where that was no person
    broken: tuple[BrokenLimit, ...] = ()  # limits of the question that the candidate breaks
    model_error: str = ""  # of simulated figures: how far the model itself may be off
    unproven: str = ""  # why the verdict that an earlier release gave does not stand by today's rules
    next_step: str = ""  # the command that would lead to a verdict where there is none, as it is typed

    def __post_init__(self) -> None:
        if self.shown not in (None, Standing.NOT_BETTER, Standing.WORSE, Standing.UNDECIDED):
            raise ValueError(f"{self.shown} is not said of a setting that was asked about")
        if self.shown is not None and self.conclusion in (None, Conclusion.CONFIRMED):
            raise ValueError(f"{self.shown} needs a verdict against the setting")
        if self.conclusion == Conclusion.CONFIRMED and self.keep:
            raise ValueError("a confirmed setting and the reference cannot both be the one to use")

    @property
    def standing(self) -> Standing:
        if self.conclusion is None or self.shown is not None:
            return self.shown or Standing.OPEN
        if self.conclusion == Conclusion.NOTHING_PASSED or self.unproven:
            return Standing.NOT_BETTER
        if self.conclusion in (Conclusion.UNCONFIRMED, Conclusion.UNFINISHED):
            return Standing.UNCONFIRMED
        if self.keep:
            return Standing.KEEP
        return Standing.NOT_BETTER if self.candidate is None else Standing.ANSWERED

    @property
    def keep(self) -> bool:
        return self.use is Use.REFERENCE

    @property
    def offers(self) -> bool:
        return self.use is Use.CANDIDATE

    @property
    def worse(self) -> bool:
        return self.shown is Standing.WORSE

    @property
    def confirmed(self) -> bool:
        return self.candidate is not None and self.candidate.confirmed

    @property
    def statement(self) -> str:
        """The headline with what it rests on and which limits of the question it breaks: nobody shows less of it."""
        text, over = self.headline, f"{OVER_LIMIT}{' and '.join(map(str, self.broken))}"
        if self.conclusion == Conclusion.CONFIRMED:
            how = f"Confirmed{' in simulation' if self.simulated else ''}"
            text = f"{how}, but {over}; {text}" if self.broken else f"{how}: {text}"
        elif self.broken and self.keep:
            text = f"{text}; {self.reference.label} is {over}"
        elif self.broken:
            text = f"{over}; {text}" if self.conclusion else f"the best so far is {over}; {text}"
        if self.simulated and self.conclusion and self.conclusion != Conclusion.CONFIRMED:
            text = f"Simulated: {text}"
        return f"{text}; {self.model_error}" if self.model_error and self.conclusion else text

    @property
    def lacks(self) -> str:
        """Why there is no setting to change to, in a sentence; empty where the question was answered."""
        match self.standing:
            case Standing.OPEN if self.stopped:
                return f"there is no answer: {self.stopped}"
            case Standing.OPEN:
                return "there is no answer yet: the study is not over"
            case Standing.ANSWERED:
                return ""
            case Standing.KEEP:
                return f"no better setting was found; keep {self.reference.label}"
            case Standing.UNCONFIRMED:
                return f"there is no answer: {self.headline}"
        return self.why or self.headline

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
