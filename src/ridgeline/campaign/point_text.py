"""A setting as a person types it, `knob=value,knob=value` or a JSON object, and what runs it without us."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ridgeline import catalog
from ridgeline.campaign.builds import Recipe
from ridgeline.campaign.check import CheckedStudy
from ridgeline.errors import InputError, near
from ridgeline.records.expression import Value
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.study.folder import needed_files
from ridgeline.study.yaml_tree import resolve
from ridgeline.workloads.base import Workload

BASELINE = "baseline"
Setting = str | Mapping[str, Value]  # as it is typed, or as Python has it


def parse_point(found: CheckedStudy, text: Setting, start: Point) -> Point:
    """`knob=value,knob=value` applied to `start`, or the same as a mapping; the word baseline is the study's own."""
    space = found.study.space
    if isinstance(text, str) and text.strip() == BASELINE:
        return found.study.baseline
    values: dict[str, Value] = dict(start)
    for name, value in _given(text).items():
        if name not in space.by_name:
            raise InputError(f"{name!r} is not a knob of the study; {near(name, space.by_name)}")
        knob = space.by_name[name]
        meant = knob.meant(value)
        values[name] = knob.meant(resolve(value)) if meant is None and isinstance(value, str) else meant
        if values[name] is None:
            raise InputError(f"{name}={value} is outside the study's space; see `ridgeline check`")
    point = space.restrict(values)
    if gaps := space.missing(point):
        raise InputError(f"{text!r} leaves {', '.join(gaps)} without a value; add {gaps[0]}=VALUE")
    if reason := found.refusal(point):
        raise InputError(f"{text!r} is refused: {reason}")
    return point


def _given(text: Setting) -> Mapping[str, Value]:
    if not isinstance(text, str):
        return text
    if text.lstrip().startswith("{"):
        try:
            found: dict[str, Value] = json.loads(text)
        except ValueError as error:
            raise InputError(
                f'{text!r} is not a JSON object ({error}); write {{"knob": value}} or knob=value'
            ) from None
        return found
    parts = [[piece.strip() for piece in part.partition("=")] for part in text.split(",")]
    if other := [name for name, sep, _ in parts if not sep]:
        raise InputError(f"{other[0]!r} is not knob=value; write it with its knob")
    return {name: value for name, _, value in parts}


def pasted(study: Study, workload: Workload, point: Point, *, offered: bool = False) -> str:
    """What the workload writes, in the folder of the study's files and after the modules that it loads for this point.

    One list of commands: nothing runs in another folder, or without its modules. `offered`: as people are to use it.
    """
    settings = study.space.settings(point)
    # where its author keeps them; of a campaign's folder that was copied elsewhere, the copies in it
    home = study.origin if study.origin.is_dir() else study.folder
    needs_files = study.builds is not None or needed_files(study, workload.in_place)
    there = [f"cd {shlex.quote(str(home))}"] if needs_files else []
    loads = [f"module load {shlex.quote(name)}" for name in study.job.loaded(settings)]
    return " &&\n".join([*there, *loads, workload.offered(settings) if offered else workload.paste(settings)])


def script_of(study: Study, root: Path, point: Point, title: str) -> str:
    """A script for any folder and a clean shell: it names what is missing, then runs what is pasted at this point.

    Where the study has files, it runs in a folder of its own with links to the campaign's copies of them, and to what
    was built for this point; `root` is the campaign's folder.
    """
    settings, factory = study.space.settings(point), catalog.part("workloads", study.workload.kind)
    needed = needed_files(study, factory(study).in_place)
    tops = dict.fromkeys(path.relative_to(study.folder).parts[0] for path in needed)
    links = {top: (study.folder / top).absolute() for top in tops}
    if study.builds is not None:
        built = root / "builds" / Recipe(study.builds, study.folder, study.job).key(settings)
        if kept := [path for pattern in study.builds.keep for path in sorted(built.glob(pattern))]:
            links |= {top: built / top for top in sorted({path.relative_to(built).parts[0] for path in kept})}
            # built already: what remains of it are the names of what is kept
            study = replace(study, builds=replace(study.builds, make=(), env={}))
    search = os.environ.get("PATH", os.defpath)
    lines = ["#!/bin/sh", *(f"# {line}" for line in title.splitlines())]
    lines += [f"PATH={shlex.quote(search)}${{PATH:+:$PATH}}; export PATH"]
    lines += [f': "${{HOME:={Path.home()}}}"; export HOME']
    if links:
        paths = " \\\n  ".join(shlex.quote(str(path)) for path in links.values())
        text = (
            'echo "$0: $file is missing; bring the study folder back, or write this script again with ridgeline best"'
        )
        lines += [
            f'missing=; for file in {paths}; do\n  [ -e "$file" ] || {{ {text} >&2; missing=1; }}\ndone',
            '[ -z "$missing" ] || exit 66',
            f'work=$(mktemp -d "${{TMPDIR:-/tmp}}/{study.name}.XXXXXX") || exit',
            'echo "$0: runs in $work" >&2',
            'cd "$work" || exit',
        ]
        pairs = ((shlex.quote(str(path)), shlex.quote(f"./{name}")) for name, path in links.items())
        lines += [f"ln -s {path} {name} || exit" for path, name in pairs]
    lines += [f"module load {shlex.quote(name)} || exit" for name in study.job.loaded(settings)]
    return "\n".join([*lines, factory(study).offered(settings), ""])
