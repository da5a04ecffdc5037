"""What is known about a site's speed: fitted factors, how sure they are, and the file that keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.expression import is_number
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, in_json
from ridgeline.serving.hardware.cluster import read_yaml
from ridgeline.serving.twin.evidence.scope import ValidatedSettings
from ridgeline.serving.twin.factors import PRIORS, Factors
from ridgeline.stats.stated_range import NORMAL_90

# Spread of log(measured / predicted) without any measurement of the site: see docs/accuracy.md.
UNCALIBRATED_SPREAD = 0.15
VERSION = 1
_REMEDY = "make one with `ridgeline twin calibrate --from LOG --out FILE`"


@dataclass(frozen=True, slots=True)
class Calibration(JsonForm):
    """Factors of a site. `spread` is the standard deviation of log(measured / predicted) for a new setting."""

    factors: Factors = PRIORS
    spread: float = UNCALIBRATED_SPREAD
    points: int = 0
    sources: tuple[str, ...] = ()
    leave_one_out: float | None = None  # median relative error of predicting each point from the others
    scope: ValidatedSettings = field(
        default_factory=ValidatedSettings, metadata=in_json("measured_on")
    )  # what it was measured on
    version: int = field(default=VERSION, init=False)
    first_token_spread: float = field(
        default=0.0, metadata=NOT_IN_JSON
    )  # what comes on top for TTFT, far from what was measured

    def ratio_interval(self, besides: float = 0.0) -> tuple[float, float]:
        """Measured over predicted, between these two in nine of ten cases. `besides`: spread of another origin."""
        reach = NORMAL_90 * math.hypot(self.spread, besides)
        return math.exp(-reach), math.exp(reach)


def write_calibration(calibration: Calibration, path: Path) -> None:
    """JSON, which is YAML too: a person may edit it and add comments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(calibration.as_json(), indent=2) + "\n")


def read_calibration(path: Path) -> Calibration:
    import yaml

    where = f"calibration {path}"
    try:
        tree: Any = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}; {_REMEDY}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: not YAML or JSON ({str(error).splitlines()[0]}); {_REMEDY}") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("factors"), dict):
        raise InputError(f"{where}: holds no factors; {_REMEDY}")
    if tree.get("version", VERSION) != VERSION:
        raise InputError(f"{where}: is version {tree['version']!r}, but this release reads {VERSION}; {_REMEDY}")
    spread = _number(tree, "spread", UNCALIBRATED_SPREAD, f"{where}: ")
    if not 0 <= spread < 3:
        raise InputError(f"{where}: spread {spread:g} is not a number between 0 and 3; {_REMEDY}")
    points, sources = tree.get("points", 0), tree.get("sources", [])
    if isinstance(points, bool) or not isinstance(points, int) or points < 0:
        raise InputError(f"{where}: points {points!r} is not a number of points, zero or more; {_REMEDY}")
    if not isinstance(sources, list):
        raise InputError(f"{where}: sources {sources!r} is not a list of file names; {_REMEDY}")
    factors = {name: _number(tree["factors"], name, 1.0, f"{where}: factors.") for name in tree["factors"]}
    error_or_none = tree.get("leave_one_out")
    return Calibration(
        factors=Factors.of(factors, where),
        spread=spread,
        points=points,
        sources=tuple(map(str, sources)),
        leave_one_out=None if error_or_none is None else _number(tree, "leave_one_out", 0.0, f"{where}: "),
        scope=ValidatedSettings.read(tree.get("measured_on", []), where),
    )


def _number(tree: Mapping[str, Any], name: str, default: float, where: str) -> float:
    value = tree.get(name, default)
    if not is_number(value):
        raise InputError(f"{where}{name} is {value!r}, not a number; {_REMEDY}")
    return float(value)
