"""What the journal writes of a record is all of the record: reading it back gives the same."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.machine import Machine
from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Evidence, Kind, Move, Outcome
from ridgeline.records.run import Cause, Ending, Resources
from ridgeline.records.trial import PredictedRange, Stage, Trial
from ridgeline.study.event_shapes import require_shape
from ridgeline.study.events import (
    VerdictLine,
    ended_event,
    ending_from,
    outcome_from,
    run_event,
    trial_event,
    trial_from,
    verdict_event,
    verdict_from,
)
from ridgeline.study.history import History

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
    event = {"at": 1.0, **ended_event(7, ending, outcome, (), {})}
    require_shape(event)
    assert ending_from(event["ending"]) == ending
    assert outcome_from(event["outcome"]) == outcome


measured = st.lists(st.builds(Measurement, words, seconds, words, words, words), max_size=3).map(tuple)


@given(measured, st.dictionaries(words, words, max_size=3))
def test_what_a_run_measured_is_kept_whole(measurements: tuple[Measurement, ...], texts: dict[str, str]) -> None:
    trial = Trial(1, {"x": 1}, {"x": 1}, Stage.SEARCH, "grid")
    begun = run_event(1, 1, 1, Path("runs/0001"), Resources(nodes=2, gpus=4), ("n1", "n2"))
    ended = ended_event(1, Ending(Cause.EXITED, 0), Outcome(Kind.OK), measurements, texts)
    history = History.replay(Path("/s"), [{"at": 1.0, **event} for event in (trial_event(trial), begun, ended)])
    run = history.runs[1]
    assert (run.measurements, run.texts) == (measurements, texts)
    assert (run.folder, run.resources) == (Path("/s/runs/0001"), Resources(nodes=2, gpus=4))
    assert history.pinned_to == {1: ("n1", "n2")}


def test_a_verdict_is_kept_whole() -> None:
    verdict = VerdictLine("confirmed", "1.2x", {"winner": {"x": 1}, "machines": ["n1"]})
    assert verdict_from({"at": 1.0, **verdict_event(verdict)}) == verdict


ranges = st.builds(PredictedRange, seconds, seconds, seconds, seconds, st.booleans())


@given(st.sampled_from(Stage), words, words, st.none() | st.integers(0, 9), st.none() | ranges)
def test_a_trial_is_kept_whole(
    stage: Stage, proposer: str, why: str, block: int | None, predicted: PredictedRange | None
) -> None:
    settings = {"x": 1, "y": None, "z": 2.5}
    trial = Trial(3, {"x": 1, "y": None}, settings, stage, proposer, why, block, predicted=predicted)
    event = {"at": 1.0, **trial_event(trial)}
    require_shape(event)
    assert trial_from(event) == trial
