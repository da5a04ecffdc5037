"""Name -> part. Literal tables, imported when a name is asked for: the core's here, others in wings.

A wing knows one kind of program. It is a folder beside this file, or somebody's package under the entry-point group
`ridgeline.wings`, with a `Wing` that says what it brings. A package with a part or two and no wing registers each under
`ridgeline.workloads`, `ridgeline.executors`, `ridgeline.samplers`, `ridgeline.analyzers` or `ridgeline.kinds`, with
the name used in study files.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ridgeline.errors import InputError, near

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TABLE: dict[str, dict[str, str]] = {
    "workloads": {
        "command": "ridgeline.workloads.command:CommandWorkload",
        "python": "ridgeline.workloads.python_function:PythonWorkload",
    },
    "executors": {
        "local": "ridgeline.executors.local:LocalExecutor",
        "slurm": "ridgeline.executors.slurm:slurm",
        "pbs": "ridgeline.executors.pbs:pbs",
        "simulated": "ridgeline.executors.simulated:SimulatedExecutor",
    },
    "samplers": {
        "guided": "ridgeline.samplers.guided.sampler:GuidedSampler",
        "grid": "ridgeline.samplers.fixed:GridSampler",
        "random": "ridgeline.samplers.fixed:RandomSampler",
    },
    "kinds": {
        "search": "ridgeline.campaign.kinds.search:SearchQuestion",
        "compare": "ridgeline.campaign.kinds.compare:ComparisonQuestion",
        "edge": "ridgeline.campaign.kinds.edge:EdgeQuestion",
        "scale": "ridgeline.campaign.kinds.scale:ScalingQuestion",
        "steps": "ridgeline.campaign.kinds.steps:StepsQuestion",
        "gate": "ridgeline.campaign.kinds.gate:GateQuestion",
        "bisect": "ridgeline.campaign.kinds.bisect:BisectQuestion",
    },
    "analyzers": {
        "mpip": "ridgeline.diagnose.profilers.findings:MPIP",
        "ipm": "ridgeline.diagnose.profilers.findings:IPM",
        "vtune": "ridgeline.diagnose.profilers.findings:VTUNE",
        "perf": "ridgeline.diagnose.profilers.findings:PERF",
        "batch-footer": "ridgeline.diagnose.job_output:FOOTER",
        "bindings": "ridgeline.diagnose.job_output:BINDINGS",
        "failed-job": "ridgeline.diagnose.job_output:OUTSIDE",
        "failed-program": "ridgeline.diagnose.job_output:OWN",
    },
}

_OURS = "ridgeline"  # the package
_GONE = {"tpe": "it is gone since 0.3: write guided, also into the study.yaml of a campaign that is to go on"}


@dataclass(frozen=True, slots=True)
class Wing:
    """What a wing brings. Places are `module:name`, imported when they are needed: saying it costs nothing."""

    name: str
    # room -> name -> place. A room that the core does not have is the wing's own (serving has engines).
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    families: Mapping[str, str] = field(default_factory=dict)  # room -> place of a `Family`
    # as typed, `twin serve` -> (place, line of help). A verb that is also a group, `plan`, takes options alone
    verbs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)  # first words of such verbs -> line of help
    # first words that its verbs once had -> today's: people type them, and folders of earlier releases hold them
    former: Mapping[str, str] = field(default_factory=dict)
    # words that people try first -> command lines that do it: likeness of letters would name another verb
    typed_first: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)  # of `import ridgeline`: name -> place
    # of `ridgeline mcp`: name -> place of a function that turns its arguments into the command line that answers
    tools: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # files that people write: name -> place of their form
    # files that `best` writes: name of its option -> place of a function of study, answer and path that gives the text
    from_answer: Mapping[str, str] = field(default_factory=dict)
    metrics: str = ""  # place of its rows: a tuple of `records.measurement.MetricDefinition`
    # of the report: key -> (title, place of a function of study, history and answer that gives its parts)
    sections: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    notes: str = ""  # place of what it says with an answer: (study, history, answer) -> sentences


class Family(Protocol):
    """Parts that follow from other parts: each engine of serving gives two workloads."""

    called: str  # what they follow from: `engine`

    def names(self) -> Mapping[str, str]:
        """Name -> the package it comes from."""
        ...

    def part(self, name: str) -> Any: ...


def names(room: str) -> list[str]:
    """Every name a study may use for this kind of part."""
    return list(origins(room))


def origins(room: str) -> dict[str, str]:
    """Name -> the package it comes from, with its version where it is not ours."""
    found: dict[str, str] = {}
    for name, package, _ in _offers(room):
        found.setdefault(name, package)
    return found


def _offers(room: str) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Name, package and what loads it. Of two of one name the first counts."""
    yield from ((name, _OURS, partial(at, place)) for name, place in shipped(room).items())
    for family in _families(room):
        yield from ((name, package, partial(family.part, name)) for name, package in family.names().items())
    for wing, package in _wings_elsewhere().values():
        yield from ((name, package, partial(at, place)) for name, place in wing.parts.get(room, {}).items())
    yield from ((entry.name, _package(entry), entry.load) for entry in _plugins(tuple(sys.path), room))


def shipped(room: str) -> dict[str, str]:
    """Name -> place of the parts that come with Ridgeline."""
    core = TABLE.get(room, {})
    brought = {name: place for wing in own_wings() for name, place in wing.parts.get(room, {}).items()}
    # who knows a program explains its files before those who know any
    return {**brought, **core} if room == "analyzers" else {**core, **brought}


def forms(room: str) -> dict[str, Any]:
    """The form of the keys that each part of a room takes, by the part's name; None where a part offers none."""
    return {name: getattr(part(room, name), "form", None) for name in names(room)}


def part(room: str, name: str) -> Any:
    """The factory registered under `name`: the core's, a wing's or a plugin's."""
    for known, package, load in _offers(room):
        if known == name:
            return load() if package == _OURS else _loaded(package, name, load)
    remedy = _GONE.get(name) or near(name, names(room))
    raise InputError(f"{name!r} is not among the {room}; {remedy}{not_loaded()}")


def _loaded(package: str, name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # whatever another package does when it is imported
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{name!r} of {package} cannot be imported ({why}); repair or remove that package") from error


def names_of_family(room: str, called: str) -> list[str]:
    """Names of the parts that follow from what is called so."""
    return [name for family in _families(room) if family.called == called for name in family.names()]


def at(place: str) -> Any:
    """What `module:name` says."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


# Wings: ours lie beside this file, others are installed packages.


def wings() -> Iterator[tuple[Wing, str]]:
    """Every wing that could be loaded, with the package it comes from; ours first."""
    yield from ((wing, _OURS) for wing in own_wings())
    yield from _wings_elsewhere().values()


def broken_wings() -> dict[str, str]:
    """Wings that cannot be loaded, and why: the rest works without them."""
    return {**_own()[1], **_elsewhere(tuple(sys.path))[1]}


def former_verbs() -> dict[str, str]:
    """What wings' verbs once began with -> what they begin with today."""
    return {old: new for wing, _ in wings() for old, new in wing.former.items()}


def functions() -> dict[str, str]:
    """What wings add to `import ridgeline`: name -> place."""
    return {name: place for wing, _ in wings() for name, place in wing.functions.items()}


def own_wings() -> tuple[Wing, ...]:
    return tuple(_own()[0].values())


@cache
def _own() -> tuple[dict[str, Wing], dict[str, str]]:
    loaded: dict[str, Wing] = {}
    broken: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("*/wing.py")):
        try:
            loaded[path.parent.name] = at(f"ridgeline.{path.parent.name}.wing:WING")
        except Exception as error:  # a file that was edited: the core works without it
            broken[path.parent.name] = f"{type(error).__name__}: {error}"
    return loaded, broken


def _wings_elsewhere() -> dict[str, tuple[Wing, str]]:
    return _elsewhere(tuple(sys.path))[0]


@cache
def _elsewhere(path: tuple[str, ...]) -> tuple[dict[str, tuple[Wing, str]], dict[str, str]]:
    loaded: dict[str, tuple[Wing, str]] = {}
    broken: dict[str, str] = {}
    for entry in _plugins(path, "wings"):
        try:
            loaded[entry.name] = (entry.load(), _package(entry))
        except Exception as error:  # whatever another package does when it is imported
            broken[f"{entry.name} of {_package(entry)}"] = f"{type(error).__name__}: {error}"
    return loaded, broken


def not_loaded() -> str:
    """What to add to a message about a name that nobody knows."""
    return "".join(f"; the wing {name} could not be loaded ({why})" for name, why in broken_wings().items())


def _families(room: str) -> list[Family]:
    return [at(wing.families[room]) for wing, _ in wings() if room in wing.families]


@cache
def _plugins(path: tuple[str, ...], room: str) -> tuple[EntryPoint, ...]:
    """Found once for a `path` of imports: every installed package is opened for it."""
    from importlib.metadata import entry_points  # slow to load, and most starts need none

    return tuple(entry_points(group=f"ridgeline.{room}"))


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without a name"
