"""Search runs that are clearly worse than the best so far are ended before they end themselves.

What decides is what the run shows while it lasts: the goal's values as it prints them, or, where the goal is the time a
run takes, the time that has passed. A stopped run has measured nothing: the journal says `stopped-early`, it is not
ranked, and the sampler observes an estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.short_runs import same_stretch_ratio, times_worse
from ridgeline.study.codec import EarlyStop
from ridgeline.study.history import History, OpenRun
from ridgeline.study.state_files import state_file
from ridgeline.workloads.base import Workload

POLL_EVERY_S = 2.0  # at one run: its output is read again each time
_STARTED_FILE = "machine"  # written on the node before anything of the job runs


def cannot_be_watched(study: Study, workload: Workload) -> str:
    """Why runs of this study show nothing before their end; empty where they do."""
    if _timed(study, workload) or (workload.streams):
        return ""
    return (
        f"nothing that a run writes shows its {study.goal.metric} before the end; leave it out, or take a goal that is "
        "printed again and again (`pick: last` or `mean`), or the run's time"
    )


@dataclass
class EarlyStops:
    """Looks at runs under way. `now_s` is the clock that stamps files."""

    study: Study
    history: History
    workload: Workload
    now_s: Callable[[], float] = time.time
    _polled_s: dict[int, float] = field(default_factory=dict)  # run -> when it was read last

    def found(self, run: OpenRun) -> EarlyStop | None:
        """Why this run should be ended now; None: let it run."""
        if self.study.search.stop_early is None or self.history.trials[run.trial].stage is not Stage.SEARCH:
            return None
        now_s = self.now_s()
        if 0 <= now_s - self._polled_s.get(run.number, 0.0) < POLL_EVERY_S:
            return None
        self._polled_s[run.number] = now_s
        best = self._best()
        if best is None:
            return None
        if _timed(self.study, self.workload):
            return self._by_time(run, best, now_s)
        return self._by_values(run, best)

    def _by_time(self, run: OpenRun, best: Run, now_s: float) -> EarlyStop | None:
        began = state_file(run.folder, _STARTED_FILE)
        if began is None or best.ending.duration_s <= 0:
            return None  # still in a queue
        passed_s = now_s - began.changed_s
        what = f"it had run for {passed_s:.4g} s, and the best, #{best.trial}, took {best.ending.duration_s:.4g} s"
        return self._decided(run, best, passed_s / best.ending.duration_s, what)

    def _by_values(self, run: OpenRun, best: Run) -> EarlyStop | None:
        own = self.workload.streamed(run.folder)
        minimize = self.study.goal.direction == "minimize"
        ratio = same_stretch_ratio(own, self.workload.streamed(best.folder), minimize)
        if ratio is None:
            return None
        what = f"its {self.study.goal.metric} was {ratio:.3g} times that of the best, #{best.trial}, at the same point"
        return self._decided(run, best, ratio, what)

    def _decided(self, run: OpenRun, best: Run, ratio: float, what: str) -> EarlyStop | None:
        limit = self.study.search.stop_early
        assert limit is not None
        if times_worse(ratio, self.study.goal.direction == "minimize") < limit:
            return None
        return EarlyStop(run.number, best.number, ratio, f"{what}; not measured")

    def _best(self) -> Run | None:
        goal = self.study.goal
        runs = [run for _, run in self.history.ok_runs(Stage.BASELINE, Stage.SEARCH, Stage.SENTINEL)]
        return max(runs, key=lambda run: goal.score(run.metrics[goal.metric]), default=None)


def _timed(study: Study, workload: Workload) -> bool:
    """Whether the goal is the time of a run, to be small: then the time that passed is a bound for it."""
    return study.goal.direction == "minimize" and study.goal.metric in workload.run_times
