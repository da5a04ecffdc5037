"""The walk to the edge of a server by itself: each load holds or not as a test says, and nothing is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ridgeline.serving.load.bench import BenchPlan
from ridgeline.serving.load.edge import Edge, GoodputTerms, Probe, ProbeVerdict, judge_probe
from ridgeline.serving.load.goodput import GoodputSearch, find_goodput
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.load.stream import StreamView
from ridgeline.serving.traffic.flow import Stretch
from ridgeline.serving.traffic.requests import RequestRecord, Slo, summarise
from ridgeline.serving.traffic.traffic import ClosedLoop, OpenLoop

TTFT = ("ttft_p95_ms=500",)


def plan(**wishes: object) -> BenchPlan:
    return plan_from(BenchOptions(**{"url": "http://h", "slos": TTFT, "find_goodput": True, **wishes}))


class Scripted:
    """A stream on which each load holds or not as `verdict` says, whatever is sent: the search alone is looked at."""

    def __init__(self, verdict: Callable[[float, int], bool]) -> None:
        self._verdict, self._pace, self._since_s, self._again = verdict, OpenLoop(1.0), 0.0, 0
        self.now_s = 0.0
        self.loads: list[float] = []
        self._holds = True

    def begin(self, pace: ClosedLoop | OpenLoop | None) -> None:
        self._since_s = self.now_s
        if isinstance(pace, OpenLoop):
            self._pace = pace
            self._holds = self._verdict(pace.rate_s, self.loads.count(pace.rate_s))
            self.loads.append(pace.rate_s)

    def advance(self, seconds: float) -> StreamView:
        self.now_s += seconds
        late_s, rate_s = (0.02 if self._holds else 0.6), self._pace.rate_s
        at_s = [self._since_s - 1 + k / rate_s for k in range(int((self.now_s - self._since_s + 1) * rate_s))]
        rows = [RequestRecord(k, at, at, at + late_s, at + 0.7, 9, 2) for k, at in enumerate(at_s)]
        done = [r if (r.end_s or 0) < self.now_s else replace(r, end_s=None, status="under way") for r in rows]
        return StreamView(self._since_s, self.now_s, done)

    def why_void(self) -> tuple[str, ...]:
        return ()

    def close(self) -> str:
        return ""


def walk(verdict: Callable[[float, int], bool], start: float = 10.0, within_s: float = 240.0) -> Edge:
    stream = Scripted(verdict)
    return find_goodput(plan(slos=TTFT), lambda: stream, terms=GoodputTerms(60, within_s, start))


@pytest.mark.parametrize("edge_s", [3.0, 9.9, 10.1, 17.3, 19.9, 33.0, 71.0])
def test_the_bracket_closes_on_the_edge_from_both_sides(edge_s: float):
    edge = walk(lambda load, _: load < edge_s, within_s=600.0)
    assert edge.holds < edge_s <= (edge.fails or 0) <= 1.0507 * edge.holds and edge.held and not edge.out_of_time
    lows = [p.so_far[0] for p in edge.probes if p.so_far[0] is not None]
    highs = [p.so_far[1] for p in edge.probes if p.so_far[1] is not None]
    assert lows == sorted(lows) and highs == sorted(highs, reverse=True), "each probe moves its own bound, inwards"
    tried = [p.load for p in edge.probes]
    assert all(low <= load <= high for load, (low, high) in _before(edge)), f"looks between its bounds: {tried}"
    assert edge.probes[-1].load == edge.holds and edge.probes[-1].window_s >= 59, "the answer is what was held last"


def _before(edge: Edge) -> list[tuple[float, tuple[float, float]]]:
    """Each probe's load with the bounds known before it."""
    known = [p.so_far for p in edge.probes[:-1]]
    return [(p.load, (low or 0.0, high or 1e9)) for p, (low, high) in zip(edge.probes[1:], known, strict=True)]


def test_an_answer_that_does_not_last_is_taken_back_and_the_next_one_held():
    """Short probes hold up to 20/s, a minute only up to 19/s."""
    edge = walk(lambda load, again: load < (20.0 if not again else 19.0))
    assert 18 < edge.holds < 19 < (edge.fails or 0) < 20 and edge.held


def test_one_unlucky_probe_is_outvoted():
    first = walk(lambda load, again: load < 33 and not (load == 20.0 and again == 0))
    assert 31 < first.holds < 33 <= (first.fails or 0), "20/s failed once, and held when it was asked again"
    lucky = walk(lambda load, again: load < 15 or (load == 20.0 and again == 0), within_s=480.0)
    assert 14 < lucky.holds < 15 <= (lucky.fails or 0), "20/s held once by luck"


def verdicts(*said: tuple[float, bool, float]) -> tuple[float | None, float | None]:
    """The bracket after probes of (load, whether it held, for how long)."""
    found = GoodputSearch(plan(), Scripted(lambda _load, _again: True), GoodputTerms(), None)
    for load, holds, seconds in said:
        verdict = ProbeVerdict.HOLDS if holds else ProbeVerdict.TOO_MUCH
        probe = Probe("rate_s", load, verdict, "", summarise([]), Stretch(0.0, seconds), load, 0.5, None)
        found.keep(probe, seconds)
    return found.bracket()


def test_all_probes_are_read_as_one_curve_that_falls_with_the_load():
    assert verdicts() == (None, None)
    assert verdicts((1, True, 5), (4, False, 5), (2, True, 5), (3, False, 5)) == (2, 3)
    assert verdicts((1, True, 5)) == (1, None) and verdicts((1, False, 5)) == (None, 1)
    # a short failure below a long success is pooled with it, and the other way round
    assert verdicts((1, True, 5), (2, False, 3), (3, True, 20), (4, False, 5)) == (3, 4)
    assert verdicts((1, True, 5), (2, False, 20), (3, True, 3), (4, False, 5)) == (1, 2)
    # the longer one of two at the same load counts, and a tie is no answer to run with
    assert verdicts((2, True, 5), (2, False, 60)) == (None, 2)
    assert verdicts((2, True, 60), (2, False, 5)) == (2, None)
    assert verdicts((2, True, 5), (2, False, 5)) == (None, 2)


def test_what_lasts_beyond_its_limit_counts_before_it_has_ended():
    """All that ended was quick; what is still waiting has waited for longer than the limit."""
    done = [RequestRecord(k, k / 10, k / 10, k / 10 + 0.02, k / 10 + 0.1, 9, 2) for k in range(50)]
    waiting = [RequestRecord(50 + k, 5 + k / 10, 5 + k / 10, None, None, 9, 0, status="under way") for k in range(50)]
    view = StreamView(0.0, 10.0, [*done, *waiting])
    probe = judge_probe("concurrency", 8.0, view, 0.0, (Slo("ttft", "p50", 500.0),))
    assert probe.verdict is ProbeVerdict.TOO_MUCH and probe.steady.ttft_ms is not None
    quick = judge_probe("concurrency", 8.0, replace(view, rows=done), 0.0, (Slo("ttft", "p50", 500.0),))
    assert quick.holds


def test_an_answer_held_for_less_than_asked_says_so():
    edge = walk(lambda load, _: load < 33)
    assert edge.held and edge.as_json()["held"] is True
    assert not replace(edge, held_for_s=0.5 * edge.asked_s).held
