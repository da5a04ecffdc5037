from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.campaign.engine import Campaign
    from ridgeline.campaign.kinds.shrink import ShrinkVerdict
    from ridgeline.campaign.status import CampaignStatus


def bug(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that failed.")],
    shrink: Annotated[
        bool, typer.Option(help="Repeat it with fewer changes from the baseline, as long as it fails the same way.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write; printed by default.")] = None,
) -> None:
    """Write a failed run as a bug report: command, versions, log around the deciding line, what was tried.

    Markdown for an issue tracker, with secrets and home folders masked; read it before you send it. With --shrink the
    runs go into a study folder beside the first, NAME-shrink-0023; run it again to continue after a stop.

    Exit code 1: --shrink could not make it fail again, or the budget ended before every change was tried.

    Example: ridgeline study bug studies/first/runs/0023-tp8 --shrink --out bug.md
    """
    from ridgeline.campaign.bug import bug_report, failed_run
    from ridgeline.campaign.kinds.shrink import SHRUNK
    from ridgeline.errors import NothingFound
    from ridgeline.files import write_whole

    now, failed = failed_run(run)
    shrunk = _shrunk(now, failed.number) if shrink else None
    text = bug_report(now, failed, shrunk)
    if out is None:
        print(text, end="")
    else:
        write_whole(out, text)
        print(out)
    if shrunk is not None and shrunk.conclusion != SHRUNK:
        sys.stdout.flush()
        raise NothingFound(shrunk.headline)


def _shrunk(now: CampaignStatus, number: int) -> ShrinkVerdict:
    from ridgeline.campaign.assembly import assemble_campaign, assemble_or_resume
    from ridgeline.campaign.check import check_file
    from ridgeline.campaign.kinds.shrink import ShrinkVerdict, shrink_question
    from ridgeline.errors import InputError
    from ridgeline.study.folder import StudyFolder

    root, failed = now.history.root, now.history.runs[number]
    asked = shrink_question(now.study, now.history, now.history.trials[failed.trial])
    found = check_file(StudyFolder.open(root).load(now.history, to_run=True))
    out = root.parent / f"{root.name}-shrink-{number:04d}"
    folder, question = assemble_or_resume(found, out, out.name, asked)
    shown = 0

    def tell(campaign: Campaign) -> None:
        nonlocal shown
        for run in list(campaign.history.runs.values())[shown:]:
            why = campaign.history.trials[run.trial].why or "the baseline"
            if run.outcome is not None:
                print(f"  {why}: {run.outcome.brief}", file=sys.stderr)
            shown += 1

    with assemble_campaign(folder, question, tell) as campaign:
        verdict = campaign.run()
    if not isinstance(verdict, ShrinkVerdict):
        raise InputError(f"{out} holds another campaign; move it away")
    print(f"  {verdict.headline}", file=sys.stderr)
    return verdict
