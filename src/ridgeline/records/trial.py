"""One point of the space, and who proposed it for what."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ridgeline.records.space import Point, Settings, point_key


class Stage(StrEnum):
    BASELINE = "baseline"
    SEARCH = "search"
    SENTINEL = "sentinel"  # the baseline again, to see drift
    CONFIRM = "confirm"
    SHORT = "short"  # with less to do than a whole run: says which settings deserve one
    WARM_UP = (
        "warm-up"  # before a block on a node that was idle or in other hands: brings it to work, and counts nowhere
    )
    PROFILE = "profile"  # under a profiler: shows where the time goes, and is compared with nothing

    @property
    def text(self) -> str:
        """For people, to whom a sentinel is a run of the baseline."""
        return Stage.BASELINE.value if self is Stage.SENTINEL else self.value


@dataclass(frozen=True, slots=True)
class PredictedRange:
    """What a run was predicted to measure before it ran, in the goal's unit: `value`, and nine of ten times between
    `low` and `high`. `spread` is the standard deviation that the model itself gave, in logs where `in_logs`."""

    value: float
    low: float
    high: float
    spread: float
    in_logs: bool

    def holds(self, measured: float) -> bool:
        return self.low <= measured <= self.high

    def error(self, measured: float) -> float:
        """How many of the model's own standard deviations the measured value lies from the predicted one."""
        if not self.in_logs:
            return (measured - self.value) / self.spread
        ratio = measured / self.value if self.value else math.nan
        return math.log(ratio) / self.spread if ratio > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Trial:
    """`settings` is the point with derived values; `build` the folder of its built variant, if the study builds."""

    number: int
    point: Point
    settings: Settings
    stage: Stage
    proposer: str
    why: str = ""
    block: int | None = None  # of a confirm trial: which interleaved block it belongs to
    build: Path | None = None
    predicted: PredictedRange | None = None  # None: nothing was predicted of it
    key: str = field(init=False, repr=False, compare=False)  # of the point

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", point_key(self.point))

    @property
    def label(self) -> str:
        """A short, file-name-safe reminder of the point, such as tp8-pp2-mem0.88."""
        named = (f"{name}{'' if value is True else value}" for name, value in self.point.items())
        words = [re.sub(r"[^A-Za-z0-9.+]", "", each) for each in named]
        return "-".join(words)[:60].strip("-.") or "only"
