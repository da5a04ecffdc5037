"""What a campaign would run, without running, building or journaling anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.campaign.assembly import as_asked, executor_of
from ridgeline.campaign.builds.recipe import Recipe
from ridgeline.campaign.check import check_file
from ridgeline.campaign.guidance.sampling import sampler_of
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.records.run import Job
from ridgeline.records.space import Point
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.study_file import read_study_file


@dataclass(frozen=True, slots=True)
class DryRun:
    """One trial as it would run: the commands of its build (if the study builds) and the exact script.

    `starts` are the lines that start the program, in the script and in those that it calls: (which, line).
    """

    trial: Trial
    build: tuple[str, ...]
    script: str
    starts: tuple[tuple[str, str], ...]


def rehearse(study_path: Path, question: SearchQuestion, count: int, folder: Path) -> Iterator[DryRun]:
    """The first `count` trials, rendered into `folder`. Later proposals of a learning sampler depend on results."""
    found = check_file(as_asked(read_study_file(study_path), question))
    study = found.study
    executor, sampler = executor_of(found), sampler_of(found)
    plan: list[tuple[Point, Stage, str]] = [(study.baseline, Stage.BASELINE, "baseline")]
    plan += [(preset, Stage.SEARCH, "preset") for preset in study.presets]
    while len(plan) < count and (proposal := sampler.ask([point for point, _, _ in plan])) is not None:
        plan.append((proposal.point, Stage.SEARCH, study.search.sampler))
    recipe = Recipe(study.builds, study.folder, study.job) if study.builds is not None else None
    for number, (point, stage, proposer) in enumerate(plan[:count], 1):
        trial = Trial(number, point, study.space.settings(point), stage, proposer)
        run_folder = folder / "runs" / f"{number:04d}-{trial.label}"
        run_folder.mkdir(parents=True, exist_ok=True)
        commands: tuple[str, ...] = ()
        if recipe is not None:
            build = folder / "builds" / recipe.key(trial.settings)
            build.mkdir(parents=True, exist_ok=True)
            trial = replace(trial, build=build)
            commands = tuple(recipe.commands(trial.settings))
        job = study.completed(found.workload.prepare(trial, run_folder), trial.settings)
        yield DryRun(trial, commands, executor.script(job), tuple(_starts(job)))


def _starts(job: Job) -> Iterator[tuple[str, str]]:
    """In run.sh the command stands in quotes, under what watches it; a script for each rank hands over to the program
    by `exec`."""
    yield from (("command", line) for line in job.command.splitlines())
    for path in sorted(job.folder.glob("*.sh")):
        lines = path.read_text(errors="replace").splitlines()
        yield from ((path.name, line) for line in lines if line.startswith("exec "))
