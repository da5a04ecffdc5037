"""Request records on disk: one JSON object a line, written as each request ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, ReadError
from ridgeline.traffic.requests import RequestRecord

_NAMES = tuple(f.name for f in fields(RequestRecord))


class RecordsFile:
    """Records are appended to it. The driver flushes it ten times a second, so a killed run loses next to nothing.

    A disk that fills up does not end the measurement: writing stops and `problem` says why.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as bad:
            raise InputError(f"--out {path}: {bad.strerror}; name a file or folder that can be written") from None

    def write(self, record: RequestRecord) -> None:
        if not self.problem:
            try:
                self._file.write(record_line(record))
            except OSError as bad:
                self.problem = f"{self._path}: {bad.strerror}; the records on disk end there"

    def flush(self) -> None:
        if not self.problem:
            try:
                self._file.flush()
            except OSError as bad:
                self.problem = f"{self._path}: {bad.strerror}; the records on disk end there"

    def close(self) -> None:
        self.flush()
        try:
            self._file.close()
        except OSError as bad:
            self.problem = self.problem or f"{self._path}: {bad.strerror}; the records on disk end there"


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """A whole run at once, as one that was simulated."""
    records_file = RecordsFile(path)
    for record in records:
        records_file.write(record)
    records_file.close()
    if records_file.problem:
        raise InputError(f"--out {records_file.problem}")


def record_line(record: RequestRecord) -> str:
    row: dict[str, Any] = {name: getattr(record, name) for name in _NAMES if name != "gaps_s"}
    row = {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
    row["gaps_s"] = [[round(gap, 6), times] for gap, times in record.gaps_s]
    return json.dumps(row, separators=(",", ":")) + "\n"


def read_records(path: Path) -> Iterator[RequestRecord]:
    """The records of a file that `ridgeline bench --out` wrote; a torn last line, left by a kill, is passed over."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                row["gaps_s"] = tuple((gap, times) for gap, times in row["gaps_s"])
                yield RequestRecord(**{name: row[name] for name in _NAMES if name in row})
            except (ValueError, KeyError, TypeError) as bad:
                if not line.endswith("\n"):
                    return
                raise ReadError(f"{path}:{number}: not a request record ({bad})") from None
