"""What is known about a site's speed: fitted factors, how sure they are, and the file that keeps them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.serving.twin.factors import PRIORS, Factors

# Spread of log(measured / predicted) without any measurement of the site: see docs/accuracy.md.
UNCALIBRATED_SPREAD = 0.25
_NORMAL_90 = 1.6449


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors of a site. `spread` is the standard deviation of log(measured / predicted) for a new setting."""

    factors: Factors = PRIORS
    spread: float = UNCALIBRATED_SPREAD
    points: int = 0
    sources: tuple[str, ...] = ()
    leave_one_out: float | None = None  # median relative error of predicting each point from the others

    def ratio_interval(self, besides: float = 0.0) -> tuple[float, float]:
        """Measured over predicted, between these two in nine of ten cases. `besides`: spread of another origin."""
        reach = _NORMAL_90 * math.hypot(self.spread, besides)
        return math.exp(-reach), math.exp(reach)

    def as_json(self) -> dict[str, object]:
        return {
            "version": 1,
            "factors": self.factors.as_json(),
            "spread": self.spread,
            "points": self.points,
            "sources": list(self.sources),
            "leave_one_out": self.leave_one_out,
        }


def write_calibration(calibration: Calibration, path: Path) -> None:
    """JSON, which is YAML too: a person may edit it and add comments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(calibration.as_json(), indent=2) + "\n")


def read_calibration(path: Path) -> Calibration:
    import yaml

    try:
        tree: Any = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InputError(f"calibration {path}: {error.strerror}; make one with `ridgeline calibrate`") from None
    except yaml.YAMLError as error:
        raise InputError(f"calibration {path}: not YAML or JSON ({error})") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("factors"), dict):
        raise InputError(f"calibration {path}: holds no factors; make one with `ridgeline calibrate`")
    spread = tree.get("spread", UNCALIBRATED_SPREAD)
    if not isinstance(spread, int | float) or not 0 <= spread < 3:
        raise InputError(f"calibration {path}: spread {spread!r} is not a number between 0 and 3")
    try:
        loo = tree.get("leave_one_out")
        return Calibration(
            factors=Factors.of(tree["factors"], f"calibration {path}"),
            spread=float(spread),
            points=int(tree.get("points", 0)),
            sources=tuple(str(s) for s in tree.get("sources", ())),
            leave_one_out=None if loo is None else float(loo),
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"calibration {path}: {error}; make it again with `ridgeline calibrate`") from None
