"""Sessions that are drawn: like the trace they were fitted to, with the means asked for, the same for the same seed."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.traffic.replay import by_session
from ridgeline.serving.traffic.session_mix import AGENT, CHAT, SessionMix, fit, parse_sessions
from ridgeline.serving.traffic.session_statistics import shared_tokens, statistics, turn_before
from ridgeline.serving.traffic.traces import read_trace
from ridgeline.serving.traffic.traffic import cut_short, dataset_of, parse_traffic
from tests.command_line import ridgeline


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """60 sessions drawn from AGENT, written as a recorder of agents would."""
    file, last = tmp_path / "agents.jsonl", {}
    lines = []
    for row in AGENT.draw(1500, random.Random(3)):
        before = last.get(row.session)
        blocks = row.input_tokens // 64
        shared = 0 if before is None else min(blocks, shared_tokens(before, row) // 64)
        last[row.session] = row
        lines.append({
            "session": row.session, "parent": None, "t": None, "input_length": row.input_tokens, "blocks": blocks,
            "output_length": row.output_tokens, "shared_with_previous": shared, "block_tokens": 64, "api_time": None,
            "think_time": row.think_s,
        })  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.mark.parametrize("mix", [AGENT, CHAT])
def test_drawn_sessions_wait_grow_and_share(mix: SessionMix) -> None:
    rows = mix.draw(3000, random.Random(1))
    assert [(r.input_tokens, r.output_tokens, r.think_s) for r in rows] == [
        (r.input_tokens, r.output_tokens, r.think_s) for r in mix.draw(3000, random.Random(1))
    ]
    assert len({row.text.name for row in rows if row.text}) == len({id(row.text) for row in rows})
    for places in by_session(rows):
        assert all(rows[place].after == ((place - 1,) if place > places[0] else ()) for place in places)
    for place, row in enumerate(rows):
        before = turn_before(rows, place)
        assert row.input_tokens > mix.shared_tokens
        if before is not None and mix.answers_stay:
            assert row.input_tokens > before.input_tokens + before.output_tokens
    assert all(shared_tokens(a, b) >= mix.shared_tokens for a, b in pairwise(rows))
    other = mix.draw(50, random.Random(2))
    assert {shared_tokens(rows[0], row) for row in other} == {mix.shared_tokens}, "another seed has other words"


def test_what_is_drawn_is_like_the_trace_it_was_fitted_to(trace: Path) -> None:
    recorded = read_trace(trace)
    seen, drawn = statistics(recorded.rows), statistics(fit(recorded).draw(20_000, random.Random(1)))
    for name, values in seen.items():
        assert drawn[name][1] == pytest.approx(values[1], rel=0.2), name
        assert drawn[name][2] == pytest.approx(values[2], rel=0.35), name


def test_the_means_that_were_asked_for_are_drawn() -> None:
    rows = parse_sessions("sessions:chat:4:100:50").draw(40_000, random.Random(1))
    assert len(rows) / len(by_session(rows)) == pytest.approx(4, rel=0.05)
    assert sum(row.output_tokens for row in rows) / len(rows) == pytest.approx(50, rel=0.05)
    pairs = [(before, row) for place, row in enumerate(rows) if (before := turn_before(rows, place))]
    added = [row.input_tokens - before.input_tokens - before.output_tokens for before, row in pairs]
    assert sum(added) / len(added) == pytest.approx(100, rel=0.1)


def test_sessions_are_traffic_by_their_words(trace: Path) -> None:
    for words in ("sessions:agent", "sessions:chat:4:100:50", f"sessions:{trace}", f"sessions:{trace}:5:300:80"):
        traffic = parse_traffic(words, requests=300, concurrency=8)
        assert dataset_of(traffic) == words
        assert len(traffic.arrivals()) == 300
    assert max(a.output_tokens for a in cut_short(parse_traffic("sessions:agent", requests=300), 60).arrivals()) <= 60
    short = replace(parse_traffic("sessions:agent", requests=500), most_tokens=40_000).arrivals()
    assert max(a.input_tokens + a.output_tokens for a in short) <= 40_000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("sessions:agents", "did you mean|agent"),
        ("sessions:", "neither sessions:agent, sessions:chat nor sessions:FILE"),
        ("sessions:chat:0:5:5", "means from 1"),
    ],
)
def test_unknown_words_are_refused(words: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_traffic(words)


def test_a_trace_without_sessions_is_not_fitted(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text('{"input_length": 10, "output_length": 5}\n')
    with pytest.raises(InputError, match="no sessions of several turns"):
        parse_traffic(f"sessions:{tmp_path / 'plain.jsonl'}")


def test_the_verb_shows_a_trace_beside_what_is_drawn(trace: Path) -> None:
    shown = ridgeline("twin", "sessions", str(trace))
    assert "trace p50" in shown.stdout
    assert "drawn p50" in shown.stdout
    document = json.loads(ridgeline("twin", "sessions", "sessions:chat", "--json").stdout)
    assert len(document["drawn"]["turns a session"]) == 3
