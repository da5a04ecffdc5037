"""What the journal writes of a record is all of the record: reading it back gives the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Evidence, Kind, Move, Outcome
from ridgeline.records.run import Cause, Ending, Machine, Resources
from ridgeline.records.trial import PredictedRange, Stage, Trial
from ridgeline.study.codec import Opened, RunBegun, RunEnded, Submitted, VerdictLine, event_of, record_of
from ridgeline.study.history import History
from ridgeline.study.journal import read_events

ROOT = Path(__file__).parents[2]

words = st.text(max_size=12)
names = st.lists(words, max_size=3).map(tuple)
seconds = st.floats(0, 1e10)
endings = st.builds(
    Ending,
    cause=st.sampled_from(Cause),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    reason=words,
    nodes=names,
    started_s=seconds,
    ended_s=seconds,
    leftovers=names,
    usage=st.dictionaries(words, seconds, max_size=3),
    elapsed_s=st.none() | seconds,
    machines=st.lists(st.builds(Machine, words, words, names), max_size=2).map(tuple),
)
outcomes = st.builds(
    Outcome,
    kind=st.sampled_from(Kind),
    reason=words,
    evidence=st.none() | st.builds(Evidence, words, st.integers(1, 10**6), words),
    advice=st.lists(st.builds(Move, words, st.sampled_from([-1, 1]), words), max_size=2).map(tuple),
)


@given(endings, outcomes)
def test_how_a_run_ended_is_kept_whole(ending: Ending, outcome: Outcome) -> None:
    ended = RunEnded(7, ending, outcome)
    assert record_of({"at": 1.0, **event_of(ended)}) == ended


measured = st.lists(st.builds(Measurement, words, seconds, words, words, words), max_size=3).map(tuple)


@given(measured, st.dictionaries(words, words, max_size=3))
def test_what_a_run_measured_is_kept_whole(measurements: tuple[Measurement, ...], texts: dict[str, str]) -> None:
    trial = Trial(1, {"x": 1}, {"x": 1}, Stage.SEARCH, "grid")
    begun = event_of(RunBegun(1, 1, 1, "runs/0001", Resources(nodes=2, gpus=4), ("n1", "n2")))
    ended = event_of(RunEnded(1, Ending(Cause.EXITED, 0), Outcome(Kind.OK), measurements, texts))
    history = History.replay(Path("/s"), [{"at": 1.0, **event} for event in (event_of(trial), begun, ended)])
    run = history.runs[1]
    assert (run.measurements, run.texts) == (measurements, texts)
    assert (run.folder, run.resources) == (Path("/s/runs/0001"), Resources(nodes=2, gpus=4))
    assert history.pinned_to == {1: ("n1", "n2")}


def test_a_verdict_is_kept_whole() -> None:
    verdict = VerdictLine("confirmed", "1.2x", {"winner": {"x": 1}, "machines": ["n1"]})
    assert record_of({"at": 1.0, **event_of(verdict)}) == verdict


ranges = st.builds(PredictedRange, seconds, seconds, seconds, seconds, st.booleans())


@given(st.sampled_from(Stage), words, words, st.none() | st.integers(0, 9), st.none() | ranges)
def test_a_trial_is_kept_whole(
    stage: Stage, proposer: str, why: str, block: int | None, predicted: PredictedRange | None
) -> None:
    settings = {"x": 1, "y": None, "z": 2.5}
    trial = Trial(3, {"x": 1, "y": None}, settings, stage, proposer, why, block, predicted=predicted)
    event = {"at": 1.0, **event_of(trial)}
    assert record_of(event) == trial


KEPT = sorted(
    path
    for folder in ("examples", "tests/samples")
    for path in (ROOT / folder).rglob("journal.jsonl")
    if "deploy" not in path.parts[-4]  # a service's journal has events of its own
)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_what_is_read_from_a_journal_is_written_as_it_was(path: Path) -> None:
    """Byte for byte, but for what is kept as it is, and what older releases said otherwise."""
    seen = 0
    for event in read_events(path):
        record = record_of(event)
        if record is None or isinstance(record, Opened):
            continue
        before = {key: value for key, value in event.items() if key != "at"}
        if event["event"] == "verdict":
            assert event_of(record) == before  # once, details stood before the headline
        elif event["event"] != "confirm" or "seed" in event:
            assert json.dumps(event_of(record)) == json.dumps(before)
        seen += 1
    assert seen


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "submitted", "run": 1, "ticket": "x"}, "`at` is not a time"),
        ({"at": 1.0, "event": "submitted", "run": 1}, "not a whole `submitted` event: it has no 'ticket'"),
        ({"at": 1.0, "event": "submitted", "run": True, "ticket": "x"}, "its 'run' is of another type"),
        ({"at": 1.0, "event": "ended", "run": 1, "ending": {"cause": "exited"}, "outcome": {"kind": "ok"}}, "started"),
    ],
)
def test_a_line_that_lacks_something_is_refused_with_what(event: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        record_of(event)


def test_an_event_of_a_later_release_is_no_mistake() -> None:
    assert record_of({"at": 1.0, "event": "teleported", "to": "mars"}) is None
    assert record_of({"at": 1.0, "event": "submitted", "run": 1, "ticket": "x", "more": 2}) == Submitted(1, "x")
