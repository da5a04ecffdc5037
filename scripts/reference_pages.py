"""The pages of docs/reference: keys from the forms that read files, verbs and the Python API from their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, get_origin, get_type_hints

import typer
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

import ridgeline
from ridgeline import api, catalog, errors
from ridgeline.cli.main import all_commands, application, commands, help_of
from ridgeline.records.expression import parse_duration, show_duration
from ridgeline.records.measurement import known_metrics
from ridgeline.serving import api as serving_api
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.releases import workloads_of
from ridgeline.serving.service.service import ServiceForm
from ridgeline.study.forms import DefaultText, Entry, Form, Shape, field_shape, fields, noted, takes
from ridgeline.study.schema import BuildsForm, StudyForm
from ridgeline.study.site_file import SiteForm

# The reference page of the Python API, from its signatures and docstrings.


def _python_page(note: str) -> str:
    names = [name for name in ridgeline.__all__ if inspect.isfunction(getattr(ridgeline, name))]
    classes = [name for name in ridgeline.__all__ if name not in names]
    intro = (
        "What `import ridgeline` offers; anything below the package is private and may change with any release. "
        "[From Python and notebooks](../guides/python.md) is the introduction."
    )
    short = (
        "`GivenStudy` is the path of a study file or of a study folder, or the content of a study file as a mapping. "
        "`Setting` is a mapping of knobs to values that changes the baseline, or the same as it is typed: "
        "`knob=value,knob=value`. `Tell` is called with a line about every finished run."
    )
    parts = ["# Python API", *([note] if note else []), intro, short]
    parts += [_function(name) for name in names]
    parts += [_class(name, getattr(ridgeline, name)) for name in classes]
    parts += ["## Types of arguments and results", *(_record(each) for each in _types())]
    parts += ["## Errors", inspect.cleandoc(errors.RidgelineError.__doc__ or ""), _errors()]
    return "\n\n".join(parts) + "\n"


def members(thing: type) -> Iterator[tuple[str, str]]:
    """Public fields, properties and methods, each with its type or docstring."""
    for field in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
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
    for each in hinted:
        for hint in get_type_hints(each, {**vars(api), **vars(serving_api)}).values():
            for part in (hint, *getattr(hint, "__args__", ())):
                if dataclasses.is_dataclass(part) and isinstance(part, type) and part is not ridgeline.StudyResult:
                    found.setdefault(part.__name__, part)
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


# Reference pages out of forms: every key with what it says, what it takes and its default.


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key of a file. `key` is its path: `metrics.METRIC.regex`, `rules[].refuse`."""

    key: str
    says: str
    takes: str
    default: str


def key_rows(form: type[Form], prefix: str = "", closed: Collection[str] = ()) -> list[KeyRow]:
    """Every key of a form and of the forms in it, in their order; keys in `closed` are not opened."""
    found: dict[str, KeyRow] = {}
    for key, field in fields(form).items():
        path, shape = f"{prefix}{key}", field_shape(field)
        rows = [KeyRow(path, field.description or "", takes(shape), _default(field, shape))]
        if path not in closed:
            rows += [row for inner, start in _inside(shape, path) for row in key_rows(inner, start, closed)]
        for row in rows:
            found.setdefault(row.key, row)
    return list(found.values())


def _section(form: type[Form], prefix: str = "", closed: Collection[str] = (), title: str = "") -> str:
    """The form's own description and the table of its keys."""
    rows = key_rows(form, prefix, closed)
    parts = (f"## {title}" if title else "", _described(form), table(rows) if rows else "")
    return "\n\n".join(part for part in parts if part)


def _described(form: type) -> str:
    return cleandoc(form.__doc__ or "")


def table(rows: Iterable[KeyRow]) -> str:
    lines = ["| key | what it says | takes | default |", "|---|---|---|---|"]
    for row in rows:
        cells = (f"`{row.key}`", row.says.removesuffix("."), row.takes, row.default)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _inside(shape: Shape, path: str) -> Iterable[tuple[type[Form], str]]:
    """The forms below a key, each with what the paths of its keys begin with."""
    if isinstance(shape.bare, type) and issubclass(shape.bare, Form):
        yield shape.bare, f"{path}."
    elif get_origin(shape.bare) in (list, dict):
        name = noted(shape.notes, Entry) or "NAME"
        start = f"{path}[]" if get_origin(shape.bare) is list else f"{path}.{name}"
        inner = shape.inside(name)
        yield from _inside(inner, start) if inner is not None else ()
    else:
        for choice in shape.choices():
            yield from _inside(choice, path)


def _default(field: FieldInfo, shape: Shape) -> str:
    if otherwise := noted(shape.notes, DefaultText):
        return otherwise
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, Form) or value is None:
        return ""
    if value in ("", [], {}):
        return "none"
    if any(isinstance(note, BeforeValidator) and note.func is parse_duration for note in shape.notes):
        return f"`{show_duration(value)}`"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


COMMAND = "scripts/reference"
_NOTE = f"<!-- Written by {COMMAND} from the forms that read the files; change those, then run it again. -->"
# file name, title, and the kinds of workload that it is about
_WORKLOADS = (
    ("workload-command", "Any program", ("command",)),
    ("workload-python", "A Python function", ("python",)),
    ("workload-nwchem", "NWChem", ("nwchem",)),
    *((f"workload-{name}", engine_named(name).title, workloads_of(name)) for name in catalog.shipped("engines")),
    ("workload-twin", "The twin", ("twin",)),
)


def pages() -> dict[str, str]:
    """File name -> text."""
    made = {"study": _study(), "builds": _builds(), "samplers": _samplers(), "site": _site()}
    made["deployment"] = _deployment()
    made["metrics"] = _metrics()
    made |= {name: _workload(title, kinds) for name, title, kinds in _WORKLOADS}
    made["python"] = _python_page(_NOTE.replace("the forms that read the files", "signatures and docstrings"))
    made["verbs"] = _verbs()
    made["index"] = _index()
    return {f"{name}.md": text for name, text in made.items()}


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", _NOTE, *parts)) + "\n"


def _index() -> str:
    lines = [
        "- [verbs](verbs.md): every verb, its options, and the exit codes",
        "- [study](study.md): every key of a study file",
        "- [builds](builds.md): how variants of a program are built",
        "- [samplers](samplers.md): who proposes settings, and their options",
        "- [site](site.md): every key of a site file",
        "- [deployment](deployment.md): every key of a deployment file",
        "- [metrics](metrics.md): every metric, its unit, which way is better, and what it means",
        *(f"- [{' and '.join(kinds)}]({name}.md): keys of `workload`" for name, _, kinds in _WORKLOADS),
        "- [python](python.md): what `import ridgeline` offers",
    ]
    intro = "Every key of the files that Ridgeline reads. [The study file](../study-file.md) is the introduction."
    return _page("Reference", intro, "\n".join(lines))


def _verbs() -> str:
    """Every verb with its options, and the exit codes."""
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {line} |" for name, (_, line) in all_commands().items()]
    codes = [f"| {code.value} | {' '.join(code.meaning.split())} |" for code in errors.ExitCode]
    intro = "What is typed after `ridgeline`. Reading verbs take `--json`; former names work until 0.4, with a note."
    return _page(
        "Verbs and exit codes",
        intro,
        "\n".join(["| verb | what it does |", "|---|---|", *rows]),
        "## Exit codes",
        "\n".join(["| code | meaning |", "|---|---|", *codes]),
        *(_verb(name, command) for name, command in commands()),
    )


def _verb(name: str, command: Any) -> str:
    text, example = help_of(command)
    made = typer.main.get_command(application(command))
    shown = [each for each in made.params if each.name != "help" and not getattr(each, "hidden", False)]
    rows = [f"| {_option(each)} | {' '.join((getattr(each, 'help', '') or '').split())} |" for each in shown]
    table = "\n".join(["| argument | meaning |", "|---|---|", *(row.replace("\n", " ") for row in rows)])
    parts = [f"## {name}", text.replace("<", "&lt;"), f"    {example}" if example else "", table if rows else ""]
    return "\n\n".join(part for part in parts if part)


def _option(parameter: Any) -> str:
    """As it is typed: the name of an argument in capitals, all spellings of an option."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or (parameter.name or '').upper()}`".replace("|", r"\|")
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _study() -> str:
    rows = key_rows(StudyForm, closed=("search", "confirm", "builds"))
    more = (
        "`workload` has further keys, which depend on its kind, and `stages.search` those of its "
        "[sampler](samplers.md); [the index](index.md) lists them all."
    )
    return _page("The study file", more, table(rows))


def _builds() -> str:
    return _page("Builds", _section(BuildsForm, prefix="builds."))


def _samplers() -> str:
    intro = "Options of a sampler go beside `sampler`, `seed` and `sentinel_every` in `stages.search` (or `search`)."
    return _page("Samplers", intro, *(_section(form, title=name) for name, form in _own_forms("samplers").items()))


def _own_forms(room: str) -> dict[str, type[Form]]:
    """Those of Ridgeline's own parts: plugins document theirs."""
    return {name: form for name, form in catalog.forms(room).items() if name in catalog.shipped(room)}


def _site() -> str:
    options = _own_forms("executors").items()
    shown = [_section(form, prefix="options.", title=f"batch: {batch}") for batch, form in options]
    return _page("The site file", _section(SiteForm), *shown)


def _deployment() -> str:
    more = (
        "The verbs of `ridgeline service` read it ([guide](../guides/deploy.md)); `site` is that of a [site](site.md)."
    )
    return _page("The deployment file", more, _section(ServiceForm))


def _metrics() -> str:
    made_by = (
        "`command` stands for every program, Python functions too; `offline` and `serve` for the two workloads of an "
        "engine (`sglang-serve`, `vllm-offline`, …); `prices` for what any run costs by the `prices` of a "
        "[study](study.md) or [site](site.md). "
        "A study of `kind: command` declares further metrics, with units of its own."
    )
    rows = [
        f"| `{m.name}` | {m.unit or '–'} | {m.better or '–'} | {m.meaning} | {', '.join(m.makers)} |"
        for m in known_metrics().values()
    ]
    head = ["| metric | unit | better | meaning | made by |", "|---|---|---|---|---|"]
    return _page("Metrics", "Every metric that a goal or a guard may name.", made_by, "\n".join([*head, *rows]))


def _workload(title: str, kinds: tuple[str, ...]) -> str:
    forms: dict[str, type[Form]] = {kind: catalog.forms("workloads")[kind] for kind in kinds}
    where = "These keys go beside `kind` in `workload`."
    if len(forms) == 1:
        return _page(f"{title}: `kind: {kinds[0]}`", where, _section(forms[kinds[0]]))
    shared = set.intersection(*({row.key for row in key_rows(form)} for form in forms.values()))
    first = next(iter(forms.values()))
    parts = [where, _described(first.__mro__[1]), table(row for row in key_rows(first) if row.key in shared)]
    for kind, form in forms.items():
        own = [row for row in key_rows(form) if row.key not in shared]
        parts += [f"## kind: {kind}", _described(form), *([table(own)] if own else [])]
    return _page(title, *parts)
