"""From a study file or a study folder, and a question, to a campaign that can run."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ridgeline import catalog
from ridgeline.campaign.builds import Builder, Recipe
from ridgeline.campaign.check import CheckedStudy, check_file, check_new
from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.extension import require_extendable, require_room
from ridgeline.campaign.kinds.base import CampaignQuestion, question_line, question_of
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.status import CampaignStatus
from ridgeline.errors import RidgelineError, StoreError
from ridgeline.executors.base import Executor
from ridgeline.records.answer import Conclusion
from ridgeline.records.site import LOCAL
from ridgeline.study.codec import Extension, event_of
from ridgeline.study.folder import JOURNAL, StudyFolder, asked, binding
from ridgeline.study.history import History, read_history
from ridgeline.study.journal import Journal
from ridgeline.study.lock import StudyLock
from ridgeline.study.notify import Notifier
from ridgeline.study.study_file import StudyFile


def as_asked(file: StudyFile, question: CampaignQuestion) -> StudyFile:
    """The study file with the study as this question's campaign runs it."""
    return replace(file, study=question.applied_to(file.study))


class Asked(NamedTuple):
    folder: StudyFolder
    question: CampaignQuestion | None  # None: it was asked in this folder before, and goes on


def assemble_folder(found: CheckedStudy, out: Path | None, name: str) -> StudyFolder:
    """A new folder for a campaign of this study: `out`, or studies/`name`. Nothing has run yet."""
    return StudyFolder.create(out or Path("studies") / name, found.file, in_place=found.workload.in_place)


def assemble_next_folder(found: CheckedStudy, out: Path | None, name: str, question: CampaignQuestion) -> StudyFolder:
    """As `assemble_folder`, for questions of which a study has several: studies/`name`, then `name`-2 and so on.

    A folder in which this very question was asked is not left behind: StoreError says how to go on with it. Of two that
    begin at the same time each gets a folder of its own.
    """
    if out is None:
        out = next(path for path in _numbered(name) if _made(path) or _asks(path, found, question))
    return assemble_folder(found, out, name)


def _numbered(name: str) -> Iterator[Path]:
    return (Path("studies") / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))


def _made(path: Path) -> bool:
    """Whether this folder is new, and so ours."""
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        return False
    return True


def _asks(path: Path, found: CheckedStudy, question: CampaignQuestion) -> bool:
    """Whether the campaign in this folder, if there is one, was asked the same of the same study."""
    try:
        same = question_line(question_of(read_history(path))) == question_line(question)
        return same and not StudyFolder.open(path).changed(found.file, found.workload.in_place, whole=False)
    except (RidgelineError, OSError, LookupError):
        return False  # another's folder, one just made, or damaged: not ours to go on with


def check_study_again(folder: Path) -> CheckedStudy:
    """The study of this folder, to ask something else of it: with the folder's copies of its site and its files."""
    return check_new(StudyFolder.open(folder).load(to_run=True))


def assemble_or_resume(
    found: CheckedStudy, out: Path | None, name: str, question: CampaignQuestion, *, whole: bool = False
) -> Asked:
    """As `assemble_folder`; a folder in which the same question was asked goes on, and has its question already.

    The study must be the same too, with the files that it names: `whole`, or what makes up the question. While nothing
    has passed there it may have been corrected, and replaces the folder's.
    """
    path = out or Path("studies") / name
    if not (path / JOURNAL).exists():
        return Asked(assemble_folder(found, path, name), question)
    folder = StudyFolder.open(path)
    history = read_history(folder.path)
    changed = folder.changed(found.file, found.workload.in_place, whole=whole)
    if changed and binding(history):
        raise StoreError(
            f"{path} already holds a campaign of another study ({', '.join(changed)} changed since); name another "
            "folder with `out`, or remove this one"
        )
    if question_line(question_of(history)) != question_line(question):
        raise StoreError(f"{path} already holds another campaign; name another --out")
    if changed:
        folder.take(found.file, in_place=found.workload.in_place)
    return Asked(folder, None)


def assemble_again(found: CheckedStudy, out: Path | None, name: str, question: CampaignQuestion) -> Asked:
    """For questions that are asked again and again: a folder of its own each time, studies/`name`, `name`-2 and so on.

    One that was stopped before it had its answer goes on.
    """
    if out is not None:
        return assemble_or_resume(found, out, name, question)
    for path in _numbered(name):
        if not (path / JOURNAL).exists():
            break
        if _asks(path, found, question) and read_history(path).verdict is None:
            return Asked(StudyFolder.open(path), None)
    return Asked(assemble_folder(found, path, name), question)


@contextmanager
def assemble_campaign(
    folder: StudyFolder,
    question: CampaignQuestion | None = None,
    on_change: Callable[[Campaign], None] = lambda campaign: None,
    stop_requested: Callable[[], bool] = lambda: False,
    extension: Extension | None = None,
) -> Iterator[Campaign]:
    """The campaign of this folder, under its lock. `question` only for a new one; a resumed one has its own.

    `extension` is what a finished one is to do beyond its verdict.
    """
    with StudyLock(folder.lock_path), Journal.open(folder.journal_path) as journal:
        history = History.replay(folder.path.resolve(), journal.read())
        asks = question or question_of(history)
        file = folder.load(history, to_run=True)
        history.asked = binding(history) or asked(file, written=file.written)
        found = check_file(as_asked(file, asks))
        if extension is not None:
            require_extendable(found.study, asks.kind, asks.extended_by, history, extension)
            require_room(found.study, history, extension)
            before = None if history.verdict is None else history.verdict.conclusion
            extension = replace(extension, undecided=before in (Conclusion.UNCONFIRMED, Conclusion.UNFINISHED))
            event = {"at": round(time.time(), 3), **event_of(extension)}
            journal.append(event)
            history.apply(event)
        campaign = _joined(asks, found, journal, history)
        campaign.on_change, campaign.stop_requested = on_change, stop_requested
        with _end_notified(campaign):
            yield campaign


@contextmanager
def _end_notified(campaign: Campaign) -> Iterator[None]:
    """Whoever the study names under `notify` hears of a new verdict, or why there is none; not of a Ctrl-C."""
    study = campaign.study
    tell = Notifier(study.name, study.notify, lambda line: sys.stderr.write(f"{line}\n"), of="study")
    before = campaign.history.verdict
    try:
        yield
    except RidgelineError as error:
        tell("stopped", "", str(error))
        raise
    else:
        if campaign.history.verdict is not None and campaign.history.verdict is not before:
            now = CampaignStatus(campaign.question, study, campaign.history, campaign.ledger)
            tell("finished", "", now.answer.statement)
    finally:
        tell.close()


def _joined(question: CampaignQuestion, found: CheckedStudy, journal: Journal, history: History) -> Campaign:
    study = found.study
    executor = executor_of(found)
    # as many runs beside each other as there are slots, where there are cores for them
    at_once = executor.at_once(study.job.resources(study.space.settings(study.baseline)))
    ledger = Ledger(study.budget, history, slots=at_once)
    agenda = question.agenda(found, history, ledger)
    campaign = Campaign(question, study, found.workload, executor, journal, history, agenda, ledger)
    if study.builds is not None:
        here: Executor = catalog.part("executors", "local")(LOCAL)
        # one of its own: it is asked about builds, and each look at the queue serves those who ask
        builds_on = executor_of(found) if study.builds.where == "site" else here
        recipe = Recipe(study.builds, study.folder, study.job)
        how = (recipe, history.root, builds_on, history, campaign.record, campaign.with_retries)
        campaign.builder = Builder(*how, study=study.name, reserve=campaign.reserve_build)
    return campaign


def executor_of(found: CheckedStudy) -> Executor:
    executor: Executor = catalog.part("executors", found.study.site.batch)(found.study.site)
    return executor
