"""From numbers to pixels: ranges, round ticks and their text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.report.figures.shapes import Axis

_PAD = 0.05  # of the range, so that no mark sits on the frame


@dataclass(frozen=True, slots=True)
class PixelScale:
    """Where a value stands between two pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.low / 10))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def pixel_scale(axis: Axis, values: Iterable[float], start: float, end: float) -> PixelScale:
    known = [v for v in values if math.isfinite(v)]
    log = axis.log and bool(known) and min(known) > 0
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if log:
        room = _PAD * math.log(high / low) if high > low else 0.1
        low, high = low * math.exp(-room), high * math.exp(room)
    else:
        room = _PAD * (high - low) if high > low else (abs(high) * 0.1 or 1.0)
        low, high = (0.0 if axis.from_zero and low >= 0 else low - room), high + room
    low = low if axis.low is None else axis.low
    high = high if axis.high is None else axis.high
    return PixelScale(low, high, start, end, log)


def ticks(axis: Axis, scale: PixelScale, most: int) -> list[tuple[float, str]]:
    if axis.ticks:
        return [(v, text) for v, text in axis.ticks if scale.low <= v <= scale.high]
    if scale.log:
        return _log_ticks(scale, most)
    values = _round_values(scale.low, scale.high, most)
    step = values[1] - values[0] if len(values) > 1 else 1.0
    return [(v, _tick_text(v, step)) for v in values]


def _round_values(low: float, high: float, most: int) -> list[float]:
    """So many round numbers in the range, or fewer; up to a quarter more where whole numbers ask for it."""
    raw = (high - low) / max(1, most)
    if raw <= 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    # runs and seconds are counted in whole numbers: no step of 2.5 for them
    steps = (1, 2, 5, 10, 20) if power == 1 else (1, 2, 2.5, 5, 10, 20)
    step = next(m * power for m in steps if m * power >= (0.8 * raw if power == 1 else raw))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(scale: PixelScale, most: int) -> list[tuple[float, str]]:
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    for parts in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [m * 10.0**p for p in powers for m in parts if scale.low <= m * 10.0**p <= scale.high]
        if len(found) >= 3:
            break
    if len(found) < 2:
        found = _round_values(scale.low, scale.high, most)
    return [(v, _tick_text(v, v)) for v in found[:: len(found) // (most + 1) + 1]]


def _tick_text(value: float, step: float) -> str:
    """Never rounded to where the tick does not stand: a step of 2.5 needs a decimal."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1.0, "")):
        if abs(value) >= factor or factor == 1.0:
            places = next((p for p in range(7) if _is_whole(step / factor * 10**p)), None)
            if places is not None and (places <= 2 or not suffix):
                return f"{value / factor:,.{places}f}{suffix}"
    digits = 2 + max(1, math.ceil(math.log10(abs(value / step)))) if value and step else 3
    return f"{value:.{digits}g}"


def _is_whole(number: float) -> bool:
    return abs(number) >= 1 - 1e-9 and abs(number - round(number)) < 1e-6 * abs(number)


def thinned(marks: Sequence[tuple[float, str]], scale: PixelScale, character_px: float) -> list[tuple[float, str]]:
    """Ticks whose texts do not touch each other; the first one stays, and even steps stay even."""
    gaps = [b - a for (a, _), (b, _) in pairwise(marks)]
    if gaps and max(gaps) - min(gaps) < 1e-9 * max(map(abs, gaps)) and not scale.log:
        widest = max(len(text) for _, text in marks) * character_px + 10
        return [*marks[:: max(1, math.ceil(widest / abs(scale(marks[1][0]) - scale(marks[0][0]))))]]
    kept: list[tuple[float, str]] = []
    for value, text in sorted(marks, key=lambda mark: scale(mark[0])):
        half = len(text) * character_px / 2 + 5
        if not kept or scale(value) - half >= scale(kept[-1][0]) + len(kept[-1][1]) * character_px / 2 + 5:
            kept.append((value, text))
    return kept
