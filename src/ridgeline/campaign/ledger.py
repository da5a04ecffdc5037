"""What a campaign has spent, what a run is expected to cost, and whether one more fits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Budget
from ridgeline.records.trial import Stage
from ridgeline.study.history import History

TRIALS_WITHOUT_BUDGET = 40
_FAIR_SHARE = 0.5  # of a budget the confirmation may have, if the search would otherwise take it
_IN_HAND = 1.1  # times what the confirmation is expected to take: runs do not follow each other in no time
_EVEN = 1 + 1e-9  # sums of run times are not exact


@dataclass(frozen=True, slots=True)
class Reserve:
    """Runs to keep room for: the confirmation as asked for, and the smallest one that can give a verdict; of each also
    in how many blocks, which may run beside each other. `trials` are runs of the search to keep room for as well."""

    full: int = 0
    least: int = 0
    blocks: int = 1
    least_blocks: int = 1
    trials: int = 0

    def of(self, budget: float | None, per_run: float, at_once: int = 1) -> float:
        """What to keep back of this budget, where a run costs `per_run` and so many blocks are paid for once.

        Nothing for a confirmation that does not fit beside the baseline and one trial: they may have it all.
        """
        if budget is None:
            return 0.0
        full, least = _rounds(self.full, self.blocks, at_once), _rounds(self.least, self.least_blocks, at_once)
        kept = 0.0
        if (least + 2) * per_run <= budget:
            kept = min(full * per_run, max(least * per_run, _FAIR_SHARE * budget))
        return kept + self.trials * per_run


def _rounds(runs: int, blocks: int, at_once: int) -> float:
    """How many runs one after the other; those of a block never run beside each other."""
    return math.ceil(blocks / at_once) * runs / blocks


PROFILE_SHARE = 0.05  # of the node-hours: profiles beyond that are warned about


def profile_share(history: History) -> float | None:
    """The part of all node-hours that runs under a profiler took; None where nothing was profiled."""
    runs = [run for run in history.runs.values() if history.trials[run.trial].stage is Stage.PROFILE]
    return sum(run.node_hours for run in runs) / history.node_hours if runs and history.node_hours > 0 else None


@dataclass
class Ledger:
    budget: Budget
    history: History
    clock: Callable[[], float] = time.time
    slots: int = 1  # how many jobs of this study the site runs at once

    def __post_init__(self) -> None:
        self._seconds_by_point: dict[str, float] = {}
        self._typical_s: float | None = None
        self._nodes = 1
        for run in self.history.runs.values():
            self.learn(run)

    @property
    def limits(self) -> Budget:
        """The budget as it is now: people may have extended it."""
        return self.history.instructions.budget(self.budget)

    @property
    def search_trials(self) -> int | None:
        """How many search trials may be started; None: as many as time and node-hours allow."""
        if replace(self.budget, grant="") == Budget():
            return TRIALS_WITHOUT_BUDGET
        return self.budget.trials

    def learn(self, run: Run) -> None:
        other = self.history.trials[run.trial].stage in (Stage.PROFILE, Stage.SHORT, Stage.WARM_UP)
        if run.outcome is not None and run.outcome.kind is Kind.OK and not other:
            key = self.history.trials[run.trial].key
            self._seconds_by_point[key] = run.ending.duration_s
            # a slow average: later runs count more, one outlier does not decide
            old = self._typical_s
            self._typical_s = run.ending.duration_s if old is None else 0.8 * old + 0.2 * run.ending.duration_s
            self._nodes = max(self._nodes, run.resources.nodes)

    def expected_s(self, point: Point | None = None) -> float | None:
        """Seconds a run of this point will take, judged by what ran before; None before anything ran."""
        if point is not None and (known := self._seconds_by_point.get(point_key(point))) is not None:
            return known
        return self._typical_s

    def fits(self, point: Point, nodes: int, reserve: Reserve) -> bool:
        """Whether one more run fits and leaves room for what is reserved."""
        if self.budget.wall_s is None and self.budget.node_hours is None:
            return True
        expected = self.expected_s(point)
        if expected is None:
            # nothing is known yet: one run at a time may be started to learn its cost
            return not self.history.open_runs and self._left_s() > 0 and self._left_node_hours() > 0
        flying_runs = self.history.open_runs.values()
        flying = [max(self._flying_s(run.trial) - (self.clock() - run.planned_s), 0.0) for run in flying_runs]
        typical_s = self._typical_s or expected
        limits = self.limits
        reserve_s = reserve.of(limits.wall_s, typical_s * _IN_HAND, self.slots)
        # beside those that fly where there is a slot for it, else after them
        longest_s = max(flying, default=0.0)
        until_s = max(expected, longest_s) if len(flying) < self.slots else expected + longest_s
        wall_ok = until_s + reserve_s <= self._left_s()
        open_hours = sum(self._flying_s(run.trial) * run.resources.nodes / 3600.0 for run in flying_runs)
        reserve_hours = reserve.of(limits.node_hours, typical_s * self._nodes / 3600.0)
        hours_ok = expected * nodes / 3600.0 + open_hours + reserve_hours <= self._left_node_hours()
        return wall_ok and hours_ok

    def affords(self, block: Sequence[tuple[Point, int]], blocks: int) -> bool:
        """Whether so many blocks fit into what is left. `block` has the settings of one with the nodes of their jobs,
        one after the other; blocks run beside each other where there are slots for it."""
        runs = [(self.expected_s(point), nodes) for point, nodes in block]
        times = [(seconds, nodes) for seconds, nodes in runs if seconds is not None]
        block_s = sum(seconds for seconds, _ in times)
        hours = blocks * sum(seconds * nodes for seconds, nodes in times) / 3600.0
        wall_s = math.ceil(blocks / self.slots) * block_s
        return wall_s <= self._left_s() * _EVEN and hours <= self._left_node_hours() * _EVEN

    def _flying_s(self, trial: int) -> float:
        return self.expected_s(self.history.trials[trial].point) or 0.0

    def _left_s(self) -> float:
        limit_s = self.limits.wall_s
        return float("inf") if limit_s is None else limit_s - self.history.wall_now_s(self.clock())

    def _left_node_hours(self) -> float:
        limit = self.limits.node_hours
        return float("inf") if limit is None else limit - self.history.node_hours
