"""What traffic promises: the stated means, the same list for the same seed, and clear refusals."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.traffic.traffic import (
    AllAtOnce,
    AsRecorded,
    ClosedLoop,
    OpenLoop,
    Traffic,
    dataset_of,
    parse_traffic,
)


def test_sharegpt_resembles_the_published_runs():
    rows = parse_traffic("sharegpt", requests=2000, seed=2025).arrivals()
    assert sum(a.input_tokens for a in rows) == pytest.approx(626_729, rel=0.01)
    assert sum(a.output_tokens for a in rows) == pytest.approx(388_685, rel=0.01)


def test_sharegpt_answers_die_out_as_the_decode_log_of_a_real_run_shows():
    rows = parse_traffic("sharegpt:281.3:196.4", requests=1000).arrivals()
    assert sum(a.output_tokens for a in rows) == pytest.approx(196_445, rel=0.01)
    alive = {26: 0.951, 66: 0.762, 106: 0.562, 226: 0.276, 425: 0.107}
    for tokens, share in alive.items():
        assert sum(a.output_tokens > tokens for a in rows) / 1000 == pytest.approx(share, abs=0.03)


@given(st.floats(1, 1532), st.floats(1, 780), st.integers(0, 5))
@example(1500.0, 700.0, 0)
@example(1532.0, 780.0, 0)
@example(1.0, 2.0, 0)
@example(1.5, 1.2, 3)
def test_the_mean_that_was_asked_for_is_the_mean_that_is_sent(prompt: float, answer: float, seed: int):
    rows = parse_traffic(f"sharegpt:{prompt}:{answer}", requests=2000, seed=seed).arrivals()
    assert sum(a.input_tokens for a in rows) / 2000 == pytest.approx(prompt, rel=0.01, abs=0.15)
    assert sum(a.output_tokens for a in rows) / 2000 == pytest.approx(answer, rel=0.01, abs=0.15)
    assert all(1 <= a.input_tokens <= 2048 and 1 <= a.output_tokens <= 1024 for a in rows)


@pytest.mark.parametrize("mean", [1600, 5000, 20_000])
def test_what_the_refusal_of_a_mean_names_instead_works(mean: int):
    with pytest.raises(InputError) as refused:
        parse_traffic(f"sharegpt:{mean}:200")
    (instead,) = re.findall(r"lognormal:[\d.:]+", str(refused.value))
    rows = parse_traffic(instead, requests=2000).arrivals()
    assert sum(a.input_tokens for a in rows) / 2000 == pytest.approx(mean, rel=0.02)


@given(
    st.integers(1, 400),
    st.integers(0, 10),
    st.sampled_from(["sharegpt", "fixed:7:3", "uniform:5-9:3", "lognormal:500:50:0.7"]),
)
def test_same_seed_same_requests(count: int, seed: int, words: str):
    first = parse_traffic(words, requests=count, seed=seed, rate_s=3).arrivals()
    assert first == parse_traffic(words, requests=count, seed=seed, rate_s=3).arrivals()
    assert len(first) == count
    assert all(a.input_tokens >= 1 and a.output_tokens >= 1 for a in first)


@given(st.floats(0.01, 1e4), st.sampled_from([0.0, 0.3, 1.0, 4.0]))
def test_open_loop_never_goes_back_in_time(rate: float, burstiness: float):
    rows = parse_traffic("fixed:8:8", requests=50, rate_s=rate, burstiness=burstiness).arrivals()
    assert all(b.at_s >= a.at_s for a, b in pairwise(rows))


@pytest.mark.parametrize("burstiness", [0.0, 1.0, 4.0])
def test_open_loop_keeps_its_rate(burstiness: float):
    rows = parse_traffic("fixed:8:8", requests=20_000, rate_s=50, burstiness=burstiness, seed=1).arrivals()
    assert rows[-1].at_s == pytest.approx(400, rel=0.05)


def test_pace_follows_the_words():
    assert isinstance(parse_traffic("sharegpt").pace, AllAtOnce)
    assert parse_traffic("sharegpt", concurrency=8).concurrency == 8
    assert parse_traffic("sharegpt", rate_s=2).pace == OpenLoop(2)
    assert ClosedLoop(3).concurrency == 3


def test_a_mooncake_trace_keeps_its_times_and_prefixes(tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [7, 9]},
        {"timestamp": 1000, "input_length": 600, "output_length": 0, "hash_ids": [7, 8]},
    ]
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    traffic = parse_traffic(str(trace))
    first, second = traffic.arrivals()
    assert isinstance(traffic.pace, AsRecorded)
    assert (first.at_s, first.input_tokens, first.output_tokens) == (0.0, 600, 1)
    assert second.at_s == 2.0
    assert first.text is not None
    assert (first.text.parent, first.text.start) == (second.text, 512)
    assert [a.at_s for a in parse_traffic(str(trace), concurrency=1).arrivals()] == [0.0, 0.0]


def test_sharegpt_json_gives_lengths_of_each_answer(tmp_path: Path):
    file = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "y" * 80}, {"from": "human", "value": "z"}]
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    (only,) = parse_traffic(str(file)).arrivals()
    assert (only.input_tokens, only.output_tokens) == (10, 20)


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        ("fixed:0:5", {}, "at least one token"),
        ("fixed:10", {}, "needs 2 numbers"),
        ("fixed:1.5:2", {}, "whole tokens"),
        ("sharegpt", {"rate_s": 0.0}, "a rate of 0 requests/s .* above zero, 1e-09 at least"),
        ("sharegpt", {"rate_s": 1e-300}, "a rate of 1e-300 requests/s .* above zero, 1e-09 at least"),
        ("sharegpt", {"rate_s": 1.0, "concurrency": 2}, "not both"),
        ("sharegpt", {"concurrency": 0}, "1 or more"),
        ("sharegpt", {"requests": 0}, "1 or more"),
        ("sharegpt:5000:10", {}, "prompts of 5,000 tokens on average cannot come from lengths of at most 2,048"),
        ("sharegpt:1600:500", {}, "use a mean up to 1,532, or lognormal:1600:500:1.1, which cuts at 1,000,000"),
        ("sharegpt:300:900", {}, "answers of 900 tokens on average .* use a mean up to 782"),
        ("lognormal:900000:5", {}, "use a mean up to 7..,...$"),
        ("uniform:9-5:3", {}, "from its shortest to its longest"),
        ("uniform:0-5:3", {}, "1 to 1,000,000 tokens"),
        ("uniform:100:200:3", {}, "two ranges of whole tokens"),
        ("uniform:a-b:3", {}, "two ranges of whole tokens"),
        ("no-such-file", {}, "neither a file nor one of sharegpt"),
    ],
)
def test_bad_words_are_refused_with_what_works(words: str, options: dict, says: str):
    with pytest.raises(InputError, match=says):
        parse_traffic(words, **options).arrivals()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("{", ":1: not JSON"),
        ('{"input_length": 5}', ":1: .* without whole numbers"),
        ("[]", "no request"),
    ],
)
def test_bad_traces_are_refused_with_their_line(tmp_path: Path, text: str, says: str):
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        parse_traffic(str(file))


def test_untimed_traffic_cannot_be_replayed_in_time():
    with pytest.raises(InputError, match="no times"):
        Traffic(parse_traffic("fixed:1:1").lengths, 1, AsRecorded())


def test_uniform_lengths_fill_their_ranges_evenly():
    rows = parse_traffic("uniform:800-1000:100-200", requests=2010, seed=3).arrivals()
    for lengths, (least, most) in (
        ([a.input_tokens for a in rows], (800, 1000)),
        ([a.output_tokens for a in rows], (100, 200)),
    ):
        assert (min(lengths), max(lengths)) == (least, most)
        share = len(lengths) / (most - least + 1)
        assert all(abs(lengths.count(n) - share) <= 1 for n in range(least, most + 1))
    assert parse_traffic("uniform:7:3", requests=9).arrivals()[0].input_tokens == 7


@pytest.mark.parametrize(
    "words",
    ["sharegpt", "sharegpt:500:100", "fixed:5:6", "uniform:5-9:3-4", "lognormal:2000:400:0.5"],
)
def test_lengths_are_written_as_they_are_read(words: str):
    assert dataset_of(parse_traffic(words)) == words


def test_what_a_context_does_not_hold_is_cut_or_left_out(tmp_path: Path):
    drawn = replace(parse_traffic("lognormal:900:100:1.5", requests=500), most_tokens=2000).arrivals()
    whole = parse_traffic("lognormal:900:100:1.5", requests=500).arrivals()
    assert max(a.input_tokens + a.output_tokens for a in drawn) == 2000
    assert [a for a in whole if a.input_tokens + a.output_tokens <= 2000] == [
        a for a, b in zip(drawn, whole, strict=True) if b.input_tokens + b.output_tokens <= 2000
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"input_length": {n}, "output_length": 5}}\n' for n in (10, 3000, 20)))
    kept = replace(parse_traffic(str(trace)), most_tokens=2000).arrivals()
    assert [(a.number, a.input_tokens) for a in kept] == [(0, 10), (1, 20)]
