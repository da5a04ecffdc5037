"""Any program: a command line, environment and input files from templates; metrics read from what it wrote."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.errors import Problem, Where
from ridgeline.files import in_one_step
from ridgeline.records.expression import ExpressionError
from ridgeline.records.launch import contained, launch
from ridgeline.records.measurement import Measurement, Reading, metrics_of, reported
from ridgeline.records.run import Job, Resources, Run
from ridgeline.records.space import Settings
from ridgeline.records.study import Builds, Study
from ridgeline.records.template import field_names, render, render_env
from ridgeline.records.trial import Trial
from ridgeline.workloads.base import Workload
from ridgeline.workloads.command.extract import Metric, MetricMissing, MetricUnread, file_text
from ridgeline.workloads.command.form import CommandForm, CommandOptions, read_options
from ridgeline.workloads.run_folder import (
    OWN_FOLDER,
    build_lines,
    build_seen_from,
    filling,
    job_in,
    pasted_file,
    pasted_run,
)
from ridgeline.workloads.study_names import field_problems, metric_problems


def _needs_own_folder(options: CommandOptions, study_folder: Path) -> bool:
    """Whether the study's own folder does not hold all that the command reads.

    Inputs never go into the study's folder: one may have the name of the file that it is made from.
    """
    elsewhere = [name for name, source in _sources(options).items() if source != study_folder / name]
    return bool(options.inputs or elsewhere)


def _folder_lines(options: CommandOptions, study: Study, fields: Mapping[str, object]) -> list[str]:
    """A folder of its own, entered and filled as a run folder is."""
    lines = [*OWN_FOLDER]
    # a run folder links what lies at the top of the kept files
    lines += [f"ln -sfn ../{name} ." for name in _kept(study.builds)]
    for name, source in options.links.items():
        lines.append(f"ln -sfn {_from_own(source, study.folder)} ./{shlex.quote(name)}")
    for name, source in options.files.items():
        lines += _copied(_from_own(source, study.folder), f"./{shlex.quote(name)}", is_folder=source.is_dir())
    return [
        *lines,
        *(pasted_file(name, render(text, fields, study.space.optional)) for name, text in options.inputs.items()),
    ]


def _sources(options: CommandOptions) -> dict[str, Path]:
    return {**options.files, **options.links}


def _kept(builds: Builds | None) -> list[str]:
    tops = [PurePosixPath(pattern).parts[0] for pattern in (builds.keep if builds else ())]
    # a pattern stays the shell's to match
    return [re.sub(r"[^\w*?\[\].@%+,:-]", r"\\\g<0>", top) for top in dict.fromkeys(tops)]


def _from_own(source: Path, study_folder: Path) -> str:
    beside = source.is_relative_to(study_folder)
    return shlex.quote(f"../{os.path.relpath(source, study_folder)}" if beside else str(source))


def _copied(source: str, target: str, *, is_folder: bool) -> Iterator[str]:
    if is_folder:
        yield f"mkdir -p {target}"
        yield f"cp -RLp {source}/. {target}"
    else:
        yield f"cp -p {source} {target}"


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
        return read_options(study.workload.options, study.folder)

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
        there = {*self._options.inputs, *_sources(self._options)}
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
        study = self._study
        brought = study.site.modules or study.job.modules or study.site.setup or study.site.container
        fields = self._fields(settings, ".")
        env = {**study.site.env, **self._env(fields)}
        program = first_program(self._program(fields))
        if study.site.batch != "local" or brought or not program:
            return
        if fix := self._why_missing(program, env.get("PATH", "$PATH")):
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
        source = _sources(self._options).get(where.parts[0])
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
            self._link_build(build, folder)
        for name, source in self._options.links.items():
            _link(source, folder / name)
        for name, source in self._options.files.items():
            _place(folder / name, lambda target, source=source: _copy(source, target))  # type: ignore[misc]
        for name, text in self._options.inputs.items():
            content = self._rendered(text, fields)
            _place(folder / name, lambda target, content=content: target.write_text(content))  # type: ignore[misc]

    def _link_build(self, build: Path, folder: Path) -> None:
        keep = self._study.builds.keep if self._study.builds else ()
        kept = {path.relative_to(build).parts[0] for pattern in keep for path in build.glob(pattern)}
        for name in sorted(kept):
            _link(build / name, folder / name)


# what a shell does itself, or what begins something larger: nothing certain can be said of the program behind it
_SHELL_WORDS = re.compile(
    r"if|for|while|until|case|function|select|time|do|then|else|elif|fi|done|esac|in|!|\[\[?|test|echo|printf|read|cd|set|"
    r"export|unset|eval|exec|\.|source|trap|wait|ulimit|umask|true|false|:|pwd|type|command|builtin|let|local|return|"
    r"exit|shift|getopts|alias|times|kill"
)


def first_program(command: str) -> str:
    """The program that a command line starts first; empty where only a shell can tell."""
    try:
        words = shlex.split(re.split(r"[;|&<>()\n`]", command.strip(), maxsplit=1)[0])
    except ValueError:
        return ""
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        words.pop(0)
    first = words[0] if words else ""
    uncertain = _SHELL_WORDS.fullmatch(first) or re.search(r"[$*?\[\]{}~\\]", first)
    return "" if uncertain else first


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
