from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import asked, assembly, check
from ridgeline.cli.campaign import live
from ridgeline.errors import InputError


def steps(
    study: Annotated[Path, typer.Argument(help="The study file, or a study folder.")],
    setting: Annotated[
        str | None,
        typer.Argument(
            metavar="SETTING",
            help="'knob=value,knob=value' changes the baseline; or the study folder that confirmed it.",
            show_default="what the study folder confirmed",
        ),
    ] = None,
    blocks: Annotated[int | None, typer.Option(min=3, help="Interleaved blocks.")] = None,
    each: Annotated[
        bool, typer.Option("--each", help="One step for every changed knob, also where there are more than six.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Study folder to write; beside the study folder, else studies/NAME-steps, or NAME-steps-each."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure the gain of each change on the way from the baseline to a setting, in interleaved runs of all steps.

    Up to six changed knobs are a step each. More go group by group: the study's own `groups: {fast: [a, b], slow: [c]}`
    in that order, then by the knobs' names (environment, layout, batch and memory, back end, network). --each makes a
    step of every knob; those that are only legal together stay one step, and the answer says why.

    Given a study folder, the setting is the one it confirmed. A setting with fewer changes is preferred if it is shown
    to be within 1%. Run it again, or `ridgeline resume` its folder, to continue after a stop.

    Exit code 0: the setting is better. 1: no detectable difference. 6: it is worse. 7: too few runs to judge.

    Example: ridgeline study steps studies/first
    """
    folder = study if study.is_dir() else None
    found = check.check_study(study) if folder is None else assembly.check_study_again(folder)
    if setting is None and folder is None:
        raise InputError(
            f"steps: no setting; name its changes ('knob=value,…') or the study folder that confirmed it after {study}"
        )
    confirmed = Path(str(study) if setting is None else setting)
    meant = confirmed if setting is None or (confirmed / "journal.jsonl").exists() else setting
    live.drive(*asked.steps_to(found, meant, blocks, each=each, beside=folder, out=out), as_json)
