from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

from ridgeline import files
from ridgeline.campaign import front as campaign_front
from ridgeline.campaign import status
from ridgeline.errors import InputError
from ridgeline.report import prometheus as report_prometheus
from ridgeline.report import table as report_table


class ExportFormat(StrEnum):
    csv = "csv"
    json = "json"
    prometheus = "prometheus"


def export(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    form: Annotated[ExportFormat, typer.Option("--format", help="csv, json or prometheus.")] = ExportFormat.csv,
    out: Annotated[Path | None, typer.Option(help="File to write; standard output by default.")] = None,
    front: Annotated[
        bool,
        typer.Option("--front", help="With a second goal: the settings on or near the Pareto front, instead of runs."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write all runs of a study folder, one row each: settings, outcome, measurements, nodes, times.

    JSON has the answer beside the runs; in CSV the runs of its setting carry verdict and interval (`answer.` columns).
    prometheus has the current metrics.

    Example: ridgeline study export studies/first --out runs.csv
    """
    form = ExportFormat.json if as_json else form
    if front and form not in (ExportFormat.csv, ExportFormat.json):
        raise InputError(f"--front gives rows, which --format {form} has no place for; use csv or json")
    now = status.read_status(folder)
    if form is ExportFormat.prometheus:
        _put(lambda stream: stream.write(report_prometheus.metrics_text((now.as_json(), now.study.goal.metric))), out)
        return
    answer = status.answer_on_paper(now)
    table = campaign_front.front_rows(now.study, now.history) if front else report_table.rows(now.history, answer)
    if form is ExportFormat.json:
        _put(lambda stream: report_table.write_json(table, answer, stream), out)
    else:
        _put(lambda stream: report_table.write_csv(table, stream), out)
    if out is not None:
        print(f"{len(table)} {'settings' if front else 'runs'} written to {out}")


def _put(write: Callable[[TextIO], object], out: Path | None) -> None:
    if out is None:
        write(sys.stdout)
        return
    pipe = out.exists() and not out.is_file()
    try:
        # in one step: Prometheus' node exporter may read the file at any moment
        with nullcontext(out) if pipe else files.in_one_step(out) as place, place.open("w", newline="") as stream:
            write(stream)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); name another file with --out") from None
