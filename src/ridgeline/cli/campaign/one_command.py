"""Programs that are named on the command line, as a study: no file to write for one or two commands."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import yaml

from ridgeline.campaign.check import CheckedStudy, check_new
from ridgeline.errors import InputError
from ridgeline.study.study_file import read_study_file

KNOB = "command"
_INTERPRETERS = ("sh", "bash", "python", "python3", "perl", "env", "numactl", "taskset", "mpirun", "srun")
_ENDINGS = (".yaml", ".yml")


def is_study(words: Sequence[str]) -> bool:
    """Whether what was typed names a study: one word that ends as such a file does, or a file that cannot be run."""
    if len(words) != 1:
        return False
    path = Path(words[0])
    return words[0].endswith(_ENDINGS) or path.is_dir() or (path.is_file() and not os.access(path, os.X_OK))


def study_of_commands(commands: Sequence[str], name: str = "", **more: Any) -> CheckedStudy:
    """The study of one knob, `command`, with these values; each runs in the current folder and is timed as a whole."""
    for command in commands:
        if not command.strip():
            raise InputError("the command is empty; write for instance: ridgeline ci gate -- ./prog input.txt")
    here = shlex.quote(str(Path.cwd())).replace("{", "{{").replace("}", "}}")
    content = {
        "version": 1,
        "name": name or _program_name(commands[0]),
        "workload": {"kind": "command", "run": f"cd {here} && {{{KNOB}}}"},
        "space": {KNOB: list(commands)},
        "goal": {"minimize": "wall_s"},
        "baseline": {KNOB: commands[0]},
        **more,
    }
    with tempfile.TemporaryDirectory(prefix="ridgeline-study-") as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False, width=10_000))
        return check_new(read_study_file(path, files=Path(folder), home=Path.cwd()))


def _program_name(command: str) -> str:
    """What a study folder of this command is called: the program's file name, or that of the script it runs."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"{command!r} is no command line ({error}); close its quotes") from None
    plain_words = [word for word in words if "=" not in word and not word.startswith("-")]
    program = next(iter(plain_words), "command")
    if PurePath(program).name in _INTERPRETERS and len(plain_words) > 1:
        program = PurePath(plain_words[1]).stem
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in PurePath(program).name)
    return plain.strip(".-") or "command"
