"""Rows of cells as aligned lines."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (), gap: str = "  ") -> list[str]:
    """Indented lines; columns are flush right, those numbered in `left` flush left."""
    if not rows:
        return []
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    forms = [f"{'<' if k in left else '>'}{width}" for k, width in enumerate(widths)]
    return ["  " + gap.join(map(format, row, forms)).rstrip() for row in rows]


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


# A JSON document for people and scripts: indented, with plain lists on one line.

# An opening bracket before a line break is never inside a string: JSON writes a break in a string as \n.
_PLAIN_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")


def json_text(document: object) -> str:
    """Exactly one document. A curve of two hundred points takes two hundred lines, not a thousand."""
    text = json.dumps(document, indent=2)
    return _PLAIN_LIST.sub(lambda found: "[" + re.sub(r",\n\s+", ", ", found[1]) + "]", text)
