"""How much load a server carries within its SLO: guess by Little's law, bracket, narrow, then hold the answer.

The load never stops between two probes: requests of the last one end while the next is under way, and only what is due
once the server has settled is judged. All probes together are read as one curve that can only fall with the load, so
that one unlucky probe is outvoted by its neighbours and by longer ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline.errors import CannotJudge, InputError, NothingFound
from ridgeline.serving.load.bench import BenchPlan
from ridgeline.serving.load.edge import UNITS, Edge, GoodputTerms, Probe, ProbeVerdict, Unjudged, judge_probe, take_off
from ridgeline.serving.load.stream import LoadStream, StreamView
from ridgeline.serving.traffic.traffic import ClosedLoop, OpenLoop

# The edge is settled when holding and failing lie this close; a concurrency also when they are neighbours.
_CLOSE = 1.04
# an estimate of the edge is tried this far to either side of it
_BESIDE = 1.02
# requests that make a quantile steady enough for a probe
_ENOUGH = {"mean": 60, "p50": 60, "p90": 120, "p95": 200, "p99": 600}
_SHORTEST_S = 6.0
_LENGTHS = 2.5  # a probe judges so many latencies at least
_TAILS = 1.5  # and so many of the slowest tenth
_HOLD_LENGTHS = 6.0
_PROBE_SHARE = 1 / 7  # of the time before the hold, and no probe takes more of it
_RAMP_SHARE = 1 / 12  # of the whole time, and filling up takes no more of it
_CLEAR = 1.5  # a latency this far over its limit needs no longer look
_FAR = 1.5  # below a failing load by this much, a latency well under its limit needs no longer look either
_EASY = 0.7
# an answer that did not last is taken back by this much, and by twice as much where a latency was further off than this
_BACK = 1.025
_NEAR = 1.15
_BARELY = 0.95
_SURE_S = 20.0
_ASK_AGAIN = 1.2
_TRIES = 3  # a load that is void this often in a row can't be judged
_UNJUDGED_LOADS = 3  # when no probe at so many loads in a row could be judged, none can
_ALONE = 0.2  # fewer requests than this under way on average: what fails then fails alone
_MOST_AT_ONCE = 1 << 16
# looking for where to begin: from so few at once, in steps of four while they pay, then of two
_FIRST_AT_ONCE = 2
_LAST_AT_ONCE = 1024
_GUESS_SHARE = 1 / 5
_GAIN = 1.1


class _StoppedError(Exception):
    """Ctrl-C: the search ends with what it knows."""


class _OutOfTimeError(Exception):
    """The next probe would not end within the time."""


@dataclass(frozen=True, slots=True)
class FirstEstimate:
    """So many requests at once, before the search for a rate begins, and the rate that they came to (Little's law)."""

    concurrency: int
    requests_s: float
    e2e_s: float
    share: float  # the worst latency as a share of its limit


def find_goodput(
    plan: BenchPlan,
    open_stream: Callable[[], LoadStream],
    *,
    terms: GoodputTerms | None = None,
    note: Callable[[Probe | FirstEstimate], None] | None = None,
) -> Edge:
    """The highest load that keeps every limit, on the plan's own axis: rate for an open loop, requests or sessions at
    once for a closed.

    When the time is up, or at Ctrl-C, the answer is what was known by then, and says so.
    """
    if not plan.slos:
        raise InputError("--find-goodput needs a limit to hold, for example --slo ttft_p95_ms=2000 --slo itl_p95_ms=50")
    if not isinstance(plan.traffic.pace, ClosedLoop | OpenLoop):
        raise InputError(
            "--find-goodput walks a --rate, a --concurrency or --sessions; leave out what has its own times"
        )
    search = GoodputSearch(plan, open_stream(), terms or GoodputTerms(), note)
    problem = ""
    try:
        search.settle()
    except _OutOfTimeError:
        pass
    except _StoppedError:
        search.stopped = True
        if search.bracket()[0] is None:
            raise KeyboardInterrupt from None
    finally:
        problem = search.stream.close()
    return replace(search.edge(), note=problem)


class GoodputSearch:
    """One search: what it has seen, and what it will try next."""

    def __init__(
        self,
        plan: BenchPlan,
        stream: LoadStream,
        terms: GoodputTerms,
        note: Callable[[Probe | FirstEstimate], None] | None,
    ) -> None:
        self._plan, self.stream, self._terms, self._note = plan, stream, terms, note
        pace = plan.traffic.pace
        self._whole = isinstance(pace, ClosedLoop)
        self._burstiness = pace.burstiness if isinstance(pace, OpenLoop) else 1.0
        self._axis = "rate_s" if not self._whole else "sessions" if plan.traffic.has_sessions else "concurrency"
        self._step = 2.0
        self._weights: list[float] = []  # for how long each probe was meant to be judged
        self._e2e_s: float | None = None  # of a request within the limits, and of a slow one
        self._tail_s: float | None = None
        self._each_s: float | None = None  # requests a second that each of so many at once came to
        self._capacity_s: float | None = None  # what was completed a second while requests piled up
        self._under_way = 0
        self._load: float | None = None  # what is being sent
        self.probes: list[Probe] = []
        self.unjudged: dict[float, Unjudged] = {}
        self.stopped = False

    # the search

    def settle(self) -> None:
        """Probes until a load was held for as long as asked with a failing one close above it, or the time is up."""
        first = self._terms.start
        if first is None and self._whole:
            pace = self._plan.traffic.pace
            assert isinstance(pace, ClosedLoop)
            first = float(pace.concurrency)
        self._probe(self._guess() if first is None else first)
        while True:
            low, high = self.bracket()
            held = self._held()
            if held is not None and self._near(held, _BACK**2):
                return
            failed = self._failed_hold()
            doubtful = self._doubtful()
            following = None if failed is not None else doubtful or self.next_load()
            unsure = high is not None and not self._confirmed(high) and self._affords(high)
            if high is not None and unsure and low is not None and high / low <= _ASK_AGAIN:
                self._probe(high, 1.5 * self._window_s(high))  # before much time is spent just below it
            elif following is not None and self._affords(following):
                self._probe(following, 2.5 * self._window_s(following) if doubtful else None)
            else:
                self._hold_in_what_is_left(following, failed)

    def _hold_in_what_is_left(self, following: float | None, failed: Probe | None) -> None:
        known, _ = self.bracket()
        load = known
        if load is None:
            if following is None and failed is None:
                raise _OutOfTimeError
            load = following or (failed.load if failed else 0.0)
        elif self._held() is not None:
            raise _OutOfTimeError  # no time to look for more
        hurry = self._left_s() < 2 * (self._hold_s() + self._ramp_s(math.nan))
        if failed is None and hurry and self._share_at(load) > _BARELY:
            load = self._rounded(load / math.sqrt(_BACK))  # there is one attempt, and this one would hang on chance
        if failed is not None:
            # What looked well for some seconds did not last, so shorter probes are not asked again: a little less is,
            # and less still where there is no time for a third attempt.
            step = _BACK if failed.share < _NEAR and not hurry else _BACK**2 if known is not None else _BACK**3
            load = self._rounded(failed.load / step, most=failed.load - 1)
        seconds = min(self._hold_s(), self._left_s() - self._ramp_s(load))
        if seconds < self._window_s(load) or self._longest(load) >= seconds:
            raise _OutOfTimeError
        self._probe(load, seconds)

    def _share_at(self, load: float) -> float:
        return max((p.share for p in self.probes if p.load == load and p.holds), default=0.0)

    def _failed_hold(self) -> Probe | None:
        """The lowest failing load where that was held as an answer must be, and did not last by little."""
        _, high = self.bracket()
        for probe, planned_s in zip(reversed(self.probes), reversed(self._weights), strict=True):
            if probe.load == high and probe.judged and not probe.holds:
                return probe if planned_s >= 0.9 * self._hold_s() and probe.share < _CLEAR else None
        return None

    def _doubtful(self) -> float | None:
        """A load that seems to hold although it is more than was completed when requests piled up, unless for long."""
        low, _ = self.bracket()
        if low is None or self._capacity_s is None or low < 1.05 * self._capacity_s:
            return None
        once = sum(p.load == low and p.judged for p in self.probes) == 1
        return low if once and self._longest(low) < _SURE_S else None

    def bracket(self) -> tuple[float | None, float | None]:
        """The highest load that holds and the lowest that does not, by all probes together.

        The share of the time in which a load held can only fall with the load: where it does not, neighbours are
        pooled (isotonic regression) until it does.
        """
        pools: list[list[float]] = []  # lowest load, highest load, seconds held, seconds in all
        for load in sorted({p.load for p in self.probes if p.judged}):
            mine = [(p, w) for p, w in zip(self.probes, self._weights, strict=True) if p.load == load and p.judged]
            pools.append([load, load, sum(w for p, w in mine if p.holds), sum(w for _, w in mine)])
            while len(pools) > 1 and pools[-1][2] * pools[-2][3] > pools[-2][2] * pools[-1][3]:
                _, top, held_s, all_s = pools.pop()
                pools[-1][1:] = [top, pools[-1][2] + held_s, pools[-1][3] + all_s]
        holding = [pool[1] for pool in pools if 2 * pool[2] > pool[3]]
        failing = [pool[0] for pool in pools if 2 * pool[2] <= pool[3]]
        return max(holding, default=None), min(failing, default=None)

    def _top(self) -> float | None:
        """The lowest load above the answer that fails or that nothing can be said about."""
        low, high = self.bracket()
        unjudged = [u for u in self.unjudged if low is None or u > low]
        return min([*unjudged, *([] if high is None else [high])], default=None)

    def _held(self) -> float | None:
        """The highest load that was held for as long as the answer must be, if none far above it is known to hold."""
        low, _ = self.bracket()
        if low is None:
            return None
        long = [p.load for p in self.probes if p.holds and p.window_s >= 0.99 * self._hold_s()]
        return max((load for load in long if load <= low and self._close(load, low, _BACK**2)), default=None)

    def _settled(self) -> bool:
        low, _ = self.bracket()
        return low is not None and self._near(low, _CLOSE)

    def _near(self, low: float, ratio: float) -> bool:
        """Whether the lowest load that is too much, or can't be judged, lies this close above."""
        top = self._top()
        return top is not None and self._close(low, top, ratio)

    def _close(self, low: float, top: float, ratio: float) -> bool:
        return top / low <= ratio * (1 + 1e-9) or (self._whole and top - low <= 1)

    def next_load(self) -> float | None:
        """The load to try next; None where nothing is left to try."""
        low, high = self.bracket()[0], self._top()
        if low is None:
            assert high is not None
            return self._lower(high)
        if self._settled():
            return None
        if high is None:
            higher = self._rounded(low * self._step, least=low + 1)
            self._step = min(2.0, self._step * self._step)
            return None if self._whole and higher > _MOST_AT_ONCE else higher
        return self._rounded(self._between(low, high), least=low + 1, most=high - 1)

    def _lower(self, load: float) -> float:
        alone = load <= 1 if self._whole else load * (self._e2e_s or 1.0) <= _ALONE
        in_a_row = next((k for k, p in enumerate(reversed(self.probes)) if p.judged), len(self.probes))
        if alone or in_a_row >= _UNJUDGED_LOADS * _TRIES:
            raise self._nothing()
        lower = self._rounded(load / self._step, most=load - 1)
        self._step = min(2.0, self._step * self._step)
        return lower

    def _between(self, low: float, high: float) -> float:
        """Beside the estimate of the edge where there is one, else the middle."""
        last = [p.holds for p in self.probes if p.judged][-2:]
        # an estimate that twice in a row moved the same bound is no good: the middle is sure to halve what is left,
        # unless a longer look failed by so little that the edge must be close
        near_miss = any(p.load == high and 1 < p.share < _NEAR and self._long(p) for p in self.probes if p.judged)
        edge = self._estimate(low, high) if len(set(last)) > 1 or near_miss else None
        for load in () if edge is None else (edge / _BESIDE, edge * _BESIDE):
            if 1.01 * low < load < high / 1.01:
                return load
        return math.sqrt(low * high)

    def _estimate(self, low: float, high: float) -> float | None:
        """Where the limit is reached: by the latencies on both sides, or by what a saturated server completed."""
        below = max((p for p in self.probes if p.load == low and p.holds), key=lambda p: p.window_s, default=None)
        above = max((p for p in self.probes if p.load == high and p.judged), key=lambda p: p.window_s, default=None)
        if below is None or above is None:
            return None
        if above.verdict is ProbeVerdict.SATURATED:
            return None if self._capacity_s is None else min(self._capacity_s, high) / _BESIDE
        if above.verdict is ProbeVerdict.TOO_MUCH and 0.2 < below.share < 1 < above.share:
            part = math.log(1 / below.share) / math.log(above.share / below.share)
            return float(low * (high / low) ** part)
        return None

    def _confirmed(self, load: float) -> bool:
        """Whether more than one short probe says that this is too much."""
        failing = [p for p in self.probes if load <= p.load <= 1.1 * load and p.judged and not p.holds]
        return len(failing) > 1 or any(map(self._long, failing))

    # where to begin

    def _guess(self) -> float:
        """The rate that ever more requests at once come to, until a limit breaks or more of them no longer helps."""
        looks: list[FirstEstimate] = []
        began_s, at_once = self.stream.now_s, _FIRST_AT_ONCE
        while True:
            look, view = self._first_estimate(at_once)
            if look is None:
                if not looks:
                    self._refuse_failures(view)
                break
            looks.append(look)
            if self._note is not None:
                self._note(look)
            gain = look.requests_s / looks[-2].requests_s if len(looks) > 1 else 4.0
            grown = look.concurrency / looks[-2].concurrency if len(looks) > 1 else 4.0
            used_s = self.stream.now_s - began_s
            useful = look.share <= 1 and gain >= _GAIN ** math.log2(grown)
            if useful:
                # where more at once no longer helps, a request's time holds its wait
                self._e2e_s, self._tail_s = look.e2e_s, 2 * look.e2e_s
            if not useful or at_once >= _LAST_AT_ONCE or used_s + 3 * look.e2e_s > _GUESS_SHARE * self._terms.within_s:
                break
            at_once *= 4 if gain > 3 else 2
        self._step = 1.25
        if not looks:
            self._step = 2.0
            return 1.0
        if self._e2e_s is None:
            self._e2e_s, self._tail_s = looks[0].e2e_s, 2 * looks[0].e2e_s
        last = looks[-1]
        if last.share <= 1 or len(looks) == 1:
            return last.requests_s * (0.9 if last.share <= 1 else 0.5)
        before = looks[-2]
        if last.share > 2 or before.requests_s >= last.requests_s:
            return 0.9 * last.requests_s
        part = math.log(1 / before.share) / math.log(last.share / before.share)
        return float(before.requests_s * (last.requests_s / before.requests_s) ** part)

    def _first_estimate(self, at_once: int) -> tuple[FirstEstimate | None, StreamView]:
        """None where the load generator could not keep so many under way, or nothing was answered."""
        self._load = None
        self.stream.begin(ClosedLoop(at_once))
        since_s, step_s = self.stream.now_s, max(0.5, 0.5 * (self._e2e_s or 0.0))
        longest_s = self._terms.within_s / 16
        while True:
            view = self._advance(step_s)
            ended = [r for r in view.due(since_s) if r.ok and r.e2e_s is not None]
            for_s = view.now_s - since_s
            # the first of them were sent all at once, as no user would, so that most must be of later rounds
            if (len(ended) >= 2 * at_once and for_s >= 1.0) or for_s >= longest_s:
                break
            if not ended and any(not r.ok and r.end_s is not None for r in view.rows):
                return None, view
        if not ended or (len(ended) >= 2 * at_once and self.stream.why_void()):
            return None, view
        e2e_s = sum(r.e2e_s or 0.0 for r in ended) / len(ended)
        first_s = min(since_s + e2e_s, since_s + 0.5 * for_s)
        probe = judge_probe("concurrency", float(at_once), view, first_s, self._plan.slos)
        return FirstEstimate(at_once, at_once / e2e_s, e2e_s, probe.share), view

    def _refuse_failures(self, view: StreamView) -> None:
        kinds = Counter(r.status for r in view.rows if not r.ok and r.end_s is not None)
        if kinds and not any(r.ok for r in view.rows):
            said = ", ".join(f"{kind} x {n}" for kind, n in sorted(kinds.items()))
            raise NothingFound(f"even {_FIRST_AT_ONCE} requests at once failed ({said}); repair the server first")

    # one load

    def _probe(self, load: float, window_s: float | None = None) -> None:
        """Sends the load until a probe says something about it, or it has been void too often."""
        reason = ""
        for _ in range(_TRIES):
            probe = self._once(load, window_s or self._window_s(load))
            if probe.verdict is not ProbeVerdict.VOID:
                self.unjudged.pop(load, None)
                return
            reason = probe.reason
        self.unjudged[load] = Unjudged(load, _TRIES, reason)

    def _once(self, load: float, window_s: float) -> Probe:
        ramp_s = self._ramp_s(load)
        if ramp_s + min(window_s, _SHORTEST_S) > self._left_s():
            raise _OutOfTimeError
        self._drain_to(load)
        self.stream.begin(ClosedLoop(int(load)) if self._whole else OpenLoop(load, self._burstiness))
        self._fill(ramp_s)
        self._load = load
        start_s, window_s = self.stream.now_s, min(window_s, self._left_s())
        step_s = window_s / (6 if window_s >= 0.9 * self._hold_s() else 3)
        last_s, again = start_s + 2 * window_s, False
        while True:
            view = self._advance(min(step_s, start_s + window_s - self.stream.now_s, self._left_s()))
            probe = judge_probe(self._axis, load, view, start_s, self._plan.slos)
            seen_s = self.stream.now_s - start_s
            if self._left_s() <= 0 or (seen_s < 0.99 * window_s and not again and self._is_clear(probe, window_s)):
                break
            if seen_s >= 0.99 * window_s:
                if self.stream.now_s >= last_s or not self._wants_more(probe):
                    break
                # it may not have been settled at first: only the later half is kept, and as much again is looked at
                start_s, again = start_s + seen_s / 2, True
        said = judge_probe(self._axis, load, view, start_s, self._plan.slos, self.stream.why_void())
        if said.holds and again and self._wants_more(said):
            said = replace(said, verdict=ProbeVerdict.SATURATED, reason="what ended fell short of what was sent")
        return self.keep(said, window_s)

    def _wants_more(self, probe: Probe) -> bool:
        """Whether nothing is known yet, or it seems to hold but may yet not: a queue that rose, or one that took its
        time to be worked off."""
        if not probe.judged:
            return True
        return probe.holds and probe.backlog is not None and probe.backlog.lags

    def _is_clear(self, probe: Probe, window_s: float) -> bool:
        due = probe.offered_s * probe.window_s
        if probe.verdict is ProbeVerdict.FAILED:
            return True
        if due < self._enough() / 3 or probe.window_s < 2 * (self._tail_s or 0.0):
            return False
        if probe.verdict is ProbeVerdict.SATURATED:
            backlog = probe.backlog
            return backlog is not None and backlog.behind > 2 * backlog.chance
        if probe.verdict is ProbeVerdict.TOO_MUCH:
            return probe.share > (_NEAR if self._long(probe) else _CLEAR)
        top = self._top()
        far = top is None or top / probe.load > _FAR
        lags = probe.backlog is not None and probe.backlog.lags
        easy = probe.holds and far and not lags and probe.share < _EASY
        return easy and 0.6 * window_s < probe.window_s and window_s < 0.9 * self._hold_s()

    def keep(self, probe: Probe, planned_s: float) -> Probe:
        if probe.verdict is ProbeVerdict.TOO_SHORT:
            probe = replace(probe, verdict=ProbeVerdict.SATURATED, reason=f"{probe.reason}, however long it was sent")
        self.probes.append(probe)
        self._weights.append(max(planned_s, probe.window_s))
        spread = probe.steady.e2e_ms
        if probe.holds and spread is not None:
            self._e2e_s, self._tail_s = spread.mean / 1e3, spread.p90 / 1e3
            self._each_s = probe.steady.requests_s / probe.load if self._axis == "sessions" else None
        if probe.verdict is ProbeVerdict.SATURATED and probe.steady.requests_s > 0:
            self._capacity_s = probe.steady.requests_s
        self.probes[-1] = replace(probe, so_far=self.bracket())
        if self._note is not None:
            self._note(self.probes[-1])
        return self.probes[-1]

    def _drain_to(self, load: float) -> None:
        """Waits until no more is under way than the load itself will keep there: what piled up is not its doing."""
        if self._whole:
            return
        target = load * (self._e2e_s or 0.0)
        until_s = self.stream.now_s + min(self._terms.within_s / 12, self._left_s() / 4)
        if self._under_way <= 1.25 * target + 3:
            return
        self.stream.begin(None)
        self._load = None
        while self._under_way > target and self.stream.now_s < until_s:
            rate_s = self._capacity_s or load
            self._advance(min(2.0, max(0.1, (self._under_way - target) / rate_s / 2)))

    def _fill(self, ramp_s: float) -> None:
        since_s = self.stream.now_s
        if self._e2e_s is not None:
            if ramp_s > 0:
                self._advance(ramp_s)
            return
        while self.stream.now_s - since_s < ramp_s:
            view = self._advance(min(0.5, ramp_s))
            if sum(r.end_s is not None for r in view.due(since_s)) >= 5:
                return

    def _advance(self, seconds: float) -> StreamView:
        view = self.stream.advance(max(seconds, 0.05))
        if view.interrupted:
            raise _StoppedError
        self._under_way = view.under_way
        return view

    # time

    def _left_s(self) -> float:
        return self._terms.within_s - self.stream.now_s

    def _hold_s(self) -> float:
        return max(self._terms.hold_s, min(_HOLD_LENGTHS * (self._e2e_s or 0.0), self._terms.within_s / 3))

    def _enough(self) -> int:
        return max(_ENOUGH[slo.quantile] for slo in self._plan.slos)

    def _window_s(self, load: float) -> float:
        """For how long a load is judged: longer close to the edge, where a queue builds up slowly."""
        e2e_s = self._e2e_s or 1.0
        # who is in a session also thinks
        requests_s = load * (self._each_s or 1 / e2e_s) if self._whole else load
        shortest_s = max(_SHORTEST_S, _LENGTHS * e2e_s, _TAILS * (self._tail_s or 0.0))
        window_s = max(shortest_s, self._enough() / requests_s)
        low, high = self.bracket()[0], self._top()
        if low is not None and high is not None:
            window_s *= min(2.5, max(1.0, 0.25 / math.log(high / low)))
        return min(window_s, _PROBE_SHARE * (self._terms.within_s - self._terms.hold_s), self._terms.hold_s / 2)

    def _ramp_s(self, load: float) -> float:
        if load == self._load:
            return 0.0
        most_s = _RAMP_SHARE * self._terms.within_s
        return most_s if self._tail_s is None else min(most_s, max(0.25, self._tail_s))

    def _affords(self, load: float) -> bool:
        """Whether there is time to probe this load and still to hold the answer."""
        needed_s = self._ramp_s(load) + self._window_s(load)
        return needed_s + self._hold_s() + self._ramp_s(math.nan) <= self._left_s()

    def _long(self, probe: Probe) -> bool:
        return probe.window_s >= 0.3 * self._hold_s()

    def _longest(self, load: float) -> float:
        return max((p.window_s for p in self.probes if p.load == load and p.holds), default=0.0)

    def _rounded(self, load: float, least: float = 1.0, most: float = math.inf) -> float:
        return float(max(least, min(most, round(load)))) if self._whole else load

    # the answer

    def edge(self) -> Edge:
        low, high = self._held() or self.bracket()[0], self.bracket()[1]
        if low is None:
            raise self._nothing()
        longest = max((p for p in self.probes if p.load == low and p.holds), key=lambda p: p.window_s, default=None)
        unjudged = [u for load, u in self.unjudged.items() if load >= low]
        return Edge(
            axis=self._axis,
            holds=low,
            fails=high,
            held_for_s=0.0 if longest is None else longest.window_s,
            asked_s=self._terms.hold_s,
            took_s=self.stream.now_s,
            goodput_s=0.0 if longest is None else longest.steady.goodput_s or 0.0,
            knee=take_off([(p.load, _ttft(p)) for p in self.probes if p.judged]),
            probes=tuple(self.probes),
            unjudged=min(unjudged, key=lambda u: u.load, default=None),
            out_of_time=self._held() is None or not (self._settled() or self._near(low, _BACK**2)),
            interrupted=self.stopped,
        )

    def _nothing(self) -> NothingFound:
        """Why there is no answer: even the least load is too much, or nobody knows."""
        unit = UNITS[self._axis]
        last = next((p for p in reversed(self.probes) if p.judged), None)
        within = f"{self._terms.within_s:g} s of --within"
        if not self.probes:
            return CannotJudge(f"not one probe fits into the {within}; raise it")
        void = f"every run at {self.probes[-1].load:.4g} {unit} was void: {self.probes[-1].reason}"
        late = f"; the {within} are over" if self._left_s() < _SHORTEST_S else ""
        if last is None:
            return CannotJudge(f"no verdict, {void}{late}")
        limits = ", ".join(map(str, self._plan.slos))
        least = f"one {unit.removesuffix('s at once')}" if unit.endswith("s at once") and last.load == 1 else ""
        said = f"even {least or f'{last.load:.4g} {unit}'} does not hold {limits}: {last.reason}"
        if not self.probes[-1].judged:
            return CannotJudge(f"{said}; below that {void}{late}")
        return NothingFound(f"{said}{late}; relax the limit" + (", or give it more time" if late else ""))


def _ttft(probe: Probe) -> float | None:
    spread = probe.steady.ttft_ms or probe.steady.e2e_ms
    return spread.p50 if spread else None
