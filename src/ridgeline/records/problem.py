"""Something wrong in a file that a person wrote."""

from __future__ import annotations

from dataclasses import dataclass

Where = tuple[str | int, ...]  # the path of keys and list indices to a value


@dataclass(frozen=True, slots=True)
class Problem:
    """`where` is the path of keys, so that the file's line can be shown; `message` is what is wrong, and the remedy."""

    where: Where
    message: str
