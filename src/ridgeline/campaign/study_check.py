"""All that can be said of a study before anything runs: its space, its cost, and what is doubtful about it."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.campaign.check import CheckedStudy, SpaceSize, Stake, space_size, stake
from ridgeline.campaign.guidance.sampling import unpredicted
from ridgeline.records.study import Study


@dataclass(frozen=True)
class StudyCheck:
    study: Study
    space: SpaceSize
    cost: Stake
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]


def whole_check(found: CheckedStudy) -> StudyCheck:
    size, cost = space_size(found), stake(found.study)
    return StudyCheck(found.study, size, cost, tuple(found.doubts()), (*found.remarks(), *unpredicted(found)))
