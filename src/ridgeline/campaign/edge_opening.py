"""From a study file and a knob to the folder of a hunt for its edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.campaign.assembly import Overrides
from ridgeline.campaign.check import check_study
from ridgeline.campaign.comparison import parse_point
from ridgeline.campaign.edge import EdgeQuestion
from ridgeline.campaign.edge_hunt import ladder_of
from ridgeline.errors import StoreError
from ridgeline.store.folder import StudyFolder
from ridgeline.store.history import History
from ridgeline.store.journal import read_events


def edge_folder(
    study_path: Path, question: EdgeQuestion, at: str, out: Path | None
) -> tuple[StudyFolder, Overrides | None]:
    """The folder of this hunt. Overrides are None when it holds the same hunt already, which then goes on."""
    found = check_study(study_path)
    point = parse_point(found, at, found.study.baseline)
    ladder_of(found, question.knob, point)
    asked = {"knob": question.knob, "repeats": question.repeats, "margin": question.margin}
    overrides: dict[str, Any] = {"baseline": dict(point), "edge": asked}
    path = out or Path("studies") / f"{found.study.name}-edge-{question.knob}"
    if (path / "journal.jsonl").exists():
        folder = StudyFolder.open(path)
        before = History.replay(path.resolve(), read_events(folder.journal_path)).overrides
        if before == overrides:
            return folder, None
        raise StoreError(f"{path} already holds another campaign; name another --out")
    return StudyFolder.create(path, found.file), overrides
