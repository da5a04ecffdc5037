"""Instructions to a running campaign: a file each in the study folder until its controller has answered it.

The answer is a line in the journal, and the effect follows from that line alone. A controller killed between the two
finds the file again: with an answer in the journal it is only put away, so nothing is obeyed twice.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from ridgeline.files import open_regular, write_whole
from ridgeline.records.expression import Value
from ridgeline.records.json_form import Line
from ridgeline.records.study import Budget

INSTRUCTIONS = "instructions"
LARGEST_BYTES = 65536
_MOST = {"trials": 10**6, "wall_s": 3600 * 10**6, "node_hours": 10**6}
_ID = re.compile(r"[A-Za-z0-9-]{8,64}")


class Act(StrEnum):
    PAUSE = "pause"  # start nothing new; running jobs continue
    RESUME = "resume"
    STOP = "stop"  # as Ctrl-C
    CANCEL = "cancel"  # one run
    TRY = "try"  # a setting
    EXTEND = "extend"  # the budget


@dataclass(frozen=True, slots=True)
class Instruction:
    """`id` is chosen by the sender: two with the same id are one instruction. `trials`, `wall_s` and `node_hours` are
    what is added to the budget."""

    id: str
    act: Act
    run: int | None = None
    point: Mapping[str, Value] = field(default_factory=dict)
    trials: int | None = None
    wall_s: float | None = None
    node_hours: float | None = None

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError("an instruction needs an id of 8 to 64 letters, digits or dashes")
        if (self.act is Act.CANCEL) != (self.run is not None):
            raise ValueError("`run` says which run to cancel, and belongs to nothing else")
        if (self.act is Act.TRY) != bool(self.point):
            raise ValueError("`point` is the setting to try, and belongs to nothing else")
        if (self.act is Act.EXTEND) == (self.trials is self.wall_s is self.node_hours is None):
            raise ValueError(
                "`trials`, `wall_s` or `node_hours` say what to add to the budget, and belong to nothing else"
            )

    def as_line(self) -> dict[str, Any]:
        return _LINE.write(self)


_LINE = Line(Instruction)


def instruction_from(line: object) -> Instruction:
    """ValueError, which says what is wrong, where it is not an instruction."""
    if not isinstance(line, dict):
        raise ValueError("an instruction is a JSON object")  # noqa: TRY004  its content is wrong, not our call
    known = tuple(each.name for each in fields(Instruction))
    if unknown := [name for name in line if name not in known]:
        raise ValueError(f"an instruction has no {unknown[0]!r}; it has {', '.join(known)}")
    act, run, point = line.get("act"), line.get("run"), line.get("point", {})
    if act not in tuple(Act):
        raise ValueError(f"there is no act {act!r}; choose one of {', '.join(Act)}")
    for name, most in _MOST.items():
        value, whole = line.get(name), name == "trials"
        fits = type(value) is int or (type(value) is float and not whole and math.isfinite(value))
        if value is not None and not (fits and 0 < value <= most):
            raise ValueError(f"{name} must be a {'whole ' if whole else ''}number above 0 and at most {most:,}")
    if run is not None and type(run) is not int:
        raise ValueError("run must be the number of a run")
    if type(point) is not dict or not all(type(value) in (str, int, float, bool) for value in point.values()):
        raise ValueError("point must be a setting: knobs and their values")
    return _LINE.read({**line, "id": str(line.get("id", ""))})


def leave_instruction(root: Path, instruction: Instruction) -> None:
    """On disk, whole, for the controller of this study folder. Left again, it changes nothing."""
    folder = root / INSTRUCTIONS
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / f"{instruction.id}.json").exists():
        write_whole(folder / f"{instruction.id}.json", json.dumps(instruction.as_line()) + "\n", mode=0o600)


def waiting_instructions(root: Path) -> dict[str, Instruction | str]:
    """By id, oldest first; a text says what is wrong with a file that is not an instruction."""
    found: list[tuple[int, str, Path]] = []
    try:
        for entry in os.scandir(root / INSTRUCTIONS):
            if entry.name.endswith(".json") and not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                found.append((entry.stat().st_mtime_ns, entry.name.removesuffix(".json"), Path(entry)))
    except OSError:
        return {}  # there have been none yet
    return {name: _read(path, name) for _, name, path in sorted(found)}


def _read(path: Path, name: str) -> Instruction | str:
    try:
        with open_regular(path) as file:
            return instruction_from({**json.loads(file.read(LARGEST_BYTES)), "id": name})
    except (OSError, ValueError, TypeError, RecursionError) as error:
        return f"{path.name} is not an instruction: {error}"


def put_away(root: Path, name: str) -> None:
    (root / INSTRUCTIONS / f"{name}.json").unlink(missing_ok=True)


@dataclass
class AppliedInstructions:
    """What instructions have changed so far; a function of their lines in the journal alone."""

    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # the journal's lines, by id
    paused: bool = False
    stopping: bool = False
    cancelled: set[int] = field(default_factory=set)  # runs
    wanted: list[Mapping[str, Value]] = field(default_factory=list)  # settings to try
    more_wall_s: float = 0.0
    more_node_hours: float = 0.0

    def take_up(self) -> None:
        """A controller starts: that ends a pause and a stop."""
        self.paused = self.stopping = False

    def apply(self, line: Mapping[str, Any]) -> None:
        self.answers[line["id"]] = line
        if line["refused"]:
            return
        match line["act"]:
            case Act.PAUSE:
                self.paused = True
            case Act.RESUME:
                self.paused = False
            case Act.STOP:
                self.stopping = True
            case Act.CANCEL:
                self.cancelled.add(line["run"])
            case Act.TRY:
                self.wanted.append(line["point"])
            case Act.EXTEND:
                self.extend(line.get("wall_s", 0.0), line.get("node_hours", 0.0))

    def extend(self, wall_s: float, node_hours: float) -> None:
        self.more_wall_s += wall_s
        self.more_node_hours += node_hours

    def budget(self, of_study: Budget) -> Budget:
        """The study's budget with what was added to its time and node-hours; trials are the search's own limit."""
        wall_s = None if of_study.wall_s is None else of_study.wall_s + self.more_wall_s
        hours = None if of_study.node_hours is None else of_study.node_hours + self.more_node_hours
        return replace(of_study, wall_s=wall_s, node_hours=hours)
