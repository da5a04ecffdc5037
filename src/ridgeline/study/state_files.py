"""State files of a run: what executors and run.sh keep beside the program's own, loose or folded.

While a run lasts each is a file of its own, so that nothing depends on a controller being alive. A run that has ended
needs none of them any more, and a campaign of thousands would use up a quota of files: their content and dates go into
the run's result.json, under `books`, which is on disk before the first of them is removed. A file that is larger than
any of ours, or that is no text, stays where it is; so does one that a program reads or writes by the same name.

`state_file` is how all others read one. What lies loose counts before what is folded. Open to every room, like files.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.files import open_regular, plain_lines, read_regular, write_whole
from ridgeline.records.secrets import masked

RESULT_FILE = "result.json"
STATE_KEY = "books"  # their key in it
LARGEST_STATE_BYTES = 64 << 10
_LARGEST_RESULT_BYTES = 16 << 20
_LAST_DATE_S = 1e11  # some thousand years on


@dataclass(frozen=True, slots=True)
class StateFile:
    """`changed_s` is when it was last written, by the clock that stamps files; `file` is where it is found."""

    text: str
    changed_s: float
    file: str = RESULT_FILE


def state_file(folder: Path, name: str) -> StateFile | None:
    """What the state file of this name says; None where there is none, or nothing that can be read."""
    try:
        with open_regular(folder / name) as file:
            content = file.read(_LARGEST_RESULT_BYTES)
            return StateFile(plain_lines(content), os.fstat(file.fileno()).st_mtime, name)
    except FileNotFoundError:
        kept = _entries(_read_result(folder)).get(name)
        text = "" if kept is None else plain_lines(kept["text"].encode(errors="replace"))
        return None if kept is None else StateFile(text, float(kept["changed"]))
    except OSError:
        return None


def state_text(folder: Path, name: str) -> str:
    """What it says; nothing where there is none."""
    found = state_file(folder, name)
    return "" if found is None else found.text


def _loose_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The state files that lie in the folder as files, as result.json keeps them."""
    entries = {}
    for name in names:
        try:
            path = folder / name
            seen = path.lstat()
            if not stat.S_ISREG(seen.st_mode) or seen.st_size > LARGEST_STATE_BYTES:
                continue
            text = read_regular(path, LARGEST_STATE_BYTES).decode()
        except (OSError, UnicodeDecodeError):
            continue  # not there, or not to be kept as text: it stays as it is
        entries[name] = {"changed": seen.st_mtime, "text": text}
    return entries


def write_result(folder: Path, result: Mapping[str, Any], names: Collection[str]) -> None:
    """Put result.json there, with the state files of these names, which stay in the folder.

    In place of whatever the run put there, a link or a pipe; only a folder stays, and `study verify` names it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / RESULT_FILE).is_dir() and not (folder / RESULT_FILE).is_symlink():
        return
    # a run is closed a second time where the journal was cut off: its state files may be folded already
    before = {name: kept for name, kept in _entries(_read_result(folder)).items() if name in names}
    _write(folder, result, before | _loose_files(folder, names))


def put_away(folder: Path, names: Collection[str]) -> None:
    """Remove the state files of a run that has ended, once result.json holds them as they are now.

    Where a release wrote a result.json without state files, they stay: it may read them there, and so may its run.sh.
    """
    result = _read_result(folder)
    if not isinstance(result.get(STATE_KEY), dict):
        return
    entries, loose = _entries(result), _loose_files(folder, names)
    if any(entries.get(name) != entry for name, entry in loose.items()):
        entries = _write(folder, result, entries | loose)
    for name, entry in loose.items():
        if entries.get(name) == entry:
            with suppress(OSError):  # nothing is lost where it stays, and a campaign does not end for a file too many
                (folder / name).unlink(missing_ok=True)


def _read_result(folder: Path) -> dict[str, Any]:
    """What result.json says; empty where there is none, or none of ours. Anybody may have written it."""
    try:
        found = json.loads(read_regular(folder / RESULT_FILE, _LARGEST_RESULT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(folder: Path, result: Mapping[str, Any], entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in result.items() if name != STATE_KEY]
    kept = ", ".join(f"\n  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    lines.append(f'"{STATE_KEY}": {{{kept}\n }}')
    text = "{\n " + ",\n ".join(lines) + "\n}\n"
    write_whole(folder / RESULT_FILE, text)
    return entries if len(text) <= _LARGEST_RESULT_BYTES else {}


def _entries(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The state files in a result.json, of those that are what we write."""
    found = result.get(STATE_KEY)
    return {name: entry for name, entry in found.items() if _is_entry(entry)} if isinstance(found, dict) else {}


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"changed", "text"} or not isinstance(entry["text"], str):
        return False
    is_date = type(entry["changed"]) in (int, float) and 0 <= entry["changed"] < _LAST_DATE_S
    return is_date and len(entry["text"]) <= LARGEST_STATE_BYTES


# The end of what a program writes while it runs: plain text that any face can show, whatever the program wrote.

_LINE_BYTES, _TAIL_BYTES = 4096, 32768
_LONGEST_LINE = 1000
_LOGS = (".log", ".out", ".err")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def latest_line(folder: Path) -> str:
    """The last line of the log written to last, without control characters; empty where nothing was written."""
    return next(iter(last_lines(newest_log(folder), 1)), "").strip()


def newest_log(folder: Path) -> Path | None:
    newest: tuple[float, Path] | None = None
    try:
        for entry in os.scandir(folder):
            log = entry.name in ("stdout", "stderr") or entry.name.endswith(_LOGS)
            if log and entry.is_file() and (seen := entry.stat()).st_size:
                newest = max(newest or (0.0, Path(entry)), (seen.st_mtime, Path(entry)))
    except OSError:
        return None  # deleted meanwhile, or on a disk that is away: the picture goes on without it
    return None if newest is None else newest[1]


def last_lines(log: Path | None, count: int) -> list[str]:
    """Without control characters and secrets, indented as they were; empty lines are left out."""
    if log is None:
        return []
    size = _LINE_BYTES if count == 1 else _TAIL_BYTES
    try:
        with open_regular(log) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            tail = stream.read(size).decode(errors="replace")
    except OSError:
        return []
    # a progress bar goes back to the start of its line instead of beginning another
    lines = [line for line in _COLOURS.sub("", tail).replace("\r", "\n").split("\n") if line.strip()]
    return [_plain(line) for line in lines[-count:]]


def _plain(line: str) -> str:
    return masked("".join(c if c.isprintable() else " " for c in line[:_LONGEST_LINE]).rstrip())
