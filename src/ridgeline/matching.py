"""Patterns that people write, held against text that nobody promised anything about. Open to every room, like files.

A pattern such as `(a+)+$` can take longer than the age of the universe on one line of forty letters. So a search has a
limit of CPU time, whatever else the machine does meanwhile: a short text is searched here, with a timer that Python's
matcher obeys; in a long one the matcher looks at signals too rarely, so another process searches it, which the kernel
ends.
"""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ridgeline.errors import ReadError

LONGEST_PATTERN = 2000
BASE_S = 5.0  # of CPU time for any text; a sensible pattern needs a thousandth of it
_CHARACTERS_PER_S = 8 << 20  # and as much for each second more
LONGEST_TEXT_HERE = 1 << 20  # between two looks at signals the matcher may pass over a text 4096 times

_PROGRAM = """
import io, json, re, resource, sys
pattern, flags, group, most, around, seconds = json.loads(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard < 0 else min(seconds, hard), hard))
text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace", newline="").read()
found = []
for match in re.compile(pattern, flags).finditer(text):
    if match[group] is not None:
        start, end = match.span(group)
        own = [match.start() < start, end < match.end()]
        found.append([match[group], text[max(0, start - around):start], text[end:end + around], *own])
        if len(found) == most:
            break
sys.stdout.buffer.write(json.dumps(found).encode())
"""


class TooSlow(Exception):  # noqa: N818  a fact about a pattern, not a malfunction
    """The pattern used up its time; the message says what to do about it."""

    def __init__(self, pattern: str, seconds: float) -> None:
        super().__init__(
            f"the pattern {pattern!r} was given up after {seconds:.0f} s of CPU time: it can match in too many ways; "
            "avoid a repeat inside a repeat, as in (a+)+"
        )


class TimeIsUp(Exception):  # noqa: N818
    """What was done inside a `cpu_limit` took longer."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a group was, with a few characters to both sides; whether the match itself goes on there."""

    text: str
    before: str
    after: str
    begins_earlier: bool
    ends_later: bool


_AROUND = 24  # characters


def values(pattern: re.Pattern[str], text: str, group: int = 0, most: int | None = None) -> list[str]:
    """What this group was in every match, or in the first `most` of them. TooSlow when that takes too long."""
    return [each.text for each in in_context(pattern, text, group, most)]


def in_context(pattern: re.Pattern[str], text: str, group: int = 0, most: int | None = None) -> list[Found]:
    """As `values`, with what stands around each."""
    seconds = BASE_S + len(text) / _CHARACTERS_PER_S
    if len(text) > LONGEST_TEXT_HERE or threading.current_thread() is not threading.main_thread():
        return _searched_elsewhere(pattern, text, group, most, seconds)
    found: list[Found] = []
    try:
        with cpu_limit(seconds):
            for match in pattern.finditer(text):
                if match[group] is not None:
                    start, end = match.span(group)
                    around = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
                    found.append(Found(match[group], *around, match.start() < start, end < match.end()))
                    if len(found) == most:
                        break
    except TimeIsUp:
        raise TooSlow(pattern.pattern, seconds) from None
    return found


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """TimeIsUp when what is done inside takes more CPU time. Only the main thread can have a limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGVTALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)


def _searched_elsewhere(
    pattern: re.Pattern[str], text: str, group: int, most: int | None, seconds: float
) -> list[Found]:
    asked = json.dumps([pattern.pattern, pattern.flags, group, most, _AROUND, math.ceil(seconds)])
    done = subprocess.run(  # in a session of its own: a Ctrl-C is for the campaign, and must not look like a failure
        [sys.executable, "-I", "-S", "-c", _PROGRAM, asked],
        input=text.encode("utf-8", "replace"),
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise TooSlow(pattern.pattern, seconds)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ReadError(f"the pattern {pattern.pattern!r} could not be searched for: {last}; simplify it")
    return [Found(*each) for each in json.loads(done.stdout)]
