"""What a study says to the `twin` workload, read into records; every mistake becomes a Problem with its place.

workload:
  kind: twin
  model: deepseek-r1                             # a preset, or a config.json beside the study
  traffic: {dataset: sharegpt, requests: 2000, seed: 2025}   # or {input_tokens: 1024, output_tokens: 128}
  concurrency: 64                                # closed loop; or rate: 8 (open loop); all at once unless said
  gpu: h100                                      # unless the site's options say it
  version: 0.5.6                                 # whose defaults and flags; the newest unless said
  flags: {chunked_prefill_size: 8192}            # the same in every trial
  calibration: site.yaml                         # what `ridgeline calibrate` wrote, beside the study

Keys that only a real engine needs (where it is installed, how it is warmed up) are left alone, so that a study can be
rehearsed as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.records.study import Study
from ridgeline.serving.engine.knobs.table import KNOBS, wrong_value
from ridgeline.serving.engine.settings import DEFAULTS, EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import Cluster, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.traffic import Traffic, parse_traffic
from ridgeline.serving.twin.calibration import Calibration, read_calibration
from ridgeline.workloads.base import Problem
from ridgeline.workloads.command.options import Where, near
from ridgeline.workloads.engine import options

OPTIONS = (*options.OPTIONS, "calibration")
TRAFFIC_KEYS = options.TRAFFIC_KEYS
GPUS_PER_NODE = 8  # where the site does not say

T = TypeVar("T")


@dataclass
class TwinOptions:
    """The options as far as they could be read; those that could not are None and have a problem."""

    model: Model | None = None
    traffic: Traffic | None = None
    cluster: Cluster | None = None
    version: EngineSettings = DEFAULTS
    fixed: dict[str, Value] = field(default_factory=dict)  # settings that no knob changes
    calibration: Calibration = field(default_factory=Calibration)
    problems: list[Problem] = field(default_factory=list)


def read_options(study: Study) -> TwinOptions:
    return _Reader(study).read()


class _Reader:
    def __init__(self, study: Study) -> None:
        self._study = study
        self._given = study.workload.options
        self._options = TwinOptions()

    def read(self) -> TwinOptions:
        options, given = self._options, self._given
        for key in given:
            if key not in OPTIONS:
                self._report((key,), f"no such key of the twin; {near(key, OPTIONS)}")
        options.model = self._try(("model",), lambda: load_model(self._beside(self._text("model"))))
        options.cluster = self._try(("gpu",), self._cluster)
        options.traffic = self._try(("traffic",), self._traffic)
        if "version" in given:
            version = self._try(("version",), lambda: parse_engine(f"sglang:{given['version']}", DEFAULTS))
            options.version = version or DEFAULTS
        self._fixed()
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

    def _fixed(self) -> None:
        """Flags under a knob's name; others do not change what the twin computes."""
        flags = self._given.get("flags")
        for name, value in flags.items() if isinstance(flags, Mapping) else ():
            if name in KNOBS and (wrong := wrong_value(name, value)):
                self._report(("flags", name), wrong)
            elif name in KNOBS:
                self._options.fixed[name] = value

    def _traffic(self) -> Traffic:
        given = self._given.get("traffic", {"dataset": "sharegpt"})
        if not isinstance(given, Mapping):
            raise InputError("traffic must be a mapping; write for example {dataset: sharegpt, requests: 2000}")
        for key in given:
            if key not in TRAFFIC_KEYS:
                self._report(("traffic", key), f"no such key of traffic; {near(str(key), TRAFFIC_KEYS)}")
        dataset = str(given.get("dataset", "sharegpt"))
        if "input_tokens" in given or "output_tokens" in given:
            lengths = [self._whole(given, key) for key in ("input_tokens", "output_tokens")]
            dataset = "fixed:" + ":".join(str(length or 0) for length in lengths)
        return parse_traffic(
            self._beside(dataset),
            requests=self._whole(given, "requests"),
            rate_s=self._number(self._given, "rate"),
            concurrency=self._whole(self._given, "concurrency"),
            burstiness=1.0 if "burstiness" not in self._given else self._number(self._given, "burstiness") or 0.0,
            seed=self._whole(given, "seed") or 0,
        )

    def _whole(self, given: Mapping[str, object], key: str) -> int | None:
        value = given.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise InputError(f"{key} is {value!r}; it must be a whole number")

    def _number(self, given: Mapping[str, object], key: str) -> float | None:
        value = given.get(key)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise InputError(f"{key} is {value!r}; it must be a number")


_EXAMPLES = {"model": "deepseek-r1"}
