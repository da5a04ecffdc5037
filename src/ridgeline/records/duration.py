"""Times in study files: `90s`, `10m`, `1h30m`, `2d`, or plain seconds."""

from __future__ import annotations

import math
import re

_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = r"(?:(?P<{0}>[0-9]+(?:\.[0-9]+)?)\s*{0}\s*)?"
_DURATION = re.compile(r"\s*" + "".join(_PART.format(unit) for unit in _UNIT_S))


def parse_duration(value: object) -> float:
    """Seconds, above 0. ValueError says how to write it."""
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError(f"{value!r} is not a duration; write e.g. 90s, 10m, 1h30m or a number of seconds")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"a duration of {value} makes no sense; it must be above 0")
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) and len(value) < 64 else None
    if match is None or not any(match.groups()):
        return None
    return sum(_UNIT_S[unit] * float(number) for unit, number in match.groupdict().items() if number)


def show_duration(seconds: float) -> str:
    """`1h30m`: the way back, rounded to whole seconds from one second on."""
    if seconds < 1:
        return f"{seconds:g}s"
    rest, words = round(seconds), ""
    for unit, size_s in _UNIT_S.items():
        count, rest = divmod(rest, int(size_s))
        words += f"{count}{unit}" if count else ""
    return words
