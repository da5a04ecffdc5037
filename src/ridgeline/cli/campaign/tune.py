from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline import files
from ridgeline.campaign import assembly, check, elsewhere, preview, recipe, status
from ridgeline.campaign.kinds import search
from ridgeline.cli.campaign import live, questions
from ridgeline.cli.options import takes
from ridgeline.cli.text import wording
from ridgeline.errors import InputError, NothingFound
from ridgeline.records import study as records_study
from ridgeline.samplers import base

if TYPE_CHECKING:
    from ridgeline.campaign.kinds.search import SearchQuestion
    from ridgeline.records.observation import Observation
    from ridgeline.records.study import Study


@dataclass(frozen=True)
class TuneArguments:
    """A study, how it is searched, and what is shown; or the words of a recipe that writes one."""

    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="STUDY|KEY=VALUE...", help="The study file; or what --recipe is given."),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Write the next study of a guided order, and run nothing: from KEY=VALUE words, or after=FOLDER."
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(help="Study folder to write, studies/NAME by default; with --recipe the file, NAME.yaml."),
    ] = None
    trials: Annotated[int | None, typer.Option(min=1, help="Search trials, instead of the study's budget.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the sampler, instead of the study's.")] = None
    ladder: Annotated[
        bool,
        typer.Option(
            "--ladder",
            help="Then measure the gain on the way from the baseline to the winner, as `ridgeline study steps` does.",
        ),
    ] = False
    warm_start: Annotated[
        list[Path] | None,
        typer.Option("--warm-start", help="Folder of an earlier study with the same knobs; may be repeated."),
    ] = None
    search_on: Annotated[
        Path | None,
        typer.Option(
            help="Search on a stand-in: another study file, or the folder of its campaign; then confirm here."
        ),
    ] = None
    top: Annotated[int, typer.Option(min=1, help="How many settings of --search-on are carried here.")] = 3
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the first scripts and the cost; run nothing.")] = (
        False
    )
    why: Annotated[bool, typer.Option("--why", help="Also print why each trial was chosen.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False


@takes(TuneArguments)
def tune(asked: TuneArguments) -> None:
    """Run a study's campaign: baseline, search, confirm.

    Ctrl-C stops it; `ridgeline resume` picks it up again.

    With --search-on, the search runs on a stand-in (a smaller cluster, fewer GPUs, a simulated site), and its best
    settings run here against this study's own baseline.

    Exit code 0: a better setting is confirmed. 1: none is better, or there is no answer. 3: what had passed no longer
    starts. 130: stopped by Ctrl-C.

    With --recipe it writes a study file with its reasons as comments, for you to read, change and tune:
    `ridgeline tune --recipe NAME after=studies/FIRST` writes the next from what that one confirmed.

    Example: ridgeline tune study.yaml --out studies/first
    """
    words = asked.words or []
    if asked.recipe is not None:
        _write_stage(asked.recipe, words, asked.out, asked.dry_run)
        return
    if len(words) != 1:
        raise InputError("name one study file, as in `ridgeline tune study.yaml`; KEY=VALUE words go with --recipe")
    _tune(asked, Path(words[0]))


def _write_stage(name: str, words: list[str], out: Path | None, only_shown: bool) -> None:
    stage = recipe.write_stage(name, words)
    if only_shown:
        print(stage.text, end="")
        return
    path = out or Path(f"{stage.name}.yaml")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}; make it, or write elsewhere")
    if path.exists() and path.read_text() != stage.text:
        raise InputError(f"{path} is there already and differs; rename it, or write elsewhere with --out")
    files.write_whole(path, stage.text)
    shown = shlex.quote(str(path))
    print(f"{shown}: {stage.about}\n  read it, then: ridgeline tune {shown}")
    if not stage.last:
        print(f"  afterwards:    ridgeline tune --recipe {name} {recipe.AFTER}=studies/{stage.name}")


def _tune(asked: TuneArguments, study: Path) -> None:
    if asked.search_on is not None and (asked.warm_start or asked.dry_run or asked.trials is not None):
        raise InputError("--search-on searches elsewhere: leave out --warm-start, --trials and --dry-run")
    question = search.SearchQuestion(asked.trials, asked.seed, records_study.DEFAULT_SAMPLER)
    if asked.dry_run:
        _rehearse(study, question)
        return

    found = check.check_study(study)
    if asked.search_on is not None:
        home = asked.out or Path("studies") / found.study.name
        question = _searched(
            asked.search_on, home.with_name(f"{home.name}-search"), found.study, question, asked.top, asked.why
        )
    _warn(preview.doubts(found))
    observations = _earlier(found.study, asked.warm_start) if asked.warm_start else []
    folder = assembly.assemble_folder(found, asked.out, found.study.name)
    if observations:
        elsewhere.keep(folder, observations)
    live.drive(folder, question, asked.as_json, why=asked.why)
    if asked.ladder:
        beside = folder.path.with_name(f"{folder.path.name}-steps")
        questions.steps(study, str(folder.path), None, False, beside, asked.as_json)


def _searched(there: Path, out: Path, target: Study, question: SearchQuestion, top: int, why: bool) -> SearchQuestion:
    """Search on the stand-in, or go on with that search, and ask here only about the best settings that it found."""
    if not there.is_dir():
        standin = check.check_study(there)
        folder, asked = assembly.assemble_or_resume(standin, out, standin.study.name, question)
        if asked is not None or status.read_status(folder.path).history.verdict is None:
            try:
                live.drive(folder, asked, as_json=False, why=why)
            except NothingFound as error:
                print(
                    f"ridgeline: on the stand-in: {error}; its best settings are tried here all the same",
                    file=sys.stderr,
                )
        there = folder.path
    now = status.read_status(there)
    carried, searched, behind = elsewhere.carry(now.study, now.history, target, top)
    _warn(behind)
    print(f"\n{len(carried)} of the best settings on {searched['site']} go to {target.site.name}", file=sys.stderr)
    return replace(question, carried=carried, searched=searched)


def _warn(doubts: Iterable[str]) -> None:
    for doubt in doubts:
        print(f"ridgeline: warning: {doubt}", file=sys.stderr)


def _earlier(study: Study, folders: list[Path]) -> list[Observation]:
    if not base.sampler_class(study.search.sampler).takes_earlier:
        raise InputError(f"the sampler {study.search.sampler} cannot use --warm-start; use the sampler guided")
    return elsewhere.gather(study, folders)


def _rehearse(study: Path, question: SearchQuestion) -> None:
    found = check.check_study(study)
    with tempfile.TemporaryDirectory(prefix="ridgeline-dry-run-") as folder:
        for step in preview.rehearse(study, question, 3, Path(folder)):
            print(f"# trial {step.trial.number} ({step.trial.proposer}): {wording.setting_text(step.trial.point)}")
            for line in step.build:
                print(f"# build: {line}")
            for which, line in step.starts:
                print(f"# {which}: {line}")
            print(step.script.rstrip(), end="\n\n")
    warnings = [f"# warning: {doubt}" for doubt in preview.doubts(found)]
    print(*warnings, wording.cost_line(preview.stake(found.study, question.trials)), sep="\n")
