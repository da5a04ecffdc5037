"""Any program: a command line, environment and input files from templates; metrics read from what it wrote."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from ridgeline.errors import StoreError
from ridgeline.files import in_one_step
from ridgeline.records.expression import ExpressionError
from ridgeline.records.launch import contained, launch
from ridgeline.records.measurement import Measurement, Reading
from ridgeline.records.problem import Problem, Where, near
from ridgeline.records.run import Job, Resources, Run
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.template import field_names, render, unknown_fields
from ridgeline.records.trial import Trial
from ridgeline.workloads.command.extract import NotThere, file_text
from ridgeline.workloads.command.form import CommandForm, read_options
from ridgeline.workloads.command.paste import folder_lines, needs_own_folder
from ridgeline.workloads.shell_text import build_lines, pasted_run
from ridgeline.workloads.signatures import PROGRAM_FAILURES

BUILT_IN = {"wall_s": "s", "cpu_s": "s", "max_rss_bytes": "bytes"}
JOB_FIELDS = ("nodes", "ranks", "ranks_per_node", "cores", "gpus", "launch")  # of the job, in templates


class CommandWorkload:
    """Templates may name every knob and derived value, `{build}`, and the job's `{nodes}`, `{ranks}`, `{cores}`...

    `{launch} ./program` starts it on all ranks with the site's launcher, inside the site's container if it has one; a
    command without `{launch}` runs in it as a whole. A knob of the same name goes before a field of the job.
    """

    form = CommandForm
    pasted_whole = True

    def __init__(self, study: Study) -> None:
        self._study = study
        self._options = read_options(study.workload.options, study.folder)
        self.signatures = (*self._options.signatures, *PROGRAM_FAILURES)
        files = (metric.file for metric in self._options.metrics.values())
        self.logs = tuple(dict.fromkeys(("stderr", "stdout", *files)))

    def problems(self) -> list[Problem]:
        found = list(self._options.problems)
        known = [*self._study.space.names, *JOB_FIELDS, *(["build"] if self._study.builds else [])]
        for where, text in self._templates():
            for name in unknown_fields(text, known):
                message = f"{{{name}}} is not a knob or a derived value; {near(name, known)}"
                if name == "build":
                    message = "{build} is the folder of the built program, but the study has no `builds`"
                found.append(Problem(where, message))
        return [*found, *self._metric_problems()]

    def refusal(self, settings: Settings) -> str | None:
        try:
            fields = self._fields(settings, ".")
            for _, text in self._templates():
                render(text, fields)
        except (ExpressionError, ValueError) as error:
            return str(error)
        return None

    def prepare(self, trial: Trial, folder: Path) -> Job:
        build = os.path.relpath(trial.build.resolve(), folder.resolve()) if trial.build else "."
        fields = self._fields(trial.settings, build)
        try:
            self._fill(folder, trial.build, fields)
        except OSError as error:
            raise StoreError(
                f"{error.filename or folder}: cannot fill the run folder ({error.strerror}); make room and resume"
            ) from error
        limits = self._study.job
        return Job(
            name=folder.name,
            folder=folder,
            command=self._command(fields, limits.resources(trial.settings)),
            env=self._env(fields),
            resources=limits.resources(trial.settings),
            limit_s=limits.limit_s,
            silence_limit_s=limits.silence_limit_s,
        )

    def _command(self, fields: dict[str, object], resources: Resources) -> str:
        command = render(self._options.run, fields)
        if not self._study.site.container or "launch" in field_names(self._options.run):
            return command
        return contained(self._study.site, resources, f"sh -c {shlex.quote(command)}")

    def _env(self, fields: dict[str, object]) -> dict[str, str]:
        return {name: render(text, fields) for name, text in self._options.env.items()}

    def read(self, run: Run) -> Reading:
        measurements = [
            Measurement(name, value, BUILT_IN[name], "run")
            for name, value in {"wall_s": run.ending.duration_s, **run.ending.usage}.items()
            if name in BUILT_IN and name not in self._options.metrics
        ]
        texts: dict[str, str] = {}
        problems: list[str] = []
        needed = {self._study.goal.metric, *(name for guard in self._study.guards for name in guard.names)}
        for name in needed & BUILT_IN.keys() - {m.metric for m in measurements} - self._options.metrics.keys():
            problems.append(f"{name} was not reported by the site (peak memory below the controller's own is not seen)")
        contents: dict[str, str] = {}
        for name, metric in self._options.metrics.items():
            try:
                if metric.file not in contents:
                    contents[metric.file] = file_text(run.folder, metric.file)
                value = metric.read(contents[metric.file])
            except NotThere as gap:
                problems += [str(gap)] if name in needed else []
                continue
            if isinstance(value, str):
                texts[name] = value
            else:
                measurements.append(Measurement(name, value, metric.unit, metric.file))
        return Reading(tuple(measurements), texts, problem="; ".join(problems))

    def paste(self, settings: Settings) -> str:
        """For a shell in the study's folder."""
        study, apart = self._study, needs_own_folder(self._options, self._study.folder)
        fields = self._fields(settings, ".." if apart else ".")
        before = build_lines(study.builds, settings) if study.builds else []
        before += folder_lines(self._options, study, fields) if apart else []
        command = self._command(fields, study.job.resources(settings))
        return pasted_run(study.site, self._env(fields), command, before)

    def _templates(self) -> Iterator[tuple[Where, str]]:
        yield ("workload", "run"), self._options.run
        for name, text in self._options.env.items():
            yield ("workload", "env", name), text
        for name, text in self._options.inputs.items():
            yield ("workload", "inputs", name), text

    def _metric_problems(self) -> Iterator[Problem]:
        goal = self._study.goal
        # a metric with a problem of its own is still one that the study names
        wrong = [str(p.where[2]) for p in self._options.problems if p.where[1:2] == ("metrics",) and len(p.where) > 2]
        known = [*self._options.metrics, *BUILT_IN, *wrong]
        defined = self._options.metrics.get(goal.metric)
        if goal.metric not in known:
            yield Problem(("goal", goal.direction), f"{goal.metric} is no metric; {near(goal.metric, known)}")
        elif defined and defined.is_text:
            yield Problem(("goal", goal.direction), f"{goal.metric} is text; only a number can be the goal")
        known += self._study.space.names
        for index, guard in enumerate(self._study.guards):
            for name in sorted(guard.names - set(known)):
                yield Problem(("guards", index), f"{name} is no metric, knob or derived value; {near(name, known)}")

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
        folder.mkdir(parents=True, exist_ok=True)
        if build:
            self._link_build(build, folder)
        for name, source in self._options.links.items():
            _link(source, folder / name)
        for name, source in self._options.files.items():
            _place(folder / name, lambda target, source=source: _copy(source, target))  # type: ignore[misc]
        for name, text in self._options.inputs.items():
            content = render(text, fields)
            _place(folder / name, lambda target, content=content: target.write_text(content))  # type: ignore[misc]

    def _link_build(self, build: Path, folder: Path) -> None:
        keep = self._study.builds.keep if self._study.builds else ()
        kept = {path.relative_to(build).parts[0] for pattern in keep for path in build.glob(pattern)}
        for name in sorted(kept):
            _link(build / name, folder / name)


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
