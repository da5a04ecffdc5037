"""Builds: which commands make a variant of a program, by which key it is known, and making it.

A variant's key covers the rendered commands, the environment, the modules, the content of the sources and the list of
what is kept. It is built on this machine, one after the other, where compilers and licences live on login nodes; or as
jobs of the site, several at once, with its modules and on the processor that the program will run on.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.campaign.judge import first_line, last_line
from ridgeline.errors import StudyError
from ridgeline.executors.base import Executor
from ridgeline.files import is_there
from ridgeline.records.outcome import Evidence, Kind, Outcome
from ridgeline.records.run import Cause, Ending, Job, job_name
from ridgeline.records.space import Settings
from ridgeline.records.study import Builds, JobLimits
from ridgeline.records.template import field_names
from ridgeline.study.codec import Build, Event, event_of
from ridgeline.study.folder import shell_words
from ridgeline.study.history import History


@dataclass(frozen=True)
class Recipe:
    """What a study says about building, applied to settings. Reads the sources, writes nothing."""

    builds: Builds
    study_folder: Path  # where the study's sources lie
    job: JobLimits  # a variant is built with the modules that it will run with

    def key(self, settings: Settings) -> str:
        env = sorted(self.builds.environment(settings).items())
        text: list[object] = [self.builds.commands(settings), env, list(self.builds.keep)]
        if modules := self.job.loaded(settings):
            text.append(modules)
        digest = hashlib.sha256(json.dumps(text).encode())
        for source in self.sources():
            digest.update(source.relative_to(self.study_folder).as_posix().encode() + b"\0")
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]

    def used(self, settings: Settings) -> Settings:
        """The settings that decide this variant."""
        texts = (*self.builds.make, *self.builds.env.values(), *self.job.modules)
        names = {name for text in texts for name in field_names(text)}
        return {name: settings[name] for name in sorted(names & settings.keys())}

    def sources(self) -> list[Path]:
        """The listed files and globs, and every file beside the study whose name stands in the commands."""
        listed = [p for pattern in self.builds.sources for p in self._matching(pattern)]
        words = {word for line in self.builds.make for word in (*line.split(), *shell_words(line))}
        named = [p for word in words if "{" not in word and is_there(p := self.study_folder / word) and p.is_file()]
        return sorted({p for p in (*listed, *named) if p.is_relative_to(self.study_folder)})

    def _matching(self, pattern: str) -> Iterable[Path]:
        found = sorted(self.study_folder.glob(pattern))
        if not found:
            where = f"in {self.study_folder}; put it there, or correct the name"
            raise StudyError(f"builds.sources: nothing matches {pattern} {where}")
        for path in found:
            yield from (p for p in sorted(path.rglob("*")) if p.is_file()) if path.is_dir() else [path]


_LOGS = ("stderr", "stdout")  # some makefiles send both into one
# What a compiler, a linker or a configure script prints at an error. Make's own `*** [target] Error 1` comes last, and
# says only that there was one.
_FIRST_ERROR = re.compile(
    r"(?<!\*\*\* )\b(?:fatal error|catastrophic error|[Ee]rror)(?:\s+#\d+)?\s*:"
    r"|^(?:PGF|NVFORTRAN|PGC|NVC)[\w+-]*-[SFE]-\d+"
    r"|undefined reference to|undefined symbol|multiple definition of|cannot find -l|unable to find library"
    r"|CMake Error|No rule to make target|[Uu]nrecognized (?:command[- ]line )?option"
    r"|^fatal: "  # git, of which `tar` then says only that there was nothing
    r"|No space left on device|Disk quota exceeded"
)
_PLACE = re.compile(r"^[^\s:]+:\d+(?::\d+)?:$")  # gfortran prints where above what
_MISSING_PROGRAM = re.compile(
    r"(?:^|[:\s/])(?P<name>[\w.+-]+): (?:command )?not found$"  # sh, bash, gmake through a shell
    r"|command not found: (?P<zsh>\S+)$"
    r"|^g?make(?:\[\d+\])?: (?P<make>\S+): No such file or directory$"
    r"|^(?P<wrapped>\S+) in your PATH\.$"  # Open MPI's wrappers, given another compiler by OMPI_CC and such
)
_NOT_FOUND = 127  # how a shell, and make after it, report a program that is not there
_MADE_127 = re.compile(rf"^g?make(?:\[\d+\])?: \*\*\* .*Error {_NOT_FOUND}$")
_MISSING_MODULE = re.compile(r"^ridgeline: a module did not load: (?P<name>\S+)$")
_FULL = re.compile(r"No space left on device|Disk quota exceeded")


def _failed_build(folder: Path, ending: Ending) -> Outcome:
    """The outcome of a build that ended badly, with the line that decided."""
    error = first_line(folder, _LOGS, _FIRST_ERROR, _PLACE)
    lacking = _what_is_missing(folder, ending, error)
    if lacking is not None:
        return Outcome(Kind.SITE_FAULT, f"{_missing_name(lacking)} is not where this is built", lacking)
    evidence = error or last_line(folder, _LOGS)
    if evidence is not None and _FULL.search(evidence.text):
        return Outcome(Kind.SITE_FAULT, "the disk or the quota is full", evidence)
    text = ending.cause.value
    if ending.cause is Cause.EXITED:
        text = f"exit code {ending.exit_code}" if ending.signal is None else f"signal {ending.signal}"
    return Outcome(Kind.BUILD_FAILED, ending.reason or f"the build ended with {text}", evidence)


def _what_is_missing(folder: Path, ending: Ending, error: Evidence | None) -> Evidence | None:
    # makefiles and configure scripts try programs that need not be there: one counts if the build ended for want of it
    if (module := first_line(folder, _LOGS, _MISSING_MODULE)) is not None:
        return module
    wanted = ending.exit_code == _NOT_FOUND or first_line(folder, _LOGS, _MADE_127) is not None
    return last_line(folder, _LOGS, matching=_MISSING_PROGRAM) if wanted or error is None else None


def _missing_name(line: Evidence) -> str:
    """The program or module that this line says is not there."""
    found = _MISSING_MODULE.search(line.text) or _MISSING_PROGRAM.search(line.text)
    return next(filter(None, found.groups()), "") if found else ""


def _blamed_value(outcome: Outcome, used: Settings) -> Settings:
    """Of the settings that decide a variant, one that names what is missing: others need not be built to know."""
    if outcome.kind is not Kind.SITE_FAULT or outcome.evidence is None:
        return {}
    name = _missing_name(outcome.evidence)
    spelled = {name, name.rpartition("/")[2], name.partition("/")[2]} - {""}  # modules differ by release: gcc/99 for 99
    for knob, value in used.items():
        if not spelled.isdisjoint((str(value), *re.split(r"[\s=,;:]+", str(value)))):
            return {knob: value}
    return {}


# the host went down or somebody killed it: the build itself may be right
_NOT_ITS_FAULT = (Cause.LOST, Cause.NODE_FAILED, Cause.CANCELLED)
_OWN_FILES = ("run.sh", "env", "stdout", "stderr")  # kept beside the product: how it was made


@dataclass
class _BuildUnderWay:
    job: Job
    settings: Settings
    ticket: str
    again: bool  # whether it may be made again when its host fails
    spent_s: float = 0.0  # by an earlier attempt
    began_s: float = field(default_factory=time.monotonic)


@dataclass
class Builder:
    """`record` writes an event to the journal before it returns; `with_retries` asks a site that is away again."""

    recipe: Recipe
    root: Path  # the campaign's folder; variants go to root/builds/KEY
    executor: Executor
    history: History
    record: Callable[[Event], None]
    with_retries: Callable[[Callable[[], str | None]], str | None] = lambda ask: ask()
    study: str = "study"  # its name, for the names of jobs
    reserve: Callable[[str, float], None] = lambda key, node_hours: None  # the most that a build on the site may take
    _open: dict[str, _BuildUnderWay] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        return self.executor.slots if self.recipe.builds.where == "site" else 1

    def folder_of(self, settings: Settings) -> Path:
        return self.root / "builds" / self.recipe.key(settings)

    def ensure(self, settings: Settings) -> Path | Outcome | None:
        """The folder of the built variant, or why there is none; None while it is not known: ask after `collect`.

        A failed build is never paid for twice, nor is one whose compiler or module was missing before. Raises what
        `reserve` raises where there is nothing left to pay it from.
        """
        folder = self.folder_of(settings)
        if folder.name in self._open:
            return None
        known = self.history.builds.get(folder.name)
        if known is not None and known.outcome.kind is Kind.OK and folder.is_dir():
            return folder
        if known is not None and (known.outcome.kind is Kind.BUILD_FAILED or known.missing):
            return known.outcome
        if (build := self.history.build_that_lacked(settings)) is not None:
            return build.outcome
        if len(self._open) < self.slots:
            self._begin(folder, settings)
        return None

    @property
    def is_building(self) -> bool:
        return bool(self._open)

    def collect(self) -> bool:
        """Whether a build has ended since the last time."""
        by_ticket = {build.ticket: build for build in self._open.values()}
        ended = self.executor.poll(list(by_ticket)) if by_ticket else {}
        for ticket, ending in ended.items():
            self._end(by_ticket[ticket], ending)
        return bool(ended)

    def leave(self) -> None:
        """The campaign stops: builds on this machine end and leave nothing; jobs of a batch system are found again."""
        if self.executor.detached:
            return
        for build in self._open.values():
            self.executor.cancel(build.ticket)
            shutil.rmtree(build.job.folder, ignore_errors=True)
        self._open.clear()

    def _begin(self, folder: Path, settings: Settings, again: bool = True, spent_s: float = 0.0) -> None:
        job = Job(
            name=job_name(self.study, f"build-{folder.name}"),
            folder=folder,
            command="set -e\n" + "\n".join(self.recipe.builds.commands(settings)),
            env=self.recipe.builds.environment(settings),
            limit_s=self.recipe.builds.limit_s,
            modules=self.recipe.job.loaded(settings),
        )
        ticket = self.with_retries(lambda: self.executor.find(job)) if folder.is_dir() else None
        if ticket is None:
            if self.recipe.builds.where == "site":
                self.reserve(folder.name, job.resources.nodes * job.limit_s / 3600.0)
            self._lay_out(folder)
            ticket = self.with_retries(lambda: self.executor.submit(job))
        assert ticket is not None
        self._open[folder.name] = _BuildUnderWay(job, settings, ticket, again, spent_s)

    def _end(self, build: _BuildUnderWay, ending: Ending) -> None:
        folder = build.job.folder
        del self._open[folder.name]
        outcome = self._outcome(folder, ending)
        if ending.cause in _NOT_ITS_FAULT and outcome.kind is Kind.BUILD_FAILED and build.again:
            shutil.rmtree(folder)  # a power cut, say: it shows nothing about the variant
            self._begin(folder, build.settings, again=False, spent_s=ending.cost_s)
            return
        files, used = self._prune(folder, outcome), self.recipe.used(build.settings)
        on_site = self.recipe.builds.where == "site"
        made = Build(
            folder.name,
            outcome,
            files_kept=files,
            duration_s=round(time.monotonic() - build.began_s, 3),
            settings=used,
            ticket=build.ticket if on_site else "",
            node_s=round(build.spent_s + ending.cost_s, 3) if on_site else None,
            estimated_s=round(ending.cost_s, 3) if on_site and ending.charged_s is None else None,
            missing=_blamed_value(outcome, used),
        )
        self.record(event_of(made))

    def _lay_out(self, folder: Path) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for source in self.recipe.sources():
            target = folder / source.relative_to(self.recipe.study_folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)  # a link leads out of the study: used there

    def _outcome(self, folder: Path, ending: Ending) -> Outcome:
        if ending.cause is not Cause.EXITED or ending.exit_code or ending.signal:
            return _failed_build(folder, ending)
        missing = [pattern for pattern in self.recipe.builds.keep if not any(folder.glob(pattern))]
        if not missing:
            return Outcome(Kind.OK)
        return Outcome(Kind.BUILD_FAILED, f"the build made no {', '.join(missing)}", last_line(folder, _LOGS))

    def _prune(self, folder: Path, outcome: Outcome) -> int:
        """Remove all that is not kept, of a failed build all but how it was made; returns how many files are left.

        Clusters limit the number of files, and failed builds leave as many as others.
        """
        keep = self.recipe.builds.keep if outcome.kind is Kind.OK else ()
        kept = {p for pattern in keep for p in folder.glob(pattern)}
        kept |= {folder / name for name in _OWN_FILES}
        for path in sorted(folder.rglob("*"), reverse=True):
            if any(path == k or k in path.parents for k in kept):
                continue
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            else:
                path.unlink()
        return sum(p.is_file() for p in folder.rglob("*"))
