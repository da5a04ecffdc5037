"""A load that is changed while it goes on, against a server on this machine."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from ridgeline.serving.load.fidelity import judge
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.load.stream import LiveStream, _ArrivalDraws
from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.workers.assignment import UNDER_WAY, LoadResult
from ridgeline.serving.traffic.requests import RequestRecord, Slo, summarise
from ridgeline.serving.traffic.traffic import ClosedLoop, OpenLoop
from tests.load.scripted import Scripted, tokens


@pytest.mark.parametrize("workers", [1, 2])
def test_a_load_is_changed_without_a_drain_on_the_same_connections(workers: int, tmp_path):
    with Scripted(tokens(4, first_s=0.05, gap_s=0.1)) as server:
        options = BenchOptions(server.url, find_goodput=True, workers=workers, max_tokens=4, out=tmp_path / "r.jsonl")
        stream = LiveStream(plan_from(options))
        stream.begin(ClosedLoop(4))
        first = stream.advance(1.5)
        stream.begin(OpenLoop(10.0, 0.0))
        second = stream.advance(1.5)
        stream.begin(None)
        last = stream.advance(3.0)
        assert stream.close() == ""
    assert first.under_way > 0 and any(r.ok for r in first.rows)
    young = [r for r in first.rows if r.status == UNDER_WAY]
    assert all(r.end_s is None for r in young), "what is under way is shown as far as it came"
    assert any(r.scheduled_s < second.since_s for r in second.rows), "the last load's requests end during the next"
    sent = [r for r in second.rows if r.scheduled_s >= second.since_s]
    times = sorted(r.scheduled_s for r in sent)
    # counted by the schedule: how long `advance` took is the machine's
    assert len(times) >= 5 and min(b - a for a, b in pairwise(times)) == pytest.approx(0.1, abs=1e-6)
    assert last.under_way == 0 and not any(r.scheduled_s >= last.since_s for r in last.rows)
    ended = {r.number: r for view in (first, second, last) for r in view.rows if r.ok}
    written = (tmp_path / "r.jsonl").read_text().splitlines()
    assert len(written) == len(ended) > 0, "every request once, whatever load it belonged to"


def test_no_request_is_drawn_twice_and_an_open_loop_keeps_its_rate():
    draws = _ArrivalDraws(plan_from(BenchOptions("http://h", find_goodput=True)).traffic)
    draws.begin(OpenLoop(50.0), 7.0)
    first, second = draws.more(), draws.more()
    assert first[0].at_s == 7.0 and second[0].at_s == pytest.approx(7.0 + len(first) / 50.0)
    assert len({a.number for a in (*first, *second)}) == len(first) + len(second)
    assert draws.until_s == pytest.approx(7.0 + (len(first) + len(second)) / 50.0)
    draws.begin(ClosedLoop(300), 40.0)
    assert {a.number for a in draws.more()}.isdisjoint({a.number for a in (*first, *second)})


def test_a_trace_is_gone_through_again_with_other_prompts(tmp_path):
    rows = "".join(
        f'{{"timestamp": {k}, "input_length": 600, "output_length": 2, "hash_ids": [{k}, 9]}}\n' for k in range(5)
    )
    (tmp_path / "t.jsonl").write_text(rows)
    draws = _ArrivalDraws(plan_from(BenchOptions("http://h", traffic=str(tmp_path / "t.jsonl"), rate_s=1.0)).traffic)
    draws.begin(OpenLoop(1.0), 0.0)
    sent = [*draws.more(), *draws.more()]
    names = [a.text.name for a in sent if a.text is not None]
    assert len(names) == len(sent) == len(set(names)) > 5


def test_where_only_a_limit_is_asked_about_an_error_counts_as_a_share_of_it():
    """Requests sent 1 ms late spoil a TTFT of 10 ms, and not the answer whether it is below 500 ms."""
    rows = [RequestRecord(k, k / 10, k / 10, k / 10 + 0.010, k / 10 + 0.1, 10, 5) for k in range(100)]
    out = LoadResult(rows, ClientStats(), 0.0, lag_s=array("d", [0.001] * 100))
    summary = summarise(rows)
    assert judge(out, summary, {}, closed=False).void
    assert not judge(out, summary, {}, False, (Slo("ttft", "p95", 500.0),)).void
    assert judge(out, summary, {}, False, (Slo("ttft", "p95", 12.0),)).void, "close to its limit it counts as before"
