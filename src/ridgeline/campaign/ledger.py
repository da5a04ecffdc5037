"""What a campaign has spent, what a run is expected to cost, and whether one more fits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Budget
from ridgeline.records.trial import Stage
from ridgeline.store.history import History

TRIALS_WITHOUT_BUDGET = 40
FAIR_SHARE = 0.5  # of a budget the confirmation may have, if the search would otherwise take it
LARGEST_SHARE = 0.8  # of a budget that is kept back even for the smallest confirmation


@dataclass(frozen=True, slots=True)
class Reserve:
    """Runs to keep room for: the confirmation as asked for, and the smallest one that can give a verdict."""

    full: int = 0
    least: int = 0

    def of(self, budget: float | None, per_run: float) -> float:
        if budget is None:
            return 0.0
        least = min(self.least * per_run, LARGEST_SHARE * budget)
        return min(self.full * per_run, max(least, FAIR_SHARE * budget))


@dataclass
class Ledger:
    budget: Budget
    history: History
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._seconds_by_point: dict[str, float] = {}
        self._typical_s: float | None = None
        self._nodes = 1
        for run in self.history.runs.values():
            self.learn(run)

    @property
    def limits(self) -> Budget:
        """The budget as it is now: people may have extended it."""
        return self.history.heeded.budget(self.budget)

    @property
    def search_trials(self) -> int | None:
        """How many search trials may be started; None: as many as time and node-hours allow."""
        if self.budget == Budget():
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
        reserve_s = reserve.of(limits.wall_s, typical_s)
        wall_ok = expected + max(flying, default=0.0) + reserve_s <= self._left_s()
        open_hours = sum(self._flying_s(run.trial) * run.resources.nodes / 3600.0 for run in flying_runs)
        reserve_hours = reserve.of(limits.node_hours, typical_s * self._nodes / 3600.0)
        hours_ok = expected * nodes / 3600.0 + open_hours + reserve_hours <= self._left_node_hours()
        return wall_ok and hours_ok

    def affordable_runs(self, nodes: int) -> float:
        """How many more runs of typical length fit into what is left."""
        seconds = self._typical_s
        if not seconds:
            return float("inf")
        return min(self._left_s() / seconds, self._left_node_hours() / (seconds * nodes / 3600.0))

    def _flying_s(self, trial: int) -> float:
        return self.expected_s(self.history.trials[trial].point) or 0.0

    def _left_s(self) -> float:
        limit_s = self.limits.wall_s
        return float("inf") if limit_s is None else limit_s - self.history.wall_now_s(self.clock())

    def _left_node_hours(self) -> float:
        limit = self.limits.node_hours
        return float("inf") if limit is None else limit - self.history.node_hours
