"""What a study says to the `twin` workload, as a record."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.records.problem import Problem
from ridgeline.serving.engine.settings import DEFAULTS, EngineSettings
from ridgeline.serving.hardware.cluster import Cluster
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.serving.twin.calibration import Calibration


@dataclass(frozen=True, slots=True)
class TwinOptions:
    """The options as far as they could be read; those that could not are None and have a problem."""

    model: Model | None = None
    traffic: Traffic | None = None
    cluster: Cluster | None = None
    version: EngineSettings = DEFAULTS
    calibration: Calibration = field(default_factory=Calibration)
    problems: tuple[Problem, ...] = ()
