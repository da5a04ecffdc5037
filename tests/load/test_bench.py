"""What is sent, when, and what a run says about itself."""

from __future__ import annotations

import json
import math
import ssl
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serving.load.bench import bench
from ridgeline.serving.load.fidelity import judge
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.load.wire import connection
from ridgeline.serving.load.wire.client_stats import ClientStats, quantile_s
from ridgeline.serving.load.wire.endpoint import parse_endpoint
from ridgeline.serving.load.wire.exchange import CoalescedTokens, Gaps, _spread_coalesced
from ridgeline.serving.load.wire.loop import Loop
from ridgeline.serving.load.workers.assignment import Assignment, LoadResult, split_over_workers
from ridgeline.serving.load.workers.pool import _merge_results
from ridgeline.serving.traffic.prompts import Prompts, RequestBodies
from ridgeline.serving.traffic.requests import (
    RequestRecord,
    Spread,
    read_records,
    record_line,
    summarise,
)
from ridgeline.serving.traffic.traffic import Arrival, parse_traffic
from ridgeline.serving.verbs.bench import _result_text
from tests.load.scripted import Line, Request, Scripted, delta, event, tokens


def test_the_figures_are_the_servers_own():
    gap_s, first_s = 0.01, 0.04
    sent: list[tuple[float, list[float]]] = []

    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        time.sleep(first_s)
        times = []
        for k in range(5):
            times.append(time.monotonic())
            line.chunk(event(delta(f" {k}")))
            time.sleep(gap_s)
        sent.append((request.arrived_s, times))
        line.end()

    with Scripted(behave) as server:
        result = bench(plan_from(BenchOptions(url=server.url, concurrency=2, requests=12, max_tokens=5)))
    truth = sorted(times[0] - arrived for arrived, times in sent)
    ttft = result.summary.ttft_ms
    # a loaded machine may be late between the clock and the socket, but not by as much as the figures are large
    assert ttft is not None and ttft.p50 / 1e3 == pytest.approx(truth[len(truth) // 2], rel=0.4)
    gaps = sorted(b - a for _, times in sent for a, b in pairwise(times))
    assert result.summary.itl_ms is not None
    assert result.summary.itl_ms.p50 / 1e3 == pytest.approx(gaps[len(gaps) // 2], rel=0.4)
    assert result.summary.requests == 12 and result.summary.output_tok_s > 0


def test_a_closed_loop_never_has_more_under_way_and_reaches_its_number():
    lock, under_way, most = threading.Lock(), 0, 0

    def behave(line: Line, request: Request) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.01)
        with lock:
            under_way -= 1
        tokens(2)(line, request)

    with Scripted(behave) as server:
        result = bench(plan_from(BenchOptions(url=server.url, concurrency=5, requests=40, max_tokens=2)))
    assert result.summary.ok == 40 and most == 5
    assert sorted(r.number for r in result.records) == list(range(40))


def test_an_open_loop_sends_on_time_whatever_the_server_does():
    with Scripted(tokens(2, first_s=0.3)) as server:
        plan = plan_from(BenchOptions(url=server.url, rate_s=60, requests=60, max_tokens=2, seed=3))
        result = bench(plan)
        due = [a.at_s for a in plan.traffic.arrivals()]
        seen = sorted(r.arrived_s for r in server.posts)
    assert result.summary.ok == 60
    assert [r.scheduled_s for r in sorted(result.records, key=lambda r: r.number)] == pytest.approx(due, abs=1e-9)
    # the server is a Python thread per connection and wakes late; the bulk of it must follow the schedule
    late = sorted(abs((at - seen[0]) - want) for at, want in zip(seen, due, strict=True))
    assert late[len(late) // 2] < 0.15, "waiting for an answer would take twice as long for each of 60"
    assert result.fidelity.lag_ms is not None and result.fidelity.lag_ms.p50 < 150


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_poisson_gaps_pass_a_kolmogorov_smirnov_test(seed: int):
    at = [
        a.at_s for a in plan_from(BenchOptions(url="http://h", rate_s=50, requests=1000, seed=seed)).traffic.arrivals()
    ]
    gaps, rate = sorted(b - a for a, b in pairwise(at)), len(at) / at[-1]
    assert abs(rate - 50) < 50 / math.sqrt(len(at))
    share = [1 - math.exp(-50 * g) for g in gaps]
    n = len(gaps)
    distance = max(max((k + 1) / n - s, s - k / n) for k, s in enumerate(share))
    assert distance < 1.36 / math.sqrt(n)


def test_a_rate_with_a_cap_on_concurrency_that_falls_behind_is_void():
    with Scripted(tokens(2, first_s=0.05)) as server:
        result = bench(plan_from(BenchOptions(url=server.url, rate_s=100, concurrency=1, requests=20, max_tokens=2)))
    assert result.summary.ok == 20 and result.void and "schedule" in " ".join(result.fidelity.why)


def test_a_trace_is_replayed_at_its_own_times(tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 + 40 * k, "input_length": 1030, "output_length": 2, "hash_ids": [9, k]} for k in range(5)
    ]
    trace.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with Scripted(tokens(2)) as server:
        result = bench(plan_from(BenchOptions(url=server.url, traffic=str(trace))))
        prompts = [r.json["messages"][0]["content"] for r in server.posts]
    assert result.summary.ok == 5
    assert sorted(r.scheduled_s for r in result.records) == pytest.approx([0, 0.04, 0.08, 0.12, 0.16])
    assert len({p[: 512 * 5] for p in prompts}) == 1 and len(set(prompts)) == 5
    assert all(len(p.split()) == 1030 for p in prompts)


def test_a_duration_ends_the_run():
    with Scripted(tokens(2, first_s=0.01)) as server:
        result = bench(plan_from(BenchOptions(url=server.url, concurrency=2, duration_s=0.5, requests=3, max_tokens=2)))
    assert result.summary.ok > 6 and result.summary.duration_s < 3


def test_what_is_under_way_when_the_run_gives_up_keeps_what_came_of_it():
    with Scripted(tokens(2000, first_s=0.01, gap_s=0.05)) as server:
        plan = plan_from(BenchOptions(url=server.url, rate_s=20.0, duration_s=2.0, max_tokens=10_000))
        result = bench(replace(plan, give_up_s=4.0))
    assert {record.status for record in result.records} == {"unfinished"}
    assert all(record.output_tokens > 1 and record.ttft_s is not None for record in result.records)


def test_several_processes_send_everything_once_and_merge_exactly(tmp_path: Path):
    with Scripted(tokens(3, first_s=0.005)) as server:
        out = tmp_path / "r.jsonl"
        result = bench(
            plan_from(BenchOptions(url=server.url, concurrency=5, requests=31, max_tokens=3, workers=2, out=out))
        )
    assert [r.number for r in result.records] == list(range(31)) and result.summary.ok == 31
    assert {r.worker for r in result.records} == {"client-0", "client-1"}
    assert sorted(r.number for r in read_records(out)) == list(range(31))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.jsonl"]


@given(st.integers(1, 7), st.integers(1, 40), st.integers(0, 60))
def test_splitting_loses_and_doubles_nothing(workers: int, slots: int, requests: int):
    arrivals = tuple(Arrival(n, 0.0, 1, 1) for n in range(requests))
    endpoint = parse_endpoint("http://h")
    assignment = Assignment(endpoint, (2, ("127.0.0.1", 1)), arrivals, slots, slots)
    parts = split_over_workers(assignment, workers)
    assert sorted(a.number for p in parts for a in p.arrivals) == list(range(requests))
    assert sum(p.slots for p in parts) == slots
    assert all(p.slots for p in parts if p.arrivals), "nobody would send them"
    assert sum(p.most_at_once or 0 for p in parts) == slots


def record(
    number: int, lag_s: float = 0.0, ttft_s: float = 0.02, tokens: int = 5, gap_s: float = 0.005
) -> RequestRecord:
    first = number + ttft_s
    end = first + gap_s * (tokens - 1)
    return RequestRecord(number, number - lag_s, number, first, end, 10, tokens, gaps_s=((gap_s, tokens - 1),))


def load_result(records: list[RequestRecord], lag_s: float = 0.0, ages: int = 2, delays: int = 2) -> LoadResult:
    stats = ClientStats(cpu_s=0.1, wall_s=1.0, busiest_share=0.1)
    stats.delays[delays] = 1000
    if ages >= 0:
        stats.ages[ages] = 1000
    out = LoadResult(records, stats, 0.0)
    out.lag_s.extend([lag_s] * len(records))
    return out


def why(out: LoadResult, closed: bool = True, gaps_us: dict[int, int] | None = None) -> str:
    return " ".join(judge(out, summarise(out.records), gaps_us or {5000: 400}, closed).why)


def test_a_quiet_run_counts():
    assert why(load_result([record(k) for k in range(100)])) == ""


def test_empty_slots_void_a_closed_loop():
    rows = [record(k) for k in range(100)]
    assert "slots were empty" in why(load_result(rows, lag_s=0.002))
    assert why(load_result(rows, lag_s=0.0005)) == ""


def test_a_late_schedule_voids_an_open_loop():
    rows = [record(k) for k in range(100)]
    assert "schedule" in why(load_result(rows, lag_s=0.001), closed=False)
    assert why(load_result(rows, lag_s=0.0002), closed=False) == ""


def test_late_reads_void_a_run_without_kernel_stamps_only():
    rows = [record(k) for k in range(100)]
    assert why(load_result(rows, ages=9)) == ""
    assert "could be off" in why(load_result(rows, ages=-1, delays=9))


def read_together(number: int, earliest_s: float, latest_s: float) -> CoalescedTokens:
    same = array("d", [0.005] * 4)
    return CoalescedTokens(number, (earliest_s, latest_s), (same, same))


def test_tokens_that_could_not_be_told_apart_void_a_run_only_where_they_could_move_a_figure():
    rows = [record(k) for k in range(1000)]
    out = load_result(rows)
    out.coalesced = [
        read_together(k, 0.012, 0.020) for k in range(5)
    ]  # half a percent of them moves no percentile we report
    assert why(out) == ""
    out.coalesced = [read_together(k, 0.020, 0.035) for k in range(20)]
    assert "ttft p99 of 20 ms could be 35 ms" in why(out)
    out.coalesced = [read_together(k, 0.0199, 0.0201) for k in range(900)]
    assert why(out) == ""


def test_gaps_that_could_not_be_told_apart_void_a_run_too():
    rows = [replace(record(k), gaps_s=Gaps([0.0, 0.005, 0.010, 0.015, 0.020])) for k in range(100)]
    out = load_result(rows)
    together = (array("d", [0.001, 0.004, 0.010, 0.005]), array("d", [0.005] * 4))
    out.coalesced = [CoalescedTokens(k, (0.02, 0.02), together) for k in range(50)]
    assert "itl p" in why(out) and "read late and together" in why(out)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
    st.lists(st.floats(0.0, 0.05), min_size=12, max_size=12),
)
def test_tokens_set_apart_stay_in_order_and_within_what_is_known(counts: list[int], lateness: list[float]):
    sent_s, stamps = 1.0, [1.02 + 0.005 * k for k in range(len(counts))]
    times = [at for at, count in zip(stamps, counts, strict=True) for _ in range(count)]
    since = {at: at - late for at, late in zip(stamps, lateness, strict=False) if late > 0}
    likely, coalesced = _spread_coalesced(7, times, since, sent_s)
    assert len(likely) == len(times) and likely == sorted(likely) and likely[-1] == times[-1]
    assert all(sent_s <= told <= stamp for told, stamp in zip(likely, times, strict=True))
    if coalesced is None:
        assert likely == times
    else:
        assert coalesced.first_s[0] <= likely[0] - sent_s <= coalesced.first_s[1] == times[0] - sent_s
        assert sum(coalesced.gaps_s[0]) <= times[-1] - sent_s + 1e-9


def test_tokens_that_were_merged_keep_the_pace_of_their_answer():
    times = [1.02, 1.025, 1.03, 1.08, 1.08, 1.08]
    likely, coalesced = _spread_coalesced(0, times, {1.08: 1.031}, 1.0)
    assert likely == pytest.approx([1.02, 1.025, 1.03, 1.07, 1.075, 1.08])
    assert coalesced is not None and list(coalesced.gaps_s[0]) == pytest.approx([0.005, 0.005, 0.001, 0, 0.049])


def test_a_client_that_was_put_aside_still_tells_tokens_apart():
    """Reads that come late and many at a time must not move a token's time: the kernel stamped each segment."""
    if sys.platform != "linux":
        pytest.skip("only Linux stamps what arrives")
    sent: list[list[float]] = []

    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        times = []
        for k in range(6):
            time.sleep(0.02)
            times.append(time.monotonic())
            line.chunk(event(delta(f" {k}")))
        sent.append(times)
        line.end()

    with Scripted(behave) as server:
        plan = plan_from(BenchOptions(url=server.url, concurrency=2, requests=8, max_tokens=6))
        with putting_aside(0.09):
            result = bench(plan)
    gaps = sorted(gap for r in result.records for gap, _ in r.gaps_s)
    truth = sorted(b - a for times in sent for a, b in pairwise(times))
    assert result.summary.ok == 8 and len(gaps) == len(truth)
    # the client was away for four tokens at a time; without stamps most gaps would be zero or some 90 ms
    near = [0.5 * want < gap < 2 * want for gap, want in zip(gaps, truth, strict=True)]
    assert sum(near) > 0.7 * len(near), (gaps, truth)


@contextmanager
def putting_aside(seconds: float) -> Iterator[None]:
    """Every look at the sockets comes this much late, as on a host that is busy with other things."""
    look = Loop._poll

    def late(self: Loop) -> list[tuple[int, int]]:
        time.sleep(seconds)
        return look(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_poll", late)
        yield


def test_a_client_without_idle_time_voids_its_run():
    out = load_result([record(k) for k in range(100)])
    out.stats.busiest_share = 0.99
    assert "core" in why(out)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=50), st.integers(1, 4))
def test_merged_counters_equal_those_of_one_process(buckets: list[int], parts: int):
    whole, results = ClientStats(), [LoadResult([], ClientStats(), 1.0) for _ in range(parts)]
    for k, bucket in enumerate(buckets):
        whole.ages[bucket] += 1
        results[k % parts].stats.ages[bucket] += 1
    merged = _merge_results(results).stats
    assert merged.ages == whole.ages and quantile_s(merged.ages, 0.99) == quantile_s(whole.ages, 0.99)


@given(st.integers(1, 3000), st.integers(0, 10**6), st.integers(0, 2**31), st.integers(0, 64))
def test_prompts_have_their_length_and_are_never_the_same_twice(length: int, number: int, salt: int, shared: int):
    one = Prompts(salt, shared).text(Arrival(number, 0.0, length, 1))
    assert len(one.split()) == length
    assert one == Prompts(salt, shared).text(Arrival(number, 0.0, length, 1))
    if length > shared + 4:
        assert one != Prompts(salt, shared).text(Arrival(number + 1, 0.0, length, 1))
        assert one != Prompts(salt + 1, shared).text(Arrival(number, 0.0, length, 1))


def test_bodies_say_what_was_asked():
    arrival = Arrival(1, 0.0, 16, 20)
    chat = json.loads(RequestBodies(Prompts(1), "chat", 'm"1', ignore_eos=True, extra={"temperature": 0}).body(arrival))
    assert (chat["model"], chat["max_tokens"], chat["stream"], chat["ignore_eos"]) == ('m"1', 20, True, True)
    assert chat["temperature"] == 0 and chat["stream_options"] == {"include_usage": True}
    own = json.loads(RequestBodies(Prompts(1), "generate", "", extra={"temperature": 0}).body(arrival))
    assert own["sampling_params"] == {"max_new_tokens": 20, "temperature": 0} and "model" not in own


@pytest.mark.parametrize(
    ("url", "path", "interface"),
    [
        ("http://h:1", "/v1/chat/completions", "chat"), ("h:1", "/v1/chat/completions", "chat"),
        ("http://h:1/v1", "/v1/chat/completions", "chat"), ("http://h:1/v1/", "/v1/chat/completions", "chat"),
        ("http://h:1/v1/completions", "/v1/completions", "completions"), ("http://h/generate", "/generate", "generate"),
        ("http://h/proxy/v1/chat/completions?x=1", "/proxy/v1/chat/completions?x=1", "chat"),
        ("https://[::1]:8/llm", "/llm/v1/chat/completions", "chat"),
    ],
)  # fmt: skip
def test_urls_as_people_type_them(url: str, path: str, interface: str):
    endpoint = parse_endpoint(url)
    assert (endpoint.path, endpoint.interface) == (path, interface)


def test_nothing_is_asked_of_the_server_but_the_model_list_and_the_requests():
    with Scripted(tokens(2)) as server:
        bench(plan_from(BenchOptions(url=server.url, concurrency=1, requests=2, max_tokens=2)))
        assert [(r.method, r.path) for r in server.requests] == [("GET", "/v1/models")] + 2 * [
            ("POST", "/v1/chat/completions")
        ]
    with Scripted(tokens(2)) as server:
        bench(plan_from(BenchOptions(url=server.url, concurrency=1, requests=2, max_tokens=2, model="mine")))
        assert [r.method for r in server.requests] == ["POST", "POST"]
        assert server.posts[0].json["model"] == "mine"


def test_warm_up_uses_other_prompts_and_is_not_counted():
    with Scripted(tokens(2)) as server:
        result = bench(plan_from(BenchOptions(url=server.url, concurrency=2, requests=4, warmup=3, max_tokens=2)))
        prompts = [r.json["messages"][0]["content"] for r in server.posts]
    assert result.summary.requests == 4 and len(prompts) == len(set(prompts)) == 7


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, certificate


def test_tls_with_its_own_authority_and_without(certificate: tuple[Path, Path]):
    key, pem = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    with Scripted(tokens(3, first_s=0.01), tls=context) as server:
        good = bench(plan_from(BenchOptions(url=server.url, concurrency=2, requests=6, max_tokens=3, ca_file=pem)))
        bad = bench(plan_from(BenchOptions(url=server.url, concurrency=2, requests=3, max_tokens=3)))
    assert good.summary.ok == 6 and good.model == "toy" and good.summary.ttft_ms is not None
    assert dict(bad.summary.errors) == {"tls": 3}


def test_a_system_without_epoll_and_stamps_measures_and_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("select.epoll", raising=False)
    monkeypatch.setattr(connection, "_SO_TIMESTAMPNS", None)
    with Scripted(tokens(3, gap_s=0.005, first_s=0.02)) as server:
        closed = bench(plan_from(BenchOptions(url=server.url, concurrency=3, requests=12, max_tokens=3)))
        timed = bench(plan_from(BenchOptions(url=server.url, rate_s=50, requests=10, max_tokens=3)))
    for result in (closed, timed):
        assert result.summary.ok == result.summary.requests and result.fidelity.kernel_stamped_share == 0
        assert result.summary.ttft_ms is not None and 19 < result.summary.ttft_ms.p50 < 500


def test_records_survive_the_disk(tmp_path: Path):
    rows = [record(k) for k in range(3)]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(map(record_line, rows)) + record_line(record(9))[:40])
    assert list(read_records(path)) == rows


def test_the_text_for_a_terminal_says_void_and_why():
    with Scripted(tokens(2)) as server:
        result = bench(
            plan_from(BenchOptions(url=server.url, concurrency=1, requests=3, max_tokens=2, slos=("ttft_p95_ms=500",)))
        )
    text = _result_text(result)
    assert "TTFT ms" in text and "goodput" in text and ("VOID" in text) == result.void


def test_the_shortest_traffic_words_reach_the_server():
    traffic = plan_from(
        BenchOptions(url="http://h", traffic="sharegpt", requests=50, concurrency=4, max_tokens=64)
    ).traffic
    assert max(a.output_tokens for a in traffic.arrivals()) <= 64
    assert parse_traffic("sharegpt", requests=50, concurrency=4).requests == traffic.requests


@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 9)), min_size=1, max_size=200))
def test_spreads_are_numpys(pairs: list[tuple[float, int]]):
    values, counts = [v for v, _ in pairs], [n for _, n in pairs]
    ours, weighted = Spread.of(values), Spread.of(values, counts)
    assert ours is not None and weighted is not None
    milliseconds = np.array(values) * 1e3
    assert [ours.p50, ours.p90, ours.p95, ours.p99] == pytest.approx(
        np.percentile(milliseconds, [50, 90, 95, 99]).tolist(), rel=1e-9, abs=1e-9
    )
    assert ours.mean == pytest.approx(milliseconds.mean(), rel=1e-9, abs=1e-9)
    assert weighted.mean == pytest.approx(np.average(milliseconds, weights=counts), rel=1e-9, abs=1e-9)
    # the smallest value whose share of all reaches the quantile: of all of them written out
    every = np.repeat(milliseconds, counts)
    expected = np.percentile(every, [50, 90, 95, 99], method="inverted_cdf").tolist()
    assert [weighted.p50, weighted.p90, weighted.p95, weighted.p99] == pytest.approx(expected, rel=1e-9, abs=1e-9)
