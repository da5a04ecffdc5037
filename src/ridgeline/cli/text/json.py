"""A JSON document for people and scripts: indented, with plain lists on one line."""

from __future__ import annotations

import json
import re

# An opening bracket before a line break is never inside a string: JSON writes a break in a string as \n.
_PLAIN_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")


def json_text(document: object) -> str:
    """Exactly one document. A curve of two hundred points takes two hundred lines, not a thousand."""
    text = json.dumps(document, indent=2)
    return _PLAIN_LIST.sub(lambda found: "[" + re.sub(r",\n\s+", ", ", found[1]) + "]", text)
