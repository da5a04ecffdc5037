"""How much load a server carries within its SLO: bracket, narrow, repeat both sides of the edge, then hold the answer.

Every probe lasts several times the latency of a request and is judged by its steady part. One that the load generator
itself declares void says nothing about its load and is sent again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from ridgeline.errors import InputError, NothingFound
from ridgeline.serving.load.bench import BenchPlan, BenchResult
from ridgeline.serving.load.edge import Edge, GoodputTerms, take_off
from ridgeline.serving.load.probe import Probe, ProbeVerdict
from ridgeline.serving.load.prober import OutOfTimeError, Prober, StoppedError
from ridgeline.serving.traffic.traffic import ClosedLoop, OpenLoop

_MOST = 1 << 16
_LEAST_SHARE = 1 / 1024
# An edge is settled when holding and failing lie this close; a concurrency when they are neighbours or this close.
_CLOSE = 1.05
# when no run at so many loads in a row could be judged, none can
_UNJUDGED_LOADS = 3


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
    terms = terms or GoodputTerms()
    search = _Search(plan, terms, Prober(plan, run, terms, note, clock))
    try:
        low, high = search.bracket()
        return search.edge(search.settle(low, high))
    except OutOfTimeError:
        return search.edge(search.best_in_time())
    except StoppedError:
        search.stopped = True
        if not search.known_to_hold():
            raise KeyboardInterrupt from None
        return search.edge(search.known_to_hold()[0])


class _Search:
    def __init__(self, plan: BenchPlan, terms: GoodputTerms, prober: Prober) -> None:
        self._plan, self._terms, self._prober = plan, terms, prober
        pace = plan.traffic.pace
        assert isinstance(pace, ClosedLoop | OpenLoop)
        self._whole = isinstance(pace, ClosedLoop)
        self._axis = "concurrency" if self._whole else "rate_s"
        self._start = float(pace.concurrency) if isinstance(pace, ClosedLoop) else pace.rate_s
        self._least = 1.0 if self._whole else self._start * _LEAST_SHARE
        self._held: dict[float, bool] = {}  # what came of holding a load
        self.stopped = self.out_of_time = False

    # one load

    def _holds(self, load: float) -> bool | None:
        """One more probe at this load; None where it cannot be judged."""
        probe = self._prober.probe(load)
        return None if probe.verdict is ProbeVerdict.VOID else probe.holds

    def _holds_in_most(self, load: float) -> bool:
        """Repeats the load, half as long as the answer will be held, until most of so many repeats agree."""
        most = self._terms.repeats // 2 + 1
        while True:
            least_s = self._prober.hold_s(load) / 2
            votes = [p.holds for p in self._prober.votes(load, least_s)]
            if votes.count(True) >= most or votes.count(False) >= most:
                return votes.count(True) >= most
            if self._prober.probe(load, least_s).verdict is ProbeVerdict.VOID:
                return _most(self._prober.votes(load))

    def _hold(self, load: float) -> bool | None:
        """Whether the load keeps its SLO for as long as was asked; None where no such run could be judged."""
        if load not in self._held:
            hold_s, self._prober.holding = self._prober.hold_s(load), True
            done = self._prober.votes(load, hold_s)
            probe = done[-1] if done else self._prober.probe(load, hold_s)
            if probe.holds and not self._kept_up(probe):
                # a queue that found its level weighs half as much in twice the time, one that grows weighs the same
                probe = self._prober.probe(load, 2 * hold_s)
            self._prober.holding = False
            if not probe.judged:
                return None
            self._held[load] = probe.holds and self._kept_up(probe)
        return self._held[load]

    def _kept_up(self, probe: Probe) -> bool:
        """Whether what ended kept up with what was due: in this run, and in all runs at its load together."""
        seen = [p.backlog for p in self._prober.votes(probe.load) if p.backlog is not None]
        if probe.backlog is None or not seen:
            return True
        return not probe.backlog.lags and sum(seen[1:], seen[0]).grows is False

    # many loads

    def bracket(self) -> tuple[float, float | None]:
        """A load that holds and the next one tried, which does not or cannot be judged."""
        return self._climb(self._start, 2.0) if self._holds(self._start) else self._descend(self._start, 2.0)

    def _climb(self, load: float, step: float) -> tuple[float, float | None]:
        """From a load that holds in ever longer steps up to the first that is not known to."""
        known = min([*self._failing_above(load), *(u for u in self._prober.unjudged if u > load)], default=math.inf)
        while load < _MOST:
            higher = max(load + 1, float(round(load * step))) if self._whole else load * step
            if higher >= known:
                return load, known
            if not self._holds(higher):
                return load, higher
            load, step = higher, min(2.0, step * step)
        return load, None

    def _descend(self, load: float, step: float) -> tuple[float, float]:
        """The first load that holds, in ever longer steps down from one that does not."""
        unjudged = int(load in self._prober.unjudged)
        while load > self._least and unjudged < _UNJUDGED_LOADS:
            lower = max(1.0, min(load - 1, load // step)) if self._whole else load / step
            held = self._holds(lower)
            if held:
                return lower, load
            load, step = lower, min(2.0, step * step)
            unjudged = unjudged + 1 if held is None else 0
        raise NothingFound(self._nothing())

    def settled(self, low: float, high: float | None) -> bool:
        return high is None or high / low <= _CLOSE or (self._whole and high - low <= 1)

    def narrow(self, low: float, high: float | None) -> tuple[float, float | None]:
        while high is not None and not self.settled(low, high):
            middle = math.sqrt(low * high)
            middle = float(min(max(round(middle), low + 1), high - 1)) if self._whole else middle
            low, high = (middle, high) if self._holds(middle) else (low, middle)
        return low, high

    def settle(self, low: float, high: float | None) -> float:
        """The edge: the load above fails in most repeats, this one holds in most, and then for a minute."""
        while True:
            low, high = self.narrow(low, high)
            if high is not None and high not in (*self._prober.unjudged, *self._held) and self._holds_in_most(high):
                low, high = self._climb(high, _CLOSE)
            elif not self._holds_in_most(low):
                low, high = self._descend(low, _CLOSE)
            elif self._hold(low) is False:
                # what looked well for some seconds did not last, so shorter probes are not asked again
                self._prober.least_window_s = self._prober.hold_s(low)
                low, high = self._descend(low, _CLOSE)
            else:
                return low

    def known_to_hold(self) -> list[float]:
        """Loads that held in most of their probes, the highest first."""
        loads = sorted({p.load for p in self._prober.probes}, reverse=True)
        return [load for load in loads if _most(self._prober.votes(load)) and self._held.get(load, True)]

    def _failing_above(self, load: float) -> list[float]:
        overruled = self.known_to_hold()
        return [p.load for p in self._prober.probes if load < p.load not in overruled and p.judged and not p.holds]

    def best_in_time(self) -> float:
        """Out of time: the highest load known to hold, held if there is time for that."""
        self.out_of_time = True
        for load in self.known_to_hold():
            try:
                if self._hold(load) is not False:
                    return load
            except OutOfTimeError:
                return load
        raise NothingFound(self._nothing())

    # the answer

    def edge(self, low: float) -> Edge:
        there = self._prober.votes(low)
        rates = sorted(p.steady.goodput_s or 0.0 for p in there)
        unjudged = [u for load, u in self._prober.unjudged.items() if load >= low]
        held = [p.window_s for p in there if p.holds and p.window_s >= self._terms.hold_s]
        return Edge(
            axis=self._axis,
            holds=low,
            fails=min(self._failing_above(low), default=None),
            repeats=len(there),
            held=sum(p.holds for p in there),
            goodput_s=(rates[0], rates[len(rates) // 2], rates[-1]),
            knee=take_off([(p.load, _ttft(p)) for p in self._prober.probes if p.judged]),
            probes=tuple(self._prober.probes),
            held_for_s=max(held, default=None),
            unjudged=min(unjudged, key=lambda u: u.load, default=None),
            out_of_time=self.out_of_time,
            interrupted=self.stopped,
        )

    def _nothing(self) -> str:
        probes, last = self._prober.probes, next((p for p in reversed(self._prober.probes) if p.judged), None)
        if not probes:
            return f"not one probe at {self._axis} {self._start:g} fits into --limit {self._terms.limit_s:g}; raise it"
        void = f"every run at {self._axis} {probes[-1].load:g} was void: {probes[-1].reason}"
        late = f"; the {self._terms.limit_s:g} s of --limit are over" if self.out_of_time else ""
        if last is None:
            return f"no verdict, {void}{late}"
        limits = ", ".join(map(str, self._plan.slos))
        said = f"even {self._axis} {last.load:g} does not hold {limits}: {last.reason}"
        if not probes[-1].judged:
            return f"{said}; below that {void}{late}"
        return f"{said}{late}; relax the limit or start lower"


def _most(votes: Sequence[Probe]) -> bool:
    return 2 * sum(p.holds for p in votes) > len(votes)


def _ttft(probe: Probe) -> float | None:
    spread = probe.steady.ttft_ms or probe.steady.e2e_ms
    return spread.p50 if spread else None
