"""Does a study folder bear out what it says? Every stated number again, from the journal and the run folders alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.campaign.assembly import as_asked
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import ConfirmationPlan
from ridgeline.campaign.kinds.base import CampaignQuestion, FormerQuestion, question_of
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import pasted
from ridgeline.campaign.task import COMPLIANCE_FILE, compliance, signature_of
from ridgeline.campaign.verdict import NOT_PROVABLE, judged_today
from ridgeline.campaign.verify_runs import (
    ABSENT,
    NUMBERS,
    TRIMMED,
    WORDS,
    RunCheck,
    Verification,
    anywhere,
    differences,
    numbers_in,
    reworded,
    unknown_run_folders,
)
from ridgeline.errors import RidgelineError, StoreError
from ridgeline.files import text_of
from ridgeline.records.expression import ExpressionError
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.study.codec import Event, VerdictLine
from ridgeline.study.folder import JOURNAL, STUDY, StudyFolder, require_consistent, require_same_question, to_be_read
from ridgeline.study.history import History
from ridgeline.study.journal import read_events
from ridgeline.study.state_files import RESULT_FILE
from ridgeline.study.study_file import StudyFile
from ridgeline.workloads.base import Workload

# fields, also nested ones, that hold text for people, and what of it no release changes
_TEXTS = {**dict.fromkeys(("headline", "notes", "why", "reason", "disqualified", "failed"), NUMBERS), "paste": WORDS}


def _check_verdict(
    question: CampaignQuestion, study: CheckedStudy, history: History, events: Sequence[Event], found: Verification
) -> None:
    at = next((i for i in reversed(range(len(events))) if events[i]["event"] == "verdict"), None)
    if at is None or history.verdict is None:
        return
    if isinstance(question, FormerQuestion):
        found.cannot_check(
            JOURNAL, f"the verdict is of a campaign of kind {question.kind}, which this release cannot run"
        )
        return
    before = History.replay(history.root, events[:at])
    try:
        again = _derived(question, study, before, float(events[at]["at"]))
    except RidgelineError as error:
        found.differs(JOURNAL, "the verdict", history.verdict.headline, f"the campaign ended with: {error}")
        return
    if again is None:
        found.differs(JOURNAL, "the verdict", history.verdict.headline, "the campaign was not over")
        return
    found.verdict = True
    for name, stated, other in differences(history.verdict.as_line(), again.as_line()):
        if isinstance(stated, str) and isinstance(other, str) and anywhere(stated) == anywhere(other):
            continue
        if _only_wording(name, stated, other, tuple(numbers_in(again.details))):
            found.cannot_check(JOURNAL, f"the verdict's {name} is worded differently today: {stated!r}, now {other!r}")
        else:
            found.differs(JOURNAL, f"the verdict's {name}", stated, other)
            found.verdict = False


def _derived(question: CampaignQuestion, study: CheckedStudy, before: History, now_s: float) -> VerdictLine | None:
    """What the campaign concludes from this history at this moment; None: it would first plan a confirmation."""
    agenda = question.agenda(
        study, before, Ledger(study.study.budget, before, clock=lambda: now_s, slots=study.study.site.jobs_at_once)
    )
    agenda.next()  # as the campaign does: an agenda learns here that the budget has no room for what it wants
    concluded = agenda.conclude()
    if isinstance(concluded, ConfirmationPlan):
        return None
    details = dict(concluded.details())
    if concluded.recommended is not None:
        details["paste"] = pasted(study.study, study.workload, concluded.recommended)
    plain: dict[str, Any] = json.loads(json.dumps(details))  # as it would lie on disk
    return VerdictLine(str(concluded.conclusion), concluded.headline, plain)


def _only_wording(at: str, stated: Any, found: Any, exact: Sequence[float]) -> bool:
    kept = next((_TEXTS[name] for name in at.replace("[", ".").split(".") if name in _TEXTS), None)
    return kept is not None and reworded(stated, found, kept, exact)


def _check_candidates(history: History, found: Verification) -> None:
    """Only settings that were tried can be confirmed."""
    tried = [dict(trial.point) for trial in history.trials.values()]
    for point in (point for confirmed in history.confirmations for point in confirmed.candidates):
        if dict(point) not in tried:
            found.differs(JOURNAL, "a setting under confirmation", dict(point), "none of the trials has it")


def verify_folder(path: Path) -> Verification:
    """Never takes the lock and changes nothing. Errors only where there is no study folder or no readable study."""
    folder = StudyFolder.open(path)
    found = Verification(str(path))
    try:
        events = list(read_events(folder.journal_path))
        history = History.replay(path.resolve(), events)
        question = question_of(history)
    except StoreError as error:
        found.differs(JOURNAL, "the journal", "a whole campaign", str(error))
        return found
    found.receipts = tuple(event["receipt"] for event in events if event["event"] == "opened" and "receipt" in event)
    file = to_be_read(folder.load(), history)
    _agreement(file, history, found)
    file = as_asked(file, question)
    _journal(file.study, history, folder.journal_path, found)
    workload = _workload(file.study, found)
    ended = {event["run"]: event for event in events if event["event"] == "ended"}
    RunCheck(file.study, history, workload, ended, _trimmed(path), found).all_runs()
    if file.study.task is not None:
        _check_compliance(file.study, folder.path.resolve(), workload, found)
    if workload is not None:
        _check_verdict(question, CheckedStudy(file, workload), history, events, found)
    today = judged_today(question.kind, file.study, history).verdict
    if history.verdict is not None and today is not None and (why := today.details.get(NOT_PROVABLE)):
        found.differs(JOURNAL, "the verdict, by today's rules", history.verdict.headline, f"not provable: {why}")
        found.verdict = False
    return found


def _check_compliance(study: Study, root: Path, workload: Workload | None, found: Verification) -> None:
    """The record of the task's rules, made again; and its signature."""
    file = root / COMPLIANCE_FILE
    if not file.is_file():
        found.cannot_check(COMPLIANCE_FILE, "is not there: it is written when the campaign has its verdict")
        return
    try:
        stated = json.loads(text_of(file))
        signature = signature_of(stated)
    except (ValueError, AttributeError) as error:
        found.differs(COMPLIANCE_FILE, "the record of the task's rules", "as it was written", str(error))
        return
    if stated.get("signature") != signature:
        found.differs(COMPLIANCE_FILE, "its signature", stated.get("signature", ABSENT), signature)
    again = compliance(study, root, workload)
    if unread := stated.get("applied", {}).keys() - again["applied"].keys():
        # the log was trimmed, or its reader is not on this machine: the rest is still compared
        found.cannot_check(
            COMPLIANCE_FILE, f"what the engine applied in {', '.join(sorted(unread))} can't be read here"
        )
    for name, one, other in differences(stated, again):
        if name != "signature" and not (unread and name.startswith(("applied", "rules"))):
            found.differs(COMPLIANCE_FILE, name, one, other)
    if stated.get("signature") == signature == again["signature"]:
        found.signature = signature


def _agreement(file: StudyFile, history: History, found: Verification) -> None:
    try:
        require_same_question(file.path, file.tree, history.asked)
    except StoreError as error:
        found.differs(STUDY, "the question", "as it was when the campaign began", str(error))
    try:
        require_consistent(file.study, history)
    except StoreError as error:
        found.differs(JOURNAL, "the journal", "a whole campaign", str(error))


def _workload(study: Study, found: Verification) -> Workload | None:
    try:
        workload: Workload = catalog.part("workloads", study.workload.kind)(study)
    except RidgelineError as error:
        found.cannot_check(STUDY, f"the workload {study.workload.kind} cannot be used here ({error})")
        return None
    return workload


def _journal(study: Study, history: History, journal: Path, found: Verification) -> None:
    """What the journal says of itself: no gaps, no loose ends, settings that follow from their points."""
    numbers = {*history.runs, *history.open_runs}
    for number in sorted(set(range(1, history.last_run_number + 1)) - numbers):
        found.differs(JOURNAL, "the numbers of the runs", "one after the other", "this one is missing", number)
    for name in unknown_run_folders(history):
        found.differs(name, "a run's folder", "every run is in the journal", "this one is not")
    for trial in history.trials.values():
        if trial.stage is Stage.SHORT:
            continue  # of an earlier release, with less to do than its point says
        try:
            settings = study.space.settings(trial.point)
        except (ExpressionError, ValueError, LookupError) as error:
            settings = {"settings": str(error)}
        for name, stated, other in differences(trial.settings, settings):
            found.differs(JOURNAL, f"trial {trial.number}: {name}, against its point", stated, other)
    _check_candidates(history, found)
    _loose_ends(history, journal, found)


def _loose_ends(history: History, journal: Path, found: Verification) -> None:
    for run in history.open_runs.values():
        if history.verdict is not None:
            found.differs(JOURNAL, "the end of a run before the verdict", "every run ended", ABSENT, run.number)
        elif (run.folder / RESULT_FILE).exists():
            why = "has a result that the journal does not know yet; `ridgeline resume` settles it"
            found.cannot_check(run.folder.relative_to(history.root).as_posix(), why, run.number)
    for trial in history.trials.values():
        if history.verdict is not None and history.final_run(trial) is None:
            found.differs(JOURNAL, "runs before the verdict", f"trial {trial.number} was started", "it has no run")
    if not journal.read_bytes().endswith(b"\n"):
        found.cannot_check(JOURNAL, "its last line is torn: a controller is writing it, or was killed there")


def _trimmed(path: Path) -> tuple[str, ...]:
    """What whoever made the folder smaller says is gone."""
    lines = text_of(path / TRIMMED).splitlines()
    return tuple(text for line in lines if (text := line.partition("#")[0].strip()))
