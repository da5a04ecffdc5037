"""A study folder opened read-only: as far as it is intact, and what lies beside it."""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import StoreError
from ridgeline.files import open_regular
from ridgeline.study.history import History, read_history
from ridgeline.study.journal import read_events


def read_history_as_far(folder: Path) -> tuple[History, tuple[str, ...]]:
    """As `read_history`, but up to a damaged line instead of failing there; says what is wrong."""
    history, path = History(folder.resolve()), folder / "journal.jsonl"
    try:
        history.apply_all(read_events(path))
    except StoreError as error:
        return history, (f"Only what comes before a damaged line is shown. {error}",)
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        torn = size > 0 and file.read(1) != b"\n"
    if torn:
        return history, (
            "The journal's last line is incomplete: it is being written, or writing was interrupted. It is left out.",
        )
    return history, ()


def read_ladder(folder: Path) -> History | None:
    """The steps to this campaign's winner, which `tune --ladder` runs in a folder beside its own; None without."""
    beside = folder.resolve().with_name(f"{folder.resolve().name}-steps")
    try:
        found = read_history(beside) if (beside / "journal.jsonl").is_file() else None
    except StoreError:
        return None  # the report of that folder itself says what is wrong with it
    return found if found is not None and found.question.kind == "steps" else None
