"""Recorded sessions: what each format says of who waits for whom and what prompts share, and what is refused."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.traffic.replay import Replay, TraceRow, in_order, repeated
from ridgeline.serving.traffic.traces import read_trace
from ridgeline.serving.traffic.turn_statistics import shared_tokens


def _read(folder: Path, *lines: Any) -> Replay:
    trace = folder / "trace.jsonl"
    trace.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return read_trace(trace)


def _agent(session: str, t: float | None, inputs: int | None, shared: int = 0, **more: Any) -> dict[str, Any]:
    blocks = None if inputs is None else inputs // 64
    return {
        "session": session, "parent": None, "t": t, "input_length": inputs, "output_length": 10, "blocks": blocks,
        "shared_with_previous": shared, "block_tokens": 64, "api_time": 2.0, "think_time": None, **more,
    }  # fmt: skip


def _weka(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}


def _ask(t: float, blocks: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": 64 * len(blocks), "out": 5, "hash_ids": list(blocks), "api_time": 1.0, **more}


def _span(span: str, start_s: float, end_s: float, inputs: int, cached: int = 0, **more: Any) -> dict[str, Any]:
    usage = {"gen_ai.usage.input_tokens": inputs, "gen_ai.usage.output_tokens": 10, "gen_ai.conversation.id": "c"}
    usage |= {"gen_ai.usage.cache_read.input_tokens": cached} if cached else {}
    nanoseconds = {"startTimeUnixNano": str(int(start_s * 1e9)), "endTimeUnixNano": str(int(end_s * 1e9))}
    return {"traceId": "t", "spanId": span, "attributes": usage, **nanoseconds, **more}


def _share(rows: Sequence[TraceRow], first: int, second: int) -> int:
    return shared_tokens(rows[first], rows[second])


def test_an_agent_goes_on_in_its_text_until_it_is_compacted(tmp_path: Path) -> None:
    read = _read(
        tmp_path,
        _agent("a", 0.0, 1000),
        _agent("a", 5.0, 2000, shared=15),
        _agent("a", 60.0, 1500, shared=8, think_time=50.0),
        _agent("a", 70.0, 700),
    )
    first, grown, compacted, fresh = read.rows
    assert grown.text is first.text
    assert _share(read.rows, 1, 2) == 512
    assert _share(read.rows, 2, 3) == 0
    assert [row.after for row in read.rows] == [(), (0,), (1,), (2,)]
    assert [row.think_s for row in read.rows] == [0.0, 3.0, 50.0, 8.0], "as recorded, else until the next is sent"
    assert fresh.text is not compacted.text
    assert not read.notes


def test_sub_agents_run_beside_their_parent_which_waits_for_them(tmp_path: Path) -> None:
    read = _read(
        tmp_path,
        _agent("a", 0.0, 640),
        _agent("a", 20.0, 1280, shared=10),
        *(_agent(name, t, 640, parent="a") for name in ("a/1", "a/2") for t in (4.0, 9.0)),
        _agent("b/1", 0.0, 640, parent="b"),
    )
    parent, last = (next(n for n, row in enumerate(read.rows) if row.at_s == t) for t in (0.0, 20.0))
    assert sum(row.after == (parent,) for row in read.rows) == 2, "both begin when the parent was answered"
    assert len(read.rows[last].after) == 3
    assert read.rows[last].think_s == 9.0
    assert read.notes == ("1 sub-agent of a parent that is not in the file: each a session of its own",)
    assert len({row.session for row in read.rows}) == 2


def test_weka_hashes_tell_what_prompts_share(tmp_path: Path) -> None:
    helper = {"t": 2.0, "type": "subagent", "agent_id": "x", "requests": [_ask(0.0, [8, 9]), _ask(3.0, [8, 9, 10])]}
    trace = _weka(_ask(0.0, [1, 2]), helper, _ask(9.0, [1, 2, 3, 4]), _ask(12.0, [1, 2, 3, 7]))
    read = _read(tmp_path, trace, trace)
    one = [row for row in read.rows if row.session == 0]
    assert [row.at_s for row in one] == [0.0, 2.0, 5.0, 9.0, 12.0], "a sub-agent's times count from its start"
    assert (shared_tokens(one[0], one[3]), shared_tokens(one[3], one[4]), shared_tokens(one[1], one[2])) == (
        128,
        192,
        128,
    )
    assert shared_tokens(one[0], one[1]) == 0
    assert len(one[3].after) == 2
    assert one[3].think_s == 3.0
    other = next(row for row in read.rows if row.session == 1)
    assert shared_tokens(one[0], other) == 0, "hashes of scope local mean nothing in another trace"
    everywhere = _read(tmp_path, *(trace | {"hash_id_scope": "global"} for _ in range(2)))
    assert shared_tokens(everywhere.rows[0], next(row for row in everywhere.rows if row.session == 1)) == 128


def test_a_trace_in_one_object_over_many_lines_is_read(tmp_path: Path) -> None:
    assert len(_read(tmp_path, json.dumps(_weka(_ask(0.0, [1]), _ask(4.0, [1, 2])), indent=1)).rows) == 2


def test_a_chat_grows_by_what_was_said(tmp_path: Path) -> None:
    def said(*lengths: int) -> list[dict[str, str]]:
        return [{"from": ("human", "gpt")[n % 2], "value": "x" * length} for n, length in enumerate(lengths)]

    chats = [{"conversations": said(40, 80, 20, 8, 4)}, {"conversations": said(40, 80)}, {"conversations": said(4)}]
    read = _read(tmp_path, json.dumps([*chats, {"conversations": said(4, 4)[::-1]}]))
    assert [(row.input_tokens, row.output_tokens) for row in read.rows] == [(10, 20), (35, 2), (10, 20)]
    assert [row.after for row in read.rows] == [(), (0,), ()]
    assert read.answers_stay
    assert read.rows[2].session is None
    assert read.notes == ("2 conversations without a prompt and its answer, left out",)


def test_azures_csv_is_read(tmp_path: Path) -> None:
    head, day = "TIMESTAMP,ContextTokens,GeneratedTokens\n", "2023-11-16 18:15:"
    read = _read(tmp_path, head, f"{day}50.5000000,396,109\n", f"{day}46.5000000,374,44\n", f"{day}51.0,,4\n")
    assert [(row.at_s, row.input_tokens, row.output_tokens) for row in read.rows] == [(0.0, 374, 44), (4.0, 396, 109)]
    assert read.notes == ("1 request without a length or a time, left out",)


def test_spans_of_a_conversation_wait_for_the_answers_before_them(tmp_path: Path) -> None:
    outer = _span("outer", 99.0, 130.0, 5000)
    spans = [
        outer, _span("a", 100.0, 103.0, 1000, parentSpanId="outer"), _span("b", 105.0, 106.0, 1500),
        _span("c", 105.5, 109.0, 1600), _span("d", 110.0, 111.0, 2000),
        _span("e", 112.0, 113.0, 600, cached=500),
        {"traceId": "t", "spanId": "tool", "startTimeUnixNano": 1, "endTimeUnixNano": 2, "attributes": {}},
    ]  # fmt: skip
    kinds = {int: "intValue", str: "stringValue"}
    listed = [{"key": k, "value": {kinds[type(v)]: str(v)}} for k, v in outer["attributes"].items()]
    spans[0] = outer | {"attributes": listed}
    for document in (spans, [{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}]):
        read = _read(tmp_path, *document)
        assert [row.after for row in read.rows] == [(), (0,), (0,), (1, 2), (3,)]
        assert [row.think_s for row in read.rows] == pytest.approx([0.0, 2.0, 2.5, 1.0, 1.0])
        assert [_share(read.rows, n, n + 1) for n in range(4)] == [1000, 1010, 1600, 500]
        assert read.notes == ("1 span around the requests that it sums up, left out",)
    again = _read(tmp_path, _span("a", 1.0, 2.0, 10), _span("a", 1.0, 2.0, 10))
    assert (len(again.rows), again.notes) == (1, ("1 span recorded twice, left out once",))


def test_our_own_records_keep_their_sessions(tmp_path: Path) -> None:
    def record(number: int, sent_s: float, session: int | None, inputs: int, status: str = "ok") -> dict[str, Any]:
        times = {"scheduled_s": sent_s, "sent_s": sent_s, "end_s": sent_s + 2}
        return {
            "number": number,
            "input_tokens": inputs,
            "output_tokens": 9,
            "session": session,
            "status": status,
            **times,
        }

    read = _read(
        tmp_path, record(0, 1.0, 0, 100), record(1, 2.0, 1, 50), record(2, 7.0, 0, 150), record(3, 9.0, 0, 9, "hung")
    )
    assert [(row.session, row.after, row.think_s) for row in read.rows] == [(0, (), 0.0), (1, (), 0.0), (0, (0,), 4.0)]
    assert _share(read.rows, 0, 2) == 100
    assert read.notes == ("1 request that failed, left out",)
    assert [row.at_s for row in _read(tmp_path, record(0, 1.5, None, 100)).rows] == [1.5]


def test_sglangs_request_log_is_read_as_text_and_as_json(tmp_path: Path) -> None:
    meta = {"id": "x", "prompt_tokens": 41, "completion_tokens": 8, "cached_tokens": 40, "e2e_latency": 0.5}
    out = {"text": "'meta_info': {'prompt_tokens': 7", "meta_info": meta}
    lines = [
        f"[2026-05-20 08:02:{second} TP0] Finish: obj=GenerateReqInput(rid='a'), out={out}\n" for second in (44, 47)
    ]
    text = _read(tmp_path, "[2026-05-20 08:02:44 TP0] Decode batch, #running-req: 4\n", *lines)
    events = [
        {"timestamp": f"2026-05-20T08:02:{second}.000000", "event": event, "rid": "a", "obj": {}, "out": out}
        for second in (44, 47)
        for event in ("request.received", "request.finished")
    ]
    for read in (text, _read(tmp_path, *events)):
        assert [(row.at_s, row.input_tokens, row.output_tokens) for row in read.rows] == [(0.0, 41, 8), (3.0, 41, 8)]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([_agent("a", 0.0, 640, parent="b"), _agent("b", 0.0, 640, parent="a")], ":1: session a is its own ancestor"),
        ([_agent("a", 0.0, 640), _agent("a", 9.0, 700, parent="b")], ":2: session a has parent b here"),
        ([_agent("a", -1.0, 640)], ":1: t is -1.0, which is not a time"),
        ([_agent("a", 0.0, 640, think_time=-3)], ":1: think_time is -3"),
        ([_agent("a", 0.0, 640, block_tokens=0)], ":1: a block of 0 tokens"),
        ([_agent("a", 0.0, 640) | {"session": None}], ":1: names no session"),
        ([_weka(_ask(0.0, [1], hash_ids=[[1]]))], "request 0: hash_ids must be a list of whole numbers"),
        ([_weka() | {"requests": 5}], "requests must be a list"),
        ([_weka(_ask(0.0, [1])), _weka(_ask(0.0, [1]), block_size=16)], ":2: blocks of 16 tokens, 64 above"),
        ([_span("a", 9.0, 3.0, 10)], ":1: span a ends before it begins"),
        ([_span("a", 1.0, 3.0, 10, parentSpanId="b"), _span("b", 1.0, 3.0, 10, parentSpanId="a")], "is its own parent"),
        ([{"resourceSpans": [5]}], "resourceSpans must hold lists"),
        ([_agent("a", 0.0, None)], ":1: a request without a length, and no other was left"),
        (["nothing\n", "else\n"], ":1: not JSON"),
        (["[1]\n", "[2]\n"], "not JSON"),
        (['{"a": ' * 100_000], ":1: not JSON .nested too deeply"),
        ([_agent("a", 0.0, 640) | {"session": True}], ":1: session is True"),
        ([_weka(_ask(0.0, [1], hash_ids=[True]))], "request 0: hash_ids must be a list of whole numbers"),
        ([{"timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": [True]}], ":1: hash_ids must be whole"),
        ([{"timestamp": True, "input_length": 5, "output_length": 5}], ":1: timestamp, in milliseconds, is True"),
        ([{"timestamp": 10**400, "input_length": 5, "output_length": 5}], ":1: timestamp, in milliseconds, is 1000"),
        ([_span("a", 1.0, 2.0, 100) | {"startTimeUnixNano": 10**400}], ":1: startTimeUnixNano is 1000"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens\n", f"2024-05-12,{'9' * 200_000},5\n"], ":2: not CSV"),
    ],
)  # fmt: skip
def test_a_damaged_trace_is_refused_with_its_line(tmp_path: Path, lines: list[Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        _read(tmp_path, *lines)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (_agent("a", 5.0, 1280, shared=10, output_length=None), "without an answer"),
        (_agent("a", 5.0, None, shared=10), "without a length"),
        (_agent("a", 5.0, 10**20, shared=10), "without a length"),
        (_agent("a", 5.0, None, shared=10, input_length="9" * 5000), "without a length"),
        (_agent("a", 5.0, 1280, shared=10, blocks=7), "disagree with its length"),
        (_agent("a", 0.5, 1280, shared=10), "begun before the answer"),
        ('{"session": "a", "input_le', "half line at the end"),
    ],
)
def test_a_bad_row_is_left_out_and_counted(tmp_path: Path, bad: Any, says: str) -> None:
    tail = [] if isinstance(bad, str) else [_agent("a", 20.0, 1500, shared=20)]
    read = _read(tmp_path, _agent("a", 0.0, 640), _agent("b", 0.0, 640), bad, *tail)
    assert len(read.rows) == 2 + len(tail)
    assert len(read.notes) == 1
    assert says in read.notes[0]
    if tail:
        assert read.rows[-1].after == (0,)
        assert shared_tokens(read.rows[0], read.rows[-1]) <= 640


_FINISHED = "[2026-05-20 08:02:4{}] Finish: obj=GenerateReqInput(), out={{'meta_info': {{'prompt_tokens': {}, {}}}}}\n"
_SAID = "'completion_tokens': 8, 'e2e_latency': 0.5"
_OWN = {"number": 0, "scheduled_s": 1.0, "sent_s": 1.0, "end_s": 2.0, "input_tokens": 50, "output_tokens": 3}


@pytest.mark.parametrize(
    ("lines", "rows", "says"),
    [
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens\n", "2024-05-10 00:00:00,40,30\n", "2024-05-10 00:00:01,37,1"],
            1,
            "1 half line at the end left out, as a killed writer leaves it",
        ),
        (
            [_FINISHED.format(1, 41, _SAID), _FINISHED.format(4, 41, "'comp")[:-4]],
            1,
            "1 half line at the end left out, as a killed writer leaves it",
        ),
        (
            [_FINISHED.format(1, 41, _SAID.replace("0.5", "1.5.5"))],
            1,
            "1 request without e2e_latency, taken to begin when it was answered",
        ),
        (
            [_FINISHED.format(n, "9" * n, _SAID.replace("0.5", "1e-05")) for n in (2, 5000)],
            1,
            "1 request without lengths in the log, left out",
        ),
        (
            [{"timestamp": 5, "input_length": 5, "output_length": 5}, {"input_length": 5, "output_length": 5}],
            2,
            "1 request without a time, so that none is sent at its own",
        ),
        ([_OWN, _OWN, _OWN | {"number": 1}], 2, "1 request with the number of one before it, left out"),
        ([_OWN | {"session": 1}, _OWN | {"session": 1, "end_s": 1e9, "number": 1}], 1, "1 request that never ended"),
        ([_span("a", 1.0, 2.0, 100), _span("b", 3.0, 1e9, 100)], 1, "1 request that took more than a day, left out"),
    ],
)  # fmt: skip
def test_what_a_log_does_not_say_to_the_end_is_counted(tmp_path: Path, lines: list[Any], rows: int, says: str) -> None:
    read = _read(tmp_path, *lines)
    (note,) = read.notes
    assert len(read.rows) == rows and note.startswith(says)


def test_sessions_that_do_not_say_what_they_share_are_still_sessions(tmp_path: Path) -> None:
    turns = [_agent("a", 0.0, 640), _agent("a", 5.0, 1280), _agent("b", 6.0, 640)]
    for turn in turns:
        del turn["shared_with_previous"]
    read = _read(tmp_path, *turns)
    assert [row.after for row in read.rows] == [(), (0,), ()] and _share(read.rows, 0, 1) == 0
    assert read.notes == ("1 later turn without shared_with_previous, taken to share nothing with the turn before",)


_AGENT = st.builds(
    lambda session, parent, t, inputs, shared, took, off: _agent(
        str(session), t, inputs, shared, api_time=took,
        parent=None if parent >= session else str(parent), blocks=(inputs or 0) // 64 + off,
    ),
    st.integers(0, 3), st.integers(0, 9), st.none() | st.integers(0, 60).map(float), st.none() | st.integers(0, 3000),
    st.integers(0, 40), st.none() | st.floats(0, 20), st.sampled_from([0, 0, 0, 1]),
)  # fmt: skip
_SPAN = st.builds(
    lambda n, start, took, inputs, c: _span(str(n), start, start + took, inputs) | {"traceId": c},
    st.integers(), st.integers(0, 50), st.integers(0, 9), st.integers(0, 900), st.integers(0, 2),
)  # fmt: skip
_WEKA = st.builds(
    lambda asked: _weka(*(_ask(float(t), hashes) for t, hashes in asked)),
    st.lists(st.tuples(st.integers(0, 99), st.lists(st.integers(0, 2), max_size=4))),
)


@given(st.lists(_AGENT, min_size=1) | st.lists(_SPAN, min_size=1) | st.lists(_WEKA, min_size=1), st.randoms())
def test_whatever_is_read_waits_for_earlier_rows_and_shares_no_more_than_there_is(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]], chance: random.Random
) -> None:
    same: dict[str, str | None] = {}
    lines = [
        line | {"parent": same.setdefault(line["session"], line["parent"])} if "session" in line else line
        for line in lines
    ]
    try:
        read = _read(tmp_path_factory.getbasetemp(), *lines)
    except InputError as refused:
        assert "no other was left" in str(refused) or "holds no request" in str(refused)
        return
    kept = sorted(chance.sample(range(len(read.rows)), chance.randint(1, len(read.rows))))
    end, first = 3 * len(read.rows) + 1, len(read.rows) + 1
    assert repr(repeated(read.rows, end, first)) == repr(repeated(read.rows, end)[first:])
    for rows in (read.rows, repeated(read.rows, 2 * len(read.rows) + 1), in_order(read.rows, kept)):
        for place, row in enumerate(rows):
            assert all(earlier < place and rows[earlier].session == row.session for earlier in row.after)
            assert row.think_s >= 0
        for one, other in pairwise(rows):
            assert 0 <= shared_tokens(one, other) <= min(one.input_tokens, other.input_tokens)
            assert shared_tokens(one, other) == shared_tokens(other, one)


_ANYTHING = st.none() | st.booleans() | st.integers(-9, 99) | st.floats(-9, 9e30) | st.text(max_size=3)
_JSON = _ANYTHING | st.lists(_ANYTHING, max_size=2) | st.dictionaries(st.text(max_size=2), _ANYTHING, max_size=2)
_LINES: list[dict[str, Any]] = [
    _agent("a", 0.0, 640),
    _weka(_ask(0.0, [1, 2])),
    _span("a", 1.0, 2.0, 100),
    {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]},
    {
        "scheduled_s": 1.0,
        "sent_s": 1.0,
        "end_s": 2.0,
        "input_tokens": 5,
        "output_tokens": 3,
        "session": 0,
        "status": "ok",
    },
    {"event": "request.finished", "timestamp": "2026-05-20T08:02:44", "out": {"meta_info": {"prompt_tokens": 5}}},
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
    {"resourceSpans": [{"scopeSpans": [{"spans": [_span("a", 1.0, 2.0, 100)]}]}]},
]


def _spoiled(value: Any, chance: random.Random, by: Any) -> Any:
    """The same with one of its parts, somewhere within, replaced."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.2:
        return by
    if isinstance(value, list):
        place = chance.randrange(len(value))
        return [_spoiled(part, chance, by) if n == place else part for n, part in enumerate(value)]
    name = chance.choice(sorted(value))
    return value | {name: _spoiled(value[name], chance, by)}


@given(st.sampled_from(_LINES), st.lists(st.tuples(st.randoms(), _JSON), min_size=1, max_size=3))
def test_nothing_but_a_refusal_comes_of_spoiled_lines(
    tmp_path_factory: pytest.TempPathFactory, line: dict[str, Any], spoiled: list[tuple[random.Random, Any]]
) -> None:
    lines = [line, *(_spoiled(line, chance, by) for chance, by in spoiled)]
    try:
        assert _read(tmp_path_factory.getbasetemp(), *lines).rows
    except InputError as refused:
        assert "trace.jsonl" in str(refused)
