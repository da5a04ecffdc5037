from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import status as campaign_status
from ridgeline.campaign import verdict
from ridgeline.cli.campaign import live
from ridgeline.cli.campaign import watched as campaign_watched
from ridgeline.cli.text import wording
from ridgeline.errors import InputError
from ridgeline.study import folder as study_folder
from ridgeline.study import history as study_history


def status(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    following: Annotated[
        bool, typer.Option("--follow", help="Keep the screen up to date until the campaign ends or Ctrl-C.")
    ] = False,
    why: Annotated[int | None, typer.Option("--why", metavar="N", help="Say why trial N was chosen.")] = None,
) -> None:
    """Show how far a campaign has got, while it runs or afterwards.

    Example: ridgeline status studies/first --follow
    """
    if why is not None:
        if following or as_json:
            raise InputError("--why goes with neither --follow nor --json; the journal holds the reason of every trial")
        print(_reason(folder, why))
        return
    if following:
        if as_json:
            raise InputError("--follow and --json do not go together; watch the journal itself with `tail -f`")

        follow(folder)
        return

    now = campaign_status.read_status(folder)
    gc.freeze()  # a long history is no garbage: looking through it again and again takes longer than the answer
    print(json.dumps(now.as_json(), indent=1) if as_json else "\n".join(wording.status_lines(now, time.time())))


def _reason(folder: Path, number: int) -> str:
    """What trial `number` was, who chose it and why, and what came of it."""
    opened = study_folder.StudyFolder.open(folder)
    history = study_history.read_history(opened.path)
    trial = history.trials.get(number)
    if trial is None:
        known = f"trials 1 to {max(history.trials)}" if history.trials else "no trial yet"
        raise InputError(f"{folder}: has no trial {number}; it has {known}")
    lines = [
        f"#{number} {trial.stage.text}, chosen by {trial.proposer}: {wording.setting_text(trial.point)}",
        f"  {trial.why or 'no reason kept'}",
    ]
    study, run = opened.load(history).study, history.final_run(trial)
    if run is not None and study.goal.metric in run.metrics:
        lines.append(f"  measured {verdict.goal_text(study, history).value(run.metrics[study.goal.metric])}")
    elif run is not None and run.outcome is not None:
        lines.append(f"  {run.outcome}")
    return "\n".join(lines)


POLL_S = 0.5


def follow(path: Path) -> None:
    """Until the campaign is over, its controller is gone, or Ctrl-C."""
    watched = campaign_watched.WatchedStudy(path)
    with live.TerminalView(quiet=False) as view:
        while True:
            now = watched.status()
            view.update(now)
            if now.is_over or (now.controller is not None and now.controller.presence == "gone"):
                break
            time.sleep(POLL_S)
    print(*wording.status_lines(now, time.time()), sep="\n", flush=True)
