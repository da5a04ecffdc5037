from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.campaign.kinds.search import SearchQuestion


def tune(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    out: Annotated[Path | None, typer.Option(help="Study folder to write; studies/NAME by default.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Search trials, instead of the study's budget.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampler, instead of the study's.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the first scripts and the cost; run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a study's campaign: baseline, search, confirm."""
    from ridgeline.campaign.kinds.search import SearchQuestion
    from ridgeline.records.study import DEFAULT_SAMPLER

    question = SearchQuestion(trials, seed, DEFAULT_SAMPLER)
    if dry_run:
        _rehearse(study, question)
        return
    from ridgeline.campaign.assembly import assemble_folder
    from ridgeline.campaign.check import check_study
    from ridgeline.cli.campaign.live import drive

    found = check_study(study)
    drive(assemble_folder(found, out, found.study.name), question, as_json)


def _rehearse(study: Path, question: SearchQuestion) -> None:
    from ridgeline.campaign.check import check_study, stake
    from ridgeline.campaign.dry_run import rehearse
    from ridgeline.cli.text.wording import cost_line, setting_text

    with tempfile.TemporaryDirectory(prefix="ridgeline-dry-run-") as folder:
        for step in rehearse(study, question, 3, Path(folder)):
            print(f"# trial {step.trial.number} ({step.trial.proposer}): {setting_text(step.trial.point)}")
            for line in step.build:
                print(f"# build: {line}")
            print(step.script.rstrip(), end="\n\n")
    print(cost_line(stake(check_study(study).study, question.trials)))
