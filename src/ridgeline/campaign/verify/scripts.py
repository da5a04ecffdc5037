"""What a run was given, again: run.sh and inputs as its setting comes to them, against those in its folder."""

from __future__ import annotations

import math
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline import __version__, catalog
from ridgeline.books import book
from ridgeline.campaign.builds.recipe import Recipe
from ridgeline.campaign.short_trials import shortened
from ridgeline.campaign.verify.verification import Verification
from ridgeline.errors import RidgelineError
from ridgeline.executors.base import EXIT_FILE, Executor
from ridgeline.files import NotRegularError, read_regular, read_text
from ridgeline.records.expression import ExpressionError
from ridgeline.records.run import Job, Run
from ridgeline.records.simulation import NODES_ENV, SPEED_ENV, STOPS_AT_ENV
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.folder import RUNS
from ridgeline.workloads.base import Workload

SCRIPT, ENV = "run.sh", "env"
DATES_S = 5.0  # file systems and clocks of nodes differ by this much
_FOLDER = re.compile(r"^cd (\S.*) \|\| exit", re.MULTILINE)
_RUN_ID = re.compile(r"RIDGELINE_RUN=[0-9a-f]+")
# a study folder may be looked at elsewhere: where it lay, and with it Python and this package, is no part of a setting
# a path with a space stands in quotes; one without does not
_QUOTED_PATH, _SPACE = re.compile(r"'(/[^'\n]*)'"), "\x1a"
_PLACES = (
    (re.compile(r"(?:/[^\s'\":,/]+)+/(?=(?:sources|runs|builds)/)"), "STUDY/"),
    (re.compile(r"(?:/[^\s'\":,/]+)+/python[\d.]*(?![\w.-])"), "PYTHON"),
    (re.compile(r"(?:/[^\s'\":,/]+)+/ridgeline(?=[/'\"\s]|$)"), "PACKAGE"),
)


# where a pretended cluster put the run, and how fast that place is: as little part of the setting as a real one's nodes
_PRETENDED_PLACE = tuple(f"export {name}=" for name in (NODES_ENV, SPEED_ENV, STOPS_AT_ENV))


@dataclass(frozen=True)
class ScriptCheck:
    """Prepares each run once more, in a folder that is thrown away, and compares what that leaves with what is there.

    What another release wrote may be worded otherwise: its script must then hold the command, and is not compared
    further.
    """

    study: Study
    workload: Workload
    root: Path  # of the study folder
    pinned_to: Mapping[int, tuple[str, ...]]
    receipts: tuple[Mapping[str, Any], ...]
    found: Verification

    def one(self, run: Run, trial: Trial, *, script_kept: bool) -> None:
        """`script_kept`: the folder is not known to have been trimmed of its run.sh."""
        where = run.folder.relative_to(self.root).as_posix()
        with tempfile.TemporaryDirectory(prefix="ridgeline-verify-") as home:
            folder = Path(home) / RUNS / run.folder.name
            try:
                job = self._prepared(trial, folder)
                text = self._executor().script(replace(job, on_nodes=self.pinned_to.get(run.number, ())))
            except (RidgelineError, ExpressionError, ValueError, LookupError, OSError) as error:
                self.found.cannot_check(f"{where}/{SCRIPT}", f"cannot be written anew here ({error})", run.number)
                return
            if script_kept:
                self._script(run, where, job, text)
            self._inputs(run, where, folder)

    def _prepared(self, trial: Trial, folder: Path) -> Job:
        folder.mkdir(parents=True)
        if self.study.builds is not None:
            key = Recipe(self.study.builds, self.study.folder, self.study.job).key(trial.settings)
            build = folder.parents[1] / "builds" / key
            build.mkdir(parents=True)
            kept = self.root / "builds" / key
            for path in sorted(kept.glob("*")):
                (build / path.name).symlink_to(path.resolve())
            trial = replace(trial, build=build)
        return replace(self._workload(trial).prepare(trial, folder), modules=self.study.job.loaded(trial.settings))

    def _workload(self, trial: Trial) -> Workload:
        if trial.stage is not Stage.SHORT:
            return self.workload
        workload: Workload = catalog.part("workloads", self.study.workload.kind)(shortened(self.study))
        return workload

    def _executor(self) -> Executor:
        executor: Executor = catalog.part("executors", self.study.site.batch)(self.study.site)
        return executor

    # run.sh, and the environment it exports

    def _script(self, run: Run, where: str, job: Job, text: str) -> None:
        file = f"{where}/{SCRIPT}"
        try:
            there = read_text(run.folder / SCRIPT)
        except NotRegularError as error:
            self.found.differs(file, "the script of this setting", "a file", error.strerror, run.number)
            return
        except OSError:
            return  # said elsewhere
        env = book(run.folder, ENV)
        if env is not None and _exports(env.text) not in there:
            self.found.differs(
                f"{where}/{env.file}", "the environment", _exports(env.text), f"{SCRIPT} exports another", run.number
            )
        one, other = list(_acts(there)), list(_acts(text))
        if one == other:
            return
        if not self._same_release():
            if job.command not in there:
                why = "another release wrote it, and would start its command otherwise today"
                self.found.cannot_check(file, why, run.number)
            return
        stated, derived = _first_difference(one, other)
        self.found.differs(file, "the script of this setting", stated, derived, run.number)

    def _same_release(self) -> bool:
        versions = {receipt.get("ridgeline") for receipt in self.receipts}
        return versions == {__version__}

    # files the run was given

    def _inputs(self, run: Run, where: str, prepared: Path) -> None:
        for path in sorted(prepared.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            name = path.relative_to(prepared).as_posix()
            there = run.folder / name
            if not there.is_file() or read_regular(there) == read_regular(path):
                continue
            stated, derived = _anywhere(_text(there) or ""), _anywhere(_text(path) or "")
            if stated == derived or _same_numbers(stated, derived):
                continue
            file = f"{where}/{name}"
            if self._by_the_run_itself(run, there):
                self.found.cannot_check(file, "was changed while the run was running", run.number)
            elif self._same_release():
                text = "is not what the setting comes to"
                self.found.differs(file, "a file the run was given", "as the setting has it", text, run.number)
            else:
                self.found.cannot_check(file, "another release wrote it, and would write it otherwise", run.number)

    def _by_the_run_itself(self, run: Run, path: Path) -> bool:
        """As far as dates tell: in a folder that was copied without them, a copied source may have been changed."""
        began_s, ended_s = run.ending.started_s - DATES_S, run.ending.ended_s + DATES_S
        last = book(run.folder, EXIT_FILE)
        if last is not None and began_s <= last.changed_s <= ended_s:
            return run.ending.started_s <= path.stat().st_mtime <= ended_s
        return any(path.name == source.name for source in (self.root / "sources").rglob("*"))


def _text(path: Path) -> str | None:
    try:
        return read_text(path)
    except OSError:
        return None


def _exports(text: str) -> str:
    """What the file `env` exports; it only mentions secrets, which run.sh fetches."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def _acts(script: str) -> Iterator[str]:
    """The lines that do something, wherever the folder lies. Directives ask for a place, and nodes to avoid change."""
    if (home := _FOLDER.search(script)) is not None:
        folder = home[1]
        for spelled in dict.fromkeys((folder, *shlex.split(folder))):
            script = script.replace(spelled, "FOLDER") if "$(" not in folder else script
    for line in script.splitlines():
        if line.strip() and not line.startswith(("#", *_PRETENDED_PLACE)):
            yield _anywhere(_RUN_ID.sub("RIDGELINE_RUN=ID", line))


# what is worked out in floating point (the twin's figure in session.json) ends in other digits on other processors
_NUMBER = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?")
_ROUNDING = 1e-9


def _same_numbers(one: str, other: str) -> bool:
    """Whether two texts differ in nothing but how fractions were rounded."""
    if _NUMBER.sub("0", one) != _NUMBER.sub("0", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=_ROUNDING) for a, b in pairs)


def _anywhere(text: str) -> str:
    text = _QUOTED_PATH.sub(lambda found: found[1].replace(" ", _SPACE), text)
    for place, name in _PLACES:
        text = place.sub(name, text)
    return text.replace(_SPACE, " ")


def _first_difference(stated: list[str], derived: list[str]) -> tuple[str, str]:
    for one, other in zip(stated, derived, strict=False):
        if one != other:
            return one, other
    longer, rest = (stated, derived) if len(stated) > len(derived) else (derived, stated)
    line = longer[len(rest)]
    return (line, "ends here") if longer is stated else ("ends here", line)
