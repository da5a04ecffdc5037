"""What a study says to the `command` workload, as a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.records.outcome import Signature
from ridgeline.records.problem import Problem
from ridgeline.workloads.command.extract import Metric


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The options as far as they could be read. Inputs are templates; files and links map a name to its source."""

    run: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, Path] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    signatures: tuple[Signature, ...] = ()
    problems: tuple[Problem, ...] = ()
