"""The answer of a search for the most load a server carries, and the terms on which it was sought."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from ridgeline.errors import InputError
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, also_in_json, digits, in_json
from ridgeline.records.measurement import unit_of
from ridgeline.serving.load.bench import summary_of
from ridgeline.serving.load.fidelity import add_gaps, gaps_by_microsecond
from ridgeline.serving.load.stream import StreamView
from ridgeline.serving.load.workers.assignment import UNDER_WAY
from ridgeline.serving.traffic.flow import Backlog, Stretch, backlog_of
from ridgeline.serving.traffic.requests import RequestRecord, Slo, Spread, Summary

# One load of a search for the most that a server carries, and what is seen of it.

# the later half may be this much over a limit: it has fewer requests, but a queue shows there first
_LATER = 1.1
_STEADY = ("requests_s", "output_tok_s", "ttft_ms", "itl_ms", "e2e_ms")
UNITS = {"rate_s": unit_of("requests_s"), "concurrency": "requests at once", "sessions": "sessions at once"}


class ProbeVerdict(StrEnum):
    """What a probe says about its load. The last two say nothing about it."""

    HOLDS = "holds"
    TOO_MUCH = "too much"
    SATURATED = "saturated"
    FAILED = "failed"
    VOID = "void"
    TOO_SHORT = "too short"

    @property
    def judged(self) -> bool:
        return self not in (ProbeVerdict.VOID, ProbeVerdict.TOO_SHORT)


@dataclass(frozen=True, slots=True)
class Probe(JsonForm):
    """One load, judged by what was due in `span`, on the clock of the search.

    `reason` says why it does not hold. `share` is the worst latency as a share of its limit. `so_far` are the highest
    load known to hold and the lowest known not to, once this probe is counted.
    """

    axis: str
    load: float
    verdict: ProbeVerdict
    reason: str
    steady: Summary = field(metadata=in_json(flat=True, only=_STEADY))
    span: Stretch = field(metadata=in_json("steady_s", lambda span: [round(span.start_s, 3), round(span.end_s, 3)]))
    offered_s: float = field(metadata=in_json("offered_requests_s"))
    share: float = field(metadata=NOT_IN_JSON)
    backlog: Backlog | None = field(metadata=NOT_IN_JSON)
    errors: Mapping[str, int] = field(default_factory=dict)
    why_void: tuple[str, ...] = field(default=(), metadata=in_json("why", "; ".join))
    so_far: tuple[float | None, float | None] = (None, None)

    @property
    def holds(self) -> bool:
        return self.verdict is ProbeVerdict.HOLDS

    @property
    def judged(self) -> bool:
        return self.verdict.judged

    @property
    @also_in_json(to=digits(3))
    def window_s(self) -> float:
        return self.span.seconds

    @property
    @also_in_json()
    def unit(self) -> str:
        return UNITS[self.axis]

    def as_json(self) -> dict[str, object]:
        return JsonForm.as_json(self) | {
            "holds": self.holds if self.judged else None,
            "goodput_s": self.steady.goodput_s,
            "saturated": self.verdict is ProbeVerdict.SATURATED,
            "void": self.verdict is ProbeVerdict.VOID,
        }


def judge_probe(
    axis: str, load: float, view: StreamView, start_s: float, slos: Sequence[Slo], why_void: Sequence[str] = ()
) -> Probe:
    """What `view` says about its load, by the requests that were due from `start_s` on."""
    span = Stretch(start_s, view.now_s)
    due = sorted(view.due(start_s), key=lambda r: r.scheduled_s)
    steady = _figures(view, due, slos, span)
    # a closed loop waits for its server: nothing piles up in it
    backlog = backlog_of(view.rows, span, view.since_s) if axis == "rate_s" else None
    errors = Counter(r.status for r in view.due(view.since_s) if not r.ok and r.status != UNDER_WAY)
    verdict, reason = _verdict(axis, steady, due, view, backlog, errors, why_void)
    return Probe(
        axis=axis,
        load=load,
        verdict=verdict,
        reason=reason,
        steady=steady,
        span=span,
        offered_s=len(due) / max(span.seconds, 1e-9),
        share=steady.overshoot,
        backlog=backlog,
        errors=dict(errors),
        why_void=tuple(why_void),
    )


def _verdict(
    axis: str,
    steady: Summary,
    due: Sequence[RequestRecord],
    view: StreamView,
    backlog: Backlog | None,
    errors: Mapping[str, int],
    why_void: Sequence[str],
) -> tuple[ProbeVerdict, str]:
    answered = any(r.ok for r in view.rows)
    if errors and not answered:
        return ProbeVerdict.FAILED, _failures(errors)
    if why_void and answered:
        return ProbeVerdict.VOID, why_void[0]
    if errors:
        return ProbeVerdict.FAILED, _failures(errors)
    if not due and not view.under_way:
        short = "no request was due while it was looked at; raise --hold and --within to look longer"
        return ProbeVerdict.VOID, why_void[0] if why_void else short
    if backlog is not None and backlog.grows:
        return ProbeVerdict.SATURATED, "requests came faster than they were answered"
    later = _figures(view, due[len(due) // 2 :], steady.slos)
    for slo in steady.slos:
        if not seen(steady, slo):
            return ProbeVerdict.TOO_SHORT, f"no {slo.latency} was seen"
        if not steady.holds(slo):
            return ProbeVerdict.TOO_MUCH, _missed(slo, steady)
        if seen(later, slo) and not later.holds(replace(slo, limit_ms=_LATER * slo.limit_ms)):
            return ProbeVerdict.TOO_MUCH, _missed(slo, later) + " in the later half"
    if axis == "rate_s" and backlog is None:
        return ProbeVerdict.TOO_SHORT, f"{view.now_s - view.since_s:.3g} s are too short for its requests"
    if backlog is not None and backlog.grows is None:
        return ProbeVerdict.TOO_SHORT, "too short to show whether requests keep piling up"
    return ProbeVerdict.HOLDS, ""


def seen(summary: Summary, slo: Slo) -> bool:
    return getattr(summary, f"{slo.latency}_ms") is not None


def _figures(
    view: StreamView, due: Sequence[RequestRecord], slos: Sequence[Slo], window: Stretch | None = None
) -> Summary:
    """Latencies of `due`, those under way included as far as they came: whatever has lasted beyond its limit counts."""
    ended = [r for r in due if r.ok]
    young = [r for r in due if r.status == UNDER_WAY]
    gaps_us = gaps_by_microsecond(ended)
    add_gaps(gaps_us, young)
    summary = summary_of(view.rows, slos, window or Stretch(view.since_s, view.now_s), due=ended, gaps_us=gaps_us)
    if not young:
        return summary
    ttft_limit_s, e2e_limit_s = (
        min((s.limit_ms / 1e3 for s in slos if s.latency == name), default=math.inf) for name in ("ttft", "e2e")
    )
    ttft_s = [t for r in (*ended, *young) if (t := r.ttft_s) is not None]
    ttft_s += [age for r in young if r.first_token_s is None and (age := view.now_s - r.sent_s) > ttft_limit_s]
    e2e_s = [t for r in ended if (t := r.e2e_s) is not None]
    e2e_s += [age for r in young if (age := view.now_s - r.sent_s) > e2e_limit_s]
    return replace(summary, ttft_ms=Spread.of(ttft_s), e2e_ms=Spread.of(e2e_s))


def _failures(errors: Mapping[str, int]) -> str:
    return f"requests failed ({', '.join(f'{k} x {n}' for k, n in errors.items())})"


def _missed(slo: Slo, summary: Summary) -> str:
    spread = getattr(summary, f"{slo.latency}_ms")
    return f"{slo.latency} {slo.quantile} is {spread.quantile(slo.quantile):.4g} ms"


_TAKE_OFF = 2.0


@dataclass(frozen=True, slots=True)
class GoodputTerms:
    """For how long the answer is held, and how long the search may take with that.

    `start` is a first guess on the axis that is walked; without one the search measures where to begin.
    """

    hold_s: float = 60.0
    within_s: float = 240.0
    start: float | None = None

    def __post_init__(self) -> None:
        if not (self.hold_s > 0 and math.isfinite(self.hold_s)):
            raise InputError(f"--hold {self.hold_s:g} holds nothing; use seconds above zero, for example --hold 60")
        if not self.within_s > self.hold_s:
            raise InputError(
                f"--within {self.within_s:g} leaves no time to hold an answer for {self.hold_s:g} s; raise it"
            )


def goodput_terms(
    wanted: bool, hold_s: float | None, within_s: float | None, start: float | None = None
) -> GoodputTerms | None:
    """The terms that the options ask for; None where no search was asked for."""
    if not wanted:
        if hold_s is not None or within_s is not None:
            raise InputError("--hold and --within are for --find-goodput; add it, or leave them out")
        return None
    usual = GoodputTerms()
    hold_s = usual.hold_s if hold_s is None else hold_s
    return GoodputTerms(hold_s, max(usual.within_s, 4 * hold_s) if within_s is None else within_s, start)


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A load at which every run was void, and why."""

    load: float
    runs: int
    why: str


@dataclass(frozen=True, slots=True, repr=False)
class Edge(JsonForm, Shown):
    """The highest load that held the SLO, for how long it did, and the lowest above it that did not.

    `fails` is None when no load tried was too much. `asked_s` is for how long the answer was to be held. `unjudged` is
    the lowest load, from the answer up, about which nothing can be said.
    """

    axis: str
    holds: float
    fails: float | None
    held_for_s: float = field(metadata=in_json(to=digits(3)))
    asked_s: float = field(metadata=NOT_IN_JSON)
    took_s: float = field(metadata=in_json(to=digits(3)))
    goodput_s: float
    knee: float | None
    probes: tuple[Probe, ...]
    unjudged: Unjudged | None = None
    out_of_time: bool = False
    interrupted: bool = False
    note: str = ""

    @property
    @also_in_json()
    def unit(self) -> str:
        return UNITS[self.axis]

    @property
    @also_in_json()
    def held(self) -> bool:
        """Whether it was held for as long as was asked."""
        return self.held_for_s >= 0.99 * self.asked_s

    @property
    @also_in_json()
    def interval(self) -> tuple[float, float | None]:
        return self.holds, self.fails

    @property
    @also_in_json()
    def void_probes(self) -> int:
        return sum(p.verdict is ProbeVerdict.VOID for p in self.probes)

    def shown(self) -> TextTable:
        held = f"held for {self.held_for_s:.0f} s" + (
            "" if self.held else f", and not for the {self.asked_s:.0f} s asked"
        )
        rows = (
            ("holds", f"{self.holds:.4g} {self.unit}, {held}"),
            ("does not hold", "nothing that was tried" if self.fails is None else f"{self.fails:.4g} {self.unit}"),
            ("goodput", f"{self.goodput_s:.4g} requests/s"),
        )
        return TextTable(
            "the highest load that keeps the limits", ("", ""), rows, notes=(self.note,) if self.note else ()
        )


def take_off(points: Sequence[tuple[float, float | None]]) -> float | None:
    """The load at which the median TTFT is twice that of the lightest load, read off the curve; None if it never is.

    Between two measured loads the curve is taken as straight on logarithmic axes.
    """
    by_load: dict[float, list[float]] = {}
    for load, ttft_ms in points:
        if ttft_ms:
            by_load.setdefault(load, []).append(ttft_ms)
    curve = [(load, sorted(seen)[len(seen) // 2]) for load, seen in sorted(by_load.items())]
    for (left, before), (right, after) in pairwise(curve):
        limit = _TAKE_OFF * curve[0][1]
        if before <= limit < after:
            share = math.log(limit / before) / math.log(after / before)
            return float(left * (right / left) ** share)
    return None
