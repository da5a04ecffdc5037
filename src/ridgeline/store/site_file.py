"""Site files: YAML in, a Site out, or every problem with its line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import StudyError
from ridgeline.records.launch import LAUNCHERS
from ridgeline.records.site import Site
from ridgeline.records.template import NO_VARIABLE, is_variable
from ridgeline.store.form_problems import suggestion
from ridgeline.store.yaml_tree import YamlTree, parse_yaml, read_text

SHIPPED = Path(__file__).parent.parent / "sites"

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)}

Report = Callable[[tuple[str | int, ...], str], None]


def shipped_names() -> list[str]:
    """Sites and templates that come with Ridgeline."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_site(named: object, relative_to: Path) -> Site:
    """The site of a study: the name of a shipped one, the path of a site file, or the mapping itself.

    StudyError lists every problem. Relative paths inside a site file start at the file's folder.
    """
    if isinstance(named, Mapping):
        problems: list[str] = []
        site = _site(named, relative_to, lambda where, what: problems.append(f"{_dotted(where)}: {what}"))
        if problems:
            raise StudyError(problems)
        return site
    path = _path(named, relative_to)
    tree = parse_yaml(read_text(path), str(path))
    return _from_tree(tree, path)


def _path(named: object, relative_to: Path) -> Path:
    if not isinstance(named, str | Path) or not str(named).strip():
        raise StudyError(f"{named!r} is no site; give a name, a path or a mapping")
    path = relative_to / Path(str(named)).expanduser()
    if path.is_file():
        return path
    shipped = SHIPPED / f"{named}.yaml"
    if "/" not in str(named) and shipped.is_file():
        return shipped
    if "/" in str(named) or str(named).endswith((".yaml", ".yml")):
        raise StudyError(f"{path}: no such site file; check the path, or start with `ridgeline site list`")
    raise StudyError(f"{named!r} is neither a shipped site nor a file; {suggestion(str(named), shipped_names())}")


def _from_tree(tree: YamlTree, path: Path) -> Site:
    problems = list(tree.problems)
    plain = tree.plain()
    if not isinstance(plain, Mapping):
        raise StudyError([*problems, f"{tree.name}:1: a site file is a mapping such as `batch: slurm`"])
    site = _site(
        {"name": path.stem, **plain}, path.parent, lambda where, what: problems.append(tree.message(where, what))
    )
    if problems:
        raise StudyError(sorted(problems, key=_line))
    return site


def _line(problem: str) -> int:
    match = re.search(r":(\d+): ", problem)
    return int(match[1]) if match else 0


def _site(given: Mapping[str, Any], folder: Path, report: Report) -> Site:
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key == "version":
            if value != 1:
                report((key,), f"{value!r} is not a version this Ridgeline reads; write 1")
        elif key not in _KEYS:
            report((key,), f"no such key of a site; {suggestion(key, _KEYS)}")
        elif value is not None:
            name, read = _KEYS[key]
            try:
                values[name] = read(value)
            except (TypeError, ValueError) as error:
                report((key,), str(error))
    _check_options(values.get("options", {}), str(values.get("batch", "local")), folder, report)
    # an image beside the site file is meant to be found from any run folder
    if (image := values.get("container")) and (folder / image).is_file():
        values["container"] = str((folder / image).absolute())
    return Site(**values)


_PATIENCE = ("walltime_slack_s", "lost_after_s", "outage_s", "stuck_after_s", "settle_s")
_SHARES = ("spread", "noise", "faults", "hangs")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "local": ("mpirun",),
    "slurm": ("mpirun", "script", *_PATIENCE),
    "pbs": ("mpirun", "script", *_PATIENCE, "account_option", "request", "hosts"),
    "simulated": ("gpu", "fabric", "prefix", "seed", *_SHARES, "slow"),
}


def _check_options(options: dict[str, Any], batch: str, folder: Path, report: Report) -> None:
    """Options of our own batch systems; those of a plugin are its own affair. A script's path is made absolute."""
    if batch not in _OPTIONS:
        return
    for key, value in options.items():
        where = ("options", key)
        if key not in _OPTIONS[batch]:
            report(where, f"no such option of {batch}; {suggestion(key, _OPTIONS[batch])}")
        elif key in _PATIENCE and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            report(where, f"{value!r} is not a number of seconds; write e.g. 60")
        elif key in _SHARES and not (_is_number(value) and 0 <= value < 1):
            report(where, f"{value!r} is not a share; write e.g. 0.01 for 1%")
        elif key == "slow" and not (isinstance(value, dict) and all(_is_number(v) and v > 0 for v in value.values())):
            report(where, "this must map nodes to their speed, such as {dgx002: 0.91}")
        elif key == "request" and value not in ("plain", "select"):
            report(where, f"{value!r} is not a way to ask; write plain or select")
        elif key == "hosts" and not (isinstance(value, list) and all(isinstance(host, str) for host in value)):
            report(where, "this must be a list of node names")
        elif key == "script":
            options[key] = str((folder / str(value)).absolute())
            if not Path(options[key]).is_file():
                report(where, f"{options[key]}: no such file; it is looked for beside the site file")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{value!r} is not text; put it into quotes")


def _whole(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{value!r} is not a whole number of at least {least}")
        return value

    return read


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value!r} is not a number above 0")
    return float(value)


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list of texts such as [openmpi/4.1.5]")
    return tuple(_text(item) for item in value)


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError("this must be a mapping such as {OMP_NUM_THREADS: 1}")
    for name in map(str, value):
        if not is_variable(name):
            raise ValueError(f"{name!r} {NO_VARIABLE}")
    return {str(name): _text(text) for name, text in value.items()}


def _options_mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("this must be a mapping")
    return dict(value)


def _launcher(value: object) -> str:
    if value not in LAUNCHERS:
        raise ValueError(f"{value!r} is no launcher; write one of {', '.join(LAUNCHERS)}")
    return str(value)


def _size(value: object) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
    unit = match[2].lower() if match else ""
    if match is None or isinstance(value, bool) or unit not in _UNITS:
        raise ValueError(f"{value!r} is not a size; write e.g. 190 GB or 192 GiB")
    return round(float(match[1]) * _UNITS[unit])


# key of the file -> field of the record, and how its value is read
_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _text),
    "batch": ("batch", _text),
    "queue": ("queue", _text),
    "account": ("account", _text),
    "nodes": ("nodes", _whole(1)),
    "cores_per_node": ("cores_per_node", _whole(1)),
    "gpus_per_node": ("gpus_per_node", _whole(0)),
    "memory_per_node": ("memory_bytes_per_node", _size),
    "launcher": ("launcher", _launcher),
    "launcher_options": ("launcher_options", _text),
    "modules": ("modules", _texts),
    "setup": ("setup", _texts),
    "container": ("container", _text),
    "container_options": ("container_options", _text),
    "scratch": ("scratch", _text),
    "env": ("env", _environment),
    "jobs_at_once": ("jobs_at_once", _whole(1)),
    "poll_s": ("poll_s", _number),
    "directives": ("directives", _texts),
    "service_units_per_node_hour": ("service_units_per_node_hour", _number),
    "options": ("options", _options_mapping),
}


def _dotted(where: tuple[str | int, ...]) -> str:
    return ".".join(str(step) for step in where)
