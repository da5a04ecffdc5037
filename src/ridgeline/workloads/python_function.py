"""A Python function as the program: called with a setting in a process of its own, and read by what it returns."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from ridgeline.errors import Problem, Where
from ridgeline.records.study import Study
from ridgeline.study.forms import Accepts, Environment, FileBeside, Form, read_form
from ridgeline.workloads.command.extract import ByJson, Metric
from ridgeline.workloads.command.form import CommandOptions
from ridgeline.workloads.command.workload import BUILT_IN, CommandWorkload

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

    def __init__(self, study: Study) -> None:
        self._form, self._problems = read_form(PythonForm, study.workload.options, study.folder, ("workload",))
        super().__init__(study)

    def _read_options(self, study: Study) -> CommandOptions:
        form = self._form
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
            problems=tuple(self._own_problems()),
        )

    def _own_problems(self) -> Iterator[Problem]:
        yield from self._problems
        if self._form.file and not self._form.file.endswith(".py"):
            yield Problem(("workload", "file"), f"{self._form.file} is no Python file; its name must end in .py")

    def templates(self) -> Iterator[tuple[Where, str]]:
        for name, text in self._options.env.items():
            yield ("workload", "env", name), text

    def _program(self, fields: dict[str, object]) -> str:
        return f"{super()._program(fields)} {shlex.quote(json.dumps(self._passed(fields)))}"

    def _passed(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Knobs and derived values as the function gets them."""
        known = [*self._study.space.by_name, *self._study.space.derived]
        return {name: fields[name] for name in known if fields.get(name) is not None}
