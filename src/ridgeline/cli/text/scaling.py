"""How the faces write a scaling verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ridgeline.cli.text.wording import metric_words


def scaling_lines(verdict: Mapping[str, Any]) -> Iterable[str]:
    """A row for each size, then where it stops paying."""
    rows = [(str(verdict["over"]), "runs", str(verdict["metric"]), "speed-up", "efficiency")]
    for step in verdict["steps"]:
        speed, share = f"{step['speedup']:.2f}", f"{step['efficiency']:.0%}"
        if step["speedup_low"] is not None and len(rows) > 1:
            speed += f" ({step['speedup_low']:.2f} to {step['speedup_high']:.2f})"
            share += f" ({step['efficiency_low']:.0%} to {step['efficiency_high']:.0%})"
        rows.append((str(step["size"]), str(step["runs"]), metric_words(step["mean"]), speed, share))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  " + "   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    for size, reason in verdict["failed"].items():
        yield f"  {size}: {reason}"
    yield ""
    yield str(verdict["headline"])
    if law := verdict["law"]:
        between = "" if law["serial_low"] is None else f" ({law['serial_low']:.0%} to {law['serial_high']:.0%})"
        yield f"{law['name']}: {law['serial']:.0%} serial{between}"
