"""What is known about a site's speed: fitted factors, how sure they are, and the file that keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.expression import is_number
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, in_json
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.releases import release_written
from ridgeline.serving.hardware.cluster import read_yaml
from ridgeline.stats.stated_range import NORMAL_90

# What a calibration was measured on: one scene for each setting, kept in its file.


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
            shape=str(layout if layout.disaggregated else replace(layout, dp=1, nodes=layout.replica_nodes)),
            between_nodes=(layout.decode or layout).replica_nodes > 1,
            apart=layout.disaggregated,
            fewest=round(fewest, 2),
            most=round(most, 2),
        )


def merged(scenes: Iterable[ValidatedSetting]) -> tuple[ValidatedSetting, ...]:
    """Every scene once, with the range of all its loads."""
    found: dict[ValidatedSetting, ValidatedSetting] = {}
    for scene in scenes:
        key = replace(scene, fewest=0.0, most=0.0)
        old = found.get(key, scene)
        found[key] = replace(scene, fewest=min(old.fewest, scene.fewest), most=max(old.most, scene.most))
    return tuple(found.values())


def _scenes(rows: object, where: str) -> tuple[ValidatedSetting, ...]:
    """From a calibration file, which a person may have edited."""
    if not isinstance(rows, list):
        raise InputError(f"{where}: measured_on {rows!r} is not a list of settings")
    return tuple(_scene(row, f"{where}: measured_on[{number}]") for number, row in enumerate(rows))


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


# How far a site is from the priors: a handful of physical factors, each 1 until a measurement says otherwise.

# A machine this many times faster or slower than the priors is another machine.
FARTHEST = 1000.0


@dataclass(frozen=True, slots=True)
class Factors(JsonForm):
    """The first four multiply rates (above 1 is faster), the others multiply times (above 1 is slower)."""

    compute: float = 1.0  # matrix products limited by FLOP/s
    memory: float = 1.0  # weights and activations streamed from HBM
    attention: float = 1.0  # attention kernels of the chosen back end
    network: float = 1.0  # collectives, delay and rate alike
    host: float = 1.0  # Python and launches of the engine's process in decode steps
    prefill_host: float = 1.0  # the same in prefill rounds: metadata, irregular shapes, waiting for counts
    decode: float = 1.0  # the GPU's part of a decode step as a whole, whatever of it the priors miss
    prefill: float = 1.0  # the same of a prefill round
    front_end: float = 1.0  # tokenizer, HTTP, detokenizer and the queues between them

    def __post_init__(self) -> None:
        for name in (factor.name for factor in fields(self)):
            value = getattr(self, name)
            if not 1 / FARTHEST <= value <= FARTHEST:
                raise InputError(
                    f"factor {name} is {value!r}; it must be a number above zero, from {1 / FARTHEST:g} to "
                    f"{FARTHEST:g}, 1 where nothing is known"
                )

    @classmethod
    def of(cls, values: Mapping[str, float], where: str = "factors") -> Factors:
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError(f"{where}: {unknown[0]} is not a factor; known: {', '.join(sorted(known))}")
        return cls(**{name: float(value) for name, value in values.items()})


PRIORS = Factors()
NAMES = tuple(f.name for f in fields(Factors))
# How far, as a standard deviation of the logarithm, sites are believed to differ from the priors before any
# measurement. Memory bandwidth hardly varies between healthy machines; hosts and their Python differ widely.
PRIOR_SPREAD: Mapping[str, float] = {
    "compute": 0.25,
    "memory": 0.12,
    "attention": 0.35,
    "network": 0.35,
    "host": 0.50,
    "prefill_host": 0.60,
    "decode": 0.20,
    "prefill": 0.20,
    "front_end": 0.50,
}
# The two that stand for a whole phase: what is wrong with its kernels together. First tokens and times between tokens
# of whole runs show which phase is off and hardly which kernel. Steps of many sizes tell kernels apart, and what they
# say holds for other models too; a throughput tells no phase from the other.
PHASES = ("decode", "prefill")


def prior_spreads(*, phases: bool) -> dict[str, float]:
    """What is believed of each factor; `phases`: figures of single phases are among what was measured."""
    return {name: spread for name, spread in PRIOR_SPREAD.items() if phases or name not in PHASES}


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
    scope: tuple[ValidatedSetting, ...] = field(default=(), metadata=in_json("measured_on"))  # what it was measured on
    version: int = field(default=VERSION, init=False)
    # what comes on top for TTFT, far from what was measured
    first_token_spread: float = field(default=0.0, metadata=NOT_IN_JSON)

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
        scope=_scenes(tree.get("measured_on", []), where),
    )


def _number(tree: Mapping[str, Any], name: str, default: float, where: str) -> float:
    value = tree.get(name, default)
    if not is_number(value):
        raise InputError(f"{where}{name} is {value!r}, not a number; {_REMEDY}")
    return float(value)
