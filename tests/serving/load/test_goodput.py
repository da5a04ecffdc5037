"""The search for the most load that holds, against servers in virtual time whose capacity is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.text.serving.bench import edge_text, probe_text
from ridgeline.errors import InputError, NothingFound
from ridgeline.serving.load.bench import BenchPlan, BenchResult
from ridgeline.serving.load.edge import Edge, GoodputTerms, goodput_terms
from ridgeline.serving.load.goodput import find_goodput
from ridgeline.serving.load.options import BenchOptions, plan_from
from ridgeline.serving.load.probe import Probe, ProbeVerdict, probe_plan
from tests.serving.load.queueing import BatchServer, VirtualBench, holds_in_a_long_run, stalls

# ITL grows with what is under way, as an engine's does: 40 ms at 60 requests under way
BATCH = BatchServer(0.010, 0.0005, tokens=32)
# 16 at a time, 0.4 s each: 40 requests a second and not one more
SLOTS = BatchServer(0.020, slots=16, tokens=20)
ITL, TTFT = ("itl_p95_ms=40",), ("ttft_p95_ms=500",)
NOISY = [replace(BATCH, slower=stalls(seed, every_s=5.0, stall_s=0.1, step_s=0.030)) for seed in range(4)]
# what half an hour of each shows, worked out once; `test_the_truths_are_true` works them out again
POISSON_TRUTH, BURSTY_TRUTH, SLOTS_TRUTH, NOISY_TRUTH = 41.57, 34.12, 37.51, 40.08


def plan(**wishes: object) -> BenchPlan:
    return plan_from(BenchOptions(**{"url": "http://h", "rate_s": 5.0, "slos": ITL, **wishes}))


def search(
    server: BatchServer,
    void: Callable[[float, float], bool] = lambda _load, _window_s: False,
    terms: GoodputTerms | None = None,
    note: Callable[[Probe], None] | None = None,
    **wishes: object,
) -> tuple[Edge, VirtualBench]:
    bench = VirtualBench(server, void)
    return find_goodput(plan(**wishes), bench, terms=terms, clock=bench.clock, note=note), bench


def close_to(found: float, truth: float) -> bool:
    return 0.90 * truth <= found <= 1.03 * truth


@pytest.mark.parametrize("start", [0.5, 8.0, 150.0])
def test_evenly_spaced_requests_find_the_rate_that_arithmetic_gives(start: float):
    edge, bench = search(BATCH, rate_s=start, burstiness=0.0)
    assert close_to(edge.holds, BATCH.rate_at_gap_s(0.040)), edge.holds
    assert edge.holds <= BATCH.rate_at_gap_s(0.040) < (edge.fails or 0) <= 1.05 * edge.holds * 1.0001
    assert edge.held_for_s == 60 and bench.now_s < 1800


@pytest.mark.parametrize(
    ("asked", "server", "truth"),
    [
        (plan(), BATCH, POISSON_TRUTH),
        (plan(burstiness=4.0), BATCH, BURSTY_TRUTH),
        (plan(slos=TTFT), SLOTS, SLOTS_TRUTH),
        (plan(), NOISY[0], NOISY_TRUTH),
    ],
    ids=["poisson", "bursty", "slots", "noisy"],
)
def test_the_truths_are_true(asked: BenchPlan, server: BatchServer, truth: float):
    assert holds_in_a_long_run(asked, server, 0.98 * truth)
    assert not holds_in_a_long_run(asked, server, 1.02 * truth)


@pytest.mark.parametrize("seed", range(6))
def test_random_arrivals_find_the_rate_of_a_very_long_run(seed: int):
    edge, bench = search(BATCH, seed=1000 * seed)
    assert close_to(edge.holds, POISSON_TRUTH), edge.holds
    assert bench.now_s < 1800 and not edge.out_of_time


@pytest.mark.parametrize("seed", range(4))
def test_a_queue_in_front_of_slots_is_found_by_its_ttft(seed: int):
    edge, _ = search(SLOTS, seed=1000 * seed, slos=TTFT)
    assert close_to(edge.holds, SLOTS_TRUTH), edge.holds


@pytest.mark.parametrize("seed", range(4))
def test_bursts_and_stalls_of_a_moment_bring_the_answer_down_by_little(seed: int):
    """A minute holds only a few bursts, so the answers scatter more than those above."""
    bursty, _ = search(BATCH, seed=1000 * seed, burstiness=4.0)
    assert 0.85 * BURSTY_TRUTH <= bursty.holds <= 1.03 * BURSTY_TRUTH, bursty.holds
    noisy, _ = search(NOISY[seed], seed=1000 * seed)
    assert close_to(noisy.holds, NOISY_TRUTH), noisy.holds


@pytest.mark.parametrize("seed", range(4))
def test_a_server_that_never_breaks_its_limit_is_stopped_by_what_it_completes(seed: int):
    """ITL stays at 20 ms whatever waits outside: only completions that fall behind tell that 80/s is too much."""
    edge, _ = search(SLOTS, seed=1000 * seed, rate_s=30.0, slos=("itl_p95_ms=50",))
    assert close_to(edge.holds, SLOTS.capacity_s), edge.holds
    too_much = [p for p in edge.probes if p.load >= 60]
    assert too_much and {p.verdict for p in too_much} == {ProbeVerdict.SATURATED}
    assert all(p.offered_s > 1.2 * p.steady.requests_s for p in too_much)
    assert "saturated" in probe_text(too_much[0])


@pytest.mark.parametrize("seed", [4, 14, 19])
def test_a_minute_in_which_completions_fell_short_is_no_minute_held(seed: int):
    """Draws in which 103% of the capacity looks level for a minute, because most of it came early."""
    edge, _ = search(SLOTS, seed=1000 * seed, rate_s=2.0, slos=("itl_p95_ms=50",))
    assert close_to(edge.holds, SLOTS.capacity_s), edge.holds


@pytest.mark.parametrize("seed", range(6))
def test_few_and_slow_requests_never_find_more_than_the_slots_can_serve(seed: int):
    slow = BatchServer(0.050, slots=16, tokens=100)  # 3.2 a second, each of 5 s
    edge, bench = search(slow, seed=1000 * seed, rate_s=0.5, slos=("ttft_p95_ms=3000",))
    assert 0.85 * slow.capacity_s <= edge.holds <= 1.03 * slow.capacity_s, edge.holds
    assert all(p.window_s >= 4 * 5.0 for p in edge.probes if p.holds)
    assert edge.held_for_s is None or edge.held_for_s >= 12 * 5.0
    assert bench.now_s < 1850


def test_a_server_that_slows_down_after_half_a_minute_is_found_out_by_holding_the_answer():
    tiring = replace(BATCH, slower=lambda at_s: 1.0 if at_s < 33 else 1.25)
    tired = BatchServer(1.25 * 0.010, 1.25 * 0.0005, tokens=32).rate_at_gap_s(0.040)
    edge, bench = search(tiring, burstiness=0.0)
    assert tired < 0.8 * BATCH.rate_at_gap_s(0.040)
    assert close_to(edge.holds, tired), f"{edge.holds} of {tired}"
    assert any(p.holds for p in edge.probes if p.load > 1.1 * tired), "the short probes were all fooled as intended"
    assert bench.now_s < 1800


@pytest.mark.parametrize("capacity", [3, 40])
def test_the_concurrency_that_arithmetic_gives_is_found(capacity: int):
    server = BatchServer(0.010, 0.030 / capacity, tokens=32)  # a step takes 40 ms with so many at once
    edge, _ = search(server, rate_s=None, concurrency=1)
    assert edge.axis == "concurrency" and edge.holds <= capacity < (edge.fails or 0)
    assert edge.holds >= 0.95 * capacity


# how long a probe lasts and which part of it counts


def test_a_probe_lasts_several_times_the_latency_that_earlier_ones_showed():
    slow = BatchServer(0.400, slots=100, tokens=25)  # 10 s a request
    edge, bench = search(slow, rate_s=8.0, slos=("ttft_p95_ms=1000",))
    judged = [p for p in edge.probes if p.judged and p.holds]
    assert judged and all(p.window_s >= 4 * 10.0 for p in judged)
    short = [k for k, p in enumerate(edge.probes) if p.verdict is ProbeVerdict.TOO_SHORT]
    assert short == list(range(len(short))) and short, "the first knew no better, the others learned from it"
    assert bench.windows_s[0] < 4 * 10.0 and min(bench.windows_s[len(short) :]) >= 6 * 10.0


def test_neither_ramp_nor_drain_counts():
    """In the steady part more is under way than before and after it: had these counted, the gaps would be shorter."""
    found: list[Probe] = []
    search(BATCH, rate_s=35.0, burstiness=0.0, slos=("itl_p95_ms=400",), terms=GoodputTerms(20, 90), note=found.append)
    first = next(p for p in found if p.holds)
    assert first.steady.itl_ms is not None and first.result.summary.itl_ms is not None
    assert first.steady.itl_ms.mean > 1.02 * first.result.summary.itl_ms.mean
    assert first.span.start_s > 0 and first.span.end_s < first.window_s


def test_every_probe_draws_arrivals_of_its_own():
    one, other = (probe_plan(plan(), 10.0, 20.0, number) for number in (0, 1))
    assert [a.at_s for a in one.traffic.arrivals()] != [a.at_s for a in other.traffic.arrivals()]
    assert one.traffic.requests == 200


def test_a_trace_is_gone_through_again_with_other_prompts(tmp_path: Path):
    rows = "".join(
        f'{{"timestamp": {k}, "input_length": 600, "output_length": 2, "hash_ids": [{k}, 9]}}\n' for k in range(5)
    )
    (tmp_path / "t.jsonl").write_text(rows)
    longer = probe_plan(plan(traffic=str(tmp_path / "t.jsonl"), requests=5), 1.0, 13.0, 0)
    hashes = [a.prefix_hashes for a in longer.traffic.arrivals()]
    assert len(hashes) == 13 and len(set(hashes)) == 13 and hashes[0] == (0, 9)


# void probes


def test_void_probes_at_random_are_sent_again_and_change_nothing():
    for seed in range(4):
        rng = random.Random(seed)
        edge, _ = search(BATCH, void=lambda _load, _window_s, rng=rng: rng.random() < 0.35, burstiness=0.0)
        assert close_to(edge.holds, BATCH.rate_at_gap_s(0.040)), f"seed {seed}: {edge.holds}"
        void = [k for k, p in enumerate(edge.probes) if p.verdict is ProbeVerdict.VOID]
        assert void and edge.void_probes == len(void) and "were sent again" in edge_text(edge)
        repeated = [edge.probes[k + 1].load == edge.probes[k].load for k in void if k + 1 < len(edge.probes)]
        assert sum(repeated) >= len(repeated) - 2, "the same load again, unless it has been given up"


def test_a_load_that_is_always_void_is_neither_too_much_nor_called_a_limit():
    edge, _ = search(SLOTS, void=lambda load, _: load > 20, slos=TTFT)
    assert 19 < edge.holds <= 20 and edge.fails is None, "nothing was found to be too much"
    assert edge.unjudged is not None and 20 < edge.unjudged.load <= 21 and edge.unjudged.runs == 4
    assert "sent 9 ms after" in edge.unjudged.why
    text = edge_text(edge)
    assert "could not be judged" in text and "does not" not in text and "gave out" not in text
    assert all(p.as_json()["holds"] is None for p in edge.probes if p.load > 20)


def test_a_search_whose_runs_are_all_void_ends_soon_and_gives_no_verdict():
    bench = VirtualBench(SLOTS, lambda _load, _window_s: True)
    with pytest.raises(NothingFound, match=r"no verdict, every run at rate_s .* was void: requests were sent"):
        find_goodput(plan(), bench, clock=bench.clock)
    assert len(bench.loads) <= 12 and min(bench.loads) >= 0.5 and bench.now_s <= 1800


def test_an_answer_that_cannot_be_held_says_so():
    edge, _ = search(BATCH, void=lambda _load, window_s: window_s > 50, burstiness=0.0)
    assert edge.held_for_s is None and edge.unjudged is not None and edge.unjudged.load == edge.holds
    assert "could not be held, 4 runs were void: requests were sent" in edge_text(edge)
    assert "held for" not in edge_text(edge)


def test_an_answer_whose_repeats_were_void_but_that_held_is_an_answer():
    edge, _ = search(BATCH, void=lambda _load, window_s: 25 < window_s < 50, burstiness=0.0)
    assert edge.held_for_s == 60 and (edge.unjudged is None or edge.unjudged.load > edge.holds)
    assert "could not be held" not in edge_text(edge)


def test_nothing_answered_is_the_servers_verdict_and_not_void():
    def refusing(p: BenchPlan) -> BenchResult:
        result = VirtualBench(SLOTS)(p)
        rows = [replace(r, status="refused") for r in result.records]
        summary = replace(result.summary, ok=0, errors={"refused": len(rows)})
        return replace(result, records=rows, summary=summary, fidelity=replace(result.fidelity, why=("no request",)))

    with pytest.raises(NothingFound, match=r"does not hold.*refused x"):
        find_goodput(plan(), refusing)


# time


@pytest.mark.parametrize("limit_s", [90, 200, 400])
def test_the_time_limit_is_kept_and_what_is_known_by_then_is_the_answer(limit_s: float):
    edge, bench = search(BATCH, terms=GoodputTerms(60, limit_s), burstiness=0.0)
    assert bench.now_s <= 1.1 * limit_s
    assert edge.out_of_time == ("time limit" in edge_text(edge))
    assert edge.holds <= BATCH.rate_at_gap_s(0.040) and (limit_s > 300 or edge.out_of_time)


def test_the_answer_is_held_for_as_long_as_asked():
    edge, bench = search(BATCH, terms=GoodputTerms(150, 3000), burstiness=0.0)
    assert edge.held_for_s == pytest.approx(150, rel=0.01) and max(bench.windows_s) >= 150
    assert "held for 150 s" in edge_text(edge)


def test_a_time_too_short_for_one_probe_is_named():
    bench = VirtualBench(SLOTS)
    with pytest.raises(NothingFound, match="fits into --limit 61; raise it"):
        find_goodput(plan(), bench, terms=GoodputTerms(60, 61), clock=bench.clock)
    assert not bench.loads


@pytest.mark.parametrize(("hold_s", "limit_s"), [(0.0, None), (-1.0, None), (60.0, 30.0), (float("nan"), None)])
def test_bad_terms_are_named(hold_s: float, limit_s: float | None):
    with pytest.raises(InputError, match=r"--hold|--limit"):
        goodput_terms(True, hold_s, limit_s)


def test_terms_without_a_search_are_named():
    with pytest.raises(InputError, match="--find-goodput"):
        goodput_terms(False, 60.0, None)
    assert goodput_terms(False, None, None) is None and goodput_terms(True, None, None) == GoodputTerms()
    assert goodput_terms(True, 1200.0, None) == GoodputTerms(1200.0, 2400.0)


# the edge


class Votes(VirtualBench):
    """At `load` and above, the runs hold or not as told, in turn; below all hold, above `fails` none does."""

    def __init__(self, fails: float, edge: float, turns: list[bool]) -> None:
        super().__init__(SLOTS)
        self.fails, self.edge, self.turns = fails, edge, turns

    def __call__(self, p: BenchPlan) -> BenchResult:
        result = super().__call__(p)
        load = self.loads[-1]
        holds = self.turns.pop(0) if load == self.edge and self.turns else load < self.fails
        late_s = 0.0 if holds else 1.0
        rows = [replace(r, first_token_s=r.sent_s + 0.02 + late_s) for r in result.records]
        return replace(result, records=rows, summary=replace(result.summary, slos=p.slos))


def test_a_load_that_fails_in_most_repeats_is_not_the_edge():
    bench = Votes(8.0, 4.0, [True, False, False])
    edge = find_goodput(plan(rate_s=4.0, slos=TTFT), bench, clock=bench.clock)
    # 8/s fails, 7.66/s holds: nobody asks 4/s again, since the edge lies far above
    assert 7 < edge.holds < 8
    bench = Votes(4.1, 4.0, [True, False, False])
    edge = find_goodput(plan(rate_s=4.0, slos=TTFT), bench, clock=bench.clock)
    assert edge.holds < 4.0 and edge.fails == 4.0


def test_a_load_that_holds_in_most_repeats_is_the_edge_although_one_failed():
    bench = Votes(4.1, 4.0, [True, False, True, True])
    edge = find_goodput(plan(rate_s=4.0, slos=TTFT), bench, clock=bench.clock)
    assert edge.holds == 4.0 and edge.held == edge.repeats - 1 == 4
    assert f"{edge.held} of {edge.repeats} repeats" in edge_text(edge)


def test_a_load_that_failed_once_and_holds_when_repeated_does_not_end_the_climb():
    bench = Votes(30.0, 8.0, [False])
    edge = find_goodput(plan(rate_s=4.0, slos=TTFT), bench, clock=bench.clock)
    assert 28 < edge.holds < 30 <= (edge.fails or 0)


def test_the_goodput_is_the_middle_of_the_repeats_and_not_the_least():
    for seed in range(3):
        edge, _ = search(SLOTS, seed=1000 * seed, slos=TTFT)
        rates = sorted(p.steady.goodput_s or 0.0 for p in edge.probes if p.load == edge.holds and p.judged)
        assert edge.goodput_s == (rates[0], rates[len(rates) // 2], rates[-1])
        assert rates[0] < edge.goodput_s[1], "else this shows nothing"
