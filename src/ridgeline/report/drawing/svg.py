"""From numbers to pixels, with round ticks, and SVG as text, which is XML: colours and line widths come from the style
sheet, so everything here carries a class."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from ridgeline.report.figures.shapes import BASELINE, BEST, CONFIRM, OTHER, SEARCH, SENTINEL, WINNER, Axis

CHARACTER_PX = 6.3  # about, of the page's 12 px text
WIDEST_PX = 6.8  # of the wider fonts that a system may have: for what must not be cut
SIGNS_PX = 7.5  # of numbers with their signs: + and % are wider than letters
BOLD_PX = 7.2  # and of an axis label
_PAD = 0.05  # of the range, so that no mark sits on the frame
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
LOOKS = (BASELINE, SENTINEL, SEARCH, CONFIRM, WINNER, BEST, OTHER, "ideal", "failed")


def look_class(look: str) -> str:
    """Only words of ours become classes; anything else is a number of the palette."""
    if look in LOOKS:
        return f"l-{look}"
    return f"l-{int(look) % 8}" if look.isdigit() else "l-other"


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{n(x)}" y="{n(y)}"{place}{named}>{escaped(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{n(x1)}" y1="{n(y1)}" x2="{n(x2)}" y2="{n(y2)}" class="{kind}"/>'


def box(x: float, y: float, width: float, height: float, kind: str, text: str = "") -> str:
    size = f'width="{n(max(0.0, width))}" height="{n(max(0.0, height))}"'
    return _shape("rect", f'x="{n(x)}" y="{n(y)}" {size} class="{kind}"', text)


def title(text: str) -> str:
    return f"<title>{escaped(text)}</title>" if text else ""


def escaped(text: str) -> str:
    """For XML, which has no place for control characters: logs hold them."""
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))


def n(value: float) -> str:
    """A pixel with one decimal, as short as can be."""
    return f"{value:.1f}".removesuffix(".0")


def mark(x: float, y: float, look: str, text: str = "", trial: int | None = None, grouped: bool = False) -> str:
    """The shape distinguishes marks where colours do not; one in a group has its class from there."""
    link = "" if trial is None else f' data-t="{trial}"'
    head = link.lstrip() if grouped else f'class="m {look_class(look)}"{link}'
    if look in (BASELINE, SEARCH, OTHER, "0", "1"):
        return _shape("circle", f'cx="{n(x)}" cy="{n(y)}" r="{4.4 if look == BASELINE else 4}" {head}', text)
    right, down, form = _FORMS.get(look, (0.0, 5.2, "l5.2-9.4h-10.4z"))
    return _shape("path", f'd="M{n(x + right)} {n(y + down)}{form}" {head}', text)


def _shape(tag: str, attributes: str, text: str) -> str:
    return f"<{tag} {attributes}>{title(text)}</{tag}>" if text else f"<{tag} {attributes}/>"


# where a path starts, from the mark's place, and how it goes on: relative, which is shorter for a thousand
_FORMS = {
    **dict.fromkeys((WINNER, SENTINEL, "4"), (0.0, -5.4, "l5.4 5.4-5.4 5.4-5.4-5.4z")),
    **dict.fromkeys((CONFIRM, "2", "5"), (-3.6, -3.6, "h7.2v7.2h-7.2z")),
    **dict.fromkeys(("3", "6"), (0.0, -5.2, "l5.2 9.4h-10.4z")),
    "failed": (-3.8, -3.8, "l7.6 7.6m0-7.6-7.6 7.6"),
}


def drawing(width: float, height: float, parts: Iterable[str]) -> str:
    """As wide as its place on the page, which is about as wide as it was drawn for."""
    return f'<svg viewBox="0 0 {n(width)} {n(height)}" role="img">{"".join(parts)}</svg>'


def cut(content: str, width_px: float) -> str:
    most = max(4, int(width_px / CHARACTER_PX))
    return content if len(content) <= most else f"{content[: most - 1]}…"


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
