"""Every malformed study of the corpus: exit code 2 and one message with file, line and remedy.

Each file says in its first two lines which line must be named and what the message must say.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import main

CORPUS = sorted((Path(__file__).parent / "malformed").glob("*.yaml"))


def expectation(path: Path) -> tuple[int, str]:
    first, second, *_ = path.read_bytes().decode("latin-1").split("\n")
    return int(first.removeprefix("# line: ")), second.removeprefix("# says: ")


def check(path: Path, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["ridgeline", "check", str(path)])
    with pytest.raises(SystemExit) as leaving:
        main()
    return leaving.value.code


def test_the_corpus_is_large():
    assert len(CORPUS) >= 100


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_malformed_study_gives_one_message_with_its_line(path, monkeypatch, capsys):
    line, says = expectation(path)
    assert check(path, monkeypatch) == 2
    output = capsys.readouterr()
    assert output.out == ""
    message, closing = output.err.splitlines()
    assert closing == "1 problem; nothing was run."
    assert message.startswith(f"{path}:{line}: ")
    assert says in message
    assert ";" in message or "?" in message, "no remedy is named"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"x" * (5 << 20)), "larger than"),
        (lambda path: path.write_bytes(b"\x00\x01\x02"), "control character"),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
)
def test_what_is_not_a_study_file_at_all(make, says, tmp_path, monkeypatch, capsys):
    path = tmp_path / "study.yaml"
    make(path)
    assert check(path, monkeypatch) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert str(path) in errors[0]
    assert says in errors[0]


def test_a_whole_process_says_the_same_without_a_traceback():
    path = CORPUS[0]
    done = subprocess.run([sys.executable, "-m", "ridgeline", "check", path], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(f"{path}:{expectation(path)[0]}:")


def test_all_problems_of_a_file_are_said_together_in_order(tmp_path, monkeypatch, capsys):
    path = tmp_path / "study.yaml"
    path.write_text("version: 2\nnaem: x\nworkload: {kind: command}\nspace: {a: [1]}\nbudget: {trials: -1}\n")
    assert check(path, monkeypatch) == 2
    *problems, closing = capsys.readouterr().err.splitlines()
    assert [int(problem.split(":")[1]) for problem in problems] == [1, 1, 2, 3, 5], "line 3 lacks `run`"
    assert closing == "5 problems; nothing was run."


def test_json_gives_one_document_also_for_a_bad_study(tmp_path, monkeypatch, capsys):
    import json

    monkeypatch.setattr(sys, "argv", ["ridgeline", "check", str(CORPUS[0]), "--json"])
    with pytest.raises(SystemExit):
        main()
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert len(document["problems"]) == 1
