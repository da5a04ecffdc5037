"""The verdict again, by the campaign's own kind from the history before it, and compared with what the journal says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import ConfirmationPlan
from ridgeline.campaign.kinds.base import CampaignQuestion
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import pasted
from ridgeline.campaign.verify.verification import NUMBERS, WORDS, Verification, differences, reworded
from ridgeline.errors import RidgelineError
from ridgeline.study.codec import Event, VerdictLine
from ridgeline.study.folder import JOURNAL
from ridgeline.study.history import History

# fields, also nested ones, that hold text for people, and what of it no release changes
TEXTS = {**dict.fromkeys(("headline", "notes", "why", "reason", "disqualified", "failed"), NUMBERS), "paste": WORDS}


def check_verdict(
    question: CampaignQuestion, study: CheckedStudy, history: History, events: Sequence[Event], found: Verification
) -> None:
    at = next((i for i in reversed(range(len(events))) if events[i]["event"] == "verdict"), None)
    if at is None or history.verdict is None:
        return
    before = History.replay(history.root, events[:at])
    try:
        again = derived(question, study, before, float(events[at]["at"]))
    except RidgelineError as error:
        found.differs(JOURNAL, "the verdict", history.verdict.headline, f"the campaign ended with: {error}")
        return
    if again is None:
        found.differs(JOURNAL, "the verdict", history.verdict.headline, "the campaign was not over")
        return
    found.verdict = True
    for name, stated, other in differences(history.verdict.as_line(), again.as_line()):
        if _only_wording(name, stated, other):
            found.cannot_check(JOURNAL, f"the verdict's {name} is worded differently today: {stated!r}, now {other!r}")
        else:
            found.differs(JOURNAL, f"the verdict's {name}", stated, other)
            found.verdict = False


def derived(question: CampaignQuestion, study: CheckedStudy, before: History, now_s: float) -> VerdictLine | None:
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
    return VerdictLine(concluded.conclusion, concluded.headline, plain)


def _only_wording(at: str, stated: Any, found: Any) -> bool:
    kept = next((TEXTS[name] for name in at.replace("[", ".").split(".") if name in TEXTS), None)
    return kept is not None and reworded(stated, found, kept)


def check_candidates(history: History, found: Verification) -> None:
    """Only settings that were tried can be confirmed."""
    tried = [dict(trial.point) for trial in history.trials.values()]
    for point in (point for confirmed in history.confirmations for point in confirmed.candidates):
        if dict(point) not in tried:
            found.differs(JOURNAL, "a setting under confirmation", dict(point), "none of the trials has it")
