"""What a calibration was measured on: one scene for each setting, kept in its file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.expression import is_number
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.releases import release_written


@dataclass(frozen=True, slots=True)
class ValidatedSetting:
    """One setting: GPU, engine, model and the shape of an engine, and how many requests were under way in one."""

    gpu: str
    engine: str
    release: str
    model: str
    weights: str
    shape: str  # of one engine, without its copies
    between_nodes: bool = False
    apart: bool = False  # prefill and decode on GPUs of their own
    fewest: float = 0.0  # requests under way in one engine, on average of the lightest run and of the heaviest
    most: float = 0.0

    @property
    def loads(self) -> str:
        """`4` or `2 to 40`: requests under way."""
        low, high = f"{self.fewest:.0f}", f"{self.most:.0f}"
        return low if low == high else f"{low} to {high}"

    @classmethod
    def of(cls, deployment: Deployment, fewest: float, most: float) -> ValidatedSetting:
        layout, settings = deployment.layout, deployment.settings
        return cls(
            gpu=deployment.cluster.gpu.name,
            engine=settings.engine,
            # a line such as 0.5 stands for its newest release
            release=".".join(map(str, release_written(settings.engine, settings.version))),
            model=deployment.model.name,
            weights=deployment.model.weights_dtype,
            shape=str(layout) if layout.disaggregated else _shape(layout),
            between_nodes=(layout.decode or layout).replica_nodes > 1,
            apart=layout.disaggregated,
            fewest=round(fewest, 2),
            most=round(most, 2),
        )


def _shape(layout: Layout) -> str:
    return str(replace(layout, dp=1, nodes=layout.replica_nodes))


@dataclass(frozen=True, slots=True)
class ValidatedSettings:
    """Every scene once, with the range of all its loads."""

    scenes: tuple[ValidatedSetting, ...] = ()

    @classmethod
    def of(cls, scenes: Iterable[ValidatedSetting]) -> ValidatedSettings:
        found: dict[ValidatedSetting, ValidatedSetting] = {}
        for scene in scenes:
            key = replace(scene, fewest=0.0, most=0.0)
            old = found.get(key, scene)
            found[key] = replace(scene, fewest=min(old.fewest, scene.fewest), most=max(old.most, scene.most))
        return cls(tuple(found.values()))

    def as_json(self) -> list[dict[str, object]]:
        return [asdict(scene) for scene in self.scenes]

    @classmethod
    def read(cls, rows: object, where: str) -> ValidatedSettings:
        """From a calibration file, which a person may have edited."""
        if not isinstance(rows, list):
            raise InputError(f"{where}: measured_on {rows!r} is not a list of settings")
        return cls(tuple(_scene(row, f"{where}: measured_on[{number}]") for number, row in enumerate(rows)))


def _scene(row: object, where: str) -> ValidatedSetting:
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is {row!r}; write gpu, engine, release, model, weights and shape")
    kinds = {f.name: str(f.type) for f in fields(ValidatedSetting)}
    if unknown := sorted(str(name) for name in row if name not in kinds):
        raise InputError(f"{where}: {unknown[0]} is not known; known: {', '.join(kinds)}")
    given: dict[str, Any] = {name: "" for name, kind in kinds.items() if kind == "str"}
    for name, value in row.items():
        kind = kinds[name]
        if kind == "bool" and not isinstance(value, bool):
            raise InputError(f"{where}.{name} is {value!r}; write true or false")
        if kind == "float" and not (is_number(value) and value >= 0):
            raise InputError(f"{where}.{name} is {value!r}, not a number of requests")
        given[name] = str(value) if kind == "str" else value
    if missing := [name for name in ("gpu", "engine", "model") if not given[name]]:
        raise InputError(f"{where}: no {missing[0]}; write what was measured on, or leave measured_on out")
    return ValidatedSetting(**given)
