"""Sends probes at one load after another: as long as its requests take, again where void, and within a time limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ridgeline.serving.load.bench import BenchPlan, BenchResult
from ridgeline.serving.load.edge import GoodputTerms, Unjudged
from ridgeline.serving.load.probe import LENGTHS, Probe, ProbeVerdict, judge_probe, probe_plan
from ridgeline.serving.traffic.traffic import ClosedLoop

_SHORTEST_S = 10.0
# the answer is held for so many latencies at least: a queue that grows slowly needs that long to show
_HOLD_LENGTHS = 12.0
# a load that is void this often in a row cannot be judged
_TRIES = 4
_LENGTHENINGS = 3
# no probe takes more than this part of the time limit for the sake of a number of requests
_PROBE_SHARE = 1 / 8


class StoppedError(Exception):
    """Ctrl-C during a probe: the search ends with what it knows."""


class OutOfTimeError(Exception):
    """The next probe would not end within the limit."""


class Prober:
    """Remembers every probe, and learns from them how long a request takes."""

    def __init__(
        self,
        plan: BenchPlan,
        run: Callable[[BenchPlan], BenchResult],
        terms: GoodputTerms,
        note: Callable[[Probe], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self._plan, self._run, self._terms, self._note, self._clock = plan, run, terms, note, clock
        self._closed = isinstance(plan.traffic.pace, ClosedLoop)
        self._began_s = clock()
        self.holding = False  # until then time is kept back for it
        self.least_window_s = 0.0
        self.probes: list[Probe] = []
        self.unjudged: dict[float, Unjudged] = {}

    def e2e_s(self, load: float) -> float | None:
        """How long a request takes, as far as is known; where a limit broke it took as long as its queue was."""
        seen = [p.e2e_s or 0.0 for p in self.probes if p.holds or (p.load == load and not p.judged)]
        return max(seen, default=0.0) or None

    def window_s(self, load: float) -> float:
        """How long a probe at this load is to last."""
        e2e_s = self.e2e_s(load) or 0.0
        requests_s = self._plan.traffic.requests / load * (e2e_s if self._closed else 1.0)
        enough_s = min(requests_s, _PROBE_SHARE * self._terms.limit_s)
        shortest_s = max(min(_SHORTEST_S, self._terms.hold_s), self._plan.duration_s or 0.0, self.least_window_s)
        return max(shortest_s, LENGTHS * e2e_s, enough_s)

    def hold_s(self, load: float) -> float:
        """How long this load is to be held before it is the answer."""
        return max(self._terms.hold_s, self.window_s(load), _HOLD_LENGTHS * (self.e2e_s(load) or 0.0))

    def probe(self, load: float, least_s: float = 0.0) -> Probe:
        """Sends the load until a probe says something about it; a void one is returned when none of so many did."""
        voids = lengthenings = 0
        while True:
            probe = self._probe_once(load, max(self.window_s(load), least_s))
            if probe.verdict is ProbeVerdict.VOID:
                voids += 1
                if voids == _TRIES:
                    self.unjudged[load] = Unjudged(load, voids, probe.reason)
                    return probe
            elif probe.verdict is ProbeVerdict.TOO_SHORT:
                lengthenings, least_s = lengthenings + 1, 2 * probe.window_s
                if lengthenings == _LENGTHENINGS:
                    return self._never_steady(probe)
            else:
                self.unjudged.pop(load, None)
                return probe

    def _never_steady(self, probe: Probe) -> Probe:
        reason = "its latency grew with every longer probe"
        self.probes[-1] = replace(probe, verdict=ProbeVerdict.SATURATED, reason=reason)
        return self.probes[-1]

    def votes(self, load: float, least_s: float = 0.0) -> list[Probe]:
        """The probes at this load that say something about it and lasted so long."""
        return [p for p in self.probes if p.load == load and p.judged and p.window_s >= least_s]

    def _probe_once(self, load: float, window_s: float) -> Probe:
        kept_s = 0.0 if self.holding else self.hold_s(load)
        left_s = self._terms.limit_s - (self._clock() - self._began_s) - kept_s
        e2e_s = self.e2e_s(load)
        if window_s + (e2e_s or 0.0) > left_s:
            raise OutOfTimeError
        result = self._run(probe_plan(self._plan, load, window_s, len(self.probes)))
        if result.interrupted:
            raise StoppedError
        probe = judge_probe(load, window_s, e2e_s, result)
        self.probes.append(probe)
        if self._note is not None:
            self._note(probe)
        return probe
