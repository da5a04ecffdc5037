"""The end of a run's log, for people who watch: the newest file, its last lines, nothing that steers a terminal."""

from __future__ import annotations

import os
from pathlib import Path

from ridgeline.study.state_files import last_lines, latest_line, newest_log


def write(path: Path, text: str, age_s: float) -> Path:
    path.write_text(text)
    os.utime(path, (1_000_000 - age_s, 1_000_000 - age_s))
    return path


def test_the_newest_log_that_says_something_is_shown(tmp_path: Path) -> None:
    assert newest_log(tmp_path) is None
    assert newest_log(tmp_path / "gone") is None
    write(tmp_path / "stdout", "out\n", 30)
    engine = write(tmp_path / "engine.log", "engine\n", 10)
    write(tmp_path / "stderr", "", 5)
    write(tmp_path / "result.json", "{}", 1)
    assert newest_log(tmp_path) == engine
    assert latest_line(tmp_path) == "engine"


def test_the_last_lines_are_whole_plain_and_without_secrets(tmp_path: Path) -> None:
    text = "a\n\nb\n\x1b[31mred\x1b[0m\x07\nstep 1\rstep 2\napi_key=hf_abcDEF1234567890ghiJKL\n\n"
    log = write(tmp_path / "stdout", text, 0)
    assert last_lines(log, 4) == ["red", "step 1", "step 2", "api_key=(hidden)"]
    assert last_lines(log, 1) == ["api_key=(hidden)"]
    assert last_lines(None, 3) == []
    assert last_lines(tmp_path / "gone", 3) == []


def test_of_a_huge_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = write(tmp_path / "stdout", "x" * 3_000_000 + "\n" + "".join(f"line {n}\n" for n in range(50)), 0)
    assert last_lines(log, 2) == ["line 48", "line 49"]
    assert last_lines(log, 1) == ["line 49"]


def test_lines_keep_their_indentation_and_the_last_one_alone_does_not(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_text("for x:\n    print(x)  \n")
    assert last_lines(tmp_path / "stdout", 2) == ["for x:", "    print(x)"]
    assert latest_line(tmp_path) == "print(x)"
