"""What a check of a study folder found: what does not match, what cannot be checked, and how much was compared."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline import catalog
from ridgeline.records.expression import is_number
from ridgeline.records.json_form import JsonForm, also_in_json

ABSENT = "nothing"  # what was found where something is stated, and the other way round
NUMBERS = re.compile(r"[-+]?\d+(?:\.\d+)?")
WORDS = re.compile(r"[\w.+-]+")
_RELATIVE_TOLERANCE = 1e-9  # another machine's libm may differ in the last digit


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`file` is relative to the study folder; `stated` is what the folder says, `found` what follows from the rest."""

    file: str
    what: str
    stated: Any
    found: Any
    run: int | None = None


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Something that may well be right, and why nobody can tell from this folder or on this machine."""

    file: str
    why: str
    run: int | None = None


@dataclass
class Verification(JsonForm):
    """Filled while a folder is checked. It holds as long as there is no mismatch."""

    folder: str
    mismatches: list[Mismatch] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    runs: int = 0
    numbers: int = 0  # measurements that were read again and are as stated
    outcomes: int = 0
    verdict: bool | None = None  # derived again and as stated; None: there is none, or it cannot be derived
    receipts: tuple[Mapping[str, Any], ...] = ()
    signature: str = ""  # of the record of the task's rules, made again and as stated

    @property
    @also_in_json()
    def holds(self) -> bool:
        return not self.mismatches

    def differs(self, file: str, what: str, stated: Any, found: Any, run: int | None = None) -> None:
        self.mismatches.append(Mismatch(file, what, stated, found, run))

    def cannot_check(self, file: str, why: str, run: int | None = None) -> None:
        gap = Unchecked(file, why, run)
        if gap not in self.unchecked:
            self.unchecked.append(gap)


def differences(stated: Any, found: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where `found` is not what is stated: the place, and both. What is found beyond that is no difference."""
    if isinstance(stated, Mapping) and isinstance(found, Mapping):
        for name, value in stated.items():
            yield from differences(value, found.get(name, ABSENT), f"{at}.{name}" if at else str(name))
    elif isinstance(stated, list | tuple) and isinstance(found, list | tuple) and len(stated) == len(found):
        for index, (one, other) in enumerate(zip(stated, found, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif not same(stated, found):
        yield at, stated, found


def same(stated: Any, found: Any) -> bool:
    if is_number(stated) and is_number(found) and max(abs(stated), abs(found)) < sys.float_info.max:
        return math.isclose(stated, found, rel_tol=_RELATIVE_TOLERANCE, abs_tol=1e-12)
    if isinstance(stated, list | tuple) and isinstance(found, list | tuple):
        return list(stated) == list(found)
    return bool(stated == found) and isinstance(stated, bool) == isinstance(found, bool)


def reworded(stated: Any, found: Any, kept: re.Pattern[str] = NUMBERS, exact: Iterable[float] = ()) -> bool:
    """Whether two texts differ in their wording only: all that is `kept` of the stated one is in the other.

    Releases say things better than earlier ones did; the figures of a sentence stay, and the words of a command. A
    figure may have more digits or fewer than today, as long as it is one of the `exact` ones, rounded.
    """
    if not isinstance(stated, str) or not isinstance(found, str):
        return False
    gone = set(kept.findall(stated)) - set(kept.findall(found))
    return all(any(_is_rounded(text, value) for value in exact) for text in gone)


def _is_rounded(text: str, exact: float) -> bool:
    """Whether a figure of a sentence is this number, or the change or percentage that it comes to."""
    if NUMBERS.fullmatch(text) is None:
        return False
    places = len(text.partition(".")[2])
    ways = (exact, exact - 1, 100 * exact, 100 * (exact - 1))
    return any(f"{value:.{places}f}" == text.removeprefix("+") for value in ways)


def numbers_in(value: Any) -> Iterator[float]:
    """All numbers of a JSON value, however deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        yield from (number for each in value for number in numbers_in(each))
    elif isinstance(value, float) and math.isfinite(value):
        yield value


# a path with a space stands in quotes; one without does not
_QUOTED_PATH, _SPACE = re.compile(r"'(/[^'\n]*)'"), "\x1a"
_PLACES = (
    (re.compile(r"(?:/[^\s'\":,/]+)+/(?=(?:sources|runs|builds)/)"), "STUDY/"),
    (re.compile(r"(?:/[^\s'\":,/]+)+/python[\d.]*(?![\w.-])"), "PYTHON"),
    (re.compile(r"(?:/[^\s'\":,/]+)+/ridgeline(?=[/'\"\s]|$)"), "PACKAGE"),
)


_OWN_VERB = re.compile(r"(?<= -m ridgeline )[a-z][a-z-]*")


def anywhere(text: str) -> str:
    """A text without what differs from machine to machine (where the study, the interpreter and this package lie), and
    with our verbs as they are called today."""
    former = {old: new for old, new in catalog.former_verbs().items() if not new.startswith(f"{old} ")}
    text = _OWN_VERB.sub(lambda found: former.get(found[0], found[0]), text)
    text = _QUOTED_PATH.sub(lambda found: found[1].replace(" ", _SPACE), text)
    for place, name in _PLACES:
        text = place.sub(name, text)
    return text.replace(_SPACE, " ")
