"""What `keep` knows about the number of servers of each role: load and limits in, decisions out.

The decisions themselves are made in `scale.py`, which asks nobody; they are carried out by `actions.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from ridgeline.serving.service.history import ScaleChange
from ridgeline.serving.service.keep.scale import LoadHistory, RoleCount, RoleLoad, ScaleDecision, decide, limits_at
from ridgeline.serving.service.keep.watch import ServerPoll
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.service import ScaleRules

GROW_AGAIN_S = 300.0  # after a server that was added and did not start


@dataclass(frozen=True, slots=True)
class RoleScaleState:
    """How many servers of a role there are and may be, and the latest change; `changed_at_s` 0: none yet."""

    role: str
    serving: int
    starting: int
    leaving: int
    least: int
    most: int
    limits: str  # why these
    changed_at_s: float = 0.0
    change: str = ""


def scale_states(operator: Operator, wall_s: float) -> list[RoleScaleState]:
    """As the journal has it; also for those who don't run `keep`."""
    scale, folder = operator.service.scale, operator.folder
    if scale is None:
        return []
    found = []
    for role, rule in scale.roles.items():
        count, limits = _count_of(operator, role), limits_at(rule, _local_time(scale, wall_s))
        latest = folder.scale_changes.get(role, ScaleChange(0.0, 0, "", up=False))
        change = f"{'up' if latest.up else 'down'} to {latest.wanted}: {latest.why}" if latest.at_s else ""
        why = f"{limits.least_why}, {limits.most_why}"
        counted = (count.serving, count.starting, count.leaving)
        found.append(RoleScaleState(role, *counted, limits.least, limits.most, why, latest.at_s, change))
    return found


def _local_time(scale: ScaleRules, wall_s: float) -> datetime:
    """The time that the schedule speaks of."""
    return (
        datetime.fromtimestamp(wall_s, ZoneInfo(scale.timezone)) if scale.timezone else datetime.fromtimestamp(wall_s)
    )


def _count_of(operator: Operator, role: str) -> RoleCount:
    """Servers that were drained by hand, or given up, don't count; one that is started again does."""
    folder = operator.folder
    members = [m for m in operator.servers if m.role == role and m.name not in folder.drained]
    serving = sum(folder.serves(m.name) and m.name not in folder.leaving for m in members)
    coming = sum(of == role for of in folder.growing.values())
    replacing = sum(m.name in folder.replacing for m in members)
    leaving = sum(m.name in folder.retiring for m in operator.present if m.role == role)
    return RoleCount(serving, len(members) - serving + coming + replacing, leaving)


class Scaler:
    """One keeper's view of the load. What was before it is known from the journal, as far as it must be."""

    def __init__(
        self, operator: Operator, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        scale = operator.service.scale
        assert scale is not None
        self._operator, self._clock, self._wall, self.rules = operator, clock, wall, scale
        self._history = LoadHistory(scale.down_after_s)
        self._counts: dict[str, RoleCount] = {}
        self._failed: dict[str, tuple[float, float]] = {}  # by role: the failure in the journal, and when we saw it
        for role, change in operator.folder.scale_changes.items():
            # a clock that was set back must not keep servers for ever
            self._history.change(role, clock() - max(0.0, wall() - change.at_s))
        units = operator.service.units
        self._ratios: dict[str, float] = {unit.role: float(unit.replicas) for unit in units}

    def poll(self, polls: Mapping[str, ServerPoll]) -> list[ScaleDecision]:
        """After a poll of all servers that are in the router, what to change."""
        now_s = self._clock()
        counts = {role: _count_of(self._operator, role) for role in self.rules.roles}
        for role, count in counts.items():
            before = self._counts.get(role, count)
            if before != count:
                self._history.change(role, now_s, _decided(before, count))
            if (load := _load(role, polls, count.serving, now_s)) is not None:
                self._history.take(role, load)
        self._counts = counts
        wall = _local_time(self.rules, self._wall())
        found = decide(self.rules, wall, now_s, counts, self._history, self._ratios)
        return [decision for decision in found if decision.change <= 0 or not self._failed_lately(decision.role, now_s)]

    def _failed_lately(self, role: str, now_s: float) -> bool:
        failed_at_s = self._operator.folder.not_grown.get(role)
        if failed_at_s is None:
            return False
        if self._failed.get(role, (0.0, 0.0))[0] != failed_at_s:
            self._failed[role] = (failed_at_s, now_s)
        return now_s - self._failed[role][1] < GROW_AGAIN_S

    def states(self) -> tuple[RoleScaleState, ...]:
        return tuple(scale_states(self._operator, self._wall()))


def _decided(before: RoleCount, now: RoleCount) -> int:
    """Servers that were decided to be added or removed since; one that became ready is not."""
    return now.replicas - before.replicas


def _load(role: str, polls: Mapping[str, ServerPoll], serving: int, at_s: float) -> RoleLoad | None:
    """Servers that did not say are taken for like the others."""
    seen = [poll for poll in polls.values() if poll.role == role and poll.running is not None]
    if not seen:
        return None
    share = serving / len(seen)
    used = [poll.kv_share for poll in seen if poll.kv_share is not None]
    return RoleLoad(
        at_s,
        share * sum(poll.on_it for poll in seen),
        share * sum(poll.waiting for poll in seen),
        serving * sum(used) / len(used) if used else None,
    )
