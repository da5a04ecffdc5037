"""What is on disk when the power goes: the order of writes, cuts, renames and syncs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.files import write_whole
from ridgeline.study.journal import Journal


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(what was done, to which file) in order, from the first call on."""
    done: list[tuple[str, str]] = []

    def name_of(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    def spy(call: str) -> None:
        real = getattr(os, call)

        def noted(descriptor: int, *more: object) -> object:
            done.append((call, name_of(descriptor)))
            return real(descriptor, *more)

        monkeypatch.setattr(os, call, noted)

    for call in ("write", "fsync", "ftruncate"):
        spy(call)
    real_rename = Path.rename

    def rename(self: Path, target: Path) -> Path:
        done.append(("rename", target.name))
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    return done


def test_a_new_journal_is_in_its_folder_before_anything_is_recorded(
    tmp_path: Path, acts: list[tuple[str, str]]
) -> None:
    with Journal.open(tmp_path / "journal.jsonl"):
        assert acts == [("fsync", tmp_path.name)]


def test_an_event_is_on_disk_when_append_returns(tmp_path: Path, acts: list[tuple[str, str]]) -> None:
    with Journal.open(tmp_path / "journal.jsonl") as journal:
        for _ in range(3):
            acts.clear()
            journal.append({"event": "ended"})
            assert acts == [("write", "journal.jsonl"), ("fsync", "journal.jsonl")]


def test_a_torn_line_is_kept_aside_before_it_is_cut_and_the_cut_is_on_disk_before_the_journal_is_used(
    tmp_path: Path, acts: list[tuple[str, str]]
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event":"began"}\n{"event":"en')
    with Journal.open(path):
        assert acts == [
            ("fsync", "journal.torn"),
            ("fsync", tmp_path.name),
            ("ftruncate", "journal.jsonl"),
            ("fsync", "journal.jsonl"),
        ]
    assert (tmp_path / "journal.torn").read_bytes() == b'{"event":"en\n'


def test_a_line_end_that_was_added_is_on_disk_before_the_journal_is_used(
    tmp_path: Path, acts: list[tuple[str, str]]
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event":"began"}')
    with Journal.open(path):
        assert acts == [("write", "journal.jsonl"), ("fsync", "journal.jsonl")]


def test_a_file_is_whole_before_it_takes_its_name_and_the_name_is_on_disk_after(
    tmp_path: Path, acts: list[tuple[str, str]]
) -> None:
    write_whole(tmp_path / "study.yaml", "version: 1\n")
    (synced, temporary), renamed, last = acts
    assert synced == "fsync" and temporary.startswith(".study.yaml.")
    assert (renamed, last) == (("rename", "study.yaml"), ("fsync", tmp_path.name))
