"""What a study says to the engine workloads, as records. The session on a node reads them: no pydantic here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.records.expression import Value
from ridgeline.records.problem import Problem
from ridgeline.serving.traffic.traffic import Traffic, parse_traffic


@dataclass(frozen=True, slots=True)
class Install:
    """Where an engine is: an interpreter, perhaps inside a container image. `version` "" where nobody said."""

    python: str = "python3"
    container: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, as text and numbers, so that the session on the node makes exactly the same."""

    traffic: str = "sharegpt"
    requests: int = 1000
    seed: int = 0
    concurrency: int | None = None
    rate_s: float | None = None
    burstiness: float = 1.0
    slos: tuple[str, ...] = ()
    warmup: int | None = None
    workers: int = 1

    def recipe(self, *, paced: bool = True) -> Traffic:
        """`paced` False: the same requests, all at once."""
        return parse_traffic(
            self.traffic,
            requests=self.requests,
            rate_s=self.rate_s if paced else None,
            concurrency=self.concurrency if paced else None,
            burstiness=self.burstiness,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options as far as they could be read."""

    model: str = ""
    shape: str = ""
    gpu: str = ""
    launcher: str = ""
    flags: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    engine: Install = field(default_factory=Install)
    engines: Mapping[str, Install] = field(default_factory=dict)
    ready_limit_s: float = 1800.0
    prepare: tuple[str, ...] = ()
    sources: str = ""
    problems: tuple[Problem, ...] = ()

    def install(self, name: object) -> Install:
        """The engine that a knob's value names; the study's own where it names none."""
        if name is None or name == "":
            return self.engine
        return self.engines.get(str(name)) or install_from_text(str(name), self.engine.version)


def install_from_text(text: str, version: str) -> Install:
    """An interpreter, a virtual environment's folder, or a container image."""
    if not text:
        return Install(version=version)
    if text.endswith((".sif", ".img")) or "://" in text:
        return Install("python3", text, version)
    if (Path(text) / "bin" / "python").exists() or text.endswith("/"):
        return Install(f"{text.rstrip('/')}/bin/python", "", version)
    return Install(text, "", version)
