"""One controller at a time, and a dead one never in the way."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from ridgeline.errors import StoreError
from ridgeline.study import lock
from ridgeline.study.lock import StudyLock

HOLDER = """
import sys, time
from pathlib import Path
from ridgeline.study.lock import StudyLock
with StudyLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def no_flock(monkeypatch):
    def missing(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)


def hold(path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_controller_is_told_who_is_at_work(tmp_path):
    holder = hold(tmp_path / "lock")
    try:
        with pytest.raises(StoreError) as raised:
            StudyLock(tmp_path / "lock").acquire()
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    message = str(raised.value)
    assert str(holder.pid) in message
    assert socket.gethostname() in message
    assert f"kill -INT {holder.pid}" in message


def test_a_killed_controller_leaves_no_lock_behind(tmp_path):
    holder = hold(tmp_path / "lock")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with StudyLock(tmp_path / "lock"):
        pass


def test_a_lock_is_free_again_after_its_block_and_within_it_is_not(tmp_path):
    for _ in range(2):
        with StudyLock(tmp_path / "lock"), pytest.raises(StoreError, match="being run by process"):
            StudyLock(tmp_path / "lock").acquire()


def test_programs_started_under_the_lock_do_not_inherit_it(tmp_path):
    with StudyLock(tmp_path / "lock"):
        child = subprocess.Popen(["sleep", "30"])
    try:
        with StudyLock(tmp_path / "lock"):
            pass
    finally:
        child.kill()
        child.wait()


def test_without_flock_a_living_holder_is_respected(tmp_path, no_flock):
    with StudyLock(tmp_path / "lock"), pytest.raises(StoreError, match="certainly gone, delete"):
        StudyLock(tmp_path / "lock").acquire()
    assert not (tmp_path / "lock.exclusive").exists()


def holder_file(tmp_path, **changes):
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": "earlier", "born": "1", **changes}
    (tmp_path / "lock.exclusive").write_text(json.dumps(holder))


def test_without_flock_an_abandoned_lock_is_taken_over(tmp_path, no_flock):
    ended = subprocess.Popen(["true"])
    ended.wait()
    holder_file(tmp_path, pid=ended.pid)
    with StudyLock(tmp_path / "lock"):
        assert json.loads((tmp_path / "lock.exclusive").read_text())["pid"] == os.getpid()


def test_without_flock_two_that_find_an_abandoned_lock_do_not_both_take_it(tmp_path, no_flock, monkeypatch):
    """Another controller takes it over between our look at the dead holder and our move."""
    holder_file(tmp_path, born="0")
    winner = {"pid": 1, "host": socket.gethostname(), "since": "now", "born": "2"}

    def look(holder):
        (tmp_path / "lock.exclusive").write_text(json.dumps(winner))
        return True

    monkeypatch.setattr(lock, "_is_gone", look)
    with pytest.raises(StoreError, match="process 1 on"):
        StudyLock(tmp_path / "lock").acquire()
    assert json.loads((tmp_path / "lock.exclusive").read_text()) == winner
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "lock.exclusive"]


def test_without_flock_a_reused_process_number_is_not_taken_for_the_holder(tmp_path, no_flock):
    holder_file(tmp_path, born="0")
    with StudyLock(tmp_path / "lock"):
        pass


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"pid": None}])
def test_without_flock_a_holder_that_cannot_be_asked_is_respected(changes, tmp_path, no_flock):
    holder_file(tmp_path, **changes)
    with pytest.raises(StoreError, match="certainly gone, delete"):
        StudyLock(tmp_path / "lock").acquire()


def test_other_errors_of_the_file_system_are_not_taken_for_a_lock(tmp_path, monkeypatch):
    def broken(descriptor, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(StoreError, match="Input/output error"):
        StudyLock(tmp_path / "lock").acquire()
    with pytest.raises(StoreError, match="No such file"):
        StudyLock(tmp_path / "nowhere" / "lock").acquire()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    """In a folder that others can write to, a lock could lead to any file of ours, and would empty it."""
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(StoreError, match="is a link"):
        StudyLock(tmp_path / "lock").acquire()
    assert precious.read_text() == "years of work"
