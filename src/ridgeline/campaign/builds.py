"""The build axis: each variant of a program is built once, kept by content hash, pruned to what is listed.

A variant's key covers the rendered commands, the environment, the content of the sources and the list of what is kept.
Builds run on the controller's host, one at a time: compilers and licences live on login nodes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgeline.campaign.judge import last_line
from ridgeline.errors import StudyError
from ridgeline.executors.base import Executor
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.study import Builds
from ridgeline.records.template import field_names, render
from ridgeline.store.events import Event, outcome_line
from ridgeline.store.history import History

OWN_FILES = ("run.sh", "env", "stdout", "stderr")  # kept beside the product: how it was made


@dataclass
class Builder:
    """`record` writes an event to the journal before `ensure` returns."""

    builds: Builds
    study_folder: Path  # where the study's sources lie
    root: Path  # the campaign's folder; variants go to root/builds/KEY
    executor: Executor
    history: History
    record: Callable[[Event], None]

    def ensure(self, settings: Mapping[str, object]) -> Path | Outcome:
        """The folder of the built variant, or why it cannot be built. A failed build is never paid for twice."""
        key = self.key(settings)
        folder = self.root / "builds" / key
        known = self.history.builds.get(key)
        if known is not None and (known.outcome.kind is not Kind.OK or folder.is_dir()):
            return folder if known.outcome.kind is Kind.OK else known.outcome
        return self._build(key, folder, settings)

    def key(self, settings: Mapping[str, object]) -> str:
        digest = hashlib.sha256()
        text = [self.commands(settings), sorted(self._env(settings).items()), list(self.builds.keep)]
        digest.update(json.dumps(text).encode())
        for source in self.sources():
            digest.update(source.relative_to(self.study_folder).as_posix().encode() + b"\0")
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]

    def commands(self, settings: Mapping[str, object]) -> list[str]:
        return [render(line, settings) for line in self.builds.make]

    def sources(self) -> list[Path]:
        """The listed files and globs, and every file beside the study whose name stands in the commands."""
        listed = [p for pattern in self.builds.sources for p in self._matching(pattern)]
        words = {word for line in self.builds.make for word in line.split()}
        named = [p for word in words if "{" not in word and (p := self.study_folder / word).is_file()]
        return sorted({p for p in (*listed, *named) if p.is_relative_to(self.study_folder)})

    def _matching(self, pattern: str) -> Iterable[Path]:
        found = sorted(self.study_folder.glob(pattern))
        if not found:
            raise StudyError(f"builds.sources: nothing matches {pattern} in {self.study_folder}; correct the name")
        for path in found:
            yield from (p for p in sorted(path.rglob("*")) if p.is_file()) if path.is_dir() else [path]

    def _env(self, settings: Mapping[str, object]) -> dict[str, str]:
        return {name: render(text, settings) for name, text in self.builds.env.items()}

    def _build(self, key: str, folder: Path, settings: Mapping[str, object]) -> Path | Outcome:
        started = time.monotonic()
        job = Job(
            name=f"build-{key}",
            folder=folder,
            command="set -e\n" + "\n".join(self.commands(settings)),
            env=self._env(settings),
            limit_s=self.builds.limit_s,
        )
        ticket = self.executor.find(job) if folder.is_dir() else None
        if ticket is None:
            self._lay_out(folder)
            ticket = self.executor.submit(job)
        outcome = self._outcome(folder, self._await(ticket))
        files = self._prune(folder) if outcome.kind is Kind.OK else 0
        used = {n: settings[n] for n in sorted(self._knobs()) if n in settings}
        seconds = round(time.monotonic() - started, 3)
        self.record(
            {
                "event": "build",
                "key": key,
                "outcome": outcome_line(outcome),
                "files": files,
                "seconds": seconds,
                "settings": used,
            }
        )
        return folder if outcome.kind is Kind.OK else outcome

    def _knobs(self) -> set[str]:
        return {n for text in (*self.builds.make, *self.builds.env.values()) for n in field_names(text)}

    def _lay_out(self, folder: Path) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for source in self.sources():
            target = folder / source.relative_to(self.study_folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    def _await(self, ticket: str) -> Ending:
        while ticket not in (endings := self.executor.poll([ticket])):
            self.executor.wait(0.5)
        return endings[ticket]

    def _outcome(self, folder: Path, ending: Ending) -> Outcome:
        evidence = last_line(folder, ("stderr", "stdout"))
        if ending.cause is not Cause.EXITED or ending.exit_code or ending.signal:
            reason = ending.reason or f"the build ended with {ending.cause.value} {ending.exit_code or ''}".strip()
            return Outcome(Kind.BUILD_FAILED, reason, evidence)
        missing = [pattern for pattern in self.builds.keep if not any(folder.glob(pattern))]
        if missing:
            return Outcome(Kind.BUILD_FAILED, f"the build made no {', '.join(missing)}", evidence)
        return Outcome(Kind.OK)

    def _prune(self, folder: Path) -> int:
        """Remove everything that is not kept; clusters limit the number of files. Returns how many are left."""
        kept = {p for pattern in self.builds.keep for p in folder.glob(pattern)}
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
