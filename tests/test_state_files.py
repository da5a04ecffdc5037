"""The state files of a run: read alike whether loose or folded, folded before they are removed, never trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ridgeline.study import state_files
from ridgeline.study.state_files import (
    LARGEST_STATE_BYTES,
    STATE_KEY,
    StateFile,
    put_away,
    state_file,
    state_text,
    write_result,
)

NAMES = ("exit", "machine", "env")
RESULT = {"settings": {"x": 1}, "run": 7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("exit", "exit_code=0\n"), ("machine", "host=n\u00fc\r\n"), ("env", ""), ("stdout", "3\n")):
        (tmp_path / name).write_bytes(text.encode())
        os.utime(tmp_path / name, ns=(5, 1_700_000_000_123_456_789))
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def said(folder: Path) -> list[tuple[str, float] | None]:
    found = [state_file(folder, name) for name in (*NAMES, "ticket")]
    return [each and (each.text, each.changed_s) for each in found]


def held(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def fold(folder: Path, result: dict[str, Any]) -> None:
    write_result(folder, result, NAMES)
    put_away(folder, NAMES)


def test_a_folded_state_file_says_what_the_file_said(folder: Path) -> None:
    loose = said(folder)
    assert state_file(folder, "exit") == StateFile("exit_code=0\n", (folder / "exit").stat().st_mtime, "exit")
    fold(folder, RESULT)
    assert names(folder) == {"result.json", "stdout"}
    assert said(folder) == loose
    assert state_text(folder, "machine") == "host=n\u00fc\n"
    assert {name: held(folder)[name] for name in RESULT} == RESULT


def test_nothing_is_removed_before_result_json_holds_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any step: the next controller finishes it, and at no moment is anything missing."""
    loose, steps = said(folder), 0

    class Killed(BaseException):
        pass

    real = {"write_whole": state_files.write_whole, "unlink": Path.unlink}

    def counted(name: str, after: bool) -> Any:
        def act(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                raise Killed
            done = real[name](*args, **more)  # type: ignore[operator]
            if left == 0:
                raise Killed
            return done

        return act

    def settled() -> None:
        if not (folder / "result.json").exists():
            write_result(folder, RESULT, NAMES)
        put_away(folder, NAMES)

    for after in (False, True):
        for step in range(1, 10):
            for name in NAMES:
                if not (folder / name).exists():
                    found = held(folder)[STATE_KEY][name]
                    (folder / name).write_bytes(found["text"].encode())
                    os.utime(folder / name, ns=(5, 1_700_000_000_123_456_789))
            (folder / "result.json").unlink(missing_ok=True)
            left = step
            monkeypatch.setattr(state_files, "write_whole", counted("write_whole", after))
            monkeypatch.setattr(Path, "unlink", counted("unlink", after))
            try:
                fold(folder, RESULT)
            except Killed:
                steps += 1
            monkeypatch.undo()
            assert said(folder) == loose, f"killed at step {step}"
            settled()
            assert names(folder) == {"result.json", "stdout"}
            assert said(folder) == loose
    assert steps >= 6


def test_what_was_written_after_the_fold_is_folded_too(folder: Path) -> None:
    """A batch system may add a line to its own output after the job wrote its exit file."""
    write_result(folder, RESULT, NAMES)
    (folder / "machine").write_text("host=n1\nslurmstepd: killed\n")
    put_away(folder, NAMES)
    assert state_text(folder, "machine") == "host=n1\nslurmstepd: killed\n"
    assert names(folder) == {"result.json", "stdout"}


def test_a_run_that_is_closed_again_keeps_its_folded_state_files(folder: Path) -> None:
    """As after a journal that was cut off."""
    loose = said(folder)
    fold(folder, RESULT)
    fold(folder, RESULT | {"run": 8})
    assert said(folder) == loose
    assert held(folder)["run"] == 8


def test_a_loose_state_file_counts_before_a_folded_one(folder: Path) -> None:
    fold(folder, RESULT)
    (folder / "exit").write_text("exit_code=3\n")
    assert state_text(folder, "exit") == "exit_code=3\n"


def test_what_is_no_small_text_stays_a_file(folder: Path) -> None:
    (folder / "exit").write_bytes(b"\xff\xfe")
    (folder / "machine").write_text("x" * (LARGEST_STATE_BYTES + 1))
    (folder / "env").unlink()
    (folder / "env").symlink_to(folder / "stdout")
    fold(folder, RESULT)
    assert names(folder) == {"exit", "machine", "env", "result.json", "stdout"}
    assert held(folder)[STATE_KEY] == {}


def test_a_result_of_an_earlier_release_leaves_its_state_files_where_they_are(folder: Path) -> None:
    (folder / "result.json").write_text(json.dumps(RESULT))
    before = names(folder)
    put_away(folder, NAMES)
    assert names(folder) == before
    assert state_text(folder, "exit") == "exit_code=0\n"


def test_a_folder_in_the_place_of_result_json_leaves_the_state_files_where_they_are(folder: Path) -> None:
    (folder / "result.json").mkdir()
    before = names(folder)
    fold(folder, RESULT)
    assert names(folder) == before


GOOD = {"changed": 1.5, "text": "a"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        '{"books": []}',
        '{"books": {"exit": "exit_code=0"}}',
        '{"books": {"exit": {"text": "exit_code=0"}}}',
        '{"books": {"exit": {"changed": true, "text": "a"}}}',
        '{"books": {"exit": {"changed": NaN, "text": "a"}}}',
        '{"books": {"exit": {"changed": 1e999, "text": "a"}}}',
        f'{{"books": {{"exit": {{"changed": {"9" * 400}, "text": "a"}}}}}}',
        '{"books": {"exit": {"changed": 1, "text": 5}}}',
        '{"books": {"exit": {"changed": 1, "text": "a", "mode": 511}}}',
        json.dumps({"books": {"exit": {"changed": 1, "text": "x" * (LARGEST_STATE_BYTES + 1)}}}),
        "[" * 100_000,
    ],
)
def test_a_result_that_somebody_made_up_is_no_state_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    assert state_file(tmp_path, "exit") is None
    put_away(tmp_path, NAMES)
    assert names(tmp_path) == {"result.json"}


def test_names_in_a_result_that_somebody_made_up_lead_nowhere(tmp_path: Path) -> None:
    """Only names that the executor gives are ever looked at or removed."""
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "precious").write_text("a")
    (run / "stdout").write_text("a")
    made_up = {"../precious": GOOD, str(tmp_path / "precious"): GOOD, "stdout": GOOD, "exit": GOOD}
    (run / "result.json").write_text(json.dumps({"books": made_up}))
    put_away(run, NAMES)
    assert (tmp_path / "precious").exists()
    assert names(run) == {"result.json", "stdout"}
    assert state_file(run, "exit") == StateFile("a", 1.5)


def test_lone_surrogates_in_a_result_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"books": {"exit": {"changed": 1, "text": "a\\ud800b"}}}')
    assert state_file(tmp_path, "exit") == StateFile("a?b", 1.0)


def test_a_pipe_in_the_place_of_a_state_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "exit")
    assert state_file(tmp_path, "exit") is None
    os.mkfifo(tmp_path / "result.json")
    assert state_file(tmp_path, "machine") is None


def test_a_file_that_cannot_be_removed_is_no_reason_to_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    write_result(folder, RESULT, NAMES)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuses)
        put_away(folder, NAMES)
    assert names(folder) == {*NAMES, "result.json", "stdout"}
    put_away(folder, NAMES)
    assert names(folder) == {"result.json", "stdout"}
