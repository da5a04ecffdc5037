"""What a study says to the `twin` workload, read into records; every mistake becomes a Problem with its place.

workload:
  kind: twin
  model: deepseek-r1                             # a preset, or a config.json beside the study
  traffic: {dataset: sharegpt, requests: 2000, seed: 2025}   # also rate or concurrency, burstiness
  gpu: h100                                      # unless the site's options say it
  engine: sglang:0.5.6                           # whose defaults and flags; the newest unless said
  calibration: site.yaml                         # what `ridgeline calibrate` wrote, beside the study
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from ridgeline.errors import InputError
from ridgeline.records.study import Study
from ridgeline.serving.hardware import Cluster, make_cluster
from ridgeline.serving.models import Model, load_model
from ridgeline.serving.traffic import Traffic, parse_traffic
from ridgeline.serving.twin.calibration import Calibration, read_calibration
from ridgeline.serving.twin.engine import DEFAULTS, EngineSettings, parse_engine
from ridgeline.workloads.base import Problem

OPTIONS = ("model", "traffic", "gpu", "engine", "calibration")
TRAFFIC_KEYS = ("dataset", "requests", "seed", "rate", "concurrency", "burstiness")
GPUS_PER_NODE = 8  # where the site does not say

Where = tuple[str | int, ...]
T = TypeVar("T")


@dataclass
class Options:
    """The options as far as they could be read; those that could not are None and have a problem."""

    model: Model | None = None
    traffic: Traffic | None = None
    cluster: Cluster | None = None
    version: EngineSettings = DEFAULTS
    calibration: Calibration = field(default_factory=Calibration)
    problems: list[Problem] = field(default_factory=list)


def near(name: str, known: tuple[str, ...] | list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def read_options(study: Study) -> Options:
    return _Reader(study).read()


class _Reader:
    def __init__(self, study: Study) -> None:
        self._study = study
        self._given = study.workload.options
        self._options = Options()

    def read(self) -> Options:
        options, given = self._options, self._given
        for key in given:
            if key not in OPTIONS:
                self._report((key,), f"no such key of the twin; {near(key, OPTIONS)}")
        options.model = self._try(("model",), lambda: load_model(self._beside(self._text("model"))))
        options.cluster = self._try(("gpu",), self._cluster)
        options.traffic = self._try(("traffic",), self._traffic)
        if "engine" in given:
            version = self._try(("engine",), lambda: parse_engine(self._text("engine"), DEFAULTS))
            options.version = version or DEFAULTS
        if "calibration" in given:
            path = Path(self._beside(str(given["calibration"])))
            options.calibration = self._try(("calibration",), lambda: read_calibration(path)) or Calibration()
        return options

    def _report(self, where: Where, message: str) -> None:
        # a key that is missing has no line of its own
        present = where[:1] and where[0] in self._given
        self._options.problems.append(Problem(("workload", *(where if present else ())), message))

    def _try(self, where: Where, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except InputError as error:
            self._report(where, str(error))
            return None

    def _text(self, key: str) -> str:
        value = self._given.get(key)
        if isinstance(value, str) and value:
            return value
        raise InputError(f"{key} is missing; write for example {key}: {_EXAMPLES[key]}")

    def _beside(self, name: str) -> str:
        """The path of a file beside the study, where there is one; else the word as it stands."""
        path = self._study.folder / name
        return str(path) if path.is_file() else name

    def _cluster(self) -> Cluster:
        site = self._study.site
        gpu = self._given.get("gpu", site.options.get("gpu"))
        if not isinstance(gpu, str):
            raise InputError("which GPU is simulated is not said; write gpu: h100 here or in the options of the site")
        fabric = site.options.get("fabric")
        return make_cluster(gpu, site.nodes, site.gpus_per_node or GPUS_PER_NODE, str(fabric) if fabric else None)

    def _traffic(self) -> Traffic:
        given = self._given.get("traffic")
        if isinstance(given, str):
            given = {"dataset": given}
        if not isinstance(given, Mapping) or not isinstance(given.get("dataset"), str):
            raise InputError("traffic is missing; write for example traffic: {dataset: sharegpt, requests: 2000}")
        for key in given:
            if key not in TRAFFIC_KEYS:
                self._report(("traffic", key), f"no such key of traffic; {near(str(key), TRAFFIC_KEYS)}")
        whole = {key: self._number(given, key, whole=True) for key in ("requests", "seed", "concurrency")}
        return parse_traffic(
            self._beside(given["dataset"]),
            requests=None if whole["requests"] is None else int(whole["requests"]),
            rate_s=self._number(given, "rate"),
            concurrency=None if whole["concurrency"] is None else int(whole["concurrency"]),
            burstiness=1.0 if "burstiness" not in given else self._number(given, "burstiness") or 0.0,
            seed=int(whole["seed"] or 0),
        )

    def _number(self, given: Mapping[str, object], key: str, whole: bool = False) -> float | None:
        value = given.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise InputError(f"traffic.{key} is {value!r}; it must be a {'whole ' if whole else ''}number")
        return value


_EXAMPLES = {"model": "deepseek-r1", "engine": "sglang:0.5.6"}
