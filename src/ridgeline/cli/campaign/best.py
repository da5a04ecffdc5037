from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline import catalog, files
from ridgeline.campaign import front, point_text, status
from ridgeline.cli.text import answer as text_answer
from ridgeline.cli.text import wording
from ridgeline.errors import InputError, NothingFound

if TYPE_CHECKING:
    from ridgeline.records.answer import Answer


def best(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="METRIC=VALUE", help="The best setting that keeps the second goal within this limit."
        ),
    ] = None,
    deploy: Annotated[
        Path | None, typer.Option(help="File for the answer as `ridgeline service` reads it (studies of a server).")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="File for a script that runs the answer from any folder; - prints it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Print the answer of a campaign: the setting to paste with its interval, or the answer to whatever else was asked.

    Exit code 1: no setting is better, so keep the baseline; or there is no answer: not over yet, not confirmed, or not
    provable. Files that are written all the same say so in their first line. 6: the setting that a comparison was asked
    about is shown to be worse. 7: too few runs to judge it.

    Example: ridgeline best studies/first --script run-best.sh
    """
    if at is not None:
        _best_at(folder, at, as_json)
        return

    answer, exhibits = status.read_answer(folder)
    if script is not None and str(script) == "-" and answer.to_use is not None:
        print(_script(folder, answer), end="")
    elif as_json:
        print(json.dumps(answer.as_json(), indent=1))
    else:
        print(*text_answer.answer_lines(answer, exhibits), sep="\n")
        if answer.to_use is not None and (answer.offers or answer.keep):
            print("", *text_answer.yaml_lines(answer.to_use), sep="\n")
    if deploy is not None and answer.to_use is not None:
        _write_as("deploy", deploy, folder, answer)
    if script is not None and str(script) != "-" and answer.to_use is not None:
        files.write_whole(script, _script(folder, answer), mode=0o755)
    if answer.lacks:
        raise text_answer.error_of(answer)(f"{folder}: {answer.lacks}")


def _script(folder: Path, answer: Answer) -> str:
    study = status.read_status(folder).study
    point = answer.to_use or study.baseline
    title = f"{study.name}: {wording.setting_text(point)}\n{answer.statement}"
    if answer.lacks:
        title = f"NOT AN ANSWER: {answer.lacks}\n{title}"
    return point_text.script_of(study, folder.resolve(), point, title)


def _write_as(kind: str, path: Path, folder: Path, answer: Answer) -> None:
    """The answer as a file of a wing: with --deploy what serving makes of it."""
    makes = [wing.from_answer[kind] for wing, _ in catalog.wings() if kind in wing.from_answer]
    if not makes:
        raise InputError(f"--{kind}: no wing that is installed writes such a file")
    head = f"# NOT AN ANSWER: {' '.join(answer.lacks.split())}\n" if answer.lacks else ""
    head += f"# {' '.join(answer.statement.split())}\n" if answer.lacks or answer.broken or answer.simulated else ""
    files.write_whole(path, head + catalog.at(makes[0])(status.read_status(folder).study, answer, path))


def _best_at(folder: Path, limit: str, as_json: bool) -> None:
    now = status.read_status(folder)
    one, text = front.best_at(now.study, now.history, limit)
    point = json.loads(one.setting)
    chosen = now.answer.candidate
    confirmed = now.answer.confirmed and chosen is not None and point == chosen.point
    of_baseline = point == now.study.baseline
    if as_json:
        print(json.dumps({**asdict(one), "setting": point, "told": text, "confirmed": confirmed}, indent=1), flush=True)
    else:
        told = "confirmed" if confirmed else "the baseline" if of_baseline else "not a confirmed comparison"
        lines = [*front.best_at_lines(now.study, now.history, limit, told), "", *text_answer.yaml_lines(point)]
        print("\n".join(lines), flush=True)
    if not (confirmed or of_baseline):
        words = ",".join(f"{name}={value}" for name, value in point.items())
        raise NothingFound(
            f"{folder}: no fresh runs compared this setting with the baseline; to do so: ridgeline compare STUDY "
            f"{shlex.quote(words)}"
        )
