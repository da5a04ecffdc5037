"""Files are put in place in one step, and read whether or not they are gzipped."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from ridgeline.files import in_one_step, read_unzipped, write_whole


class Torn(Exception):
    pass


def test_what_breaks_off_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")

    def chunks():
        yield b"half of the new"
        raise Torn

    with pytest.raises(Torn):
        write_whole(path, chunks())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.yaml"
    write_whole(path, "old\n")

    def failing(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new\n")
    monkeypatch.undo()
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_text_keeps_its_line_ends(tmp_path: Path) -> None:
    write_whole(tmp_path / "f", "a\r\nb\n")
    assert (tmp_path / "f").read_bytes() == b"a\r\nb\n"


def test_nobody_sees_half_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    seen = []

    def chunks():
        for piece in (b"one ", b"two"):
            seen.append(path.exists())
            yield piece

    write_whole(path, chunks())
    assert (seen, path.read_text()) == ([False, False], "one two")


def test_the_mode_is_the_one_asked_for_or_what_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "plain", "")
        write_whole(tmp_path / "run.sh", "", mode=0o755)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("plain", "run.sh")] == [0o640, 0o755]


def test_a_folder_is_put_in_place_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(Torn), in_one_step(tmp_path / "inputs") as partial:
        partial.mkdir()
        (partial / "a").touch()
        raise Torn
    assert list(tmp_path.iterdir()) == []
    with in_one_step(tmp_path / "inputs") as partial:
        partial.mkdir()
        (partial / "a").touch()
    assert [p.name for p in (tmp_path / "inputs").iterdir()] == ["a"]


def test_a_gzipped_file_reads_like_a_plain_one_and_a_torn_one_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = os.urandom(500)
    for raw in (text, gzip.compress(text)):
        path.write_bytes(raw)
        assert read_unzipped(path) == text
    whole = gzip.compress(text)
    for torn in (whole[:100], whole[:12] + bytes(60) + whole[72:]):
        path.write_bytes(torn)
        with pytest.raises(OSError):
            read_unzipped(path)


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.files.LARGEST_UNZIPPED_BYTES", 1 << 20)
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    assert len(read_unzipped(path)) == 1 << 20
    path.write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(OSError, match="unpacks to more than 1 MiB"):
        read_unzipped(path)
