"""What gates have measured so far: a line of JSON for each, in a file that a CI system keeps from job to job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, StoreError
from ridgeline.records.json_form import Line, plain


@dataclass(frozen=True, slots=True)
class PastGate:
    """The runs of one gate or reference. `commit` is of what was measured, where the CI system or git says so."""

    study: str
    at: str  # date and time, as ISO 8601
    conclusion: str
    values: tuple[float, ...]
    metric: str
    direction: str
    machine: Mapping[str, Any]
    unit: str = ""
    commit: str = ""


_LINE = Line(PastGate)


def add_gate(path: Path, gate: PastGate) -> list[PastGate]:
    """All gates with this one, which is added to the file whole and on a line of its own, also where the last one was
    cut off. InputError where the file is something else, which stays as it is."""
    before = past_gates(path) if path.exists() else []
    try:
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
                file.write(b"\n" * torn)
            file.write(json.dumps(plain(gate)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path}: cannot be added to ({error.strerror}); name another file with --history") from None
    return [*before, gate]


def past_gates(path: Path) -> list[PastGate]:
    """In the order they were added; a line that was cut off is left out."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name the history of gates") from None
    found = [gate for line in lines if (gate := _gate(line)) is not None]
    if not found and any(map(str.strip, lines)):
        raise InputError(f"{path}: holds no gate; name a file that --history has written")
    return found


def _gate(line: str) -> PastGate | None:
    try:
        gate = _LINE.read(json.loads(line))
    except ValueError:
        return None
    return gate if gate.values and min(gate.values) > 0 else None
