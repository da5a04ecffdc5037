from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
        Path | None, typer.Option(help="File for the answer as `ridgeline deploy` reads it (studies of engines).")
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
    from ridgeline.campaign.status import read_answer
    from ridgeline.cli.text.answer import answer_lines, error_of, yaml_lines

    answer, exhibits = read_answer(folder)
    if script is not None and str(script) == "-" and answer.to_use is not None:
        print(_script(folder, answer), end="")
    elif as_json:
        print(json.dumps(answer.as_json(), indent=1))
    else:
        print(*answer_lines(answer, exhibits), sep="\n")
        if answer.to_use is not None and (answer.offers or answer.keep):
            print("", *yaml_lines(answer.to_use), sep="\n")
    if deploy is not None and answer.to_use is not None:
        _write_service(deploy, folder, answer)
    if script is not None and str(script) != "-" and answer.to_use is not None:
        from ridgeline.files import write_whole

        write_whole(script, _script(folder, answer), mode=0o755)
    if answer.lacks:
        raise error_of(answer)(f"{folder}: {answer.lacks}")


def _script(folder: Path, answer: Answer) -> str:
    from ridgeline.campaign.point_text import script_of
    from ridgeline.campaign.status import read_status
    from ridgeline.cli.text.wording import setting_text

    study = read_status(folder).study
    point = answer.to_use or study.baseline
    title = f"{study.name}: {setting_text(point)}\n{answer.statement}"
    if answer.lacks:
        title = f"NOT AN ANSWER: {answer.lacks}\n{title}"
    return script_of(study, folder.resolve(), point, title)


def _write_service(path: Path, folder: Path, answer: Answer) -> None:
    from ridgeline.campaign.status import read_status
    from ridgeline.files import write_whole
    from ridgeline.service.file import service_text
    from ridgeline.service.from_results import service_of_answer
    from ridgeline.workloads.base import NO_WEIGHTS

    study = read_status(folder).study
    settings = study.space.settings(answer.to_use or study.baseline)
    found = service_of_answer(study, settings, answer.change)
    head = f"# NOT AN ANSWER: {' '.join(answer.lacks.split())}\n" if answer.lacks else ""
    head += f"# {' '.join(answer.statement.split())}\n" if answer.lacks or answer.broken or answer.simulated else ""
    head += f"# `ridgeline deploy check {shlex.quote(path.name)}` shows every command; add replicas and a router\n"
    if found["model"] == NO_WEIGHTS:
        head += "# benchmark only: no real weights were measured; name the folder of yours as `model`\n"
    write_whole(path, head + service_text(found))


def _best_at(folder: Path, limit: str, as_json: bool) -> None:
    from dataclasses import asdict

    from ridgeline.campaign.front import best_at, best_at_lines
    from ridgeline.campaign.status import read_status
    from ridgeline.cli.text.answer import yaml_lines

    now = read_status(folder)
    one, text = best_at(now.study, now.history, limit)
    point = json.loads(one.setting)
    if as_json:
        print(json.dumps({**asdict(one), "setting": point, "told": text}, indent=1))
    else:
        print(*best_at_lines(now.study, now.history, limit), "", *yaml_lines(point), sep="\n")
