"""Sessions in the twin: who is sent when, what they find in the cache, and where a pool is too small for them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import AsRecorded, ClosedLoop, OpenLoop, Pace, SessionRules, Traffic
from ridgeline.serving.twin.simulate import SimulationResult, simulate
from tests.twin import deployments as make


def chats(count: int, turns: int = 4, prompt: int = 2000, grows: int = 500, think_s: float = 5.0) -> Replay:
    """Chats of equal turns, each of which begins with the whole prompt before."""
    rows = []
    for chat in range(count):
        text = Text(chat)
        for turn in range(turns):
            after = (len(rows) - 1,) if turn else ()
            at_s = 10.0 * chat if not turn else None
            rows.append(TraceRow(prompt + turn * grows, 50, at_s, text, chat, after, think_s if turn else 0.0))
    return Replay(tuple(rows), "chats")


def played(
    replay: Replay,
    pace: Pace,
    pool: int | None = None,
    duration_s: float | None = None,
    rules: SessionRules | None = None,
) -> SimulationResult:
    traffic = Traffic(replay, len(replay.rows), pace, rules=rules or SessionRules(), duration_s=duration_s)
    return simulate(make.llama(), traffic, kv_tokens_per_rank=pool)


def by_session(result: SimulationResult) -> dict[int, list[tuple[float, float]]]:
    found: dict[int, list[tuple[float, float]]] = {}
    for record in sorted(result.records, key=lambda r: r.sent_s):
        assert record.session is not None and record.end_s is not None
        found.setdefault(record.session, []).append((record.sent_s, record.end_s))
    return found


def test_a_turn_is_sent_when_its_user_has_thought_about_the_answer_before() -> None:
    result = played(chats(3), ClosedLoop(3))
    for times in by_session(result).values():
        for (_, answered_s), (sent_s, _) in pairwise(times):
            assert sent_s == pytest.approx(answered_s + 5.0)
    assert sorted(r.turn for r in result.records) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_so_many_sessions_go_on_at_once_and_the_next_begins_when_one_is_over() -> None:
    sessions = by_session(played(chats(5), ClosedLoop(2)))
    starts = sorted(times[0][0] for times in sessions.values())
    ends = sorted(times[-1][1] for times in sessions.values())
    assert starts[:2] == [0.0, 0.0]
    assert starts[2:] == pytest.approx(ends[:3]), "one begins when another ends"


def test_recorded_starts_are_kept_and_later_turns_wait() -> None:
    sessions = by_session(played(chats(3), AsRecorded(closed=True)))
    assert [times[0][0] for times in sessions.values()] == [0.0, 10.0, 20.0]
    assert all(len(times) == 4 for times in sessions.values())


def test_sessions_arrive_at_a_rate_and_not_their_turns() -> None:
    sessions = by_session(played(chats(4), OpenLoop(0.5, 0.0)))
    assert [times[0][0] for times in sessions.values()] == pytest.approx([0.0, 2.0, 4.0, 6.0])


def test_who_has_several_agents_waits_for_all_of_them() -> None:
    chat = Text(0)
    rows = (
        TraceRow(1000, 20, None, chat, 0),
        TraceRow(4000, 20, None, Text(1, chat, 800), 0, (0,), 1.0),
        TraceRow(9000, 300, None, Text(2, chat, 800), 0, (0,), 1.0),
        TraceRow(1200, 20, None, chat, 0, (1, 2), 2.0),
    )
    (times,) = by_session(played(Replay(rows, "agents"), ClosedLoop(1))).values()
    assert times[1][0] == times[2][0] == pytest.approx(times[0][1] + 1.0), "both are sent at once"
    assert times[3][0] == pytest.approx(max(times[1][1], times[2][1]) + 2.0)


def test_a_prompt_finds_the_one_before_it_as_long_as_the_pool_holds_all_who_are_there() -> None:
    """Four chats of up to 3,550 tokens: a pool of 16,000 holds them, one of 8,000 does not."""
    large, small = (played(chats(4), ClosedLoop(4), pool) for pool in (16_000, 8_000))
    assert all(r.cached_tokens == 2000 + (r.turn - 1) * 500 for r in large.records if r.turn)
    assert large.cache.hit_tokens == sum(r.cached_tokens for r in large.records)
    assert small.cache.hit_tokens < 0.7 * large.cache.hit_tokens
    assert small.summary.ttft_ms is not None and large.summary.ttft_ms is not None
    assert small.summary.ttft_ms.p50 > large.summary.ttft_ms.p50


def test_nothing_is_sent_after_the_time_is_over() -> None:
    result = played(chats(50), ClosedLoop(2), duration_s=30.0)
    assert 0 < len(result.records) < 200 and max(r.sent_s for r in result.records) < 30.0


def test_rules_cut_the_time_to_think_and_begin_in_the_middle() -> None:
    sessions = by_session(played(chats(2), ClosedLoop(2), rules=SessionRules(think_limit_s=1.0)))
    for times in sessions.values():
        assert times[1][0] == pytest.approx(times[0][1] + 1.0)
    late = played(chats(6, turns=10), ClosedLoop(3), rules=SessionRules(start_within=0.7))
    firsts = {r.session: min(o.turn for o in late.records if o.session == r.session) for r in late.records}
    assert sum(first > 0 for first in firsts.values()) in (2, 3) and max(firsts.values()) < 7
    began = {r.session for r in late.records if r.sent_s == 0.0}
    assert all(firsts[session] == 0 for session in firsts.keys() - began), "only the first of each place"


def test_the_same_seed_gives_the_same_sessions() -> None:
    rules = SessionRules(start_within=0.7)
    one, again = (played(chats(6), ClosedLoop(2), rules=rules).records for _ in range(2))
    assert [(r.number, r.sent_s, r.end_s) for r in one] == [(r.number, r.sent_s, r.end_s) for r in again]


def test_a_turn_that_lands_on_another_attention_rank_finds_nothing() -> None:
    """Ranks get requests in turn: of one chat that is alone, only every second turn comes to where it was."""
    replay, deployment = chats(1, turns=9), make.r1("h200", tp=16, attn_dp=2, ep=16, nodes=2)
    traffic = Traffic(replay, len(replay.rows), ClosedLoop(1))
    found = [r.cached_tokens for r in simulate(deployment, traffic).records]
    assert found[:2] == [0, 0]
    assert found[2:] == [2000 + 500 * (turn - 2) for turn in range(2, 9)]
