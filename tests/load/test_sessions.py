"""Sessions against a server: who is sent when, who is not, and what a run says of them."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError, NothingFound
from ridgeline.serving.load import session as load_session
from ridgeline.serving.load.bench import BenchPlan, BenchResult, bench, parted_for_warmup
from ridgeline.serving.load.cache_hits import hits_by_counters
from ridgeline.serving.load.edge import Edge, GoodputTerms
from ridgeline.serving.load.goodput import find_goodput
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.load.stream import LiveStream
from ridgeline.serving.load.workers.assignment import Assignment, split_over_workers
from ridgeline.serving.traffic import traffic as traffic_module
from ridgeline.serving.traffic.replay import Passes, Replay, TraceRow
from ridgeline.serving.traffic.requests import RequestRecord, Slo
from ridgeline.serving.traffic.session_mix import SessionMix, parse_sessions
from ridgeline.serving.traffic.session_summary import summarise_sessions
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import AsRecorded, ClosedLoop, OpenLoop, SessionRules, Traffic
from ridgeline.serving.traffic.turns import Again, WaitingTurns, sessions_of
from ridgeline.serving.twin.served_runs import StatedServer, read_served_runs
from ridgeline.serving.verbs.bench import _result_text
from tests.load.scripted import Line, Request, Scripted, delta, event, tokens, usage


def chats(
    sessions: int, turns: int, think_s: float = 0.0, system_tokens: int = 20, at_s: float | None = None
) -> list[TraceRow]:
    """Chats that grow by ten tokens a turn and open with the same instructions."""
    rows: list[TraceRow] = []
    system = Text(0)
    for k in range(sessions):
        text = Text(k + 1, system, system_tokens)
        for turn in range(turns):
            rows.append(
                TraceRow(
                    input_tokens=system_tokens + 10 * (turn + 1),
                    output_tokens=2,
                    at_s=None if at_s is None or turn else at_s * k,
                    text=text,
                    session=k,
                    after=(len(rows) - 1,) if turn else (),
                    think_s=think_s if turn else 0.0,
                )
            )
    return rows


def plan(server: Scripted, rows: Sequence[TraceRow], at_once: int | None, **options: object) -> BenchPlan:
    own = {name: options.pop(name) for name in ("rules", "requests") if name in options}
    pace = AsRecorded(closed=True) if at_once is None else ClosedLoop(at_once)
    traffic = Traffic(
        Replay(tuple(rows), "rows"),
        own.get("requests", len(rows)),
        pace,
        rules=own.get("rules", SessionRules()),  # type: ignore[arg-type]
    )
    return replace(plan_from(BenchOptions(url=server.url)), traffic=traffic, **options)  # type: ignore[arg-type]


def assert_turns_waited(result: BenchResult, rows: Sequence[TraceRow], think_s: float) -> None:
    ends = {(r.session, r.turn): r.end_s for r in result.records}
    for record in result.records:
        if record.turn:
            before_s = ends[record.session, record.turn - 1]
            assert before_s is not None
            assert record.scheduled_s == pytest.approx(before_s + think_s, abs=1e-6)
            assert record.sent_s >= record.scheduled_s - 1e-6, "no turn is early"


@dataclass
class Caching:
    """A server that remembers every prompt and says, in answers and counters, how much of the next it knew."""

    in_answers: bool = True
    counters: bool = True
    seen: list[list[str]] = field(default_factory=list)
    hits: int = 0
    queries: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, line: Line, request: Request) -> None:
        words = request.json["messages"][0]["content"].split()
        with self.lock:
            known = max((_common(words, other) for other in self.seen), default=0)
            self.seen.append(words)
            self.hits, self.queries = self.hits + known, self.queries + len(words)
        line.stream_head()
        asked = request.json["max_tokens"]
        for k in range(asked):
            line.chunk(event(delta(f" t{k}", "length" if k == asked - 1 else None)))
        details = {"prompt_tokens_details": {"cached_tokens": known}} if self.in_answers and known else {}
        line.chunk(event(usage(len(words), asked, **details)))
        line.chunk(event(b"[DONE]"))
        line.end()

    def page(self) -> str:
        if not self.counters:
            return ""
        return (
            "# TYPE vllm:prefix_cache_queries_total counter\n"
            f'vllm:prefix_cache_queries_total{{engine="0"}} {self.queries}\n'
            "# TYPE vllm:prefix_cache_hits_total counter\n"
            f'vllm:prefix_cache_hits_total{{engine="0"}} {float(self.hits)}\n'
        )

    def server(self) -> Scripted:
        return Scripted(self, metrics=self.page)


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    return next((k for k, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_a_turn_is_sent_when_the_last_was_answered_and_its_user_has_thought():
    rows = chats(3, 4, think_s=0.03)
    with Scripted(tokens(2, first_s=0.02)) as server:
        result = bench(plan(server, rows, 3))
    assert result.summary.ok == 12
    assert_turns_waited(result, rows, 0.03)
    assert result.sessions is not None
    assert (result.sessions.begun, result.sessions.completed, result.sessions.failed) == (3, 3, 0)
    assert result.sessions.session_p50_s is not None and result.sessions.session_p50_s >= 3 * 0.03 + 4 * 0.02


@pytest.mark.parametrize("workers", [1, 2])
def test_so_many_sessions_are_at_once_and_the_next_begins_when_one_is_over(workers: int):
    rows = chats(7, 3, think_s=0.01)
    with Scripted(tokens(2, first_s=0.01)) as server:
        result = bench(plan(server, rows, 2, workers=workers))
    assert result.summary.ok == 21
    spans: dict[int | None, list[float]] = {}
    for r in result.records:
        low, high = spans.get(r.session, (math.inf, 0.0))
        spans[r.session] = [min(low, r.sent_s), max(high, r.end_s or 0.0)]
    assert len(spans) == 7
    for begin, _ in spans.values():
        assert sum(low <= begin < high for low, high in spans.values()) <= 2
    if workers == 2:
        assert all(len({r.worker for r in result.records if r.session == s}) == 1 for s in spans), "whole sessions"
        assert len({r.worker for r in result.records}) == 2


def test_sub_agents_run_side_by_side_and_the_next_turn_waits_for_all_of_them():
    rows = [
        TraceRow(20, 2, session=0),
        TraceRow(20, 2, session=0, after=(0,)),
        TraceRow(20, 2, session=0, after=(0,)),
        TraceRow(20, 2, session=0, after=(1, 2), think_s=0.02),
    ]
    with Scripted(tokens(2, first_s=0.1)) as server:
        result = bench(plan(server, rows, 1))
    first, left, right, last = sorted(result.records, key=lambda r: r.number)
    assert left.scheduled_s == right.scheduled_s == pytest.approx(first.end_s)
    assert last.scheduled_s == pytest.approx(max(left.end_s or 0, right.end_s or 0) + 0.02)
    assert max(left.sent_s, right.sent_s) < min(left.end_s or 0, right.end_s or 0), "at the same time"


def test_a_turn_that_fails_ends_its_session_and_the_next_begins():
    rows = chats(3, 4)

    def behave(line: Line, request: Request) -> None:
        if len(server.posts) == 2:
            line.document({"error": "no"}, "500 Internal Server Error")
        else:
            tokens(2)(line, request)

    with Scripted(behave) as server:
        result = bench(plan(server, rows, 1, slos=(Slo.parse("ttft_p95_ms=60000"),)))
        text = _result_text(result)
    found = result.sessions
    assert found is not None and len(server.posts) == 2 + 4 + 4
    assert (found.begun, found.completed, found.failed, found.unsent_requests) == (3, 2, 1, 3)
    assert found.kept == 2 and found.kept_share == pytest.approx(2 / 3)
    assert "1 failed, 3 requests after that were not sent" in text and "2 of 3 (67%) kept every limit" in text


def test_a_place_whose_server_asks_for_a_pause_takes_it():
    rows = chats(2, 2)

    def behave(line: Line, request: Request) -> None:
        if len(server.posts) == 1:
            line.document({"error": "busy"}, "429 Too Many Requests", Retry_After="0.3")
        else:
            tokens(2)(line, request)

    with Scripted(behave) as server:
        result = bench(plan(server, rows, 1))
        times = [r.arrived_s for r in server.posts]
    assert times[1] - times[0] >= 0.3 and len(times) == 3
    assert any("Retry-After" in note for note in result.notes)


def test_sessions_begin_at_their_recorded_times_and_later_turns_wait():
    rows = chats(4, 2, think_s=0.02, at_s=0.1)
    with Scripted(tokens(2, first_s=0.05)) as server:
        result = bench(plan(server, rows, None))
    begun = sorted(r.scheduled_s for r in result.records if not r.turn)
    assert begun == pytest.approx([0.0, 0.1, 0.2, 0.3], abs=1e-6)
    assert_turns_waited(result, rows, 0.02)
    assert result.sessions is not None and result.sessions.completed == 4


def test_sessions_that_begin_at_a_rate_wait_for_their_answers_too():
    with Scripted(tokens(2, first_s=0.02)) as server:
        given = plan(server, rows := chats(6, 3, think_s=0.03), 1)
        result = bench(replace(given, traffic=replace(given.traffic, pace=OpenLoop(20.0, 0.0))))
    assert sorted(r.scheduled_s for r in result.records if not r.turn) == pytest.approx([0.05 * k for k in range(6)])
    assert_turns_waited(result, rows, 0.03)
    assert result.flow is not None and result.flow.window_s == pytest.approx(0.3)
    assert result.as_json()["load"] == {"sessions_s": 20.0, "burstiness": 0.0}


@pytest.mark.parametrize("workers", [1, 2])
def test_until_the_time_is_over_sessions_begin_with_text_that_nobody_has_sent(workers: int):
    caching = Caching()
    with caching.server() as server:
        result = bench(plan(server, chats(3, 2, system_tokens=15), 2, duration_s=1.0, workers=workers))
    found = result.sessions
    assert found is not None and found.begun > 6 and found.failed == 0
    assert len({r.number for r in result.records}) == len(result.records)
    firsts = Counter(tuple(words) for words in caching.seen)
    assert max(firsts.values()) == 1, "no prompt twice"
    # each first turn finds the instructions and by chance the next words of another one, each later one the turn before
    off = [r for r in result.records if r.ok and not (r.cached_tokens >= 25 if r.turn else 15 <= r.cached_tokens < 20)]
    assert len(off) <= 2, "only the very first may miss the instructions"
    assert max(r.scheduled_s for r in result.records) < 1.0


def test_sessions_of_which_only_the_last_turn_was_left_to_warm_up_are_followed_by_others():
    with Scripted(tokens(2)) as server:
        given = plan(server, chats(1, 2), 1, duration_s=0.5, cache_warmup=True)
        sent = replace(given.traffic, rules=SessionRules(start_within=0.999))
        late = next(each for n in range(99) if len((each := replace(sent, seed=n)).arrivals()) == 1)
        result = bench(replace(given, traffic=late))
    assert result.sessions is not None and result.sessions.begun >= 1 and result.summary.ok


def test_what_the_run_cut_off_is_neither_completed_nor_failed():
    with Scripted(tokens(2, first_s=0.01)) as server:
        result = bench(plan(server, chats(2, 3, think_s=0.5), 2, duration_s=0.7))
    found = result.sessions
    assert found is not None and (found.begun, found.completed, found.failed, found.cut_off) == (2, 0, 0, 2)


def test_ctrl_c_keeps_what_has_ended_and_counts_the_rest():
    answered = itertools.count(1)

    def behave(line: Line, request: Request) -> None:
        tokens(2)(line, request)
        if next(answered) == 2:  # both first turns: their users think
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with Scripted(behave) as server:
        result = bench(plan(server, chats(2, 3, think_s=30.0), 2))
    assert result.interrupted and len(result.records) == 2
    assert result.sessions is not None and result.sessions.cut_off == 2


def test_hit_rates_name_their_source_and_are_never_guessed():
    with Caching().server() as server:
        result = bench(plan(server, chats(4, 5), 1))
    by_answers, by_counters = result.cache_hits
    assert by_answers.share == pytest.approx(by_counters.share)
    assert by_answers.source == "usage of 19 of 20 answers"
    assert by_counters.source == "vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total"
    # of 50 to 70 tokens all but the newest ten, and of a first turn the instructions
    assert by_counters.cached_tokens == 3 * 20 + 4 * (30 + 40 + 50 + 60) and by_counters.prompt_tokens == 4 * 250
    assert "98.0%" not in _result_text(result) and f"{by_counters.share:.1%}" in _result_text(result)
    document = result.as_json()
    assert [each["source"] for each in document["cache_hits"]] == [by_answers.source, by_counters.source]  # type: ignore[attr-defined]
    with Caching(in_answers=False, counters=False).server() as server:
        silent = bench(plan(server, chats(2, 2), 1))
    assert silent.cache_hits == () and "cache_hits" not in silent.as_json()
    assert "not reported" in _result_text(silent)


def test_counters_of_sglang_and_of_a_server_that_was_started_anew():
    hits, prompts = "sglang:cached_tokens_total", "sglang:prompt_tokens_total"
    found = hits_by_counters({hits: 10.0, prompts: 100.0}, {hits: 40.0, prompts: 200.0})
    assert found is not None and found.share == pytest.approx(0.3) and found.source == f"{hits} / {prompts}"
    assert hits_by_counters({hits: 10.0, prompts: 100.0}, {hits: 0.0, prompts: 20.0}) is None
    assert hits_by_counters({}, {hits: 40.0, prompts: 200.0}) is None


def test_the_first_request_of_a_session_begun_in_its_middle_is_sent_and_not_measured():
    rows = chats(4, 6, think_s=0.01)
    with Caching().server() as server:
        given = plan(server, rows, 4, rules=SessionRules(start_within=0.7), cache_warmup=True)
        result = bench(given)
        sent = len(server.posts)
    first, rest = parted_for_warmup(given.traffic.arrivals())
    assert first and all(a.turn and not a.after for a in first)
    assert len(result.records) == len(rest) == sent - len(first)
    assert f"cache warm-up: {len(first)} of {len(first)}" in " ".join(result.notes)
    by_answers, by_counters = result.cache_hits
    assert by_answers.cached_tokens == by_counters.cached_tokens, "what was not measured is in neither"


@given(st.data())
def test_every_request_is_given_out_once_after_what_it_waits_for(data: st.DataObject):
    rows: list[TraceRow] = []
    for session in range(data.draw(st.integers(1, 5))):
        first = len(rows)
        for k in range(data.draw(st.integers(1, 5))):
            after = data.draw(st.sets(st.integers(first, first + k - 1), max_size=3)) if k else set()
            rows.append(TraceRow(5, 1, session=session, after=tuple(sorted(after)), think_s=0.5))
    at_once = data.draw(st.integers(1, 3))
    arrivals = Traffic(Replay(tuple(rows), "rows"), len(rows), ClosedLoop(at_once)).arrivals()
    turns = WaitingTurns(arrivals, at_once)
    waiting, sent, failed = list(turns.first()), [], set()
    answered: dict[int, float] = {}
    while waiting:
        at_s, arrival = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        if not turns.wants(arrival):
            assert arrival.session in failed
            continue
        assert arrival.session not in failed and set(arrival.after) <= set(answered)
        if arrival.after:
            assert at_s == max(answered[number] for number in arrival.after) + arrival.think_s
        sent.append(arrival.number)
        fails = data.draw(st.integers(0, 9)) == 0
        failed |= {arrival.session} if fails else set()
        end_s = at_s + data.draw(st.sampled_from([0.5, 1.0, 2.0]))
        answered |= {} if fails else {arrival.number: end_s}
        waiting += turns.after(arrival, end_s, failed=fails)
        live = {a.session for _, a in waiting} - failed
        assert len(live) <= at_once
    assert len(sent) == len(set(sent))
    unsent = turns.cut_off()
    assert set(unsent) == failed
    assert len(answered) + sum(unsent.values()) == len(rows)


def test_places_that_are_taken_away_leave_the_oldest_sessions_alone():
    arrivals = Traffic(Replay(tuple(chats(9, 3, think_s=1.0)), "rows"), 27, ClosedLoop(4)).arrivals()
    turns = WaitingTurns(arrivals, 4)
    begun = [a for _, a in turns.first()]
    assert turns.resized(2, 1.0) == []
    assert [turns.after(a, 2.0) != [] for a in begun] == [True, True, False, False]
    more = turns.resized(5, 3.0)
    assert len(more) == 3 and {a.session for _, a in more}.isdisjoint(a.session for a in begun)
    assert all(at_s == 3.0 for at_s, _ in more)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_workers_get_whole_sessions_and_all_of_them(sessions: int, turns: int, workers: int, endless: bool):
    arrivals = tuple(Traffic(Replay(tuple(chats(sessions, turns)), "r"), sessions * turns, ClosedLoop(3)).arrivals())
    again = Again(arrivals, Passes.over([(a.session, a.text, a.input_tokens) for a in arrivals])) if endless else None
    whole = replace(
        Assignment(None, (2, ("h", 1)), arrivals),
        slots=3,
        turns=True,
        again=again,
        endless=endless,  # type: ignore[arg-type]
    )
    parts = split_over_workers(whole, workers)
    assert sorted(a.number for part in parts for a in part.arrivals) == list(range(len(arrivals)))
    homes: dict[int | None, set[int]] = {}
    for part in parts:
        for arrival in part.arrivals:
            homes.setdefault(arrival.session, set()).add(part.worker)
        assert endless == (part.again is not None) and (part.again is None or part.again.arrivals == part.arrivals)
    assert all(len(home) == 1 for home in homes.values())
    assert sum(part.slots for part in parts) == 3


def test_what_became_of_sessions():
    def record(session: int, turn: int, ttft_s: float, status: str = "ok") -> RequestRecord:
        at_s = 10.0 * turn
        return RequestRecord(
            turn, at_s, at_s, at_s + ttft_s, at_s + 1.0, 10, 2, status=status, session=session, turn=turn
        )

    rows = [record(0, turn, 0.1) for turn in range(25)] + [record(1, 0, 0.9), record(2, 0, 0.1, "timeout")]
    found = summarise_sessions([*rows, record(3, 0, 0.1)], {2: 5, 3: 2}, [Slo.parse("ttft_p95_ms=500")], 100.0)
    assert (found.begun, found.completed, found.failed, found.cut_off, found.unsent_requests) == (4, 2, 1, 1, 5)
    assert found.kept == 1 and found.kept_share == pytest.approx(1 / 3) and found.completed_s == 0.02
    assert found.session_p50_s == pytest.approx((241 + 1) / 2)
    assert [(each.turns, each.requests) for each in found.ttft_by_turn] == [
        ("1", 3),
        ("2 to 5", 4),
        ("6 to 20", 15),
        ("21 and later", 5),
    ]
    assert summarise_sessions(rows, {}, [], 1.0).as_json()["kept"] is None


def test_the_search_walks_sessions_and_says_so(monkeypatch: pytest.MonkeyPatch):
    # a busy machine that runs the tests would make runs void
    monkeypatch.setattr("ridgeline.serving.load.stream.judge", lambda *asked: SimpleNamespace(why=""))

    def search(server: Scripted, limit: str) -> Edge:
        given = plan(server, chats(20, 4, think_s=0.05), 2, slos=(Slo.parse(limit),))
        return find_goodput(given, lambda: LiveStream(given), terms=GoodputTerms(0.5, 6.0))

    with Scripted(tokens(2, first_s=0.02)) as server:
        edge = search(server, "ttft_p95_ms=60000")
        assert edge.unit == "sessions at once" and edge.holds >= 1
        with pytest.raises(NothingFound, match=r"even (one session|\d sessions at once) does not hold"):
            search(server, "ttft_p95_ms=1")


@pytest.mark.parametrize("workers", [1, 2])
def test_sessions_go_on_while_their_number_is_changed(workers: int):
    with Scripted(tokens(2, first_s=0.01)) as server:
        given = plan(server, chats(3, 50, think_s=0.05), 2, workers=workers)
        stream = LiveStream(given)
        stream.begin(ClosedLoop(2))
        before = {r.session for r in stream.advance(0.4).rows}
        stream.begin(ClosedLoop(4))
        view = stream.advance(0.6)
        stream.begin(ClosedLoop(1))
        stream.advance(0.3)
        last = stream.advance(0.4)
        stream.close()
    by_session = Counter(r.session for r in view.rows)
    assert len(by_session) == 4, "two went on, and one of the two new ones is of a second pass"
    assert before < set(by_session) and len(before) == 2
    assert all(r.turn for r in view.rows if r.session in before), "a session that goes on does not begin again"
    assert len({r.session for r in last.rows if r.scheduled_s > last.since_s + 0.3}) == 1


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which sessions.jsonl, timed.jsonl and single.jsonl are recordings."""
    kinds = {
        "sessions.jsonl": chats(3, 4),
        "timed.jsonl": chats(3, 4, at_s=1.0),
        "single.jsonl": [TraceRow(10, 2, at_s=float(k)) for k in range(5)],
    }
    for name in kinds:
        (tmp_path / name).write_text("{}\n")
    usual = traffic_module.parse_lengths
    monkeypatch.setattr(
        traffic_module,
        "parse_lengths",
        lambda text: Replay(tuple(kinds[Path(text).name]), text) if Path(text).name in kinds else usual(text),
    )
    return tmp_path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sessions": 4}, "--sessions needs sessions.*--traffic with a recording of sessions, or sessions:agent"),
        ({"sessions": 4, "traffic": "single.jsonl"}, "single.jsonl has none"),
        ({"closed": True, "traffic": "single.jsonl"}, "--closed needs sessions"),
        ({"idle_cap_s": 60.0, "concurrency": 2}, "--idle-cap needs sessions"),
        ({"closed": True, "traffic": "sessions.jsonl"}, "recorded times.*has none; use --sessions N"),
        ({"sessions": 4, "rate_s": 2.0, "traffic": "sessions.jsonl"}, "--sessions and --rate do not go together"),
        ({"sessions": 4, "closed": True, "traffic": "timed.jsonl"}, "--sessions and --closed do not go together"),
        ({"sessions": 4, "concurrency": 4, "traffic": "sessions.jsonl"}, "do not go together"),
        ({"rate_s": 2.0, "concurrency": 4, "traffic": "sessions.jsonl"}, "leave out --concurrency"),
        ({"sessions": 0, "traffic": "sessions.jsonl"}, "use 1 or more"),
        ({"sessions": 1, "requests": 1, "traffic": "sessions.jsonl"}, "first 1 requests of .* wait for no answer"),
        ({"start_within": 0.5, "traffic": "timed.jsonl", "closed": True}, "--start-within is for --sessions"),
        ({"sessions": 2, "cache_warmup": True, "traffic": "sessions.jsonl"}, "add --start-within"),
        ({"sessions": 2, "start_within": 1.5, "traffic": "sessions.jsonl"}, "use 0 to below 1"),
        ({"sessions": 2, "idle_cap_s": -1.0, "traffic": "sessions.jsonl"}, "use 0 or more"),
        ({"find_goodput": True, "rate_s": 1.0, "traffic": "sessions.jsonl"}, "say --sessions N"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(files: Path, options: dict[str, object], said: str):
    if "traffic" in options:
        options["traffic"] = str(files / str(options["traffic"]))
    with pytest.raises(InputError, match=said):
        plan_from(BenchOptions("http://h", **options))  # type: ignore[arg-type]


def test_options_make_sessions_of_a_recording(files: Path):
    some = plan_from(BenchOptions("http://h", sessions=2, idle_cap_s=1.5, traffic=str(files / "sessions.jsonl")))
    assert (
        some.traffic.pace == ClosedLoop(2) and some.traffic.rules == SessionRules(1.5) and some.traffic.requests == 12
    )
    closed = plan_from(BenchOptions("http://h", closed=True, traffic=str(files / "timed.jsonl")))
    assert closed.traffic.pace == AsRecorded(closed=True)
    many = plan_from(BenchOptions("http://h", sessions=10, traffic=str(files / "sessions.jsonl")))
    assert len(sessions_of(many.traffic.arrivals())) >= 10, "a short recording is gone through again"
    few = plan_from(BenchOptions("http://h", sessions=10, requests=8, traffic=str(files / "sessions.jsonl")))
    assert few.traffic.requests == 8
    as_recorded = plan_from(BenchOptions("http://h", traffic=str(files / "timed.jsonl")))
    assert not any(a.after for a in as_recorded.traffic.arrivals()), "as ever, its own times alone"


def test_a_thousand_turns_a_second_do_not_wait_for_the_books():
    """What is late is the client's own doing, and is told: no turn's time is moved to when it was sent."""
    with Scripted(tokens(2)) as server:
        result = bench(plan(server, chats(10, 10), 10))
    lag = result.fidelity.lag_ms
    assert lag is not None and lag.p99 > 0
    late = [r.sent_s - r.scheduled_s for r in result.records]
    assert min(late) >= 0 and max(late) < 1.0


def test_a_run_says_what_of_its_recording_was_not_sent(tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"input_length": 100, "output_length": 2}\n{"input_length": 100}\n')
    with Scripted(tokens(2)) as server:
        result = bench(plan_from(BenchOptions(server.url, traffic=str(trace))))
    assert "1 request without whole numbers input_length and output_length, left out" in result.notes


def test_the_python_api_takes_the_same(files: Path):
    from ridgeline.serving import api

    assert load_session.BenchOptions.__dataclass_fields__.keys() >= {"sessions", "closed", "idle_cap_s", "cache_warmup"}
    with Scripted(tokens(2)) as server:
        result = api.bench(server.url, sessions=2, traffic=str(files / "sessions.jsonl"), max_tokens=2)
    assert result.sessions is not None and result.sessions.completed == 3
    assert result.as_json()["load"] == {"sessions": 2}


@pytest.mark.parametrize(
    "options",
    [
        {"sessions": 2, "idle_cap_s": 0.01, "start_within": 0.7, "duration_s": 0.5},
        {"closed": True, "idle_cap_s": 0.0, "traffic": "timed.jsonl"},
        {"rate_s": 50.0, "idle_cap_s": 0.01, "traffic": "sessions:chat", "requests": 12},
    ],
)
def test_the_twin_is_calibrated_on_sessions_as_bench_drove_them(
    files: Path, tmp_path: Path, options: dict[str, object]
):
    named = str(options.pop("traffic", "sessions.jsonl"))
    options = {"max_tokens": 2, "traffic": named if ":" in named else str(files / named), **options}
    with Scripted(tokens(2)) as server:
        asked = plan_from(BenchOptions(url=server.url, **options))  # type: ignore[arg-type]
        found = bench(asked).as_json()
    told = found | {
        "void": False,
        "server": {"engine": "sglang", "version": "0.5.23", "model_path": "llama-8b", "tp": 1},
    }
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(told))
    (row,) = read_served_runs(path, StatedServer(gpu="h200"))
    sent, again = ([replace(a, text=None) for a in each.arrivals()] for each in (asked.traffic, row.traffic))
    assert again == sent
    assert row.traffic.duration_s == options.get("duration_s")
    path.write_text(json.dumps(told | {"load": {"sessions": 2, "cache_warmup": True}}))
    with pytest.raises(InputError, match="--cache-warmup filled the cache before the run"):
        read_served_runs(path, StatedServer(gpu="h200"))


def test_so_many_sessions_are_drawn_once_before_the_first_is_sent(monkeypatch: pytest.MonkeyPatch):
    """A hundred thousand of them took a minute when each question about them drew them again."""
    drawn: list[int] = []
    draw = SessionMix.draw
    monkeypatch.setattr(SessionMix, "draw", lambda self, count, rng: drawn.append(count) or draw(self, count, rng))
    with Scripted(tokens(1)) as server:
        bench(
            plan_from(BenchOptions(url=server.url, sessions=400, traffic="sessions:chat", idle_cap_s=0, duration_s=0.1))
        )
    assert sum(drawn) == drawn[0] >= 400


@pytest.mark.parametrize("words", ["sessions:chat", "sessions:agent"])
@pytest.mark.parametrize("seed", range(4))
def test_fifty_sessions_take_as_many_requests_as_give_each_its_own(words: str, seed: int):
    mix = parse_sessions(words)
    least = mix.requests_of(50, random.Random(seed))
    begun = [len({row.session for row in mix.draw(count, random.Random(seed))}) for count in (least - 1, least)]
    assert begun == [49, 50]
    assert mix.waits(2, random.Random(seed)) == any(row.after for row in mix.draw(2, random.Random(seed)))
