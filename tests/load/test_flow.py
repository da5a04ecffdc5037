"""Rates count what completed in their window; what was offered and what drained are said apart."""

from __future__ import annotations

import math
import threading

import pytest

from ridgeline.serving.load.bench import BenchResult, bench
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.traffic.flow import Stretch, backlog_of, flow_of
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.verbs.bench import _result_text
from tests.load.queueing import BatchServer, Served
from tests.load.scripted import Scripted, tokens

# 16 at a time, 0.4 s each: 40 a second
SLOTS = BatchServer(0.020, slots=16, tokens=20)


def served(rate_s: float, seconds: float, seed: int = 0, burstiness: float = 1.0) -> list[RequestRecord]:
    options = BenchOptions(
        "http://h", rate_s=rate_s, requests=round(rate_s * seconds), seed=seed, burstiness=burstiness
    )
    requests = [Served(a.number, a.at_s, SLOTS.tokens_of(a)) for a in plan_from(options).traffic.arrivals()]
    server, done = SLOTS.start(), 0
    for request in requests:
        server.offer(request)
    while done < len(requests):
        done += len(server.run(math.inf))
    return [request.row(math.inf) for request in requests]


def test_offered_completed_and_drained_are_three_rates():
    flow = flow_of(served(80, 10), 10.0)
    assert flow.offered_s == pytest.approx(80)
    assert flow.completed_s == pytest.approx(40, rel=0.06)
    assert flow.drained_s == pytest.approx(800 / (10 + flow.drain_s)) and flow.drain_s == pytest.approx(10, rel=0.05)
    assert flow.saturated is True


def test_only_what_ended_well_counts_as_completed():
    rows = [RequestRecord(k, k, k, k, k + 0.5, 1, 1, status="ok" if k % 2 else "cut") for k in range(10)]
    flow = flow_of(rows, 10.0)
    assert (flow.offered_s, flow.completed_s, flow.drain_s) == (1.0, 0.5, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_server_that_keeps_up_is_not_called_saturated_and_one_that_does_not_is(seed: int):
    assert flow_of(served(30, 10, seed), 10.0).saturated is False
    assert flow_of(served(20, 20, seed, burstiness=4.0), 20.0).saturated is False
    assert flow_of(served(60, 10, seed), 10.0).saturated is True


def test_a_window_shorter_than_a_request_cannot_tell():
    rows = [RequestRecord(k, k / 10, k / 10, k / 10 + 5, k / 10 + 20, 1, 1) for k in range(100)]
    assert flow_of(rows, 10.0).saturated is None
    assert flow_of(rows, 10.0, closed=True).saturated is False


def test_what_rose_and_found_its_level_does_not_pile_up():
    """Latency doubles a third into the look and stays: more is under way than before, and no more comes."""

    def rows(seconds: float) -> list[RequestRecord]:
        times = [k / 50 for k in range(round(50 * seconds))]
        return [RequestRecord(k, t, t, t, t + (1.0 if t < 20 else 2.0), 1, 1) for k, t in enumerate(times)]

    long = backlog_of(rows(90), Stretch(5.0, 90.0))
    assert long is not None and long.thirds[2] > 1.3 * long.thirds[0] and long.grows is False
    growing = [RequestRecord(k, k / 50, k / 50, 0, k / 50 + 1 + k / 500, 1, 1) for k in range(4500)]
    backlog = backlog_of(growing, Stretch(5.0, 90.0))
    assert backlog is not None and backlog.grows is True and backlog.lags


def in_window(result: BenchResult, start_s: float, end_s: float) -> float:
    return sum(r.ok and start_s <= (r.end_s or -1) < end_s for r in result.records) / (end_s - start_s)


def test_a_duration_counts_what_completed_in_it():
    with Scripted(tokens(2, first_s=0.3)) as server:
        closed = bench(plan_from(BenchOptions(url=server.url, concurrency=3, duration_s=1.0, max_tokens=2)))
        timed = bench(plan_from(BenchOptions(url=server.url, rate_s=20, duration_s=1.0, max_tokens=2)))
    for result in (closed, timed):
        assert result.summary.requests_s == pytest.approx(in_window(result, 0.0, 1.0))
        assert any((r.end_s or 0.0) >= 1.0 for r in result.records), "else this shows nothing"
        assert result.summary.ok == len(result.records) and result.summary.duration_s == 1.0
        assert result.summary.output_tok_s == pytest.approx(2 * result.summary.requests_s)


def test_a_rate_reports_all_three_and_a_plain_closed_loop_none():
    with Scripted(tokens(2, first_s=0.2)) as server:
        timed = bench(plan_from(BenchOptions(url=server.url, rate_s=20, requests=20, max_tokens=2)))
        closed = bench(plan_from(BenchOptions(url=server.url, concurrency=2, requests=4, max_tokens=2)))
    document = timed.as_json()
    assert document["offered_requests_s"] == pytest.approx(20) and document["window_s"] == pytest.approx(1.0)
    assert document["completed_requests_s"] == document["requests_s"] == pytest.approx(in_window(timed, 0.0, 1.0))
    assert document["drained_requests_s"] == pytest.approx(20 / (1.0 + timed.flow.drain_s), rel=1e-3)
    assert "offered/s 20.00" in _result_text(timed) and "to drain" in _result_text(timed)
    assert closed.flow is None and "offered_requests_s" not in closed.as_json()
    assert closed.summary.requests_s == pytest.approx(4 / closed.summary.duration_s)


def test_a_run_that_did_not_keep_up_says_so():
    lock = threading.Lock()

    def one_at_a_time(line: object, request: object) -> None:
        with lock:
            tokens(2, first_s=0.05)(line, request)

    with Scripted(one_at_a_time) as server:  # 20 a second at most
        result = bench(plan_from(BenchOptions(url=server.url, rate_s=100, requests=200, max_tokens=2)))
    assert result.flow is not None and result.flow.saturated is not False
    assert result.flow.completed_s < 0.3 * result.flow.offered_s
    assert any("were offered and" in note for note in result.notes)
