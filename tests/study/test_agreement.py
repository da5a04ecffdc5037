"""A study folder whose files were edited: named, never a wrong answer and never a stack of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import StoreError
from ridgeline.study.folder import QUESTION, StudyFolder, asked, binding, require_consistent, require_same_question
from ridgeline.study.history import History
from ridgeline.study.journal import read_events
from ridgeline.study.study_file import StudyFile
from ridgeline.study.yaml_tree import parse_yaml
from tests.campaign.harness import campaign, study

STUDY = "goal: {maximize: rate}\nspace: {x: [1, 2]}\nbudget: {trials: 3}\n"


def file(text: str) -> StudyFile:
    return StudyFile(study(Path()), Path("study.yaml"), parse_yaml(text, "study.yaml"))


def test_limits_may_change_and_the_question_may_not() -> None:
    before = asked(file(STUDY))
    require_same_question(file(STUDY.replace("trials: 3", "trials: 30")), before)
    for old, new, part in (("maximize", "minimize", "goal"), ("[1, 2]", "[1, 3]", "space"), ("goal", "goals", "goal")):
        with pytest.raises(StoreError, match=f"study.yaml: {part} changed"):
            require_same_question(file(STUDY.replace(old, new)), before)


PARTS = ["workload", "space", "derived", "rules", "goal", "guards", "baseline", "builds", "task", "prices"]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_the_question_is_held(part: str) -> None:
    """A guard that was taken out, say, would let runs pass that others failed of."""
    whole = "\n" + "".join(f"{name}: {{a: 1}}\n" for name in QUESTION)
    before = asked(file(whole))
    line = f"\n{part}: {{a: 1}}\n"
    for edited in (whole.replace(line, line.replace("1", "2")), whole.replace(line, "\n")):
        with pytest.raises(StoreError, match=f"{part} changed"):
            require_same_question(file(edited), before)


@pytest.mark.parametrize("part", ["nodes", "ranks_per_node", "cores", "gpus", "modules"])
def test_the_size_of_a_run_is_held_and_its_limits_are_not(part: str) -> None:
    """The command that best prints would be one that nobody ran."""
    job = "job: {limit: 60, nodes: 1, ranks_per_node: 1, cores: 1, gpus: 1, modules: 1}\n"
    before = asked(file(STUDY + job))
    require_same_question(file(STUDY + job.replace("60", "90")), before)
    for now in (job.replace(f"{part}: 1", f"{part}: 2"), ""):
        with pytest.raises(StoreError, match=f"job.{part}.* changed"):
            require_same_question(file(STUDY + now), before)
    with pytest.raises(StoreError, match=f"job.{part}.* changed"):
        require_same_question(file(STUDY + job), asked(file(STUDY)))


def test_a_journal_from_before_says_nothing_about_parts_that_were_not_held() -> None:
    parts = {name: each for name, each in asked(file(STUDY)).items() if name in PARTS and name != "prices"}
    now = STUDY + "job: {cores: 2}\nprices: {node_hour: 1}\n"
    require_same_question(file(now), parts)
    with pytest.raises(StoreError, match="guards changed"):
        require_same_question(file(STUDY + "guards: [a < 1]\n"), parts)


def test_the_question_is_binding_once_something_passed_or_runs(lines: list[dict[str, Any]]) -> None:
    opened = {**lines[0], "asked": {"goal": "f00"}}
    at = {name: next(n for n, event in enumerate(lines) if event["event"] == name) for name in ("run", "ended")}

    def held_after(*events: dict[str, Any]) -> bool:
        return bool(binding(History.replay(Path("/nowhere"), [opened, *events])))

    ended = lines[at["ended"]]
    failed = {**ended, "outcome": {"kind": "crash"}}
    assert not held_after(*lines[1 : at["run"]])
    assert held_after(*lines[1 : at["run"] + 1]), "what runs now would answer another question"
    assert held_after(*lines[1 : at["ended"]], ended)
    assert not held_after(*lines[1 : at["ended"]], failed), "that is how a baseline that fails is corrected"


def test_a_journal_from_before_says_nothing_about_the_question() -> None:
    require_same_question(file(STUDY), {})


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("campaign")
    campaign(root, study(root)).run()
    return list(read_events(root / "journal.jsonl"))


def replayed(lines: list[dict[str, Any]]) -> None:
    """What a reading verb does first; only StoreError may come out of it."""
    root = Path("/nowhere")
    history = History.replay(root, lines)
    require_consistent(study(root), history)
    history.ok_runs()


JUNK = st.sampled_from([None, -1, "x", [], {}, [1], {"a": []}, True, 10**400, float("inf")])


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_an_edited_journal_is_read_or_named(lines: list[dict[str, Any]], data: st.DataObject) -> None:
    edited = json.loads(json.dumps(lines))
    index = data.draw(st.integers(0, len(edited) - 1))
    act = data.draw(st.sampled_from(["delete", "repeat", "swap", "change", "drop"]))
    if act == "delete":
        del edited[index]
    elif act == "repeat":
        edited.insert(index, edited[index])
    elif act == "swap":
        other = data.draw(st.integers(0, len(edited) - 1))
        edited[index], edited[other] = edited[other], edited[index]
    else:
        inside: Any = edited[index]
        while data.draw(st.booleans()) and (below := [v for v in inside.values() if isinstance(v, dict) and v]):
            inside = data.draw(st.sampled_from(below))
        key = data.draw(st.sampled_from(sorted(inside)))
        if act == "drop":
            del inside[key]
        else:
            inside[key] = data.draw(JUNK)
    try:
        replayed(edited)
    except StoreError as error:
        assert "journal.jsonl" in str(error)


def test_a_value_of_another_type_or_a_lost_one_is_named_with_its_line(lines: list[dict[str, Any]]) -> None:
    first = {event["event"]: number for number, event in reversed(list(enumerate(lines)))}
    optional = ("why", "block", "on_nodes", "search_ended", "measurements", "texts")
    for number in (first[kind] for kind in ("trial", "run", "submitted", "ended", "confirm", "verdict")):
        for key, value in ((k, v) for k, v in lines[number].items() if k != "event"):
            junk: list[Any] = [[1], "x"] if type(value) is dict else [{"a": []}, True]
            junk += [{**value, "x": []}] if key in ("point", "settings") else []
            junk += [[*value, {"x": []}]] if key == "candidates" else []
            edited = [{**lines[number], key: each} for each in junk]
            edited += [{k: v for k, v in lines[number].items() if k != key}] if key not in optional else []
            for line in edited:
                with pytest.raises(StoreError, match=rf"journal.jsonl:{number + 1}:"):
                    replayed([*lines[:number], line, *lines[number + 1 :]])


def test_a_run_that_passed_without_the_goal_is_named(lines: list[dict[str, Any]]) -> None:
    at = next(n for n, event in enumerate(lines) if event["event"] == "ended")
    with pytest.raises(StoreError, match="passed but has no rate"):
        replayed([*lines[:at], {**lines[at], "measurements": []}, *lines[at + 1 :]])


def test_a_winner_that_nobody_tried_is_named(lines: list[dict[str, Any]]) -> None:
    at = next(n for n, event in enumerate(lines) if event["event"] == "verdict")
    edited = {**lines[at], "verdict": {**lines[at]["verdict"], "winner": {"x": 77, "y": 0}}}
    with pytest.raises(StoreError, match="none of the trials"):
        replayed([*lines[:at], edited, *lines[at + 1 :]])


def test_a_lost_trial_line_is_named(lines: list[dict[str, Any]]) -> None:
    cut = next(n for n, event in enumerate(lines) if event["event"] == "trial" and event["trial"] == 5)
    with pytest.raises(StoreError, match=rf"journal.jsonl:{cut + 1}:"):
        replayed([*lines[:cut], *lines[cut + 1 :]])


def test_an_emptied_journal_is_not_a_new_campaign(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "journal.jsonl").write_text("")
    StudyFolder.open(tmp_path)
    (tmp_path / "runs" / "0001-x1").mkdir(parents=True)
    with pytest.raises(StoreError, match="empty though there are run folders"):
        StudyFolder.open(tmp_path)
