"""How an effect and its interval are written, so that a small but real effect never reads as '1.00 to 1.00'.

A ratio has three digits, wherever it is shown: more would claim what no interval holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

_TIME_UNITS = frozenset({"s", "ms", "us", "µs", "ns", "min", "h", "seconds"})
# metrics whose unit reads as that of another: requests that met the limits are not all that were served
_NAMED = frozenset({"goodput"})
_COST_UNITS = frozenset({"dollars", "J", "kWh", "Wh", "g", "kg"})


def decimals(width: float, least: int, most: int = 6) -> int:
    """Decimals that show a width with two digits."""
    if width <= 0 or not math.isfinite(width):
        return least
    return max(least, min(most, 1 - math.floor(math.log10(width))))


def percent(change: float, places: int = 1) -> str:
    """0.041 -> '+4.1%'; a loss that rounds to nothing is not said to be one."""
    found = f"{change * 100:+.{places}f}%"
    return found if found.strip("-0.%") else found[1:]


def percent_range(low: float, high: float) -> str:
    """'-1.9% to +9.8%' from changes as fractions; beyond 100% '0.98x to 4.09x'."""
    if high > 1 and low > -1:
        return f"{ratio_text(1 + low)} to {ratio_text(1 + high)}"
    places = decimals((high - low) * 100, 1)
    return f"{percent(low, places)} to {percent(high, places)}"


def ratio_text(ratio: float) -> str:
    """'1.23x', '12.3x', '0.953x': three digits, or all before the point."""
    return f"{_digits(ratio)}x"


def _digits(ratio: float, least: int = 0) -> str:
    """Three digits, and at least so many decimals."""
    size = abs(ratio)
    places = 2 if 0.9995 <= size < 9.995 else 3 if size < 0.9995 else 1 if size < 99.95 else 0
    return f"{ratio:,.{max(places, least)}f}"


_MOST_PLACES = 6


def ratio_range(estimate: float, low: float, high: float) -> tuple[str, str]:
    """('1.62x', '1.55 to 1.70'): three digits, and more only where an effect that is shown would read as none."""
    shown, places = low >= 1 or high <= 1, 0
    off = [value for value in (estimate, low, high) if value != 1] if shown else []
    while places < _MOST_PLACES and any(float(_digits(value, places).replace(",", "")) == 1 for value in off):
        places += 1
    first, *ends = (_digits(value, places) for value in (estimate, low, high))
    return f"{first}x", " to ".join(ends)


def effect_text(change: float) -> str:
    """A change as a fraction: '4.1%'; from a doubling on the ratio that it comes to: '4.09x'."""
    if change < 1:
        return f"{change:.1%}"
    return ratio_text(1 + change) if change < _IMMENSE else f"more than {_IMMENSE:,.0f}x"


_IMMENSE = 1000.0


def count(number: float, noun: str, shown: str = "") -> str:
    """'1 run', '2 runs'; `shown` is how the number is written, where not as it stands."""
    return f"{shown or number} {noun}{'' if (float(shown.replace(',', '')) if shown else number) == 1 else 's'}"


def node_time_text(hours: float) -> str:
    """'12.1 node-hours'; of runs that take a moment '28 node-seconds'."""
    small = 0 < hours < 0.01
    return count(hours, "node-second", f"{hours * 3600:.2g}") if small else count(hours, "node-hour", f"{hours:.3g}")


def metric_text(value: float) -> str:
    """A measured value with four digits, or with all of them before the point."""
    if value and (abs(value) >= 1e7 or abs(value) < 1e-3):
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class MetricText:
    """How values of one metric and changes of it are said, always so that it is clear of what a percentage is.

    Ratios and changes come oriented: above 1, or above 0, is better.
    """

    metric: str = ""
    unit: str = ""
    direction: Literal["maximize", "minimize"] = "maximize"

    @property
    def is_time(self) -> bool:
        return self.direction == "minimize" and self._counted_in in _TIME_UNITS

    @property
    def _counted_in(self) -> str:
        return (self.unit or self.metric.rpartition("_")[2]).split("/")[0]

    def value(self, value: float) -> str:
        """'317 steps/s'; the metric is named where its unit does not tell what it is: 'goodput 14.57 requests/s'."""
        return self._said(metric_text(value))

    def before_after(self, before: float, after: float) -> str:
        """'302 -> 317 steps/s', with as many digits as tell the two apart."""
        first, second = _distinguished(before, after)
        return self._said(f"{first} -> {second}")

    def _said(self, values: str) -> str:
        named = not self.unit or self.metric in _NAMED
        return " ".join(part for part in (self.metric if named else "", values, self.unit) if part)

    @property
    def sense(self) -> str:
        """What a ratio counts: nothing to add where it is that of the metric itself."""
        if self.direction == "maximize":
            return ""
        if self._counted_in in _COST_UNITS:
            return " as economical"
        return " as fast" if self.is_time else " as good"

    def ratio_to(self, ratio: str, than: str) -> str:
        """'1.62x baseline', of a time '1.62x as fast as baseline'."""
        return f"{ratio}{self.sense} as {than}" if self.sense else f"{ratio} {than}"

    def own_change(self, better: float) -> float:
        """The change of the metric itself: a quarter faster is a fifth less time."""
        if self.direction == "maximize":
            return better
        return 1 / (1 + better) - 1 if better > -1 else math.inf

    def changed(self, better: float, places: int = 0) -> str:
        """'wall_s 50% higher' of runs that are a third slower."""
        change = self.own_change(better)
        if change > 1:
            return f"{self.metric} {ratio_text(1 + change)} as high"
        return f"{self.metric} {abs(change) * 100:.{places}f}% {'higher' if change > 0 else 'lower'}"

    def range(self, low: float, high: float) -> str:
        """'rate -1.9% to +9.8%'."""
        ends = sorted((self.own_change(low), self.own_change(high)))
        return f"{self.metric} {percent_range(*ends)}".strip()


def _distinguished(before: float, after: float) -> tuple[str, str]:
    first, second = metric_text(before), metric_text(after)
    for digits in range(5, 9):
        if first != second or before == after:
            break
        first, second = (f"{value:,.{digits}g}" for value in (before, after))
    return first, second
