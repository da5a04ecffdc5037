"""A journal read while somebody writes it: every whole line once, torn ones later, cut ones from the beginning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.errors import StoreError
from ridgeline.study.journal import Journal
from ridgeline.study.live.tail import JournalTail


def line(number: int) -> bytes:
    return json.dumps({"event": "x", "at": number}).encode() + b"\n"


def numbers(tail: JournalTail) -> tuple[bool, list[int]]:
    anew, events = tail.poll()
    return anew, [event["at"] for event in events]


def test_each_line_once_and_a_torn_one_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line(1) + line(2)[:7])
    tail = JournalTail(path)
    assert numbers(tail) == (False, [1])
    assert numbers(tail) == (False, [])
    with path.open("ab") as file:
        file.write(line(2)[7:] + line(3))
    assert numbers(tail) == (False, [2, 3])
    assert tail.lines == 3


def test_a_torn_line_that_is_cut_off_by_the_next_controller(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line(1) + b'{"event": "torn"\n')
    tail = JournalTail(path)
    assert numbers(tail) == (False, [1]), "the last line may be torn, with or without its end"
    with Journal.open(path) as journal:
        journal.append({"event": "x", "at": 2})
    assert numbers(tail) == (False, [2])


def test_a_journal_that_was_restored_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line(1) + line(2))
    tail = JournalTail(path)
    tail.poll()
    path.write_bytes(line(7))
    assert numbers(tail) == (True, [7])
    copy = tmp_path / "copy"
    copy.write_bytes(line(8) + line(9))
    copy.rename(path)
    assert numbers(tail) == (True, [8, 9])


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line(1) + b"garbage\n" + line(3))
    with pytest.raises(StoreError, match=r"journal\.jsonl:2: this line is not a journal event"):
        JournalTail(path).poll()
    with pytest.raises(StoreError, match="cannot be read"):
        JournalTail(tmp_path / "none").poll()
