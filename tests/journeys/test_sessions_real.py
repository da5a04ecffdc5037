"""On a real engine with a prefix cache: turns wait, and the hit rate that bench reports is the server's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.serving.load.bench import bench
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic
from tests.journeys.vllm_engine import ENV, counters, free_port, missing, process, vllm_command, write_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.alone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing()), reason=missing() or "present"),
]

SESSIONS, TURNS, THINK_S = 6, 4, 0.3
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


def test_turns_wait_and_the_hit_rate_is_the_servers_own(tmp_path: Path) -> None:
    rows: list[TraceRow] = []
    instructions = Text(0)
    for session in range(SESSIONS):
        text = Text(session + 1, instructions, 200)
        for turn in range(TURNS):
            after = (len(rows) - 1,) if turn else ()
            rows.append(TraceRow(300 + 150 * turn, 16, None, text, session, after, THINK_S if turn else 0.0))
    model, port = write_model(tmp_path / "tiny"), free_port()
    words = (
        "--enable-prompt-tokens-details",
        "--enable-prefix-caching",
        "--block-size",
        "16",
        "--max-model-len",
        "2048",
    )
    with process(vllm_command(model, port, *words), port, tmp_path / "server.log", ENV) as url:
        plan = plan_from(BenchOptions(url, api="completions", ignore_eos=True))
        traffic = Traffic(Replay(tuple(rows), "rows"), len(rows), ClosedLoop(3))
        before = counters(url)
        result = bench(replace(plan, traffic=traffic))
        after = counters(url)
    assert result.summary.ok == SESSIONS * TURNS, result.notes
    assert result.sessions is not None and result.sessions.completed == SESSIONS
    ends = {(r.session, r.turn): r.end_s or 0.0 for r in result.records}
    for record in result.records:
        if record.turn:
            due_s = ends[record.session, record.turn - 1] + THINK_S
            assert record.sent_s >= due_s - 1e-6 and record.scheduled_s == pytest.approx(due_s, abs=1e-6)
    by_answers, by_counters = result.cache_hits
    truth = (after[HITS] - before[HITS]) / (after[QUERIES] - before[QUERIES])
    print(f"hit rate by answers {by_answers.share:.4f}, by counters {by_counters.share:.4f}, the server's {truth:.4f}")
    assert by_counters.share == pytest.approx(truth, abs=1e-9)
    assert by_answers.share == pytest.approx(truth, abs=0.02)
    # whole blocks of what the turn before sent: 300, 450 and 600 tokens of 450, 600 and 750, and the instructions
    assert 0.6 < truth < 0.8
