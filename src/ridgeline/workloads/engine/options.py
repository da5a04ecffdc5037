"""What a study says to the engine workloads, read into records; every mistake becomes a Problem with its place.

workload:
  kind: sglang-offline                    # or sglang-serve, vllm-offline, vllm-serve
  model: llama-8b                         # a preset (made on the node, no download), a folder, or what the engine knows
  shape: llama-8b                         # where `model` cannot be read here: the preset whose shape it has
  gpu: h200                               # lets what certainly cannot start be refused before anything runs
  load_format: dummy
  flags: {context_length: 16384}          # the same in every trial; knobs go before them
  env: {HF_HUB_OFFLINE: "1"}              # {knob} fields allowed
  traffic: {dataset: sharegpt, requests: 2000, seed: 2025}    # or {input_tokens: 1024, output_tokens: 128}
  concurrency: 64                         # serve: closed loop; or rate: 8 (open loop)
  slo: [ttft_p95_ms=2000, itl_p95_ms=50]  # serve: goodput counts requests within these
  warmup: 32                              # unmeasured requests of other traffic
  engine: /opt/sglang-0.5.23              # python, virtual environment or container image; also a knob
  engines: {a: {venv: /opt/a, version: 0.5.2}, b: {container: b.sif, version: 0.5.23}}   # names for the `engine` knob
  version: 0.5.23                         # read from the engine where it can be
  ready_limit: 20m                        # an engine that is not ready by then has failed
  prepare: [deepgemm]                     # one-time steps, kept per model, GPU, layout and version
  sources: /opt/sglang-src                # a checkout of the engine's repository, for steps that are scripts of it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.records.template import NO_VARIABLE, is_variable
from ridgeline.serving.hardware.cluster import load_gpu
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import Traffic, parse_traffic
from ridgeline.workloads.base import Problem
from ridgeline.workloads.command.options import Where, near

OPTIONS = (
    "model", "shape", "gpu", "load_format", "flags", "env", "traffic", "concurrency", "rate", "burstiness", "slo",
    "warmup", "engine", "engines", "version", "ready_limit", "prepare", "sources", "workers", "launcher",
)  # fmt: skip
TRAFFIC_KEYS = ("dataset", "requests", "seed", "input_tokens", "output_tokens")
ENGINE_KEYS = ("python", "venv", "container", "version")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


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


@dataclass
class EngineOptions:
    """The options as far as they could be read."""

    model: str = ""
    shape: str = ""
    gpu: str = ""
    launcher: str = ""
    flags: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    engine: Install = field(default_factory=Install)
    engines: dict[str, Install] = field(default_factory=dict)
    ready_limit_s: float = 1800.0
    prepare: tuple[str, ...] = ()
    sources: str = ""
    problems: list[Problem] = field(default_factory=list)

    def install(self, name: object) -> Install:
        """The engine that a knob's value names; the study's own where it names none."""
        if name is None or name == "":
            return self.engine
        return self.engines.get(str(name)) or _install_from_text(str(name), self.engine.version)


def read_options(given: Mapping[str, object], folder: Path, *, serves: bool) -> EngineOptions:
    """`folder` is the study file's; relative paths start there."""
    return _Reader(folder, serves).read(given)


class _Reader:
    def __init__(self, folder: Path, serves: bool) -> None:
        self._folder = folder
        self._serves = serves
        self._out = EngineOptions()

    def read(self, given: Mapping[str, object]) -> EngineOptions:
        out = self._out
        self._only(given, OPTIONS, ("workload",))
        out.model = self._path(self._text(given, "model"))
        if not out.model and "model" not in given:
            self._report(("workload",), "model is missing; name a preset, a model folder, or what the engine knows")
        for name in ("shape", "gpu", "launcher"):
            setattr(out, name, self._text(given, name))
        if out.gpu:
            try:
                load_gpu(out.gpu)
            except InputError as error:
                self._report(("workload", "gpu"), str(error))
        out.flags = {n: v for n, v in self._mapping(given, "flags").items() if self._single(("flags", n), v)}  # type: ignore[misc]
        if "load_format" in given:
            out.flags.setdefault("load_format", self._text(given, "load_format"))
        for name, text in self._mapping(given, "env").items():
            if not is_variable(name):
                self._report(("workload", "env", name), NO_VARIABLE)
            elif isinstance(text, bool) or not isinstance(text, str | int | float):
                self._report(("workload", "env", name), f'must be text; write "{text}" in quotes')
            else:
                out.env[name] = str(text)
        self._engines(given)
        out.load = self._load(given)
        out.ready_limit_s = self._seconds(given, "ready_limit", out.ready_limit_s)
        steps = given.get("prepare", ())
        out.sources = self._path(self._text(given, "sources"))
        out.prepare = (steps,) if isinstance(steps, str) else tuple(str(s) for s in steps)  # type: ignore[attr-defined]
        return out

    def _report(self, where: Where, message: str) -> None:
        self._out.problems.append(Problem(where, message))

    def _only(self, given: Mapping[str, object], known: Iterable[str], where: Where) -> None:
        known = tuple(known)
        for name in given:
            if name not in known:
                self._report((*where, name), f"no such key; {near(name, known)}")

    def _text(self, given: Mapping[str, object], name: str) -> str:
        value = given.get(name, "")
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
        self._report(("workload", name), "must be text")
        return ""

    def _mapping(self, given: Mapping[str, object], name: str) -> dict[str, object]:
        value = given.get(name)
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return {str(key): item for key, item in value.items()}
        self._report(("workload", name), "must be a list of `name: value` pairs")
        return {}

    def _single(self, where: Where, value: object) -> bool:
        if isinstance(value, bool | int | float | str):
            return True
        self._report(("workload", *where), f"{value!r} is not one value; write text or a number")
        return False

    def _path(self, text: str) -> str:
        """A folder beside the study by its full path, anything else as it stands."""
        beside = self._folder / Path(text).expanduser() if text else self._folder
        return str(beside.absolute()) if text and beside.is_dir() else text

    def _engines(self, given: Mapping[str, object]) -> None:
        version = self._text(given, "version")
        for name, value in self._mapping(given, "engines").items():
            where = ("workload", "engines", name)
            if isinstance(value, str):
                self._out.engines[name] = _install_from_text(self._path(value), version)
            elif isinstance(value, Mapping):
                self._only(value, ENGINE_KEYS, where)
                self._out.engines[name] = self._install(value, version)
            else:
                self._report(where, "must be a path, or a mapping with python, venv or container, and version")
        engine = self._text(given, "engine")
        known = self._out.engines.get(engine)
        self._out.engine = known or _install_from_text(self._path(engine), version)

    def _install(self, value: Mapping[str, object], version: str) -> Install:
        python = str(value.get("python") or "python3")
        if value.get("venv"):
            python = f"{self._path(str(value['venv']))}/bin/python"
        return Install(python, str(value.get("container") or ""), str(value.get("version") or version))

    def _load(self, given: Mapping[str, object]) -> Load:
        entry = self._traffic_mapping(given.get("traffic"))
        self._only(entry, TRAFFIC_KEYS, ("workload", "traffic"))
        dataset = str(entry.get("dataset", "sharegpt"))
        if "input_tokens" in entry or "output_tokens" in entry:
            dataset = f"fixed:{entry.get('input_tokens', 1024)}:{entry.get('output_tokens', 128)}"
        if (self._folder / dataset).is_file():
            dataset = str((self._folder / dataset).absolute())
        slos = given.get("slo", ())
        load = Load(
            traffic=dataset,
            requests=self._whole(entry, "requests", ("traffic", "requests"), 1000) or 1000,
            seed=self._whole(entry, "seed", ("traffic", "seed"), 0) or 0,
            concurrency=self._whole(given, "concurrency", ("concurrency",), None),
            rate_s=self._number(given, "rate"),
            burstiness=self._number(given, "burstiness") or 1.0,
            slos=(slos,) if isinstance(slos, str) else tuple(str(s) for s in slos),  # type: ignore[attr-defined]
            warmup=self._whole(given, "warmup", ("warmup",), None),
            workers=self._whole(given, "workers", ("workers",), 1) or 1,
        )
        if self._serves and load.concurrency is None and load.rate_s is None:
            self._report(("workload",), "say how hard to load: concurrency (requests at once) or rate (a second)")
        for name in () if self._serves else ("concurrency", "rate", "slo", "burstiness", "workers"):
            if name in given:
                self._report(("workload", name), "an offline run sends everything at once; use the serve kind")
        try:
            load.recipe(paced=self._serves)
        except InputError as error:
            self._report(("workload", "traffic"), str(error))
        for index, text in enumerate(load.slos):
            try:
                Slo.parse(text)
            except InputError as error:
                self._report(("workload", "slo", index), str(error))
        return load

    def _traffic_mapping(self, value: object) -> dict[str, object]:
        if value is None:
            return {}
        if isinstance(value, str):
            return {"dataset": value}
        if isinstance(value, Mapping):
            return {str(k): v for k, v in value.items()}
        self._report(("workload", "traffic"), "must be text such as fixed:1024:128, or dataset, requests and seed")
        return {}

    def _whole(self, given: Mapping[str, object], name: str, where: Where, otherwise: int | None) -> int | None:
        value = given.get(name, otherwise)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        self._report(("workload", *where), f"{value!r} is not a whole number of 0 or more")
        return otherwise

    def _number(self, given: Mapping[str, object], name: str) -> float | None:
        value = given.get(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
            return None if value is None else float(value)
        self._report(("workload", name), f"{value!r} is not a number above 0")
        return None

    def _seconds(self, given: Mapping[str, object], name: str, otherwise: float) -> float:
        value = given.get(name, otherwise)
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(value))
        if found:
            return float(found[1]) * _UNITS_S[found[2] or "s"]
        self._report(("workload", name), f"{value!r} is not a duration; write 90s, 10m or 2h")
        return otherwise


def _install_from_text(text: str, version: str) -> Install:
    """An interpreter, a virtual environment's folder, or a container image."""
    if not text:
        return Install(version=version)
    if text.endswith((".sif", ".img")) or "://" in text:
        return Install("python3", text, version)
    if (Path(text) / "bin" / "python").exists() or text.endswith("/"):
        return Install(f"{text.rstrip('/')}/bin/python", "", version)
    return Install(text, "", version)
