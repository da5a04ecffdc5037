"""What somebody who only looks at a study folder is told: who is at work on it, and how far it is whole."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import StoreError
from ridgeline.study.codec import Stopped
from ridgeline.study.folder import read_history_as_far, read_ladder
from ridgeline.study.history import History, read_history
from ridgeline.study.lock import Presence, StudyLock, find_controller

OPENED = {"at": 1.0, "event": "opened", "kind": "search", "question": {}, "asked": {}}
STOPPED = {"at": 2.0, "event": "stopped", "reason": "finished"}


def journal(folder: Path, *events: dict[str, Any], end: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "journal.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + end)
    return path


def test_who_is_at_work_is_told_from_who_was(tmp_path: Path) -> None:
    lock, lines = tmp_path / "lock", journal(tmp_path, OPENED)
    assert find_controller(lock, lines).presence is Presence.GONE, "nobody wrote it"
    with StudyLock(lock):
        seen = find_controller(lock, lines)
        assert (seen.presence, seen.pid, seen.host) == (Presence.HERE, os.getpid(), socket.gethostname())
        assert seen.as_json()["presence"] == "here"
    assert find_controller(lock, lines).presence is Presence.GONE
    holder = {"pid": os.getpid(), "host": "another", "since": "yesterday"}
    lock.write_text(json.dumps(holder))
    there = find_controller(lock, lines)
    assert (there.presence, there.host, there.since) == (Presence.ELSEWHERE, "another", "yesterday")
    lock.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "born": "of another process"}))
    assert find_controller(lock, lines).presence is Presence.GONE, "the number was given out again"
    assert find_controller(lock, lines).last_write_s == pytest.approx(lines.stat().st_mtime)


@pytest.mark.parametrize(
    ("end", "says"), [("", ()), ('{"at": 3', "is incomplete"), ("half\nanother\n", "before a damaged line")]
)
def test_a_damaged_folder_is_shown_as_far_as_it_is_whole(tmp_path: Path, end: str, says: Any) -> None:
    journal(tmp_path, OPENED, STOPPED, end=end)
    history, notes = read_history_as_far(tmp_path)
    assert (history.openings, history.stopped) == (1, Stopped("finished"))
    assert notes == () if not says else says in notes[0]
    if says == "before a damaged line":
        with pytest.raises(StoreError, match=r"journal.jsonl:3"):
            read_history(tmp_path)


def test_the_steps_beside_a_folder_are_found_and_nothing_else_is_taken_for_them(tmp_path: Path) -> None:
    study, beside = tmp_path / "s", tmp_path / "s-steps"
    journal(study, OPENED)
    assert read_ladder(study) is None
    journal(beside, OPENED)
    assert read_ladder(study) is None, "a search that happens to be called so"
    journal(beside, {**OPENED, "kind": "steps"})
    found = read_ladder(study)
    assert isinstance(found, History) and found.question.kind == "steps"
    journal(beside, OPENED, end="half\nanother\n")
    assert read_ladder(study) is None
