from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer


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
    overrides = {name: value for name, value in (("trials", trials), ("seed", seed)) if value is not None}
    if dry_run:
        _rehearse(study, overrides)
        return
    from ridgeline.campaign.assembly import new_folder
    from ridgeline.cli.campaign.live import drive

    drive(new_folder(study, out), overrides, as_json)


def _rehearse(study: Path, overrides: dict[str, int]) -> None:
    from ridgeline.campaign.check import check_study, stake
    from ridgeline.campaign.dry_run import rehearse
    from ridgeline.cli.text.wording import cost_line, setting_words

    with tempfile.TemporaryDirectory(prefix="ridgeline-dry-run-") as folder:
        for step in rehearse(study, overrides, 3, Path(folder)):
            print(f"# trial {step.trial.number} ({step.trial.proposer}): {setting_words(step.trial.point)}")
            for line in step.build:
                print(f"# build: {line}")
            print(step.script.rstrip(), end="\n\n")
    print(cost_line(stake(check_study(study).study, overrides.get("trials"))))
