"""How many files a user may still make: `lfs quota -u USER PATH` and `quota -w -p`, which print the same columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_COLUMNS = 8  # kbytes quota limit grace, files quota limit grace


@dataclass(frozen=True, slots=True)
class FileQuota:
    """`limit` is the smaller of the soft and the hard one that is set; None when neither is."""

    filesystem: str
    files: int
    limit: int | None

    @property
    def left(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.files)


def read_quota(lines: Iterable[str]) -> list[FileQuota]:
    """One per file system. A long name stands on a line of its own, its numbers on the next."""
    found: list[FileQuota] = []
    words: list[str] = []
    inside = False
    for line in lines:
        if "Filesystem" in line and "files" in line:
            inside, words = True, []
            continue
        if not inside:
            continue
        words += line.split()
        if len(words) > _COLUMNS:
            name, numbers = words[0], words[1 : _COLUMNS + 1]
            quota = _quota(name, numbers)
            inside = quota is not None
            if quota is not None:
                found.append(quota)
            words = []
    return found


def _quota(name: str, numbers: list[str]) -> FileQuota | None:
    files, soft, hard = (_count(text) for text in numbers[4:7])
    if files is None:
        return None
    limits = [limit for limit in (soft, hard) if limit]
    return FileQuota(name, files, min(limits) if limits else None)


def _count(text: str) -> int | None:
    # an exceeded figure carries a star; lfs puts figures it is not sure of in brackets
    digits = text.strip("*[]")
    return int(digits) if digits.isdigit() else None
