"""What a study says to the `command` workload, read into records; every mistake becomes a Problem with its place.

workload:
  kind: command
  run: mpirun -n {ranks} ./app in.txt            # shell text; {knob}, {build}, {nodes}, {ranks}, {cores}, {gpus}
  env: {OMP_NUM_THREADS: "{threads}"}
  inputs:                                        # written into the run folder
    in.txt: "block = {block}\\n"                  # text with fields
    mesh.cfg: {from: mesh.template}              # or a file beside the study, with fields
  files: [species.dat, {link: big-mesh}]         # copied, or linked where copies would be too large
  metrics:                                       # wall_s, cpu_s and max_rss_bytes come by themselves
    rate: {regex: 'rate (\\S+)', unit: GF/s}       # first group; type: number or text
    p50: {json: latency.p50, file: out.json}
    energy: {csv: energy, file: steps.csv, row: -1}   # or pick: last, first, max, min, sum, mean
  signatures:                                    # before the built-in table of failures
    - {pattern: 'mesh too coarse', kind: rejected, reason: the mesh cannot hold this block}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import cast

from ridgeline.records.outcome import Kind, Signature
from ridgeline.records.template import NO_VARIABLE, is_variable
from ridgeline.workloads.base import Problem
from ridgeline.workloads.command.extract import PICKS, ByCsv, ByJson, ByRegex, Metric, Pick

OPTIONS = ("run", "env", "inputs", "files", "metrics", "signatures")
METRIC_KEYS = ("regex", "json", "csv", "row", "file", "unit", "type", "pick")
SIGNATURE_KEYS = ("pattern", "kind", "reason", "even_if_exit_0")
OWN_FILES = ("run.sh", "env", "stdout", "stderr", "exit", "process", "stop", "result.json")

Where = tuple[str | int, ...]


@dataclass
class CommandOptions:
    """The options as far as they could be read. Inputs are templates; files and links map a name to its source."""

    run: str = ""
    env: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, Path] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    signatures: list[Signature] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_options(given: Mapping[str, object], folder: Path) -> CommandOptions:
    """`folder` is the study file's: sources of inputs and files lie there."""
    return _Reader(folder).read(given)


def near(name: str, known: Iterable[str]) -> str:
    """The remedy for a wrong name."""
    listed = list(known)
    close = get_close_matches(name, listed, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(listed) or 'none'}"


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = CommandOptions()

    def read(self, given: Mapping[str, object]) -> CommandOptions:
        options = self._options
        self._only(given, OPTIONS, ("workload",))
        run = given.get("run")
        if isinstance(run, str) and run.strip():
            options.run = run.strip("\n")
        else:
            self._report(("workload", *(["run"] if "run" in given else [])), "run must be the command line to run")
        self._env(given.get("env"))
        self._inputs(given.get("inputs"))
        self._files(given.get("files"))
        for name, metric in self._mapping(given.get("metrics"), ("workload", "metrics")).items():
            self._metric(name, metric)
        self._signatures(given.get("signatures"))
        return options

    def _report(self, where: Where, message: str) -> None:
        self._options.problems.append(Problem(where, message))

    def _only(self, given: Mapping[str, object], known: Iterable[str], where: Where) -> None:
        for key in given:
            if key not in known:
                self._report((*where, key), f"no such key; {near(key, known)}")

    def _mapping(self, value: object, where: Where) -> dict[str, object]:
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return {str(key): item for key, item in value.items()}
        self._report(where, "must be a list of `name: value` pairs")
        return {}

    def _list(self, value: object, where: Where) -> list[object]:
        if value is None or isinstance(value, list | tuple):
            return list(value or ())
        self._report(where, "must be a list")
        return []

    def _env(self, value: object) -> None:
        where = ("workload", "env")
        for name, text in self._mapping(value, where).items():
            if not is_variable(name):
                self._report((*where, name), NO_VARIABLE)
            elif isinstance(text, bool) or not isinstance(text, str | int | float):
                self._report((*where, name), f'must be text; write "{text}" in quotes')
            else:
                self._options.env[name] = str(text)

    def _inputs(self, value: object) -> None:
        where = ("workload", "inputs")
        for name, source in self._mapping(value, where).items():
            if not self._name_fits(name, (*where, name)):
                continue
            if isinstance(source, str):
                self._options.inputs[name] = source
            elif isinstance(source, Mapping) and set(source) == {"from"}:
                path = self._beside(source["from"], (*where, name, "from"))
                if path:
                    self._options.inputs[name] = path.read_text(errors="replace")
            else:
                self._report((*where, name), "must be the text of the file, or `from: FILE`")

    def _files(self, value: object) -> None:
        for index, item in enumerate(self._list(value, ("workload", "files"))):
            where: Where = ("workload", "files", index)
            is_link = isinstance(item, Mapping) and set(item) == {"link"}
            path = self._beside(item["link"] if is_link else item, where)  # type: ignore[index]
            if path and self._name_fits(path.name, where):
                (self._options.links if is_link else self._options.files)[path.name] = path

    def _beside(self, given: object, where: Where) -> Path | None:
        """A file or folder that exists, named from the study file's folder."""
        if not isinstance(given, str) or not given:
            self._report(where, "must name a file beside the study file (or `link: FILE` to link and not copy it)")
            return None
        path = self._folder / given
        if path.exists():
            return path
        self._report(where, f"{given} is not in {self._folder}; correct the name")
        return None

    def _name_fits(self, name: str, where: Where) -> bool:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            self._report(where, "must stay inside the run folder: a relative name without ..")
        elif path.parts[0] in OWN_FILES:
            self._report(where, f"{path.parts[0]} is written by ridgeline in every run folder; choose another name")
        elif name in {**self._options.inputs, **self._options.files, **self._options.links}:
            self._report(where, f"{name} is already among the inputs and files; name it once")
        else:
            return True
        return False

    def _metric(self, name: str, given: object) -> None:
        where: Where = ("workload", "metrics", name)
        if not name.isidentifier():
            self._report(where, "a metric's name is one word of letters, digits and _, so that guards can use it")
            return
        entry = self._mapping(given, where)
        if not isinstance(given, Mapping):
            return
        self._only(entry, METRIC_KEYS, where)
        source = self._source(entry, where)
        kind = self._choice(entry, "type", ("number", "text"), where)
        pick = self._choice(entry, "pick", ("last", "first") if kind == "text" else tuple(PICKS), where)
        for key in ("file", "unit"):
            if not isinstance(entry.get(key, ""), str):
                self._report((*where, key), "must be text")
        if source and kind and pick:
            file, unit = str(entry.get("file", "stdout")), str(entry.get("unit", ""))
            self._options.metrics[name] = Metric(name, source, file, unit, kind == "text", cast(Pick, pick))

    def _choice(self, entry: Mapping[str, object], key: str, choices: tuple[str, ...], where: Where) -> str | None:
        value = entry.get(key, choices[0])
        if isinstance(value, str) and value in choices:
            return value
        self._report((*where, key), f"{value!r} is not possible; {near(str(value), choices)}")
        return None

    def _source(self, entry: Mapping[str, object], where: Where) -> ByRegex | ByJson | ByCsv | None:
        named = [key for key in ("regex", "json", "csv") if key in entry]
        if len(named) != 1:
            self._report(where, "needs exactly one of regex, json or csv, to say where the value is")
            return None
        key = named[0]
        text, row = entry[key], entry.get("row")
        if not isinstance(text, str) or not text:
            self._report((*where, key), "must be text")
        elif row is not None and (key != "csv" or isinstance(row, bool) or not isinstance(row, int)):
            self._report((*where, "row"), "is the number of a line of a csv table, counted from 0, or from the end: -1")
        elif key == "regex":
            pattern = self._pattern(text, (*where, key))
            return ByRegex(pattern) if pattern else None
        else:
            return ByJson(text) if key == "json" else ByCsv(text, row)
        return None

    def _pattern(self, text: str, where: Where) -> re.Pattern[str] | None:
        try:
            return re.compile(text, re.MULTILINE)
        except re.error as error:
            self._report(where, f"{text!r} is not a regular expression: {error}")
            return None

    def _signatures(self, value: object) -> None:
        for index, item in enumerate(self._list(value, ("workload", "signatures"))):
            where: Where = ("workload", "signatures", index)
            entry = self._mapping(item, where)
            self._only(entry, SIGNATURE_KEYS, where)
            text, reason = entry.get("pattern"), entry.get("reason", "")
            kinds = tuple(kind.value for kind in Kind if kind is not Kind.OK)
            kind = self._choice({"kind": "crash", **entry}, "kind", kinds, where)
            if not isinstance(text, str) or not text or not isinstance(reason, str):
                self._report(where, "needs `pattern`, a regular expression, and may have `reason`, a text")
                continue
            pattern = self._pattern(text, (*where, "pattern"))
            if pattern and kind:
                even = entry.get("even_if_exit_0", False) is True
                self._options.signatures.append(Signature(pattern, Kind(kind), reason or f"said {text!r}", even))
