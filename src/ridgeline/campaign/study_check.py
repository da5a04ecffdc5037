"""All that can be said of a study before anything runs: its space, its cost, and what is doubtful about it."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.campaign.check import CheckedStudy, SpaceSize, Stake, space_size, stake
from ridgeline.campaign.guidance.sampling import unpredicted
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.records.study import Study


@dataclass(frozen=True, repr=False)
class StudyCheck(Shown):
    study: Study
    space: SpaceSize
    cost: Stake
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]

    def shown(self) -> TextTable:
        hours, runs = self.cost.node_hours, self.cost.runs
        rows = (
            ("legal points", f"{self.space.legal:,.0f} of {self.space.points:,.0f}"),
            ("runs at most", "no limit" if runs is None else f"{runs:,}"),
            ("node-hours at most", "no limit" if hours is None else f"{hours:.3g}"),
        )
        return TextTable(f"{self.study.name}: fit to run", ("", ""), rows, notes=(*self.warnings, *self.remarks))


def whole_check(found: CheckedStudy) -> StudyCheck:
    size, cost = space_size(found), stake(found.study)
    return StudyCheck(found.study, size, cost, tuple(found.doubts()), (*found.remarks(), *unpredicted(found)))
