"""What a study says to the engine workloads, as records. The session on a node reads them: no pydantic here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.errors import Problem
from ridgeline.records.expression import Value
from ridgeline.records.space import Settings
from ridgeline.records.template import field_names, render
from ridgeline.serving.engines.base import OfflineBatch
from ridgeline.serving.engines.behaviour import Acceptance
from ridgeline.serving.engines.install import Install
from ridgeline.serving.traffic.traffic import Traffic, parse_traffic

ENGINE_KNOB = "engine"
REHEARSE, BAKE = "rehearse", "bake"  # the one-time steps of every engine


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
    alone: str = ""  # prefill or decode: only that half of each request is asked for

    @property
    def batch(self) -> OfflineBatch:
        """As arguments of an engine's own offline benchmark."""
        return OfflineBatch(self.requests, self.seed, self.warmup)

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
class Questions:
    """Questions with known answers, asked of the server after the measured load; `file` and `scorer` by full path."""

    file: str
    allowed_loss: float = 0.02
    max_tokens: int = 64
    most: int | None = None
    scorer: str = ""


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
    unused: tuple[str, ...] = ()  # what of a recorded load cannot be sent
    experts: str = ""  # how tokens find their experts, as `behaviour.parse_routing` has it
    acceptance: Acceptance | None = None  # how many drafted tokens are kept
    questions: Questions | None = None
    perplexity: str = ""  # the file whose text it is of, by full path
    engine: str = ""  # as `install_from_text` reads it, or a name of `engines`; {knob} fields allowed
    version: str = ""  # of the engine; {knob} fields allowed
    engines: Mapping[str, Install] = field(default_factory=dict)
    ready_limit_s: float = 1800.0
    prepare: tuple[str, ...] = ()
    sources: str = ""
    home: Path = Path()  # where relative names of engines and models start
    problems: tuple[Problem, ...] = ()
    recorded: Mapping[str, object] | None = None  # as `Study.recorded`
    config: str = ""  # the model's config.json as it was recorded; empty: it is read where it is

    @property
    def model_record(self) -> dict[str, object]:
        """What is recorded of the model, so that the study can be read where the model is not."""
        from ridgeline.serving.model.config import config_text  # the session on a node needs none of it

        shape = self.shape or self.model
        config = self.config or config_text(shape)
        return {MODEL_RECORD: {"path": self.model, "shape": shape, "config": config}} if config else {}

    @property
    def engine_fields(self) -> set[str]:
        """Knobs and derived values that say which engine it is, beside the knob `engine`."""
        return field_names(self.engine) | field_names(self.version)

    def install(self, settings: Settings) -> Install:
        """The engine of these settings: what the knob `engine` names, else the study's own.

        "build" among the settings is the folder of what was built for them. A field that has no value stays as it is:
        `check` names it.
        """
        fields = {"build": ".", **settings}
        named = settings.get(ENGINE_KNOB)
        text = _filled(self.engine, fields) if named in (None, "") else str(named)
        built = named in (None, "") and self.engine.startswith("{build}")
        found = self.engines.get(text) or install_from_text(text, self.version, None if built else self.home)
        found = replace(found, version=_filled(found.version, fields))
        if self.recorded is None:
            return found
        said = self.recorded.get(found.python)
        return replace(found, recorded=said if isinstance(said, Mapping) else {})


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """A model as `model_record` kept it: what the engine loaded, what its shape was read from, and that text."""

    path: str
    shape: str
    config: str


def recorded_model(recorded: Mapping[str, object] | None) -> RecordedModel | None:
    """None where the study may be read as it is, or nothing was recorded."""
    said = (recorded or {}).get(MODEL_RECORD)
    if not isinstance(said, Mapping):
        return None
    path, shape, config = (str(said.get(name, "")) for name in ("path", "shape", "config"))
    return RecordedModel(path, shape, config) if path and config else None


def _filled(text: str, fields: Mapping[str, object]) -> str:
    return render(text, fields) if field_names(text) <= fields.keys() else text


def install_from_text(text: str, version: str, home: Path | None) -> Install:
    """An interpreter, a virtual environment's folder, or a container image, by the rule of `placed`; without a `home`
    paths stay as they are.

    A path is read by its name, since the engine may be on the nodes only: an image ends in .sif or .img, an interpreter
    is called python (or is a file here); any other path is a virtual environment.
    """
    if not text:
        return Install(version=version)
    if "://" in text:
        return Install("python3", text, version)
    if text.endswith((".sif", ".img")):
        return Install("python3", absolute(text, home) if home else text, version)
    path = placed(text, home) if home else text
    if path == text and "/" not in text:
        return Install(text, "", version)  # a program on the node's PATH
    if _INTERPRETER.search(path) or Path(path).is_file():
        return Install(path, "", version)
    return Install(f"{path}/bin/python", "", version)


_INTERPRETER = re.compile(r"/(python|pypy)[\d.]*$")
MODEL_RECORD = "model"  # of `Study.recorded`, beside the interpreters
IN_PLACE = ("engine", "engines", "model", "shape", "sources", "flags")  # options that name what is never copied


def placed(text: str, home: Path) -> str:
    """What has a / in it, or is a folder beside the study, is a path and starts there; any other name stays a name."""
    return absolute(text, home) if "/" in text or text == "~" or (text and (home / text).is_dir()) else text


def placed_model(text: str, home: Path) -> str:
    """A path begins with /, ~, ./ or ../, or is something beside the study; any other name is a preset's or a hub's."""
    beside = bool(text) and (home / text).exists()
    return absolute(text, home) if text.startswith(_PATHS) or beside else text


def engine_model(text: str, home: Path, *, dummy: bool) -> str:
    """What an engine loads: a folder, named by itself or by its config.json; or, with dummy weights and no tokenizer
    in it, a shape.

    A shape ends in .json and is made into a folder on the node, as a preset is.
    """
    model = placed_model(text, home)
    folder = model.removesuffix("/config.json")
    config = Path(folder) / "config.json"
    if folder == model and not config.is_file():  # a preset, a hub's name, or a folder that only the nodes see
        return model
    return str(config) if dummy and not has_tokenizer(folder) else folder


_TOKENIZERS = ("tokenizer*", "vocab.*", "*.tiktoken", "tekken.json", "spiece.model")


def has_tokenizer(folder: str) -> bool:
    return any(found for name in _TOKENIZERS for found in Path(folder).glob(name))


_PATHS = ("/", "~", "./", "../")


def absolute(text: str, home: Path) -> str:
    # not resolved: a virtual environment is known by the name of its link, and the nodes may see other disks
    return os.path.normpath(home.absolute() / Path(text).expanduser())
