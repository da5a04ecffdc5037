"""A study folder whose files were edited: named, never a wrong answer and never a stack of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import StoreError
from ridgeline.store.agreement import asked, require_consistent, require_same_question
from ridgeline.store.folder import StudyFolder
from ridgeline.store.history import History
from ridgeline.store.journal import read_events
from ridgeline.store.yaml_tree import parse_yaml
from tests.campaign.harness import campaign, study

STUDY = "goal: {maximize: rate}\nspace: {x: [1, 2]}\nbudget: {trials: 3}\n"


def test_limits_may_change_and_the_question_may_not() -> None:
    before = asked(parse_yaml(STUDY, "study.yaml"))
    require_same_question(Path("study.yaml"), parse_yaml(STUDY.replace("trials: 3", "trials: 30"), "s"), before)
    for old, new, part in (("maximize", "minimize", "goal"), ("[1, 2]", "[1, 3]", "space"), ("goal", "goals", "goal")):
        with pytest.raises(StoreError, match=f"study.yaml: {part} changed"):
            require_same_question(Path("study.yaml"), parse_yaml(STUDY.replace(old, new), "s"), before)


def test_a_journal_from_before_says_nothing_about_the_question() -> None:
    require_same_question(Path("study.yaml"), parse_yaml(STUDY, "s"), {})


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
