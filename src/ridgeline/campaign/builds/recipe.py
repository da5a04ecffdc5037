"""What a study says about building: which commands make a variant, and by which key it is known.

A variant's key covers the rendered commands, the environment, the modules, the content of the sources and the list of
what is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import StudyError
from ridgeline.files import is_there
from ridgeline.records.space import Settings
from ridgeline.records.study import Builds, JobLimits
from ridgeline.records.template import field_names
from ridgeline.study.folder import shell_words


@dataclass(frozen=True)
class Recipe:
    """What a study says about building, applied to settings. Reads the sources, writes nothing."""

    builds: Builds
    study_folder: Path  # where the study's sources lie
    job: JobLimits  # a variant is built with the modules that it will run with

    def key(self, settings: Settings) -> str:
        text: list[object] = [self.commands(settings), sorted(self.env(settings).items()), list(self.builds.keep)]
        if modules := self.modules(settings):
            text.append(modules)
        digest = hashlib.sha256(json.dumps(text).encode())
        for source in self.sources():
            digest.update(source.relative_to(self.study_folder).as_posix().encode() + b"\0")
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]

    def commands(self, settings: Settings) -> list[str]:
        return self.builds.commands(settings)

    def env(self, settings: Settings) -> dict[str, str]:
        return self.builds.environment(settings)

    def modules(self, settings: Settings) -> tuple[str, ...]:
        return self.job.loaded(settings)

    def used(self, settings: Settings) -> Settings:
        """The settings that decide this variant."""
        names = {
            n for text in (*self.builds.make, *self.builds.env.values(), *self.job.modules) for n in field_names(text)
        }
        return {name: settings[name] for name in sorted(names) if name in settings}

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
