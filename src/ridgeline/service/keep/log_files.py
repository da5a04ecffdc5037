"""Logs of servers that run for months: emptied before they fill the disk, the latest parts kept beside them."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

LARGEST_BYTES = 100_000_000
KEPT = 3  # older parts, as NAME.1.gz (the latest) and so on


def rotate(path: Path, largest_bytes: int | None = None) -> bool:
    """Whether it was large enough. Lines that are written in the moment of it may be lost, as with copytruncate."""
    try:
        if path.stat().st_size < (LARGEST_BYTES if largest_bytes is None else largest_bytes):
            return False
    except FileNotFoundError:
        return False
    partial = path.with_name(f"{path.name}.partial")
    with path.open("rb") as source, gzip.open(partial, "wb", compresslevel=1) as out:
        shutil.copyfileobj(source, out)
    for number in range(KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}.gz")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}.gz"))
    partial.replace(path.with_name(f"{path.name}.1.gz"))
    os.truncate(path, 0)
    return True
