from __future__ import annotations

import io
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ridgeline.errors import InputError
from ridgeline.stats.wording import count

if TYPE_CHECKING:
    from ridgeline.campaign.status import CampaignStatus


class ExportFormat(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"
    mlflow = "mlflow"
    optuna = "optuna"
    prometheus = "prometheus"


_NEEDS_OUT = {ExportFormat.mlflow: ("a folder", "mlruns"), ExportFormat.optuna: ("a storage", "optuna.log")}


def export(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    form: Annotated[
        ExportFormat, typer.Option("--format", help="csv, json, parquet, mlflow, optuna or prometheus.")
    ] = ExportFormat.csv,
    out: Annotated[
        Path | None, typer.Option(help="File to write (mlflow: folder); standard output by default.")
    ] = None,
    front: Annotated[
        bool,
        typer.Option("--front", help="With a second goal: the settings on or near the Pareto front, instead of runs."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write all runs of a study folder, one row each: settings, outcome, measurements, nodes, times.

    JSON has the answer beside the runs; in CSV the runs of its setting carry verdict and interval (`answer.` columns).
    mlflow is a folder for `mlflow ui`, optuna a storage for optuna-dashboard, prometheus the current metrics.

    Example: ridgeline study export studies/first --format parquet --out runs.parquet
    """
    from ridgeline.campaign.status import answer_on_paper, read_status

    form = ExportFormat.json if as_json else form
    if out is None and form in _NEEDS_OUT:
        what, where = _NEEDS_OUT[form]
        raise InputError(f"--format {form} writes {what} of its own, not text; say where to, such as --out {where}")
    if out is None and form is ExportFormat.parquet and sys.stdout.isatty():
        raise InputError("--format parquet is not for a terminal; redirect it to a file, or write --out runs.parquet")
    if front and form not in (ExportFormat.csv, ExportFormat.json, ExportFormat.parquet):
        raise InputError(f"--front gives rows, which --format {form} has no place for; use csv, json or parquet")
    now = read_status(folder)
    if form in (ExportFormat.mlflow, ExportFormat.optuna) and out is not None:
        print(f"{count(_written(form, now, out), 'run')} written to {out}; open it with: {_opened_by(form, out)}")
        return
    if form is ExportFormat.prometheus:
        _put(lambda stream: stream.write(_metrics(now)), out)
        return
    rows = _front(now) if front else _rows(folder, now)
    _write_rows(form, rows, answer_on_paper(now), out)
    if out is not None:
        print(f"{len(rows)} {'settings' if front else 'runs'} written to {out}")


def _rows(folder: Path, now: CampaignStatus) -> list[dict[str, Any]]:
    from ridgeline.campaign.status import answer_on_paper
    from ridgeline.report.table import read_rows

    return read_rows(folder, answer_on_paper(now))


def _front(now: CampaignStatus) -> list[dict[str, Any]]:
    from ridgeline.campaign.front import front_rows

    return front_rows(now.study, now.history)


def _write_rows(form: ExportFormat, rows: list[dict[str, Any]], answer: Any, out: Path | None) -> None:
    from ridgeline.report.exports.parquet import write_parquet
    from ridgeline.report.table import write_csv, write_json

    if form is ExportFormat.parquet and out is None:
        whole = io.BytesIO()  # a pipe cannot go back to what was written
        write_parquet(rows, whole)
        sys.stdout.flush()
        sys.stdout.buffer.write(whole.getvalue())
        sys.stdout.buffer.flush()
    elif form is ExportFormat.parquet and out is not None:
        try:
            with out.open("wb") as stream:
                write_parquet(rows, stream)
        except OSError as error:
            raise InputError(f"{out}: cannot be written ({error.strerror}); name another file with --out") from None
    elif form is ExportFormat.json:
        _put(lambda stream: write_json(rows, answer, stream), out)
    else:
        _put(lambda stream: write_csv(rows, stream), out)


def _put(write: Callable[[TextIO], object], out: Path | None) -> None:
    if out is None:
        write(sys.stdout)
        return
    from ridgeline.files import in_one_step

    try:
        if out.exists() and not out.is_file():  # a pipe, say
            with out.open("w", newline="") as stream:
                write(stream)
            return
        # in one step: Prometheus' node exporter may read the file at any moment
        with in_one_step(out) as partial, partial.open("w", newline="") as stream:
            write(stream)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); name another file with --out") from None


def _written(form: ExportFormat, now: CampaignStatus, out: Path) -> int:
    from ridgeline.report.exports.mlflow import write_mlflow
    from ridgeline.report.exports.optuna import write_optuna

    write = write_mlflow if form is ExportFormat.mlflow else write_optuna
    return write(now.study, now.history, out)


def _opened_by(form: ExportFormat, out: Path) -> str:
    if form is ExportFormat.mlflow:
        # MLflow 3 opens folders only when told to; earlier ones ignore the variable
        return f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {out}"
    return f"optuna-dashboard {out}"


def _metrics(now: CampaignStatus) -> str:
    from ridgeline.report.exports.prometheus import metrics_text

    return metrics_text(now.as_json(), now.study.goal.metric)
