from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from ridgeline.errors import InputError


class Format(StrEnum):
    csv = "csv"
    json = "json"


def export(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    form: Annotated[Format, typer.Option("--format", help="csv or json.")] = Format.csv,
    out: Annotated[Path | None, typer.Option(help="File to write; standard output by default.")] = None,
    front: Annotated[
        bool,
        typer.Option("--front", help="Of a study with a second goal: settings on or near the front, instead of runs."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write all runs of a study folder, one row each: settings, outcome, measurements, nodes, times.

    JSON has the answer beside the runs; in CSV the runs of its setting carry verdict and interval (`answer.` columns).
    """
    from ridgeline.campaign.status import answer_on_paper, read_status
    from ridgeline.report.table import read_rows, write_csv, write_json

    answer = answer_on_paper(read_status(folder))
    rows = _front(folder) if front else read_rows(folder, answer)

    def write(stream: TextIO) -> None:
        if as_json or form is Format.json:
            write_json(rows, answer, stream)
        else:
            write_csv(rows, stream)

    if out is None:
        write(sys.stdout)
    else:
        try:
            with out.open("w", newline="") as stream:
                write(stream)
        except OSError as error:
            raise InputError(f"{out}: cannot be written ({error.strerror}); name another file with --out") from None
        print(f"{len(rows)} {'settings' if front else 'runs'} written to {out}")


def _front(folder: Path) -> list[dict[str, Any]]:
    from ridgeline.campaign.goals.front import front_rows
    from ridgeline.campaign.status import read_status

    now = read_status(folder)
    return front_rows(now.study, now.history)
