"""What goes before the pasted command of a program: the files that its run folder held."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from ridgeline.records.study import Builds, Study
from ridgeline.records.template import render
from ridgeline.workloads.command.options import CommandOptions
from ridgeline.workloads.shell_text import OWN_FOLDER, pasted_file


def needs_own_folder(options: CommandOptions, study_folder: Path) -> bool:
    """Whether the study's own folder does not hold all that the command reads.

    Inputs never go into the study's folder: one may have the name of the file that it is made from.
    """
    elsewhere = [name for name, source in _sources(options).items() if source != study_folder / name]
    return bool(options.inputs or elsewhere)


def folder_lines(options: CommandOptions, study: Study, fields: Mapping[str, object]) -> list[str]:
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
