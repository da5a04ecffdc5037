"""A fitted calibration, for a terminal."""

from __future__ import annotations

import math
from pathlib import Path

from ridgeline.serving.twin.fit import FactorFit

MOST = 6  # doubtful points that are named


def calibration_text(fit: FactorFit, out: Path) -> str:
    c = fit.calibration
    low, high = c.ratio_interval()
    doubted = [p for p in fit.points if p.doubted]
    return "\n".join(
        [
            f"{c.points} point{'' if c.points == 1 else 's'} from {', '.join(c.sources)}",
            "  " + "   ".join(f"{name} {value:.2f}" for name, value in c.factors.as_json().items()),
            f"  leave-one-out error, median  {c.leave_one_out or 0:.1%}",
            f"  expect a new setting within {low - 1:+.0%} and {high - 1:+.0%} of the prediction, 9 times of 10",
            *(f"  doubtful: {p.name}, {math.expm1(p.left_out):+.0%} from what the others say" for p in doubted[:MOST]),
            *([f"  and {len(doubted) - MOST} more"] if len(doubted) > MOST else []),
            f"written to {out}",
        ]
    )
