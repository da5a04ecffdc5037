"""Any program: a command line, environment and input files from templates; metrics read from what it wrote."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Tag, ValidationInfo, field_validator, model_validator

from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.errors import Problem, Where
from ridgeline.files import in_one_step
from ridgeline.records.expression import ExpressionError
from ridgeline.records.launch import contained, launch
from ridgeline.records.measurement import Measurement, Reading, metrics_of, reported
from ridgeline.records.outcome import Kind, Signature
from ridgeline.records.run import Job, Resources, Run
from ridgeline.records.space import Settings
from ridgeline.records.study import Builds, Study
from ridgeline.records.template import field_names, render, render_env
from ridgeline.records.trial import Trial
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
from ridgeline.workloads.base import Workload, field_problems, metric_problems
from ridgeline.workloads.extract import ByCsv, ByJson, ByRegex, Metric, MetricMissing, MetricUnread, Pick, file_text
from ridgeline.workloads.run_folder import (
    NOT_A_PROGRAM,
    OWN_FOLDER,
    build_lines,
    build_seen_from,
    filling,
    job_in,
    pasted_file,
    pasted_run,
)


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The options as far as they could be read. Inputs are templates; files map a name to its source."""

    run: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    linked: Collection[str] = ()  # of the files, those that are not copied
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    signatures: tuple[Signature, ...] = ()
    problems: tuple[Problem, ...] = ()


_OWN_FILES = ("run.sh", "env", "stdout", "stderr", "exit", "process", "stop", "result.json")
METRIC = "a mapping such as {regex: 'rate ([0-9.]+)', unit: GF/s}"
_FAILURES = tuple(kind.value for kind in Kind if kind is not Kind.OK)


def _of_the_run(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must stay inside the run folder; write a relative name without ..")
    return name


def _new_in_the_run(name: str) -> str:
    first = PurePosixPath(_of_the_run(name)).parts[0]
    if first in _OWN_FILES:
        raise ValueError(f"{first} is written by ridgeline in every run folder; choose another name")
    return name


def _metric_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError("a metric's name must be one word; use letters, digits and _, so that guards can name it")
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

    def signature(self) -> Signature:
        pattern = re.compile(self.pattern, re.MULTILINE)
        return Signature(pattern, Kind(self.kind), self.reason or f"said {self.pattern!r}", self.even_if_exit_0)


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
        dict[Annotated[str, AfterValidator(_new_in_the_run)], Input],
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


def _named(form: CommandForm) -> list[str]:
    return [item if isinstance(item, str) else item.link for item in form.files]


def _file_problems(form: CommandForm) -> Iterator[Problem]:
    taken = set(form.inputs)
    for index, source in enumerate(_named(form)):
        where, name = ("workload", "files", index), Path(source).name
        try:
            _new_in_the_run(name)
        except ValueError as error:
            yield Problem(where, str(error))
        if name in taken:
            yield Problem(where, f"{name} is already among the inputs and files; name it once")
        taken.add(name)


def _needs_own_folder(options: CommandOptions, study_folder: Path) -> bool:
    """Whether the study's own folder does not hold all that the command reads.

    Inputs never go into the study's folder: one may have the name of the file that it is made from.
    """
    return bool(options.inputs) or any(source != study_folder / name for name, source in options.files.items())


def _folder_lines(options: CommandOptions, study: Study, fields: Mapping[str, object]) -> list[str]:
    """A folder of its own, entered and filled as a run folder is."""
    lines = [*OWN_FOLDER]
    # a run folder links what lies at the top of the kept files
    lines += [f"ln -sfn ../{name} ." for name in _kept(study.builds)]
    for name, source in options.files.items():
        inside, target = source.is_relative_to(study.folder), f"./{shlex.quote(name)}"
        here = shlex.quote(f"../{os.path.relpath(source, study.folder)}" if inside else str(source))
        if name in options.linked:
            lines.append(f"ln -sfn {here} {target}")
        elif source.is_dir():
            lines += [f"mkdir -p {target}", f"cp -RLp {here}/. {target}"]
        else:
            lines.append(f"cp -p {here} {target}")
    return [
        *lines,
        *(pasted_file(name, render(text, fields, study.space.optional)) for name, text in options.inputs.items()),
    ]


def _kept(builds: Builds | None) -> list[str]:
    tops = [PurePosixPath(pattern).parts[0] for pattern in (builds.keep if builds else ())]
    # a pattern stays the shell's to match
    return [re.sub(r"[^\w*?\[\].@%+,:-]", r"\\\g<0>", top) for top in dict.fromkeys(tops)]


BUILT_IN = frozenset(metrics_of("run", "command"))  # of every run, without a line in the study
_JOB_FIELDS = ("nodes", "ranks", "ranks_per_node", "cores", "gpus", "launch")  # of the job, in templates


class CommandWorkload(Workload):
    """Templates may name every knob and derived value, `{build}`, and the job's `{nodes}`, `{ranks}`, `{cores}`...

    `{launch} ./program` starts it on all ranks with the site's launcher, inside the site's container if it has one; a
    command without `{launch}` runs in it as a whole. A knob of the same name goes before a field of the job.
    """

    form = CommandForm
    pasted_whole = True

    def __init__(self, study: Study) -> None:
        self._study = study
        self._options = self._read_options(study)
        self.signatures = (*self._options.signatures, *PROGRAM_FAILURES)
        files = (metric.file for metric in self._options.metrics.values())
        self.logs = tuple(dict.fromkeys(("stderr", "stdout", *files)))

    def _read_options(self, study: Study) -> CommandOptions:
        folder = study.folder
        form, problems = read_form(CommandForm, study.workload.options, folder, ("workload",))
        inputs = {}
        for name, source in form.inputs.items():
            if isinstance(source, str):
                inputs[name] = source
            elif (folder / source.from_).is_file():
                inputs[name] = (folder / source.from_).read_text(errors="replace")
            else:
                where = ("workload", "inputs", name, "from")
                problems.append(Problem(where, f"{source.from_} is a folder; name a file"))
        problems += _file_problems(form)
        return CommandOptions(
            run=form.run or "",
            env=form.env,
            inputs=inputs,
            files={Path(name).name: folder / name for name in _named(form)},
            linked={Path(item.link).name for item in form.files if not isinstance(item, str)},
            metrics={name: entry.metric(name) for name, entry in form.metrics.items()},
            signatures=tuple(entry.signature() for entry in form.signatures),
            problems=tuple(problems),
        )

    def problems(self) -> list[Problem]:
        found = list(self._options.problems)
        found += field_problems(self._study, self.templates(), _JOB_FIELDS)
        return [*found, *self._metric_problems()]

    def refusal(self, settings: Settings) -> str | None:
        try:
            fields = self._fields(settings, ".")
            for _, text in self.templates():
                self._rendered(text, fields)
        except (ExpressionError, ValueError) as error:
            return str(error)
        return None

    def remarks(self, settings: Settings) -> list[str]:
        """Files beside the study that the command names and a run folder will not have."""
        there = {*self._options.inputs, *self._options.files}
        kept = self._study.builds.keep if self._study.builds else ()
        words = re.findall(r"[^\s;|&<>()'\"=]+", self._rendered(self._options.run, self._fields(settings, ".")))
        paths = {path: path.parts[0] for word in words if word[0] not in "-/~" and (path := PurePosixPath(word)).parts}
        return [
            *self._missing_program(settings),
            *(
                f"`run` names {path}, which is beside the study but will not be in the run folder: add `files: [{top}]`"
                for path, top in paths.items()
                if top != ".."
                and (self._study.folder / path).exists()
                and not any(path.is_relative_to(name) for name in there)
                and not any(fnmatch(top, PurePosixPath(pattern).parts[0]) for pattern in kept)
            ),
        ]

    def _missing_program(self, settings: Settings) -> Iterator[str]:
        """The first program of the command, where this machine certainly does not have it.

        What a site, its modules, setup lines and container bring, nobody knows before a job is there.
        """
        study, fields = self._study, self._fields(settings, ".")
        brought = study.site.modules or study.job.modules or study.site.setup or study.site.container
        path = {**study.site.env, **self._env(fields)}.get("PATH", "$PATH")
        program = first_program(self._program(fields)) if study.site.batch == "local" and not brought else ""
        if program and (fix := self._why_missing(program, path)):
            yield f"`run` starts {program}, which {fix}"

    def _why_missing(self, program: str, path: str) -> str:
        study, where = self._study, PurePosixPath(program)
        if "/" not in program:
            there = ("$" in path and shutil.which(program)) or shutil.which(program, path=path)
            fix = "install it, name its path, or load a module that has it (job: {modules: [...]})"
            return "" if there else f"is not on the PATH of this machine; {fix}"
        if where.is_absolute():
            return "" if os.access(program, os.X_OK) else "is not an executable file on this machine; correct the path"
        if study.builds is not None or ".." in where.parts or where.parts[0] in self._options.inputs:
            return ""
        source = self._options.files.get(where.parts[0])
        if source is not None:
            runs = os.access(source.joinpath(*where.parts[1:]), os.X_OK)
            return "" if runs else "is not an executable file; chmod +x it, or start it with its interpreter"
        if (study.folder / where).exists():
            return ""  # said with the other files that a run folder will not have
        return f"is not in {study.folder}; put it there and add `files: [{where.parts[0]}]`"

    def prepare(self, trial: Trial, folder: Path) -> Job:
        fields = self._fields(trial.settings, build_seen_from(folder, trial))
        with filling(folder):
            self._fill(folder, trial.build, fields)
        resources = self._study.job.resources(trial.settings)
        return job_in(folder, self._study, resources, self._command(fields, resources), self._env(fields))

    def _command(self, fields: dict[str, object], resources: Resources) -> str:
        command = self._program(fields)
        if not self._study.site.container or "launch" in field_names(self._options.run):
            return command
        return contained(self._study.site, resources, f"sh -c {shlex.quote(command)}")

    def _program(self, fields: dict[str, object]) -> str:
        return self._rendered(self._options.run, fields)

    def _env(self, fields: dict[str, object]) -> dict[str, str]:
        return render_env(self._options.env, fields, self._study.space.optional)

    def _rendered(self, text: str, fields: dict[str, object]) -> str:
        return render(text, fields, self._study.space.optional)

    def read(self, run: Run) -> Reading:
        measurements = [
            reported(name, value, "run")
            for name, value in {"wall_s": run.ending.duration_s, **run.ending.usage}.items()
            if name in BUILT_IN and name not in self._options.metrics
        ]
        texts: dict[str, str] = {}
        problems: list[str] = []
        remedies: list[str] = []
        needed = self._study.needed_metrics
        for name in needed & BUILT_IN - {m.metric for m in measurements} - self._options.metrics.keys():
            problems.append(
                f"{name} was not reported by the site; see docs/guides/any-program.md for where it is known"
            )
        contents: dict[str, str] = {}
        for name, metric in self._options.metrics.items():
            try:
                if metric.file not in contents:
                    contents[metric.file] = file_text(run.folder, metric.file)
                value = metric.read(contents[metric.file])
            except MetricMissing as gap:
                if name in needed or isinstance(gap, MetricUnread):
                    problem, remedy = _explained(metric, str(gap), run.folder)
                    problems.append(problem)
                    remedies.append(remedy)
                continue
            if isinstance(value, str):
                texts[name] = value
            else:
                measurements.append(Measurement(name, value, metric.unit, metric.file))
        return Reading(tuple(measurements), texts, problem="; ".join(problems), remedy="; ".join(remedies))

    def paste(self, settings: Settings) -> str:
        """For a shell in the study's folder."""
        study, apart = self._study, _needs_own_folder(self._options, self._study.folder)
        fields = self._fields(settings, ".." if apart else ".")
        before = build_lines(study.builds, settings) if study.builds else []
        before += _folder_lines(self._options, study, fields) if apart else []
        command = self._command(fields, study.job.resources(settings))
        return pasted_run(study.site, self._env(fields), command, before)

    def templates(self) -> Iterator[tuple[Where, str]]:
        yield ("workload", "run"), self._options.run
        for name, text in self._options.env.items():
            yield ("workload", "env", name), text
        for name, text in self._options.inputs.items():
            yield ("workload", "inputs", name), text

    def _metric_problems(self) -> Iterator[Problem]:
        # a metric with a problem of its own is still one that the study names
        wrong = [str(p.where[2]) for p in self._options.problems if p.where[1:2] == ("metrics",) and len(p.where) > 2]
        yield from metric_problems(self._study, [*self._options.metrics, *BUILT_IN, *wrong])
        goal = self._study.goal
        defined = self._options.metrics.get(goal.metric)
        if defined and defined.is_text:
            yield Problem(("goal", goal.direction), f"{goal.metric} is text; only a number can be the goal")

    def _fields(self, settings: Settings, build: str) -> dict[str, object]:
        asked = self._study.job.resources(settings)
        job = {
            "nodes": asked.nodes,
            "ranks": asked.nodes * asked.ranks_per_node,
            "ranks_per_node": asked.ranks_per_node,
            "cores": asked.cores,
            "gpus": asked.gpus,
            "launch": launch(self._study.site, asked, ""),
        }
        return {**job, "build": build, **settings}

    def _fill(self, folder: Path, build: Path | None, fields: dict[str, object]) -> None:
        if build:
            keep = self._study.builds.keep if self._study.builds else ()
            for name in sorted({path.relative_to(build).parts[0] for pattern in keep for path in build.glob(pattern)}):
                _link(build / name, folder / name)
        for name, source in self._options.files.items():
            if name in self._options.linked:
                _link(source, folder / name)
            else:
                _place(folder / name, lambda target, source=source: _copy(source, target))  # type: ignore[misc]
        for name, text in self._options.inputs.items():
            content = self._rendered(text, fields)
            _place(folder / name, lambda target, content=content: target.write_text(content))  # type: ignore[misc]


# what a shell does itself: nothing certain can be said of a program behind it
_BUILT_INTO_SHELLS = re.compile(r"!|\[\[?|test|echo|printf|true|false|pwd|type|kill")


def first_program(command: str) -> str:
    """The program that a command line starts first; empty where only a shell can tell."""
    try:
        words = shlex.split(re.split(r"[;|&<>()\n`]", command.strip(), maxsplit=1)[0])
    except ValueError:
        return ""
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        words.pop(0)
    first = words[0] if words else ""
    built_in = NOT_A_PROGRAM.fullmatch(first) or _BUILT_INTO_SHELLS.fullmatch(first)
    return "" if built_in or re.search(r"[$*?\[\]{}~\\]", first) else first


def _explained(metric: Metric, gap: str, folder: Path) -> tuple[str, str]:
    """Why a metric could not be read, and what to change: many programs report on stderr what others do on stdout."""
    key = f"`workload: metrics: {metric.name}`"
    for other in ("stdout", "stderr"):
        if other == metric.file:
            continue
        try:
            value = metric.read(file_text(folder, other))
        except MetricMissing:
            continue
        return f"{gap}, but {other} has ({value})", f"set `file: {other}` in {key}"
    try:
        empty = not file_text(folder, metric.file).strip()
    except MetricMissing:
        return gap, f"correct `file` in {key}, or let the program write {metric.file} into its run folder"
    if empty:
        return f"{gap}: it is empty", f"let the program print it, or name the file that has it as `file` in {key}"
    return gap, f"correct {metric.source.key} in {key}; {metric.file} of the run folder shows what there is"


def _link(source: Path, target: Path) -> None:
    """A relative link, so that a study folder that is moved as a whole still holds together."""
    text = os.path.relpath(source.resolve(), target.parent.resolve())
    if target.is_symlink():
        if str(target.readlink()) == text:
            return
        target.unlink()
    target.symlink_to(text)


def _place(target: Path, write: Callable[[Path], object]) -> None:
    """Put a file there in one step, once: a run that is taken up again may have changed it since."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with in_one_step(target) as partial:
        write(partial)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)  # what links lead to stays where it is
    else:
        shutil.copy2(source, target)
