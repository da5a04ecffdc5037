"""SVG as text. Colours and line widths are the page's business: everything here carries a class."""

from __future__ import annotations

from html import escape

from ridgeline.report.figures.shapes import BASELINE, BEST, CONFIRM, OTHER, SEARCH, SENTINEL, WINNER

CHARACTER_PX = 6.3  # about, of the page's 12 px text
WIDEST_PX = 6.8  # of the wider fonts that a system may have: for what must not be cut
BOLD_PX = 7.2  # and of an axis label
LOOKS = (BASELINE, SENTINEL, SEARCH, CONFIRM, WINNER, BEST, OTHER, "ideal", "failed")
_DIAMOND, _TRIANGLE, _DOWN, _CROSS = 5.4, 5.2, 5.2, 3.8


def look_class(look: str) -> str:
    """Only words of ours become classes; anything else is a number of the palette."""
    if look in LOOKS:
        return f"l-{look}"
    return f"l-{int(look) % 8}" if look.isdigit() else "l-other"


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    place = "" if anchor == "start" else f" text-anchor={anchor}"
    return f"<text x={n(x)} y={n(y)}{place}{f' class={kind}' if kind else ''}>{escape(content)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f"<line x1={n(x1)} y1={n(y1)} x2={n(x2)} y2={n(y2)} class={kind} />"


def box(x: float, y: float, width: float, height: float, kind: str, text: str = "") -> str:
    shape = f"<rect x={n(x)} y={n(y)} width={n(max(0.0, width))} height={n(max(0.0, height))} class={kind}"
    return f"{shape}>{title(text)}</rect>" if text else f"{shape} />"


def title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def n(value: float) -> str:
    """A pixel with one decimal, as short as can be."""
    return f"{value:.1f}".removesuffix(".0")


def mark(x: float, y: float, look: str, text: str = "", trial: int | None = None, grouped: bool = False) -> str:
    """The shape distinguishes marks where colours do not; one in a group has its class from there."""
    link = "" if trial is None else f" data-t={trial}"
    head = link.lstrip() if grouped else f'class="m {look_class(look)}"{link}'
    if look in (SEARCH, OTHER, "0", "1"):
        return f"<circle cx={n(x)} cy={n(y)} r=4 {head}>{title(text)}</circle>"
    if look == BASELINE:
        return f"<circle cx={n(x)} cy={n(y)} r=4.4 {head}>{title(text)}</circle>"
    return f'<path d="{_form(x, y, look)}" {head}>{title(text)}</path>'


def _form(x: float, y: float, look: str) -> str:
    if look in (WINNER, SENTINEL, "4"):
        d = _DIAMOND
        return f"M{n(x)} {n(y - d)}L{n(x + d)} {n(y)}L{n(x)} {n(y + d)}L{n(x - d)} {n(y)}Z"
    if look in (CONFIRM, "2", "5"):
        d = 3.6
        return f"M{n(x - d)} {n(y - d)}H{n(x + d)}V{n(y + d)}H{n(x - d)}Z"
    if look == "failed":
        d = _CROSS
        return f"M{n(x - d)} {n(y - d)}L{n(x + d)} {n(y + d)}M{n(x + d)} {n(y - d)}L{n(x - d)} {n(y + d)}"
    d = _TRIANGLE if look in ("3", "6") else -_DOWN
    return f"M{n(x)} {n(y - d)}L{n(x + abs(d))} {n(y + d * 0.8)}L{n(x - abs(d))} {n(y + d * 0.8)}Z"


def drawing(width: float, height: float, text: str, parts: list[str], kind: str = "") -> str:
    """As wide as its place on the page, which is about as wide as it was drawn for."""
    head = f'<svg viewBox="0 0 {n(width)} {n(height)}" role=img aria-label="{escape(text)}"'
    return f"{head}{f' class={kind}' if kind else ''}>{''.join(parts)}</svg>"


def cut(content: str, width_px: float) -> str:
    most = max(4, int(width_px / CHARACTER_PX))
    return content if len(content) <= most else f"{content[: most - 1]}…"
