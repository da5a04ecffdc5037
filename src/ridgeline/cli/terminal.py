"""What every verb prints, cleaned on its way out: a terminal obeys control characters, whoever wrote them.

Names of nodes, reasons, evidence, texts and settings come from programs and from folders of strangers. So the standard
streams themselves let nothing through but text, line ends and tabs. A face that draws (colours, a bar that overwrites
itself) cleans its words with `clean_line` and writes to the stream below, `uncleaned`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

# C0 and C1 controls, marks that turn the direction of writing or take no place, line separators, lone surrogates
_UNSEEN = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_OBEYED = re.compile(f"[{_UNSEEN}]|\r(?!\n)")  # CSV ends its lines with both
_OBEYED_IN_LINE = re.compile(f"[{_UNSEEN}\t\r\n]")


def _clean(text: str, shown: str = "\N{REPLACEMENT CHARACTER}") -> str:
    """The text with every character that a terminal would obey replaced; line ends and tabs stay."""
    return _OBEYED.sub(shown, text)


def clean_line(text: str) -> str:
    """As `_clean`, for one line of a drawing: no line ends and tabs either."""
    return _OBEYED_IN_LINE.sub("\N{REPLACEMENT CHARACTER}", text)


class _CleanStream:
    """A text stream that cleans what is written to it; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.uncleaned = stream
        try:
            "\N{REPLACEMENT CHARACTER}".encode(stream.encoding or "utf-8")
            self._shown = "\N{REPLACEMENT CHARACTER}"
        except UnicodeEncodeError:
            self._shown = "?"

    def write(self, text: str) -> int:
        self.uncleaned.write(_clean(text, self._shown))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.uncleaned, name)


def uncleaned(stream: TextIO) -> TextIO:
    """The stream as it was, for what draws with control characters of our own."""
    return stream.uncleaned if isinstance(stream, _CleanStream) else stream


@contextmanager
def clean_streams() -> Iterator[None]:
    """Standard output and error let nothing through that a terminal would obey."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _CleanStream(uncleaned(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
