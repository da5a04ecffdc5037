"""How much load a server carries within its SLO: bracket, bisect, then repeat at the edge before believing it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ridgeline.errors import InputError, NothingFound
from ridgeline.serving.load.bench import BenchPlan, BenchResult
from ridgeline.serving.traffic.requests import summarise
from ridgeline.serving.traffic.traffic import ClosedLoop, OpenLoop

_MOST = 1 << 16
# A rate is settled when holding and failing lie this close; a concurrency when they are neighbours or this close.
_CLOSE = 1.08
_SECONDS_AT_RATE = 5.0
_ROUNDS_AT_CONCURRENCY = 4
TAKE_OFF = 2.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at one load. `holds` also asks it of the second half alone: a queue that grows shows there first."""

    load: float
    holds: bool
    result: BenchResult

    def as_json(self) -> dict[str, object]:
        s = self.result.summary
        return {
            "load": self.load,
            "holds": self.holds,
            "goodput_s": s.goodput_s,
            "requests_s": s.requests_s,
            "output_tok_s": s.output_tok_s,
            "ttft_ms": s.ttft_ms.as_json() if s.ttft_ms else None,
            "itl_ms": s.itl_ms.as_json() if s.itl_ms else None,
            "errors": dict(s.errors),
            "void": self.result.void,
            "why": "; ".join(self.result.fidelity.why),
        }


@dataclass(frozen=True, slots=True)
class Edge:
    """The highest load that held the SLO in most repeats, and the lowest above it that did not.

    `fails` is None when no load tried was too much. `limited_by_client` names the load at which this load generator,
    not the server, gave out.
    """

    axis: str
    holds: float
    fails: float | None
    repeats: int
    held: int
    goodput_s: tuple[float, float, float]  # least, middle and most over the repeats
    knee: float | None
    probes: tuple[Probe, ...]
    limited_by_client: float | None = None
    interrupted: bool = False

    def as_json(self) -> dict[str, object]:
        return {
            "axis": self.axis,
            "holds": self.holds,
            "fails": self.fails,
            "interval": [self.holds, self.fails],
            "repeats": self.repeats,
            "repeats_that_held": self.held,
            "goodput_s": self.goodput_s[1],
            "goodput_range_s": [self.goodput_s[0], self.goodput_s[2]],
            "knee": self.knee,
            "limited_by_client": self.limited_by_client,
            "interrupted": self.interrupted,
            "probes": [p.as_json() for p in self.probes],
        }


def find_goodput(
    plan: BenchPlan,
    run: Callable[[BenchPlan], BenchResult],
    *,
    repeats: int = 3,
    note: Callable[[Probe], None] | None = None,
) -> Edge:
    """Walks the load up until the SLO breaks, narrows the bracket, and repeats at the edge.

    The axis is the plan's own: rate for an open loop, concurrency for a closed one, starting at the load it names.
    A void run ends the search upwards: above it nothing could be told about the server.
    """
    if not plan.slos:
        raise InputError("--find-goodput needs a limit to hold, for example --slo ttft_p95_ms=2000 --slo itl_p95_ms=50")
    if not isinstance(plan.traffic.pace, ClosedLoop | OpenLoop):
        raise InputError("--find-goodput walks a --rate or a --concurrency; this traffic has its own times")
    search = _Search(plan, run, note)
    try:
        low, high = search.bracket()
        while high is not None and not search.settled(low, high):
            middle = search.between(low, high)
            low, high = (middle, high) if search.holds(middle) else (low, middle)
        low, high = search.confirm(low, high, repeats)
    except _StoppedError:
        held = [p.load for p in search.probes if p.holds]
        if not held:
            raise KeyboardInterrupt from None
        low, high = max(held), min((p.load for p in search.probes if not p.holds), default=None)
    return _edge(search, low, high)


def _edge(search: _Search, low: float, high: float | None) -> Edge:
    there = [p for p in search.probes if p.load == low]
    rates = sorted(p.result.summary.goodput_s or 0.0 for p in there)
    return Edge(
        axis=search.axis,
        holds=low,
        fails=high,
        repeats=len(there),
        held=sum(p.holds for p in there),
        goodput_s=(rates[0], rates[len(rates) // 2], rates[-1]),
        knee=take_off([(p.load, _ttft(p.result)) for p in search.probes if not p.result.void]),
        probes=tuple(search.probes),
        limited_by_client=search.client_limit,
        interrupted=search.stopped,
    )


class _StoppedError(Exception):
    """Ctrl-C during a probe: the search ends with what it knows."""


class _Search:
    def __init__(
        self, plan: BenchPlan, run: Callable[[BenchPlan], BenchResult], note: Callable[[Probe], None] | None
    ) -> None:
        self._plan = plan
        self._run = run
        self._note = note
        pace = plan.traffic.pace
        self.whole = isinstance(pace, ClosedLoop)
        self.axis = "concurrency" if self.whole else "rate_s"
        self._start = float(pace.concurrency) if isinstance(pace, ClosedLoop) else _rate(pace)
        self.probes: list[Probe] = []
        self.client_limit: float | None = None
        self.stopped = False

    def bracket(self) -> tuple[float, float | None]:
        load = self._start
        if not self.holds(load):
            return self._bracket_down(load)
        while load < _MOST:
            if not self.holds(load * 2):
                return load, load * 2
            load *= 2
        return load, None

    def _bracket_down(self, load: float) -> tuple[float, float]:
        least = 1.0 if self.whole else self._start / 1024
        while load > least:
            lower = max(1.0, load // 2) if self.whole else load / 2
            if self.holds(lower):
                return lower, load
            load = lower
        raise NothingFound(
            f"even {self.axis} {load:g} does not hold {', '.join(map(str, self._plan.slos))}: {self._reason()}"
        )

    def _reason(self) -> str:
        last = self.probes[-1].result
        if last.summary.errors:
            return f"requests failed ({', '.join(f'{k} x {n}' for k, n in last.summary.errors.items())})"
        if last.void:
            return f"the run is void: {last.fidelity.why[0]}"
        missed = next((s for s in last.summary.slos if not last.summary.holds(s)), None)
        spread = getattr(last.summary, f"{missed.latency}_ms") if missed else None
        if missed is None or spread is None:
            return "its latency was not measured, or grew throughout the run"
        return f"{missed.latency} {missed.quantile} is {spread.quantile(missed.quantile):.4g} ms; relax the limit"

    def holds(self, load: float) -> bool:
        result = self._run(_plan_at(self._plan, load, len(self.probes)))
        if result.interrupted:
            self.stopped = True
            raise _StoppedError
        held = result.holds and not result.void and _second_half_holds(result)
        if result.void and result.summary.ok and self.client_limit is None:
            self.client_limit = load
        probe = Probe(load, held, result)
        self.probes.append(probe)
        if self._note is not None:
            self._note(probe)
        return held

    def settled(self, low: float, high: float) -> bool:
        return high / low <= _CLOSE or (self.whole and high - low <= 1)

    def between(self, low: float, high: float) -> float:
        middle = math.sqrt(low * high)
        return float(min(max(round(middle), low + 1), high - 1)) if self.whole else middle

    def confirm(self, low: float, high: float | None, repeats: int) -> tuple[float, float | None]:
        """Repeats at the edge; an edge that fails in most of them moves down to the next load that held."""
        while True:
            runs = [p.holds for p in self.probes if p.load == low]
            while len(runs) < repeats:
                runs.append(self.holds(low))
            if 2 * sum(runs) > len(runs):
                return low, high
            lower = [p.load for p in self.probes if p.holds and p.load < low]
            if not lower:
                raise NothingFound(f"{self.axis} {low:g} held once and failed when repeated: {self._reason()}")
            low, high = max(lower), low


def _plan_at(plan: BenchPlan, load: float, number: int) -> BenchPlan:
    traffic, pace, path = plan.traffic, plan.traffic.pace, plan.records_path
    if path is not None:
        plan = replace(plan, records_path=path.with_name(f"{path.stem}-{number:02}-at-{load:g}{path.suffix}"))
    if isinstance(pace, OpenLoop):
        enough = math.ceil(load * _SECONDS_AT_RATE)
        return replace(
            plan, traffic=replace(traffic, requests=max(traffic.requests, enough), pace=replace(pace, rate_s=load))
        )
    enough = _ROUNDS_AT_CONCURRENCY * int(load)
    return replace(plan, traffic=replace(traffic, requests=max(traffic.requests, enough), pace=ClosedLoop(int(load))))


def _rate(pace: object) -> float:
    assert isinstance(pace, OpenLoop)
    return pace.rate_s


def _second_half_holds(result: BenchResult) -> bool:
    records = sorted(result.records, key=lambda r: r.scheduled_s)
    later = summarise(records[len(records) // 2 :], result.summary.slos)
    return all(map(later.holds, later.slos))


def _ttft(result: BenchResult) -> float | None:
    spread = result.summary.ttft_ms or result.summary.e2e_ms
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
