"""SVG as text. Colours and line widths are the page's business: everything here carries a class."""

from __future__ import annotations

from html import escape

from ridgeline.report.figures.shapes import BASELINE, BEST, CONFIRM, OTHER, SEARCH, SENTINEL, WINNER

CHARACTER_PX = 6.3  # about, of the page's 12 px text
WIDEST_PX = 6.8  # of the wider fonts that a system may have: for what must not be cut
SIGNS_PX = 7.5  # of numbers with their signs: + and % are wider than letters
BOLD_PX = 7.2  # and of an axis label
LOOKS = (BASELINE, SENTINEL, SEARCH, CONFIRM, WINNER, BEST, OTHER, "ideal", "failed")


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
        return _shape("circle", f"cx={n(x)} cy={n(y)} r=4 {head}", text)
    if look == BASELINE:
        return _shape("circle", f"cx={n(x)} cy={n(y)} r=4.4 {head}", text)
    up, form = _form(look)
    return _shape("path", f'd="M{n(x + up[0])} {n(y + up[1])}{form}" {head}', text)


def _shape(tag: str, attributes: str, text: str) -> str:
    # a slash right after an unquoted value would be part of it
    return f"<{tag} {attributes}>{title(text)}</{tag}>" if text else f"<{tag} {attributes.rstrip()} />"


def _form(look: str) -> tuple[tuple[float, float], str]:
    """Where a path starts, from the mark's place, and how it goes on: relative, which is shorter for a thousand."""
    if look in (WINNER, SENTINEL, "4"):
        return (0, -5.4), "l5.4 5.4-5.4 5.4-5.4-5.4z"
    if look in (CONFIRM, "2", "5"):
        return (-3.6, -3.6), "h7.2v7.2h-7.2z"
    if look == "failed":
        return (-3.8, -3.8), "l7.6 7.6m0-7.6-7.6 7.6"
    return ((0, -5.2), "l5.2 9.4h-10.4z") if look in ("3", "6") else ((0, 5.2), "l5.2-9.4h-10.4z")


def alt_text(title: str, says: str, *axes: str) -> str:
    """What a screen reader says of a figure; one whose heading stands elsewhere is named by its axes."""
    return ". ".join(filter(None, (title, says))) or ", ".join(filter(None, axes))


def drawing(width: float, height: float, text: str, parts: list[str], kind: str = "") -> str:
    """As wide as its place on the page, which is about as wide as it was drawn for."""
    head = f'<svg viewBox="0 0 {n(width)} {n(height)}" role=img aria-label="{escape(text)}"'
    return f"{head}{f' class={kind}' if kind else ''}>{''.join(parts)}</svg>"


def cut(content: str, width_px: float) -> str:
    most = max(4, int(width_px / CHARACTER_PX))
    return content if len(content) <= most else f"{content[: most - 1]}…"
