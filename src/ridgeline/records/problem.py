"""Something wrong in a file that a person wrote, and the name they probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

Where = tuple[str | int, ...]  # the path of keys and list indices to a value
MOST_NAMES = 12


@dataclass(frozen=True, slots=True)
class Problem:
    """`where` is the path of keys, so that the file's line can be shown; `message` is what is wrong, and the remedy."""

    where: Where
    message: str


def near(name: str, known: Iterable[str]) -> str:
    """The remedy for a wrong name: `did you mean X?`, or the names there are, nearest first."""
    names = list(known)
    found = get_close_matches(name, names, n=1)
    return f"did you mean {found[0]}?" if found else f"known: {', '.join(nearest_first(name, names)) or 'none'}"


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """The names there are, those that look like `name` before the others; a long list is cut."""
    names = list(known)
    alike = get_close_matches(name, names, n=3, cutoff=0.4)
    shown = [*alike, *(other for other in names if other not in alike)][:MOST_NAMES]
    return [*shown, "..."] if len(names) > MOST_NAMES else shown
