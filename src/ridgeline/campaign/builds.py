"""The build axis: each variant of a program is built once, kept by content hash, pruned to what is listed.

A variant's key covers the rendered commands, the environment, the content of the sources and the list of what is kept.
Builds run on the controller's host, one at a time: compilers and licences live on login nodes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.campaign.judge import last_line
from ridgeline.errors import StudyError
from ridgeline.executors.base import Executor
from ridgeline.files import is_there
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.space import Settings
from ridgeline.records.study import Builds
from ridgeline.records.template import field_names, render
from ridgeline.store.events import Event, outcome_line
from ridgeline.store.history import History

LONGEST_WAIT_S = 0.5  # between two looks at Ctrl-C
# the host went down or somebody killed it: the build itself may be right
_NOT_ITS_FAULT = (Cause.LOST, Cause.NODE_FAILED, Cause.CANCELLED)
OWN_FILES = ("run.sh", "env", "stdout", "stderr")  # kept beside the product: how it was made


@dataclass(frozen=True)
class Recipe:
    """What a study says about building, applied to settings. Reads the sources, writes nothing."""

    builds: Builds
    study_folder: Path  # where the study's sources lie

    def key(self, settings: Settings) -> str:
        text = [self.commands(settings), sorted(self.env(settings).items()), list(self.builds.keep)]
        digest = hashlib.sha256(json.dumps(text).encode())
        for source in self.sources():
            digest.update(source.relative_to(self.study_folder).as_posix().encode() + b"\0")
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]

    def commands(self, settings: Settings) -> list[str]:
        return [render(line, settings) for line in self.builds.make]

    def env(self, settings: Settings) -> dict[str, str]:
        return {name: render(text, settings) for name, text in self.builds.env.items()}

    def used(self, settings: Settings) -> dict[str, object]:
        """The settings that decide this variant."""
        names = {n for text in (*self.builds.make, *self.builds.env.values()) for n in field_names(text)}
        return {name: settings[name] for name in sorted(names) if name in settings}

    def sources(self) -> list[Path]:
        """The listed files and globs, and every file beside the study whose name stands in the commands."""
        listed = [p for pattern in self.builds.sources for p in self._matching(pattern)]
        words = {word for line in self.builds.make for word in line.split()}
        named = [p for word in words if "{" not in word and is_there(p := self.study_folder / word) and p.is_file()]
        return sorted({p for p in (*listed, *named) if p.is_relative_to(self.study_folder)})

    def _matching(self, pattern: str) -> Iterable[Path]:
        found = sorted(self.study_folder.glob(pattern))
        if not found:
            raise StudyError(f"builds.sources: nothing matches {pattern} in {self.study_folder}; correct the name")
        for path in found:
            yield from (p for p in sorted(path.rglob("*")) if p.is_file()) if path.is_dir() else [path]


@dataclass
class Builder:
    """`record` writes an event to the journal before `ensure` returns."""

    recipe: Recipe
    root: Path  # the campaign's folder; variants go to root/builds/KEY
    executor: Executor
    history: History
    record: Callable[[Event], None]
    heed_stop: Callable[[], None] = lambda: None  # raises when the user asks to stop

    def ensure(self, settings: Settings) -> Path | Outcome:
        """The folder of the built variant, or why it cannot be built. A failed build is never paid for twice."""
        key = self.recipe.key(settings)
        folder = self.root / "builds" / key
        known = self.history.builds.get(key)
        if known is not None and known.outcome.kind is not Kind.OK:
            return known.outcome
        if known is not None and folder.is_dir():
            return folder
        return self._build(key, folder, settings)

    def _build(self, key: str, folder: Path, settings: Settings, again: bool = True) -> Path | Outcome:
        started = time.monotonic()
        job = Job(
            name=f"build-{key}",
            folder=folder,
            command="set -e\n" + "\n".join(self.recipe.commands(settings)),
            env=self.recipe.env(settings),
            limit_s=self.recipe.builds.limit_s,
        )
        ticket = self.executor.find(job) if folder.is_dir() else None
        if ticket is None:
            self._lay_out(folder)
            ticket = self.executor.submit(job)
        ending = self._await(ticket, folder)
        if ending.cause in _NOT_ITS_FAULT and again:
            shutil.rmtree(folder)  # a power cut, say: it shows nothing about the variant
            return self._build(key, folder, settings, again=False)
        outcome = self._outcome(folder, ending)
        files = self._prune(folder) if outcome.kind is Kind.OK else 0
        seconds = round(time.monotonic() - started, 3)
        self.record(
            {
                "event": "build",
                "key": key,
                "outcome": outcome_line(outcome),
                "files": files,
                "seconds": seconds,
                "settings": self.recipe.used(settings),
            }
        )
        return folder if outcome.kind is Kind.OK else outcome

    def _lay_out(self, folder: Path) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for source in self.recipe.sources():
            target = folder / source.relative_to(self.recipe.study_folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)  # a link leads out of the study: used there

    def _await(self, ticket: str, folder: Path) -> Ending:
        """How the build ended. When the user stops the campaign meanwhile, the build ends and leaves nothing behind."""
        try:
            while ticket not in (endings := self.executor.poll([ticket])):
                self.heed_stop()
                self.executor.wait(LONGEST_WAIT_S)
        except BaseException:
            self.executor.cancel(ticket)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return endings[ticket]

    def _outcome(self, folder: Path, ending: Ending) -> Outcome:
        evidence = last_line(folder, ("stderr", "stdout"))
        if ending.cause is not Cause.EXITED or ending.exit_code or ending.signal:
            reason = ending.reason or f"the build ended with {ending.cause.value} {ending.exit_code or ''}".strip()
            return Outcome(Kind.BUILD_FAILED, reason, evidence)
        missing = [pattern for pattern in self.recipe.builds.keep if not any(folder.glob(pattern))]
        if missing:
            return Outcome(Kind.BUILD_FAILED, f"the build made no {', '.join(missing)}", evidence)
        return Outcome(Kind.OK)

    def _prune(self, folder: Path) -> int:
        """Remove everything that is not kept; clusters limit the number of files. Returns how many are left."""
        kept = {p for pattern in self.recipe.builds.keep for p in folder.glob(pattern)}
        kept |= {folder / name for name in OWN_FILES}
        for path in sorted(folder.rglob("*"), reverse=True):
            if any(path == k or k in path.parents for k in kept):
                continue
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            else:
                path.unlink()
        return sum(p.is_file() for p in folder.rglob("*"))
