"""How much load a server carries within its SLO: bracket, narrow, repeat both sides of the edge, then hold the answer.

Every probe lasts several times the latency of a request and is judged by its steady part. One that the load generator
itself declares void says nothing about its load and is sent again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.errors import InputError, NothingFound
from ridgeline.serving.load.bench import BenchPlan, BenchResult
from ridgeline.serving.load.probe import LENGTHS, Probe, ProbeVerdict, judge_probe, probe_plan
from ridgeline.serving.traffic.traffic import ClosedLoop, OpenLoop

_MOST = 1 << 16
_LEAST_SHARE = 1 / 1024
# An edge is settled when holding and failing lie this close; a concurrency when they are neighbours or this close.
_CLOSE = 1.05
_SHORTEST_S = 5.0
# A load that is void this often in a row cannot be judged; when that befalls so many loads in a row nothing can.
_TRIES = 4
_UNJUDGED_LOADS = 3
_LENGTHENINGS = 3
# no single probe takes more than this part of the time limit for the sake of a number of requests
_PROBE_SHARE = 1 / 8
TAKE_OFF = 2.0


@dataclass(frozen=True, slots=True)
class GoodputTerms:
    """How long the answer must hold, how long the search may take, and how often each side of the edge is tried."""

    hold_s: float = 60.0
    limit_s: float = 1800.0
    repeats: int = 3

    def __post_init__(self) -> None:
        if not (self.hold_s > 0 and math.isfinite(self.hold_s)):
            raise InputError(f"--hold {self.hold_s:g} holds nothing; use seconds above zero, for example --hold 60")
        if not self.limit_s > self.hold_s:
            raise InputError(f"--limit {self.limit_s:g} leaves no time to hold an answer for {self.hold_s:g} s; raise it")


@dataclass(frozen=True, slots=True)
class Unjudged:
    """The lowest load at which every run was void, and why."""

    load: float
    runs: int
    why: str


@dataclass(frozen=True, slots=True)
class Edge:
    """The highest load that held the SLO in most repeats and for `held_for_s`, and the lowest above it that did not.

    `fails` is None when no load tried was too much. `held_for_s` is None when the answer was never held so long.
    """

    axis: str
    holds: float
    fails: float | None
    repeats: int
    held: int
    goodput_s: tuple[float, float, float]  # least, middle and most over the repeats
    knee: float | None
    probes: tuple[Probe, ...]
    held_for_s: float | None = None
    unjudged: Unjudged | None = None
    out_of_time: bool = False
    interrupted: bool = False

    @property
    def void_probes(self) -> int:
        return sum(p.verdict is ProbeVerdict.VOID for p in self.probes)

    def as_json(self) -> dict[str, object]:
        unjudged = self.unjudged
        return {
            "axis": self.axis,
            "holds": self.holds,
            "fails": self.fails,
            "interval": [self.holds, self.fails],
            "held_for_s": self.held_for_s,
            "repeats": self.repeats,
            "repeats_that_held": self.held,
            "goodput_s": self.goodput_s[1],
            "goodput_range_s": [self.goodput_s[0], self.goodput_s[2]],
            "knee": self.knee,
            "unjudged": None if unjudged is None else {"load": unjudged.load, "runs": unjudged.runs, "why": unjudged.why},
            "void_probes": self.void_probes,
            "out_of_time": self.out_of_time,
            "interrupted": self.interrupted,
            "probes": [p.as_json() for p in self.probes],
        }


def find_goodput(
    plan: BenchPlan,
    run: Callable[[BenchPlan], BenchResult],
    *,
    terms: GoodputTerms | None = None,
    note: Callable[[Probe], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Edge:
    """Walks the load up until the SLO breaks, narrows the bracket, repeats both sides of it and holds the answer.

    The axis is the plan's own: rate for an open loop, concurrency for a closed one, starting at the load it names.
    When the time is up, or at Ctrl-C, the answer is what was known by then, and says so.
    """
    if not plan.slos:
        raise InputError("--find-goodput needs a limit to hold, for example --slo ttft_p95_ms=2000 --slo itl_p95_ms=50")
    if plan.stages or not isinstance(plan.traffic.pace, ClosedLoop | OpenLoop):
        raise InputError("--find-goodput walks a --rate or a --concurrency; leave out what has its own times")
    search = _Search(plan, run, terms or GoodputTerms(), note, clock)
    try:
        low, high = search.bracket()
        return search.edge(search.settle(low, high))
    except _OutOfTimeError:
        return search.edge(search.best_in_time())
    except _StoppedError:
        if not search.known_to_hold():
            raise KeyboardInterrupt from None
        return search.edge(search.known_to_hold()[0])


class _StoppedError(Exception):
    """Ctrl-C during a probe: the search ends with what it knows."""


class _OutOfTimeError(Exception):
    """The next probe would not end within the limit."""


class _Search:
    def __init__(
        self,
        plan: BenchPlan,
        run: Callable[[BenchPlan], BenchResult],
        terms: GoodputTerms,
        note: Callable[[Probe], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self._plan, self._run, self._terms, self._note, self._clock = plan, run, terms, note, clock
        pace = plan.traffic.pace
        assert isinstance(pace, ClosedLoop | OpenLoop)
        self.whole = isinstance(pace, ClosedLoop)
        self.axis = "concurrency" if self.whole else "rate_s"
        self._start = float(pace.concurrency) if isinstance(pace, ClosedLoop) else pace.rate_s
        self._least = 1.0 if self.whole else self._start * _LEAST_SHARE
        self._began_s = clock()
        self._reserve_s = terms.hold_s
        self._least_window_s = 0.0
        self._e2e_s: float | None = None
        self.probes: list[Probe] = []
        self.unjudged: dict[float, Unjudged] = {}
        self.held: dict[float, bool] = {}  # what came of holding a load
        self.stopped = self.out_of_time = False

    # one load

    def window_s(self, load: float) -> float:
        """How long a probe at this load is to last."""
        e2e_s = self._e2e_s or 0.0
        requests_s = self._plan.traffic.requests / load * (e2e_s if self.whole else 1.0)
        enough_s = min(requests_s, _PROBE_SHARE * self._terms.limit_s)
        return max(_SHORTEST_S, self._plan.duration_s or 0.0, LENGTHS * e2e_s, enough_s, self._least_window_s)

    def probe(self, load: float, least_s: float = 0.0) -> Probe:
        """Sends the load until a probe says something about it; void when none of so many did."""
        voids = lengthenings = 0
        while True:
            probe = self._probe_once(load, max(self.window_s(load), least_s))
            if probe.verdict is ProbeVerdict.VOID:
                voids += 1
                if voids == _TRIES:
                    self.unjudged[load] = Unjudged(load, voids, probe.reason)
                    return probe
            elif probe.verdict is ProbeVerdict.TOO_SHORT and lengthenings < _LENGTHENINGS:
                lengthenings += 1
            else:
                return probe

    def _probe_once(self, load: float, window_s: float) -> Probe:
        left_s = self._terms.limit_s - (self._clock() - self._began_s) - self._reserve_s
        if window_s + (self._e2e_s or 0.0) > left_s:
            raise _OutOfTimeError
        result = self._run(probe_plan(self._plan, load, window_s, len(self.probes)))
        if result.interrupted:
            self.stopped = True
            raise _StoppedError
        probe = judge_probe(load, window_s, self._e2e_s, result)
        self.probes.append(probe)
        if probe.verdict in (ProbeVerdict.HOLDS, ProbeVerdict.TOO_SHORT, ProbeVerdict.VOID):
            # one that broke its limit or piled up has the latency of a queue
            self._e2e_s = max(self._e2e_s or 0.0, probe.e2e_s or 0.0) or None
        if self._note is not None:
            self._note(probe)
        return probe

    def holds(self, load: float) -> bool | None:
        """One more probe at this load; None where it cannot be judged."""
        probe = self.probe(load)
        return None if probe.verdict is ProbeVerdict.VOID else probe.holds

    def votes(self, load: float) -> list[Probe]:
        return [p for p in self.probes if p.load == load and p.judged]

    def holds_in_most(self, load: float) -> bool:
        """Repeats the load until most of so many repeats agree."""
        most = self._terms.repeats // 2 + 1
        while True:
            votes = [p.holds for p in self.votes(load)]
            if votes.count(True) >= most or votes.count(False) >= most or self.holds(load) is None:
                break
        votes = [p.holds for p in self.votes(load)]
        return 2 * sum(votes) > len(votes)

    def hold(self, load: float) -> bool | None:
        """Whether the load keeps its SLO for as long as was asked; None where no such run could be judged."""
        hold_s = max(self._terms.hold_s, self.window_s(load))
        if load not in self.held:
            self._reserve_s = 0.0
            done = [p for p in self.votes(load) if p.window_s >= hold_s]
            probe = done[-1] if done else self.probe(load, hold_s)
            self._reserve_s = self._terms.hold_s
            if not probe.judged:
                return None
            self.held[load] = probe.holds
        return self.held[load]

    # many loads

    def bracket(self) -> tuple[float, float | None]:
        """A load that holds and the next one tried, which does not or cannot be judged."""
        load = self._start
        if not self.holds(load):
            return self._descend(load, 2.0)
        while load < _MOST:
            if not self.holds(load * 2):
                return load, load * 2
            load *= 2
        return load, None

    def _descend(self, load: float, step: float) -> tuple[float, float]:
        """The first load that holds, in ever longer steps down from one that does not."""
        unjudged = int(load in self.unjudged)
        while load > self._least and unjudged < _UNJUDGED_LOADS:
            lower = max(1.0, min(load - 1, load // step)) if self.whole else load / step
            held = self.holds(lower)
            if held:
                return lower, load
            load, step = lower, min(2.0, step * step)
            unjudged = unjudged + 1 if held is None else 0
        raise NothingFound(self._nothing(load))

    def _climb(self, load: float) -> tuple[float, float | None]:
        """From a load that holds to the next one above that is known not to."""
        above = [p.load for p in self.probes if p.load > load and p.judged and not p.holds]
        return load, min([*above, *(u for u in self.unjudged if u > load)], default=None)

    def settled(self, low: float, high: float | None) -> bool:
        return high is None or high / low <= _CLOSE or (self.whole and high - low <= 1)

    def narrow(self, low: float, high: float | None) -> tuple[float, float | None]:
        while high is not None and not self.settled(low, high):
            middle = math.sqrt(low * high)
            middle = float(min(max(round(middle), low + 1), high - 1)) if self.whole else middle
            low, high = (middle, high) if self.holds(middle) else (low, middle)
        return low, high

    def settle(self, low: float, high: float | None) -> float:
        """The edge: the load above fails in most repeats, this one holds in most, and then for a minute."""
        while True:
            low, high = self.narrow(low, high)
            if high is not None and high not in self.unjudged and high not in self.held and self.holds_in_most(high):
                low, high = self._climb(high)
            elif not self.holds_in_most(low):
                low, high = self._descend(low, _CLOSE)
            elif self.hold(low) is False:
                # what looked well for some seconds did not last, so shorter probes are not asked again
                self._least_window_s = self._terms.hold_s
                low, high = self._descend(low, _CLOSE)
            else:
                return low

    def known_to_hold(self) -> list[float]:
        """Loads that held in most of their probes, the highest first."""
        loads = sorted({p.load for p in self.probes}, reverse=True)
        votes = {load: [p.holds for p in self.votes(load)] for load in loads}
        return [load for load in loads if 2 * sum(votes[load]) > len(votes[load]) and self.held.get(load, True)]

    def best_in_time(self) -> float:
        """Out of time: the highest load known to hold, held if there is time for that."""
        self.out_of_time = True
        for load in self.known_to_hold():
            try:
                if self.hold(load) is not False:
                    return load
            except _OutOfTimeError:
                return load
        raise NothingFound(self._nothing(self.probes[-1].load if self.probes else self._start))

    # the answer

    def edge(self, low: float) -> Edge:
        there = self.votes(low)
        rates = sorted(p.steady.goodput_s or 0.0 for p in there)
        above = [
            p.load for p in self.probes if p.load > low and p.judged and not p.holds and p.load not in self._overruled()
        ]
        beyond = [u for load, u in self.unjudged.items() if load > low]
        held = [p.window_s for p in there if p.holds and p.window_s >= self._terms.hold_s]
        return Edge(
            axis=self.axis,
            holds=low,
            fails=min(above, default=None),
            repeats=len(there),
            held=sum(p.holds for p in there),
            goodput_s=(rates[0], rates[len(rates) // 2], rates[-1]),
            knee=take_off([(p.load, _ttft(p)) for p in self.probes if p.judged]),
            probes=tuple(self.probes),
            held_for_s=max(held, default=None),
            unjudged=min(beyond, key=lambda u: u.load, default=None),
            out_of_time=self.out_of_time,
            interrupted=self.stopped,
        )

    def _overruled(self) -> set[float]:
        return set(self.known_to_hold())

    def _nothing(self, load: float) -> str:
        limits = ", ".join(map(str, self._plan.slos))
        last = next((p for p in reversed(self.probes) if p.judged), None)
        if last is None:
            tried = ", ".join(f"{p.load:g}" for p in self.probes) or "none"
            why = self.probes[-1].reason if self.probes else "not one probe fits into --limit; raise it"
            return f"no verdict: every run was void ({self.axis} {tried}): {why}"
        text = f"even {self.axis} {last.load:g} does not hold {limits}: {last.reason}"
        if self.out_of_time:
            text += f"; the {self._terms.limit_s:g} s of --limit are over"
        return text


def _ttft(probe: Probe) -> float | None:
    spread = probe.steady.ttft_ms or probe.steady.e2e_ms
    return spread.p50 if spread else None


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
        limit = TAKE_OFF * curve[0][1]
        if before <= limit < after:
            share = math.log(limit / before) / math.log(after / before)
            return float(left * (right / left) ** share)
    return None
