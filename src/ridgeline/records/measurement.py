"""What was read out of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["measured", "modelled"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number with its unit, the file it came from (relative to the run folder), and how it came about."""

    metric: str
    value: float
    unit: str = ""
    source: str = ""
    origin: Origin = "measured"

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"{self.metric} from {self.source or 'a run'} is {self.value}, not a number we can rank")


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything a workload read from one run.

    `unverified` says what the program shows it did not apply as asked; `contaminated` says why the figures do not
    describe the setting (a cache warmed by the same prompts, for example). Either keeps the run out of the ranking.
    """

    measurements: tuple[Measurement, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    unverified: str = ""
    contaminated: str = ""
    wrong: str = ""  # what the workload itself found wrong with the result, as a guard would
    problem: str = ""  # why something that must be there could not be read
    remedy: str = ""  # what the study's author should change so that it can
    applied: Mapping[str, object] = field(default_factory=dict)  # arguments, as the program itself says it applied them

    @property
    def metrics(self) -> dict[str, float]:
        return {m.metric: m.value for m in self.measurements}
