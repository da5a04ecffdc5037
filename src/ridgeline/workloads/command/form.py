"""The keys of the `command` workload, and how they become its options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Tag, ValidationInfo, field_validator, model_validator

from ridgeline.errors import Problem
from ridgeline.records.outcome import Kind, Signature
from ridgeline.study.forms import (
    TEXT_OR_MAPPING,
    Accepts,
    DefaultText,
    Entry,
    Environment,
    FileBeside,
    Form,
    Pattern,
    read_form,
)
from ridgeline.workloads.command.extract import ByCsv, ByJson, ByRegex, Metric, Pick


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The options as far as they could be read. Inputs are templates; files and links map a name to its source."""

    run: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, Path] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    signatures: tuple[Signature, ...] = ()
    problems: tuple[Problem, ...] = ()


_OWN_FILES = ("run.sh", "env", "stdout", "stderr", "exit", "process", "stop", "result.json")
METRIC = "a mapping such as {regex: 'rate ([0-9.]+)', unit: GF/s}"
_FAILURES = tuple(kind.value for kind in Kind if kind is not Kind.OK)


def _name_in_folder(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must stay inside the run folder; write a relative name without ..")
    if path.parts[0] in _OWN_FILES:
        raise ValueError(f"{path.parts[0]} is written by ridgeline in every run folder; choose another name")
    return name


def _metric_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError("a metric's name must be one word; use letters, digits and _, so that guards can name it")
    return name


def _of_the_run(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("must be a file of the run folder; write a relative name without ..")
    return name


def _not_blank(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which no command can; remove it")
    if not text.strip():
        raise ValueError("is empty; it must be the command line to run")
    return text.strip("\n")


class SourceForm(Form):
    """An input file made from a file beside the study."""

    from_: FileBeside = Field(alias="from", description="A text file beside the study file; {knob} fields are filled.")


class LinkForm(Form):
    """A file that is linked into the run folder."""

    link: FileBeside = Field(description="A file or folder beside the study file that is linked, not copied.")


class MetricForm(Form):
    """Where a value is found in what the program wrote: by exactly one of `regex`, `json` and `csv`."""

    regex: Annotated[Pattern | None, DefaultText("`json` or `csv` is given")] = Field(
        default=None, description="The value is the first group, or the whole match of a pattern without groups."
    )
    json_: Annotated[str | None, Accepts("a path such as latency.p50"), DefaultText("`regex` or `csv` is given")] = (
        Field(default=None, alias="json", min_length=1, description="The dotted path of the value in a JSON file.")
    )
    csv: Annotated[str | None, Accepts("the name of a column"), DefaultText("`regex` or `json` is given")] = Field(
        default=None, min_length=1, description="The column of a CSV file with a header."
    )
    row: Annotated[int | None, DefaultText("all rows, see `pick`")] = Field(
        default=None, description="The line of the CSV table, counted from 0, or from the end: -1."
    )
    file: Annotated[str, AfterValidator(_of_the_run)] = Field(
        default="stdout", description="The file of the run folder in which it is looked for."
    )
    unit: Annotated[str, DefaultText("none")] = Field(default="", description="The unit, shown to people.")
    type: Literal["number", "text"] = Field(
        default="number", description="What it is; text can be guarded, but not be the goal."
    )
    pick: Pick = Field(
        default="last", description="Which one counts where there are several; of texts only `last` and `first`."
    )

    @field_validator("row")
    @classmethod
    def _row_of_a_table(cls, row: int | None, info: ValidationInfo) -> int | None:
        if row is not None and info.data.get("csv") is None:
            raise ValueError("is the number of a line of a csv table; give `csv` too, or leave it out")
        return row

    @field_validator("pick")
    @classmethod
    def _pick_of_texts(cls, pick: Pick, info: ValidationInfo) -> Pick:
        if info.data.get("type") == "text" and pick not in ("last", "first"):
            raise ValueError(f"is {pick!r}; of texts it must be last or first")
        return pick

    @model_validator(mode="after")
    def _one_source(self) -> MetricForm:
        if sum(source is not None for source in (self.regex, self.json_, self.csv)) != 1:
            raise ValueError("needs exactly one of regex, json and csv; they say where the value is")
        return self

    def metric(self, name: str) -> Metric:
        if self.regex is not None:
            source: ByRegex | ByJson | ByCsv = ByRegex(re.compile(self.regex, re.MULTILINE))
        else:
            source = ByCsv(self.csv, self.row) if self.csv is not None else ByJson(self.json_ or "")
        return Metric(name, source, self.file, self.unit, self.type == "text", self.pick)


class SignatureForm(Form):
    """A text in the program's output that shows why a run failed."""

    pattern: Pattern = Field(min_length=1, description="A regular expression, looked for in the logs.")
    kind: Literal[_FAILURES] = Field(  # type: ignore[valid-type]  # the names are those of outcomes
        default="crash", description="The kind of failure that it shows."
    )
    reason: Annotated[str, DefaultText("the pattern")] = Field(default="", description="The reason, shown to people.")
    even_if_exit_0: bool = Field(default=False, description="Whether it counts also where the program exits with 0.")


Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[SourceForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
    Accepts("the text of the file, or `from: FILE`"),
]
_InputFile = Annotated[
    Annotated[FileBeside, Tag("<text>")] | Annotated[LinkForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
    Accepts("the name of a file beside the study file, or `link: FILE`"),
]


class CommandForm(Form):
    """Any program: a command line, environment and input files from templates; metrics read from what it wrote.

    Templates may name every knob and derived value, `{build}`, and the job's `{nodes}`, `{ranks}`, `{ranks_per_node}`,
    `{cores}`, `{gpus}` and `{launch}`. The metrics `wall_s` and `cpu_s` come by themselves, and on this machine and PBS
    `max_rss_bytes`.
    """

    whose = "command"

    run: Annotated[str, AfterValidator(_not_blank), Accepts("the command line to run")] = Field(
        description="Shell text with {knob} fields.", examples=["./app --block {block}"]
    )
    env: Environment = Field(default={}, description="Environment of the program; {knob} fields allowed.")
    inputs: Annotated[
        dict[Annotated[str, AfterValidator(_name_in_folder)], Input],
        Entry("FILE"),
        Accepts("a mapping of file names to texts"),
    ] = Field(default={}, description="Files written into the run folder, with {knob} fields filled.")
    files: Annotated[list[_InputFile], Accepts("a list of file names")] = Field(
        default=[], description="Files and folders beside the study file, copied into the run folder or linked."
    )
    metrics: Annotated[
        dict[Annotated[str, AfterValidator(_metric_name)], Annotated[MetricForm, Accepts(METRIC)]],
        Entry("METRIC"),
        Accepts("a mapping of metrics to where they are"),
    ] = Field(default={}, description="What is read from the program's output: name to where it is found.")
    signatures: Annotated[list[SignatureForm], Accepts("a list of mappings")] = Field(
        default=[], description="Texts that show a failure; they go before the built-in table."
    )


def read_options(given: Mapping[str, object], folder: Path) -> CommandOptions:
    """`folder` is the study file's: sources of inputs and files lie there."""
    form, problems = read_form(CommandForm, given, folder, ("workload",))
    inputs = {}
    for name, source in form.inputs.items():
        if isinstance(source, str):
            inputs[name] = source
        elif (folder / source.from_).is_file():
            inputs[name] = (folder / source.from_).read_text(errors="replace")
        else:
            problems.append(Problem(("workload", "inputs", name, "from"), f"{source.from_} is a folder; name a file"))
    copied, linked = _sources(form, folder)
    problems += _file_problems(form)
    return CommandOptions(
        run=form.run or "",
        env=form.env,
        inputs=inputs,
        files=copied,
        links=linked,
        metrics={name: entry.metric(name) for name, entry in form.metrics.items()},
        signatures=tuple(_signature(entry) for entry in form.signatures),
        problems=tuple(problems),
    )


def _sources(form: CommandForm, folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    copied: dict[str, Path] = {}
    linked: dict[str, Path] = {}
    for item in form.files:
        source = folder / (item if isinstance(item, str) else item.link)
        (copied if isinstance(item, str) else linked)[source.name] = source
    return copied, linked


def _file_problems(form: CommandForm) -> Iterator[Problem]:
    taken = set(form.inputs)
    for index, item in enumerate(form.files):
        where = ("workload", "files", index)
        name = Path(item if isinstance(item, str) else item.link).name
        try:
            _name_in_folder(name)
        except ValueError as error:
            yield Problem(where, str(error))
        if name in taken:
            yield Problem(where, f"{name} is already among the inputs and files; name it once")
        taken.add(name)


def _signature(form: SignatureForm) -> Signature:
    pattern = re.compile(form.pattern, re.MULTILINE)
    return Signature(pattern, Kind(form.kind), form.reason or f"said {form.pattern!r}", form.even_if_exit_0)
