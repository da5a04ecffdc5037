"""A Python function as the program: called with a setting in a process of its own, and read by what it returns."""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import hashlib
import importlib.util
import inspect
import json
import shlex
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from ridgeline.errors import InputError, Problem, Where
from ridgeline.records.study import Study
from ridgeline.study.forms import Accepts, Environment, FileBeside, Form, read_form
from ridgeline.workloads.command import BUILT_IN, CommandOptions, CommandWorkload
from ridgeline.workloads.extract import ByJson, Metric

CALL, RETURNED = "call.py", "returned.json"
# the node needs no package of ours: this file, the function's and a Python
_CALL = """\
# calls a function with a setting and writes down what it returns: python3 {CALL} '{{"knob": 1}}'
import importlib.util
import json
import os
import sys

spec = importlib.util.spec_from_file_location("objective", {file!r})
module = importlib.util.module_from_spec(spec)
sys.modules["objective"] = module
spec.loader.exec_module(module)
found = getattr(module, {function!r})(**json.loads(sys.argv[1]))
if not isinstance(found, dict):
    found = {{{goal!r}: found}}
for name, value in found.items():  # NumPy's numbers, and others that can be floats, count
    if not isinstance(value, (bool, int, float, str)):
        found[name] = float(value)
with open("{RETURNED}.partial", "w") as file:
    json.dump(found, file)
os.replace("{RETURNED}.partial", "{RETURNED}")
print(json.dumps(found))
"""


def _identifier(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is no name of a Python function; write it without dots and parentheses")
    return name


class PythonForm(Form):
    """A Python function: called with the knobs and derived values as keyword arguments, in a process of its own.

    It returns the goal's metric as a number, or a mapping of metrics to values. A knob that does not exist at a point
    is not passed. `wall_s` and `cpu_s` come by themselves, and on this machine and PBS `max_rss_bytes`.
    """

    whose = "python"

    file: Annotated[FileBeside, Accepts("a Python file beside the study file")] = Field(
        description="The file that defines the function.", examples=["objective.py"]
    )
    function: Annotated[str, AfterValidator(_identifier)] = Field(
        default="objective", description="The function's name in that file."
    )
    python: str = Field(default="python3", min_length=1, description="The Python that calls it, on the node.")
    files: Annotated[list[FileBeside], Accepts("a list of file names")] = Field(
        default=[], description="Further files beside the study file, copied into the run folder."
    )
    env: Environment = Field(default={}, description="Environment of the function; {knob} fields allowed.")


class PythonWorkload(CommandWorkload):
    """The program is `python3 call.py '{"knob": value}'`; all else is as for any program."""

    form = PythonForm  # type: ignore[assignment]  # a form of its own, not one more of a command

    def _read_options(self, study: Study) -> CommandOptions:
        form, problems = read_form(PythonForm, study.workload.options, study.folder, ("workload",))
        if form.file and not form.file.endswith(".py"):
            problems.append(Problem(("workload", "file"), f"{form.file} is no Python file; its name must end in .py"))
        named = study.needed_metrics - BUILT_IN
        sources = {Path(name).name: study.folder / name for name in (form.file, *form.files) if name}
        called = Path(form.file or "").name
        text = _CALL.format(CALL=CALL, RETURNED=RETURNED, file=called, function=form.function, goal=study.goal.metric)
        return CommandOptions(
            run=f"{shlex.quote(form.python)} {CALL}",
            env=form.env,
            inputs={CALL: text.replace("{", "{{").replace("}", "}}")},
            files=sources,
            metrics={name: Metric(name, ByJson(name), RETURNED) for name in sorted(named)},
            problems=tuple(problems),
        )

    def templates(self) -> Iterator[tuple[Where, str]]:
        for name, text in self._options.env.items():
            yield ("workload", "env", name), text

    def _program(self, fields: dict[str, object]) -> str:
        known = [*self._study.space.by_name, *self._study.space.derived]
        passed = {name: fields[name] for name in known if fields.get(name) is not None}
        return f"{super()._program(fields)} {shlex.quote(json.dumps(passed))}"


# A Python function as a file of its own, with all that it needs: any process on any node can then call it.
#
# Whatever the function reads from around it becomes part of the text: values, other functions, modules. So the text
# says whether two functions are the same; what cannot be written down is refused.

_OWN_FILE = "or put it into a file and write {'kind': 'python', 'file': 'objective.py'}"
_IMPORTED = "_IMPORTED_FILES"  # in the text: fingerprints of the modules that are no installed packages


def function_source(function: Callable[..., Any]) -> tuple[str, str]:
    """The function's name, and the text of a Python file that defines it. InputError says what cannot be written."""
    text = _SourceText()
    if isinstance(function, functools.partial):
        inner = text.define(function.func)
        given = [text.literal(each, f"an argument of {inner}") for each in function.args]
        given += [f"{name}={text.literal(each, name)}" for name, each in function.keywords.items()]
        text.parts[f"_{inner}"] = f"import functools\n\n_{inner} = functools.partial({', '.join([inner, *given])})\n"
        return f"_{inner}", text.whole()
    return text.define(function), text.whole()


class _SourceText:
    """`parts` are definitions by their name; a name stands for one thing only."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.postponed = False  # annotations that name things from elsewhere are not evaluated

    def whole(self) -> str:
        head = "from __future__ import annotations\n\n" if self.postponed else ""
        files = f"{_IMPORTED} = {self.files!r}\n" if self.files else ""
        text = head + files + "\n".join(self.parts.values())
        try:
            compile(text, "objective.py", "exec")
        except SyntaxError as error:
            raise InputError(f"workload: cannot be written as a file of its own ({error}); {_OWN_FILE[3:]}") from None
        return text

    def define(self, function: object) -> str:
        """Its definition and that of everything it reads; the name that it has in the text."""
        name = getattr(function, "__name__", "")
        source = _own_source(function)
        if not isinstance(function, FunctionType) or not name.isidentifier() or not source.startswith("def "):
            raise InputError(
                f"workload: {function!r} has no source of its own that another process could run; define it with "
                f"`def`, {_OWN_FILE}"
            )
        if self._is_new(name, function, source := self._with_defaults(function, source)):
            for read, value in sorted(_reads(function), key=lambda each: each[0]):
                self._bring(read, value, function)
            # last, as a reader expects: helpers come before what calls them
            self.parts[name] = self.parts.pop(name)
            for module in sorted(set(_named_by(function.__code__, "IMPORT_NAME"))):
                self._note_file(module)
        return name

    def _is_new(self, name: str, value: object, text: str) -> bool:
        if name not in self.parts:
            self.parts[name] = text
            return True
        if self.parts[name] != text:
            raise InputError(f"workload: two different things are called {name} ({value!r}); rename one of them")
        return False

    def _bring(self, name: str, value: object, function: FunctionType) -> None:
        module = getattr(value, "__module__", None)
        own = (function.__module__, "__main__", None)
        if isinstance(value, ModuleType):
            self._note_file(value.__name__)
            plain = value.__name__ == name
            self._is_new(name, value, f"import {value.__name__}{'' if plain else f' as {name}'}\n")
        elif isinstance(value, FunctionType) and module in own:
            called = self.define(value)
            if called != name:
                self._is_new(name, value, f"{name} = {called}\n")
        elif isinstance(value, type | FunctionType | BuiltinFunctionType) and module not in own:
            self._note_file(str(module))
            of = value.__qualname__.partition(".")[0]
            self._is_new(name, value, f"from {module} import {of}{'' if of == name else f' as {name}'}\n")
        else:
            self._is_new(name, value, f"{name} = {self.literal(value, f'{name}, which {function.__name__} uses')}\n")

    def literal(self, value: object, what: str) -> str:
        """Python text that gives the value again."""
        try:
            return _literal(value)
        except ValueError:
            raise InputError(
                f"workload: {what}, is {type(value).__name__}, which another process does not have; make or load it "
                f"inside the function, {_OWN_FILE}"
            ) from None

    def _with_defaults(self, function: FunctionType, source: str) -> str:
        """The source, in which defaults that name something are replaced by their values."""
        tree = ast.parse(source)
        (found,) = tree.body
        assert isinstance(found, ast.FunctionDef)
        arguments = found.args
        annotations = [each.annotation for each in ast.walk(arguments) if isinstance(each, ast.arg)]
        self.postponed |= any(_foreign(node) for node in (*annotations, found.returns) if node is not None)
        named = function.__kwdefaults__ or {}
        values = [*(function.__defaults__ or ()), *(named.get(argument.arg) for argument in arguments.kwonlyargs)]
        stated = [*arguments.defaults, *arguments.kw_defaults]
        written = [
            self._written(value, function) if node is not None and _foreign(node) else node
            for node, value in zip(stated, values, strict=True)
        ]
        if written == stated:
            return source
        by_place = len(arguments.defaults)
        arguments.defaults = [node for node in written[:by_place] if node is not None]
        arguments.kw_defaults = written[by_place:]
        return f"{ast.unparse(tree)}\n"

    def _written(self, value: object, function: FunctionType) -> ast.expr:
        return ast.parse(self.literal(value, f"a default of {function.__name__}"), mode="eval").body

    def _note_file(self, module: str) -> None:
        """A module that people edit is part of what is measured; installed ones are known by the machine's receipt."""
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            return  # the call fails where it is imported, and says so
        path = Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None
        installed = [Path(place) for name, place in sysconfig.get_paths().items() if "lib" in name]
        if path is not None and path.is_file() and not any(path.is_relative_to(place) for place in installed):
            self.files[module] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _own_source(function: object) -> str:
    if inspect.ismethod(function) or hasattr(function, "__wrapped__"):
        return ""  # the source is that of something else
    try:
        return textwrap.dedent(inspect.getsource(function))  # type: ignore[arg-type]  # a TypeError says what it is not
    except (OSError, TypeError):
        return ""


def _reads(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What it takes from around it: names of its module, and variables of the functions it was defined in."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue  # not bound yet
        if value is not function:
            yield name, value
    for name in set(_named_by(function.__code__, "LOAD_GLOBAL", "LOAD_NAME")):
        if name in function.__globals__ and function.__globals__[name] is not function:
            yield name, function.__globals__[name]


def _named_by(code: CodeType, *operations: str) -> Iterator[str]:
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in operations)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _named_by(inner, *operations)


def _foreign(node: ast.AST) -> bool:
    """Whether it names anything but what Python itself has."""
    return any(isinstance(each, ast.Name) and not hasattr(builtins, each.id) for each in ast.walk(node))


def _literal(value: object) -> str:
    """The same text for the same value, in every process. ValueError for what is no plain value."""
    if isinstance(value, float) and type(value) is float:
        return repr(value) if value - value == 0 else f"float({str(value)!r})"
    if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes, complex):
        return repr(value)
    if type(value) in (list, tuple, set, frozenset):
        items = [_literal(item) for item in value]  # type: ignore[attr-defined]
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}([{', '.join(sorted(items))}])"
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({', '.join(items)}{',' if items else ''})"
    if isinstance(value, Mapping) and type(value) is dict:
        return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    raise ValueError(f"{value!r} is no plain value")
