"""The journal: what append returned for is there whatever happens next; nothing is guessed, nothing silently lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.errors import StoreError
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Resources
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import RunBegun, RunEnded, event_of
from ridgeline.study.history import History
from ridgeline.study.journal import Journal, JournalTail, read_events
from tests.strategies import events

relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def written(path, items):
    path.unlink(missing_ok=True)
    with Journal.open(path) as journal:
        for item in items:
            journal.append(item)


@relaxed
@given(st.lists(events, max_size=8))
def test_what_was_appended_is_read_back_in_order(tmp_path, items):
    path = tmp_path / "journal.jsonl"
    written(path, items)
    assert list(read_events(path)) == items
    assert path.read_bytes().count(b"\n") == len(items)


@relaxed
@given(st.lists(events, min_size=1, max_size=5), st.data())
def test_cut_anywhere_it_loses_at_most_the_cut_line_and_goes_on(tmp_path, items, data):
    path, torn = tmp_path / "journal.jsonl", tmp_path / "journal.torn"
    torn.unlink(missing_ok=True)
    written(path, items)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = [json.loads(line) for line in whole[:cut].split(b"\n")[:-1]]
    tail = whole[:cut].rpartition(b"\n")[2]
    before = list(read_events(path))
    with Journal.open(path) as journal:
        journal.append({"event": "after"})
    after = list(read_events(path))
    assert after == [*before, {"event": "after"}]
    assert before[: len(kept)] == kept
    if len(before) == len(kept) and tail:
        assert torn.read_bytes() == tail + b"\n"
    else:
        assert len(before) <= len(kept) + 1


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event":"a","at":1}\n{"event":"b","at":2}')
    with Journal.open(path) as journal:
        journal.append({"event": "c", "at": 3})
    assert [event["event"] for event in read_events(path)] == ["a", "b", "c"]
    assert not (tmp_path / "journal.torn").exists()


def test_events_that_do_not_fit_together_are_told_with_their_line(tmp_path):
    lines: list[dict[str, object]] = [
        {"event": "opened", "at": 1},
        {"event": "submitted", "at": 2, "run": 7, "ticket": "x"},
    ]
    with pytest.raises(StoreError, match=r"journal\.jsonl:2: .*\(run 7 is not under way\).*cut it off from line 2 on"):
        History.replay(tmp_path, lines)
    with pytest.raises(StoreError, match=r"journal\.jsonl:1: .*\(it has no 'event'\)"):
        History.replay(tmp_path, [{"at": 1}])


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_number_is_never_used_twice(tmp_path, ended):
    trial = event_of(Trial(1, {"tp": 1}, {"tp": 1}, Stage.SEARCH, "random", "because", None))
    begins = event_of(RunBegun(1, 1, 1, "runs/0001", Resources()))
    ends = event_of(RunEnded(1, Ending(Cause.EXITED, 0, started_s=1.0, ended_s=2.0), Outcome(Kind.OK, ""), (), {}))
    lines = [{"at": at, **event} for at, event in enumerate([trial, begins, *([ends] if ended else []), begins], 1)]
    with pytest.raises(StoreError, match=r"\(run 1 of trial 1 cannot begin here\)"):
        History.replay(tmp_path, lines)


def test_a_last_line_of_zeros_after_a_power_cut_is_set_aside(tmp_path):
    path = tmp_path / "journal.jsonl"
    written(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write(b"\0" * 100 + b"\n")
    with Journal.open(path) as journal:
        journal.append({"a": 2})
        assert list(journal.read()) == [{"a": 1}, {"a": 2}]
    assert (tmp_path / "journal.torn").read_bytes().strip(b"\n") == b"\0" * 100


def test_a_long_torn_line_is_found_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    written(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write(b'{"text": "' + b"x" * 300_000)
    Journal.open(path).close()
    assert list(read_events(path)) == [{"a": 1}]
    assert (tmp_path / "journal.torn").stat().st_size == 300_000 + len('{"text": "') + 1


@pytest.mark.parametrize("damage", [b"garbage", b"[1, 2]", b"", b'{"a": ', b"\xff\xfe"])
def test_damage_in_the_middle_is_an_error_with_its_line(damage, tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"a": 1}\n' + damage + b'\n{"a": 2}\n')
    with pytest.raises(StoreError, match=r"journal\.jsonl:2: .*Restore"):
        list(read_events(path))


def test_a_reader_leaves_out_what_is_being_written_and_changes_nothing(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": ')
    assert list(read_events(path)) == [{"a": 1}]
    assert path.read_bytes() == b'{"a": 1}\n{"a": '


def test_a_full_disk_says_what_to_do_and_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path)
    journal.append({"a": 1})
    real_write = os.write

    def half_then_full(descriptor, content):
        if len(content) > 10:
            return real_write(descriptor, content[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(StoreError, match=r"full; free some space, then continue with `ridgeline resume"):
        journal.append({"b": "x" * 3})
    monkeypatch.undo()
    assert list(journal.read()) == [{"a": 1}]
    journal.append({"c": 3})
    journal.close()
    assert list(read_events(path)) == [{"a": 1}, {"c": 3}]


def test_a_failing_sync_is_not_taken_for_written(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path / "journal.jsonl")

    def failing(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StoreError, match="Input/output error"):
        journal.append({"a": 1})
    monkeypatch.undo()
    assert list(journal.read()) == []
    journal.close()


@pytest.fixture
def synced(monkeypatch):
    """What was brought to disk, in order, with how large it was then."""
    seen, real = [], os.fsync

    def noted(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        seen.append((path.name, None if path.is_dir() else path.stat().st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return seen


def test_a_new_journal_is_in_its_folder_before_anything_is_written(tmp_path, synced):
    """A file that its folder does not hold yet is gone after a power cut, with all that was synced into it."""
    with Journal.open(tmp_path / "journal.jsonl") as journal:
        assert synced == [(tmp_path.name, None)]
        journal.append({"a": 1})
    assert synced[1:] == [("journal.jsonl", len('{"a":1}\n'))]


def test_a_repair_is_on_disk_before_the_journal_goes_on(tmp_path, synced):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"a":1}\n{"b')
    with Journal.open(path):
        # what is cut off is safe, under a name that lasts, before it is cut off
        assert synced == [("journal.torn", 4), (tmp_path.name, None), ("journal.jsonl", 8)]
    synced.clear()
    path.write_text('{"a":1}\n{"b":2}')
    with Journal.open(path):
        assert synced == [("journal.jsonl", 16)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_really_full(tmp_path, monkeypatch):
    monkeypatch.setattr("ridgeline.study.journal.open_regular", Path.open)  # which refuses devices
    path = tmp_path / "journal.jsonl"
    path.symlink_to("/dev/full")
    with Journal.open(path) as journal, pytest.raises(StoreError, match="full"):
        journal.append({"a": 1})


def test_what_is_no_number_is_refused_before_it_is_written(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal.open(path) as journal, pytest.raises(ValueError, match="not JSON compliant"):
        journal.append({"value": float("nan")})
    assert path.read_bytes() == b""


def test_no_journal_is_an_error_that_asks_for_the_folder(tmp_path):
    with pytest.raises(StoreError, match="is this a study folder"):
        list(read_events(tmp_path / "journal.jsonl"))


WRITER = """
import sys
from pathlib import Path
from pathlib import Path
from ridgeline.study.journal import Journal
with Journal.open(Path(sys.argv[1])) as journal:
    for number in range(10**9):
        journal.append({"number": number, "text": "x" * (number % 5000)})
        print(number, flush=True)
"""


def test_killed_at_any_moment_it_has_every_event_that_append_returned_for(tmp_path):
    path = tmp_path / "journal.jsonl"
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = [int(next(writer.stdout)) for _ in range(40)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout if line.strip().isdigit()]
    Journal.open(path).close()
    numbers = [event["number"] for event in read_events(path)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= len(acknowledged)


def test_a_journal_that_was_moved_away_or_replaced_is_not_written_on(tmp_path):
    home = tmp_path / "study"
    home.mkdir()
    with Journal.open(home / "journal.jsonl") as journal:
        journal.append({"event": "a"})
        assert journal.in_place
        home.rename(tmp_path / "elsewhere")
        assert not journal.in_place
        with pytest.raises(StoreError, match="moved or deleted while its campaign ran"):
            journal.append({"event": "b"})
        home.mkdir()
        (home / "journal.jsonl").write_text("another one\n")
        assert not journal.in_place
        with pytest.raises(StoreError, match="moved or deleted"):
            journal.append({"event": "c"})
    assert [event["event"] for event in read_events(tmp_path / "elsewhere" / "journal.jsonl")] == ["a"]
    assert (home / "journal.jsonl").read_text() == "another one\n"


def test_a_file_system_that_makes_up_inode_numbers_does_not_end_a_campaign(tmp_path, monkeypatch):
    with Journal.open(tmp_path / "journal.jsonl") as journal:
        journal.append({"event": "a"})
        real = os.fstat
        made_up = lambda descriptor: os.stat_result((real(descriptor).st_mode, 77, *real(descriptor)[2:]))  # noqa: E731
        monkeypatch.setattr(os, "fstat", made_up)
        assert journal.in_place, "the same size says that it is the same file"


def test_a_journal_that_cannot_be_opened_says_so(tmp_path):
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"journal.jsonl: cannot be opened for writing"):
        Journal.open(tmp_path / "journal.jsonl")


def test_two_events_on_one_line_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"a": 1}\n{"b": 1}, {"c": 1}\n{"d": 1}\n')
    with pytest.raises(StoreError, match=r"journal\.jsonl:2: this line is not a journal event"):
        list(read_events(path))


# A journal read while somebody writes it: every whole line once, torn ones later, cut ones from the beginning.


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
