"""The reference page of the Python API, from its signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

import ridgeline
from ridgeline import api, errors


def page(note: str) -> str:
    names = [name for name in ridgeline.__all__ if inspect.isfunction(getattr(ridgeline, name))]
    classes = [name for name in ridgeline.__all__ if name not in names]
    intro = (
        "What `import ridgeline` offers; anything below the package is private and may change with any release. "
        "[From Python and notebooks](../guides/python.md) is the introduction."
    )
    parts = ["# Python API", *([note] if note else []), intro]
    parts += [_function(name) for name in names]
    parts += [_class(name, getattr(ridgeline, name)) for name in classes]
    parts += ["## Types of arguments and results", *(_record(each) for each in _types())]
    parts += ["## Errors", inspect.cleandoc(errors.RidgelineError.__doc__ or ""), _errors()]
    return "\n\n".join(parts) + "\n"


def members(thing: type) -> Iterator[tuple[str, str]]:
    """Public fields, properties and methods, each with its type or docstring."""
    for field in dataclasses.fields(thing):
        if not field.name.startswith("_"):
            yield field.name, f"a `{field.type}`"
    for name, member in vars(thing).items():
        if not name.startswith("_") and not isinstance(member, dataclasses.Field):
            yield name, inspect.getdoc(member) or ""


def _function(name: str) -> str:
    function = getattr(ridgeline, name)
    return f"## ridgeline.{name}\n\n```python\n{_signature(name, function)}\n```\n\n{inspect.getdoc(function)}"


def _signature(name: str, function: Any) -> str:
    """One parameter a line: a signature of ten is not read otherwise."""
    signature = inspect.signature(function)
    lines, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            lines.append("    *,")
            starred = True
        # annotations are kept as text: without the quotes they read as they are written
        lines.append(f"    {str(parameter).replace(repr(parameter.annotation), parameter.annotation, 1)},")
    return "\n".join([f"{name}(", *lines, f") -> {signature.return_annotation}"])


def _class(name: str, thing: type) -> str:
    rows = ["| member | what it is |", "|---|---|"]
    for member, doc in members(thing):
        found = vars(thing).get(member)
        shown = f"{member}({', '.join(_arguments(found))})" if inspect.isfunction(found) else member
        rows.append(f"| `{shown}` | {' '.join(doc.split())} |")
    return f"## ridgeline.{name}\n\n{inspect.getdoc(thing)}\n\n" + "\n".join(rows)


def _arguments(method: Any) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]


def _types() -> list[type]:
    """Records that the functions and `StudyResult` take or give."""
    found: dict[str, type] = {}
    hinted = [getattr(ridgeline, name) for name in ridgeline.__all__ if name != "StudyResult"]
    for member in vars(ridgeline.StudyResult).values():
        getter = getattr(member, "fget", None) or getattr(member, "func", None) or member
        if inspect.isfunction(getter) and not getter.__name__.startswith("_"):
            hinted.append(getter)
    # some are imported where they are used, so that the package starts without them
    from ridgeline.load.bench import BenchResult
    from ridgeline.load.options import BenchOptions
    from ridgeline.twin.simulate import SimulationResult

    late = {"BenchResult": BenchResult, "SimulationResult": SimulationResult}
    for each in hinted:
        for hint in get_type_hints(each, {**vars(api), **late}).values():
            for part in (hint, *getattr(hint, "__args__", ())):
                if dataclasses.is_dataclass(part) and isinstance(part, type) and part is not ridgeline.StudyResult:
                    found.setdefault(part.__name__, part)
    found.setdefault("BenchOptions", BenchOptions)
    return [found[name] for name in sorted(found)]


def _record(thing: type) -> str:
    fields = [f"`{f.name}: {f.type}`" for f in dataclasses.fields(thing) if not f.name.startswith("_")]
    return f"### {thing.__name__}\n\n{inspect.getdoc(thing)}\n\n" + ",\n".join(fields)


def _errors() -> str:
    rows = ["| error | exit code of the command line |", "|---|---|"]
    for name, thing in vars(errors).items():
        if isinstance(thing, type) and issubclass(thing, errors.RidgelineError) and thing is not errors.RidgelineError:
            rows.append(f"| `ridgeline.errors.{name}` | {int(thing.exit_code)}: {thing.exit_code.meaning} |")
    return "\n".join(rows)
