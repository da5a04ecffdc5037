"""Sessions through the twin: what a pool holds, what comes back from the host, and what the verb says of both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import ClosedLoop, SessionRules, Traffic, parse_traffic
from ridgeline.serving.twin.simulate import SimulationResult, simulate
from tests.command_line import ridgeline
from tests.twin import deployments as make

FOUND = (4000 + 4100 + 4200) / (4000 + 4100 + 4200 + 4300)  # of a session's prompts, where nothing is forgotten


def growing(sessions: int, turns: int = 4) -> Replay:
    rows: list[TraceRow] = []
    for session in range(sessions):
        text = Text(session)
        for turn in range(turns):
            after = (len(rows) - 1,) if turn else ()
            rows.append(TraceRow(4000 + 100 * turn, 20, None, text, session, after, 20.0 if turn else 0.0))
    return Replay(tuple(rows), "made")


def served(sessions: int, turns: int = 4, duration_s: float | None = None, **settings: float) -> SimulationResult:
    replay = growing(sessions, turns)
    sent = Traffic(replay, len(replay.rows), ClosedLoop(sessions), duration_s=duration_s)
    return simulate(make.llama(**settings), sent, kv_tokens_per_rank=9000)


def test_two_sessions_fit_the_pool_and_three_take_each_others_place() -> None:
    assert served(2).hit_rate == pytest.approx(FOUND)
    assert served(3).hit_rate < 0.4


def test_what_the_gpu_forgets_comes_back_from_the_host() -> None:
    found = served(3, host_tier_ratio=2.0)
    assert found.host_hit_rate > 0.3
    assert found.hit_rate + found.host_hit_rate == pytest.approx(FOUND)
    host, gpu = sum(r.host_tokens for r in found.records), sum(r.cached_tokens - r.host_tokens for r in found.records)
    assert (gpu, host) == (found.cache.hit_tokens, found.cache.host_hit_tokens)


def test_sessions_are_counted_by_how_they_ended() -> None:
    """Four turns of three sessions, 20 s of thinking between them: a session takes a minute and four answers."""
    found = served(3).sessions
    assert found is not None and (found.begun, found.completed, found.cut_off) == (3, 3, 0)
    assert found.session_p50_s is not None and 60 < found.session_p50_s < 70
    assert [(each.turns, each.requests) for each in found.ttft_by_turn] == [("1", 3), ("2 to 5", 9)]
    cut = served(3, duration_s=30.0)
    assert cut.sessions is not None and (cut.sessions.begun, cut.sessions.cut_off) == (3, 3)
    assert all(record.sent_s < 30 for record in cut.records) and len(cut.records) == 6


def test_places_are_filled_until_the_time_is_over() -> None:
    """A session takes 62 s or so: in 200 s each of two places has four, though two were recorded."""
    found = served(2, duration_s=200.0)
    assert found.sessions is not None and found.sessions.begun == 8
    assert len({record.session for record in found.records}) == 8


def test_a_place_that_begins_with_the_last_turn_of_a_session_goes_on_with_the_next() -> None:
    sent = Traffic(growing(1, 2), 2, ClosedLoop(1), rules=SessionRules(start_within=0.999), duration_s=100.0)
    late = next(each for n in range(99) if len((each := replace(sent, seed=n)).arrivals()) == 1)
    found = simulate(make.llama(), late)
    assert len(found.records) > 5 and found.sessions is not None and found.sessions.completed > 2


def test_plain_traffic_has_no_sessions() -> None:
    found = simulate(make.llama(), Traffic(Replay((TraceRow(100, 10),), "made"), 1))
    assert found.sessions is None and found.hit_rate == 0


def test_the_verb_shows_hit_rates_and_ttft_by_turn(tmp_path: Path) -> None:
    words = ["twin", "simulate", "--model", "llama-8b", "--gpu", "h200", "--gpus-per-node", 1, "--traffic",
             "sessions:chat", "--idle-cap", 10, "--sessions", 20, "--duration", 120, "--start-within", 0.5]  # fmt: skip
    said = ridgeline(*words).stdout
    assert "found in the GPUs' cache" in said and "TTFT, turn 2 to 5" in said and "sessions " in said
    document = json.loads(ridgeline(*words, "--host-tier", "2x", "--eviction", "lfu", "--json").stdout)
    assert 0 < document["hit_rate"] < 1 and document["host_hit_rate"] >= 0
    assert document["sessions"]["begun"] >= 20 and document["sessions"]["ttft_by_turn"][0]["turns"] == "1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sessions", 4], "--sessions needs sessions"),
        (["--sessions", 4, "--rate", 2], "--sessions and --rate do not go together"),
        (["--traffic", "sessions:chat", "--closed"], "--closed begins sessions at their recorded times"),
        (["--host-tier", "much"], "--host-tier 'much' is no size"),
        (["--host-tier", "0"], "--host-tier '0' is no size"),
        (["--duration", "0"], "a duration of 0 s measures nothing"),
        (["--duration", "nan"], "a duration of nan s measures nothing"),
        (["--eviction", "random"], "eviction 'random' is not simulated"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[object], said: str) -> None:
    found = ridgeline("twin", "simulate", "--model", "llama-8b", "--gpu", "h200", "--gpus-per-node", 1, *options)
    assert found.returncode == 2 and said in found.stderr


@pytest.mark.parametrize("load", [{"concurrency": 8}, {"rate_s": 30.0}, {"concurrency": 8, "requests": 5}])
def test_plain_requests_are_sent_for_the_whole_duration(load: dict[str, Any]) -> None:
    """Also where that takes more than the usual thousand."""
    sent = parse_traffic("lognormal:200:20", duration_s=60.0, **load)
    found = simulate(make.llama(), sent)
    times = [record.sent_s for record in found.records]
    assert len(times) > 1000 and 55 < max(times) < 60 and found.sessions is None
    assert 55 < found.summary.duration_s < 65


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "vllm:0.9.0", "--host-tier", "100"], "vLLM 0.9.0 has no kv_offloading_size yet"),
        (["--engine", "vllm", "--eviction", "slru"], "vLLM has no radix_eviction_policy"),
        (["--engine", "sglang:0.4.10", "--eviction", "slru"], "SGLang 0.4.10 has no radix_eviction_policy yet"),
        (["--host-tier", "2x", "--no-radix-cache"], "no --host-tier without a prefix cache"),
        (["--sessions", "100000000"], "more than one run keeps"),
    ],
)
def test_caches_that_an_engine_has_not_are_refused(options: list[str], said: str) -> None:
    words = ("twin", "simulate", "--model", "llama-8b", "--gpu", "h200", "--traffic", "sessions:chat")
    found = ridgeline(*words, *options)
    assert found.returncode == 2 and said in found.stderr


def test_a_host_tier_says_what_it_takes_of_a_node() -> None:
    assert served(2, host_tier_size=30.0).assumed[-1] == "each node has 28 GiB of memory for the host tier"


def test_what_of_a_recording_is_left_out_is_said(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"input_length": 100, "output_length": 5}\n{"input_length": 100}\n')
    (note,) = parse_traffic(str(trace)).notes
    assert "1 request without whole numbers" in note
    assert note in simulate(make.llama(), parse_traffic(str(trace))).assumed
    turns = [{"session": "a", "input_length": 9 * n, "output_length": 5, "t": n} for n in (1, 20, 40)]
    trace.write_text("".join(json.dumps(turn) + "\n" for turn in (*turns, turns[0] | {"input_length": None})))
    assert "1 request without a length, left out" in parse_traffic(f"sessions:{trace}").notes
