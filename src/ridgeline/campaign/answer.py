"""The answer of a campaign: the setting to paste."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.campaign.assembly import with_overrides
from ridgeline.campaign.status import Best, standing
from ridgeline.errors import NothingFound
from ridgeline.store.folder import StudyFolder
from ridgeline.store.history import History
from ridgeline.store.journal import read_events
from ridgeline.workloads.base import Workload


@dataclass(frozen=True, slots=True)
class Answer:
    headline: str
    verdict: str | None  # confirmed, no-difference, nothing-passed, unconfirmed; None: the campaign is not over
    best: Best | None
    paste: str
    standing: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {
            "headline": self.headline,
            "verdict": self.verdict,
            "confirmed": self.best is not None and self.best.confirmed,
            "best": self.standing["best"],
            "settings": None if self.best is None else dict(self.best.trial.point),
            "paste": self.paste,
        }


def read_answer(path: Path) -> Answer:
    """NothingFound when no setting has passed so far."""
    folder = StudyFolder.open(path)
    history = History.replay(folder.path.resolve(), read_events(folder.journal_path))
    study = with_overrides(folder.load(history), history.overrides).study
    # not checked again: the folder may be open on a smaller machine than the one that ran it
    workload: Workload = catalog.part("workloads", study.workload.kind)(study)
    now = standing(study, history)
    if now.best is None:
        raise NothingFound(f"{path}: {now.headline}; no setting has passed the guards so far")
    return Answer(now.headline, now.verdict_kind, now.best, workload.paste(now.best.trial.settings), now.as_json())
