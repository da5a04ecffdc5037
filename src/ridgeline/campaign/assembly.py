"""From a study file or a study folder to a campaign that can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.campaign.agenda import Agenda
from ridgeline.campaign.builds import Builder, Recipe
from ridgeline.campaign.check import CheckedStudy, check_file, check_study
from ridgeline.campaign.edge_hunt import edge_hunt
from ridgeline.campaign.engine import Campaign
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.scaling import as_scaling, scaling_campaign
from ridgeline.campaign.status import Standing, standing
from ridgeline.executors.base import Executor
from ridgeline.records.site import LOCAL
from ridgeline.records.study import Study
from ridgeline.samplers.base import Sampler
from ridgeline.store.agreement import asked
from ridgeline.store.folder import StudyFolder
from ridgeline.store.history import History
from ridgeline.store.journal import Journal, read_events
from ridgeline.store.lock import StudyLock
from ridgeline.store.study_file import StudyFile

# trials, seed, baseline, candidate, edge, scale: what the command line changed in the study
Overrides = Mapping[str, Any]


def apply_overrides(study: Study, overrides: Overrides) -> Study:
    if "trials" in overrides:
        study = replace(study, budget=replace(study.budget, trials=overrides["trials"]))
    if "seed" in overrides:
        study = replace(study, search=replace(study.search, seed=overrides["seed"]))
    if "candidate" in overrides:
        # a comparison is a campaign whose search is one given setting
        study = replace(
            study,
            baseline=overrides["baseline"],
            presets=(overrides["candidate"],),
            budget=replace(study.budget, trials=1),
            baseline_stage=replace(study.baseline_stage, repeats=1),
            search=replace(study.search, sentinel_every=0),
            confirm=replace(study.confirm, top=1, blocks=overrides.get("blocks", study.confirm.blocks)),
        )
    if "scale" in overrides:
        study = as_scaling(study, overrides["scale"])
    if "edge" in overrides:
        study = replace(
            study,
            baseline=overrides["baseline"],
            presets=(),
            budget=replace(study.budget, trials=None),
            confirm=replace(study.confirm, top=0, blocks=0),
        )
    return study


def with_overrides(file: StudyFile, overrides: Overrides) -> StudyFile:
    return replace(file, study=apply_overrides(file.study, overrides))


def new_folder(study_path: Path, out: Path | None) -> StudyFolder:
    """Check the study and lay out its folder; nothing has run yet."""
    found = check_study(study_path)
    return StudyFolder.create(out or Path("studies") / found.study.name, found.file)


@contextmanager
def open_campaign(
    folder: StudyFolder,
    overrides: Overrides | None = None,
    on_change: Callable[[Campaign], None] = lambda campaign: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[Campaign]:
    """The campaign of this folder, under its lock. `overrides` only for a new one; a resumed one has its own."""
    with StudyLock(folder.lock_path), Journal.open(folder.journal_path) as journal:
        history = History.replay(folder.path.resolve(), journal.read())
        if overrides is not None:
            history.overrides = overrides
        file = folder.load(history)
        history.asked = history.asked or asked(file.tree)
        found = check_file(with_overrides(file, history.overrides))
        yield _assemble(found, journal, history, on_change, stop_requested)


def _assemble(
    found: CheckedStudy,
    journal: Journal,
    history: History,
    on_change: Callable[[Campaign], None],
    stop_requested: Callable[[], bool],
) -> Campaign:
    study = found.study
    executor, sampler = parts(found)
    ledger = Ledger(study.budget, history)
    if "edge" in history.overrides:
        campaign: Campaign = edge_hunt(found, executor, sampler, journal, history, ledger)
    elif "scale" in history.overrides:
        campaign = scaling_campaign(found, executor, sampler, journal, history, ledger)
    else:
        agenda = Agenda(study, history, sampler, ledger, found.refusal)
        campaign = Campaign(study, found.workload, executor, journal, history, agenda, ledger)
    campaign.on_change, campaign.stop_requested = on_change, stop_requested
    if study.builds is not None:
        local: Executor = catalog.part("executors", "local")(LOCAL)
        recipe = Recipe(study.builds, study.folder)
        campaign.builder = Builder(recipe, history.root, local, history, campaign.record, campaign.heed_stop)
    return campaign


def parts(found: CheckedStudy) -> tuple[Executor, Sampler]:
    study, search = found.study, found.study.search
    executor: Executor = catalog.part("executors", study.site.batch)(study.site)
    sampler: Sampler = catalog.part("samplers", search.sampler)(study.space, search.seed, search.options, found.refusal)
    return executor, sampler


def read_standing(path: Path) -> Standing:
    """Where the campaign in this folder stands; never takes the lock, so it may be asked while it runs."""
    folder = StudyFolder.open(path)
    history = History.replay(folder.path.resolve(), read_events(folder.journal_path))
    return standing(apply_overrides(folder.load(history).study, history.overrides), history)
