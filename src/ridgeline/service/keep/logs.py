"""Logs of members on this machine, which append to them: emptied under them when they are large."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

_LARGEST_BYTES = 100_000_000
_KEPT = 3  # older parts, as NAME.1.gz (the latest) and so on


def rotate(path: Path, largest_bytes: int | None = None) -> bool:
    """Whether it was large enough. Lines that are written in the moment of it may be lost, as with copytruncate."""
    try:
        if path.stat().st_size < (_LARGEST_BYTES if largest_bytes is None else largest_bytes):
            return False
    except FileNotFoundError:
        return False
    partial = path.with_name(f"{path.name}.partial")
    try:
        with path.open("rb") as source, gzip.open(partial, "wb", compresslevel=1) as out:
            shutil.copyfileobj(source, out)
    except OSError:
        partial.unlink(missing_ok=True)  # the disk is full, perhaps: this shall not fill it further
        raise
    for number in range(_KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}.gz")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}.gz"))
    partial.replace(path.with_name(f"{path.name}.1.gz"))
    os.truncate(path, 0)
    return True
