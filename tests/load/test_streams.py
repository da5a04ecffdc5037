"""Every way in which servers are known to frame a stream must give the same tokens."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.serving.load.bench import BenchResult, bench
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.connection import Connection
from ridgeline.serving.load.wire.exchange import Exchange
from ridgeline.serving.load.wire.loop import Loop
from ridgeline.serving.load.wire.reply import Reply
from ridgeline.serving.traffic.traffic import Arrival
from tests.load.scripted import Behaviour, Line, Request, Scripted, delta, event, tokens, usage


def run(behaviour: Behaviour, requests: int = 2, path: str = "", **wishes: object) -> BenchResult:
    with Scripted(behaviour) as server:
        wish = {"concurrency": 1, "requests": requests, "max_tokens": 4, "timeout_s": 5, **wishes}
        return bench(plan_from(BenchOptions(url=server.url + path, **wish)))


def whole(line: Line, body: bytes) -> None:
    line.stream_head()
    line.chunk(body)
    line.end()


WORDS = [event(delta(w)) for w in (" one", " two", " three")] + [event(delta(" four", "stop"))]


def several_events_in_a_chunk(line: Line, request: Request) -> None:
    whole(line, b"".join(WORDS) + event(usage(7, 4)) + event(b"[DONE]"))


def events_split_across_reads(line: Line, request: Request) -> None:
    line.stream_head()
    text = b"".join(WORDS) + event(b"[DONE]")
    for k in range(0, len(text), 11):
        line.chunk(text[k : k + 11])
        time.sleep(0.0005)
    line.end()


def chunk_header_split_across_reads(line: Line, request: Request) -> None:
    body = b"".join(WORDS) + event(b"[DONE]")
    wire = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire += b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    for k in range(0, len(wire), 13):
        line.write(wire[k : k + 13])
        time.sleep(0.0005)


def carriage_returns(line: Line, request: Request) -> None:
    line.stream_head()
    for k in range(4):
        line.chunk(event(delta(f" {k}"), newline=b"\r\n"))
    line.chunk(event(b"[DONE]", newline=b"\r\n"))
    line.end()


def no_space_after_data(line: Line, request: Request) -> None:
    whole(line, b"".join(event(delta(f" {k}"), prefix=b"data:") for k in range(4)) + b"data:[DONE]\n\n")


def comments_and_named_events(line: Line, request: Request) -> None:
    line.stream_head()
    line.chunk(b": keep-alive\n\n")
    for k in range(4):
        line.chunk(b"event: message\nid: 1\n" + event(delta(f" {k}")))
        line.chunk(b":\n\n")
    line.chunk(event(b"[DONE]"))
    line.end()


def role_and_empty_deltas(line: Line, request: Request) -> None:
    line.stream_head()
    line.chunk(event(delta("", role="assistant")))
    for k in range(4):
        line.chunk(event(delta("")))
        line.chunk(event(delta(f" {k}")))
    line.chunk(event(delta(None, "stop")))
    line.chunk(event(b"[DONE]"))
    line.end()


def json_with_spaces(line: Line, request: Request) -> None:
    line.stream_head()
    for k in range(4):
        line.chunk(b"data: " + json.dumps(delta(f" {k}")).encode() + b"\n\n")
    line.chunk(event(b"[DONE]"))
    line.end()


def text_that_looks_like_a_key(line: Line, request: Request) -> None:
    line.stream_head()
    line.chunk(event(delta(None, role='"content":"not a token"')))
    for k in range(4):
        line.chunk(event(delta(f'"content":"" {k} \n\n data: [DONE]')))
    line.chunk(event(b"[DONE]"))
    line.end()


def no_done(line: Line, request: Request) -> None:
    whole(line, b"".join(WORDS))


def no_blank_line_at_the_end(line: Line, request: Request) -> None:
    whole(line, b"".join(WORDS).rstrip(b"\n"))


def closed_at_the_end(line: Line, request: Request) -> str:
    line.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    line.write(*WORDS, event(b"[DONE]"), pause_s=0.001)
    return "close"


def closed_at_the_end_without_done(line: Line, request: Request) -> str:
    line.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n")
    line.write(*WORDS, pause_s=0.001)
    return "close"


def content_length(line: Line, request: Request) -> None:
    body = b"".join(WORDS) + event(b"[DONE]")
    line.head(Content_Type="text/event-stream", Content_Length=str(len(body)))
    line.write(body[:40], body[40:], pause_s=0.002)


def wrong_content_type(line: Line, request: Request) -> None:
    line.head(Content_Type="application/json", Transfer_Encoding="chunked")
    line.chunk(b"".join(WORDS))
    line.end()


def informational_answer_first(line: Line, request: Request) -> None:
    line.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    whole(line, b"".join(WORDS))


@pytest.mark.parametrize(
    "behaviour",
    [
        tokens(4), several_events_in_a_chunk, events_split_across_reads, chunk_header_split_across_reads,
        carriage_returns, no_space_after_data, comments_and_named_events, role_and_empty_deltas, json_with_spaces,
        text_that_looks_like_a_key, no_done, no_blank_line_at_the_end, closed_at_the_end,
        closed_at_the_end_without_done, content_length, wrong_content_type, informational_answer_first,
    ],
    ids=lambda b: b.__name__,
)  # fmt: skip
def test_four_tokens_however_they_are_framed(behaviour: Behaviour):
    result = run(behaviour)
    assert [r.status for r in result.records] == ["ok", "ok"], result.notes
    assert all(r.counted_tokens == 4 and r.output_tokens == 4 for r in result.records)
    assert all(len(r.gaps_s) == 3 and r.first_token_s is not None for r in result.records)


def test_usage_wins_over_the_count_and_both_are_kept():
    def two_tokens_an_event(line: Line, request: Request) -> None:
        line.stream_head()
        for k in range(3):
            line.chunk(event(delta(f" a{k} b{k}")))
        line.chunk(event(usage(111, 6, prompt_tokens_details={"cached_tokens": 5})))
        line.chunk(event(b"[DONE]"))
        line.end()

    result = run(two_tokens_an_event, 1, max_tokens=6)
    record = result.records[0]
    assert (record.input_tokens, record.output_tokens, record.counted_tokens, record.cached_tokens) == (111, 6, 3, 5)
    assert any("tokens came per event" in note for note in result.notes)


def test_usage_in_every_chunk_and_in_the_last_token():
    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        for k in range(4):
            line.chunk(event({**delta(f" {k}", "stop" if k == 3 else None), "usage": {"completion_tokens": k + 1}}))
        line.chunk(event(b"[DONE]"))
        line.end()

    assert run(behave, 1).records[0].output_tokens == 4


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_counted_apart_and_starts_the_answer(name: str):
    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        line.chunk(event(delta("", role="assistant")))
        for k in range(3):
            line.chunk(event(delta(None, **{name: f" thought {k}"}, content=None)))
        line.chunk(event(delta(" answer", "stop")))
        line.chunk(event(b"[DONE]"))
        line.end()

    record = run(behave, 1).records[0]
    assert (record.output_tokens, record.reasoning_tokens) == (4, 3)


def test_sglang_generate_repeats_the_text_so_far():
    def behave(line: Line, request: Request) -> None:
        assert request.path == "/generate" and request.json["sampling_params"]["max_new_tokens"] == 4
        line.stream_head()
        for k in (1, 2, 4):
            meta = {"prompt_tokens": 109, "completion_tokens": k, "cached_tokens": 2, "finish_reason": None}
            tiers = {"device": 5, "host": 27} if k == 4 else None  # as SGLang has it with HiCache, and without a hit
            meta |= {"cached_tokens": 32, "cached_tokens_details": tiers}
            line.chunk(event({"text": " t" * k, "meta_info": meta}))
        line.chunk(event(b"[DONE]"))
        line.end()

    record = run(behave, 1, path="/generate").records[0]
    assert (record.output_tokens, record.counted_tokens, record.input_tokens) == (4, 3, 109)
    assert (record.cached_tokens, record.host_tokens) == (32, 27)


def test_completions_stream():
    def behave(line: Line, request: Request) -> None:
        assert request.path == "/v1/completions" and request.json["prompt"]
        line.stream_head()
        for k in range(4):
            line.chunk(event({"choices": [{"text": f" {k}", "finish_reason": None}]}))
        line.chunk(event(b"[DONE]"))
        line.end()

    assert run(behave, 1, api="completions").records[0].output_tokens == 4


def test_an_answer_in_one_piece_has_no_ttft():
    def behave(line: Line, request: Request) -> None:
        assert request.json["stream"] is False
        line.document(
            {"choices": [{"message": {"content": "a b"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        )

    result = run(behave, 2, stream=False)
    assert result.summary.ok == 2 and result.summary.ttft_ms is None and result.summary.e2e_ms is not None
    assert result.records[0].output_tokens == 2


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 9), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_cutting_of_the_bytes_gives_the_same_tokens(cuts: list[int], count: int, crlf: bool):
    newline = b"\r\n" if crlf else b"\n"
    text = b"".join(event(delta(f" w{k}"), newline) for k in range(count)) + event(usage(5, count), newline)
    text += event(b"[DONE]", newline)
    reply, at, k = Reply("chat"), 0, 0
    while at < len(text):
        size = cuts[k % len(cuts)]
        reply.times_s.append(float(k))
        reply.bodies.append(text[at : at + size])
        at, k = at + size, k + 1
        if k % 7 == 0:
            reply.shorten()
    reply.close()
    assert len(reply.token_times_s) == count and reply.output_tokens == count and reply.done
    assert not reply.malformed and not reply.partial
    assert reply.token_times_s == sorted(reply.token_times_s)


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@given(
    st.lists(st.sampled_from(["token", "long", "empty", "comment", "role", "two", "split"]), min_size=1, max_size=30)
)
@settings(max_examples=150, deadline=None)
def test_the_short_road_and_the_careful_road_agree(kinds: list[str]):
    made = {
        "token": [chunk(event(delta(" x")))],
        "long": [chunk(event(delta(" x" * 200)))],
        "empty": [chunk(event(delta("")))],
        "comment": [chunk(b": ping\n\n")],
        "role": [chunk(event(delta(None, role="assistant")))],
        "two": [chunk(event(delta(" x")) + event(delta(" y")))],
        "split": [(whole := chunk(event(delta(" x"))))[:30], whole[30:]],
    }
    pieces = [piece for kind in kinds for piece in made[kind]]
    count = {"token": 1, "long": 1, "two": 2, "split": 1}
    expected = [float(k) for k, kind in enumerate(kinds) for _ in range(count.get(kind, 0))]
    times = [float(k) for k, kind in enumerate(kinds) for _ in made[kind]]
    ends = [b"0\r\n\r\n"]
    short, careful = answered([*pieces, *ends], [*times, 99.0]), Reply("chat")
    # the careful reply sees bodies without their chunk framing, cut every five bytes
    for k, kind in enumerate(kinds):
        body = b"".join(made[kind])
        body = body[body.index(b"\r\n") + 2 : -2]
        for start in range(0, len(body), 5):
            careful.times_s.append(float(k))
            careful.bodies.append(body[start : start + 5])
    careful.close()
    assert short.token_times_s == careful.token_times_s == expected


def answered(pieces: list[bytes], times_s: list[float]) -> Reply:
    """What a connection makes of an answer that arrives in these pieces, each at its time."""
    ended: list[Exchange] = []
    connection = Connection(Loop(), (2, ("127.0.0.1", 1)), ClientStats(), lambda _, exchange: ended.append(exchange))
    connection._ready()
    exchange = Exchange(Arrival(0, 0.0, 1, 1), b"", 0.0, Reply("chat"))
    connection.exchange = exchange
    connection._body_times_s, connection._bodies = exchange.reply.times_s, exchange.reply.bodies
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    for at_s, piece in zip([0.0, *times_s], [head, *pieces], strict=True):
        connection.at_s = at_s
        connection._take_in(piece)
    assert ended == [exchange]
    exchange.reply.close()
    return exchange.reply
