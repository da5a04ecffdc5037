"""How an effect and its interval are written, so that a small but real effect never reads as '1.00 to 1.00'."""

from __future__ import annotations

import math


def decimals(width: float, least: int, most: int = 6) -> int:
    """Decimals that show a width with two digits."""
    if width <= 0 or not math.isfinite(width):
        return least
    return max(least, min(most, 1 - math.floor(math.log10(width))))


def percent(change: float, places: int = 1) -> str:
    """0.041 -> '+4.1%'."""
    return f"{change * 100:+.{places}f}%"


def percent_range(low: float, high: float) -> str:
    """'-1.9% to +9.8%' from changes as fractions."""
    places = decimals((high - low) * 100, 1)
    return f"{percent(low, places)} to {percent(high, places)}"


def ratio_range(estimate: float, low: float, high: float) -> tuple[str, str]:
    """('1.62x', '1.55 to 1.70')."""
    places = decimals(high - low, 2)
    return f"{estimate:.{places}f}x", f"{low:.{places}f} to {high:.{places}f}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def metric_text(value: float) -> str:
    """A measured value with four digits, or with all of them before the point."""
    if value and (abs(value) >= 1e7 or abs(value) < 1e-3):
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
