"""What a study says to the `twin` workload, as a record."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.engines.settings import DEFAULTS, EngineSettings
from ridgeline.hardware.cluster import Cluster
from ridgeline.model.model import Model
from ridgeline.records.problem import Problem
from ridgeline.traffic.traffic import Traffic
from ridgeline.twin.calibration import Calibration


@dataclass(frozen=True, slots=True)
class TwinOptions:
    """The options as far as they could be read; those that could not are None and have a problem."""

    model: Model | None = None
    traffic: Traffic | None = None
    cluster: Cluster | None = None
    version: EngineSettings = DEFAULTS
    calibration: Calibration = field(default_factory=Calibration)
    problems: tuple[Problem, ...] = ()
