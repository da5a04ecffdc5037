"""Looks at runs that are under way and says which of them to end: those that write without end, and clear losers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ridgeline.campaign.early_stop import EarlyStops
from ridgeline.campaign.under_way import cut_output, too_much_output
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending
from ridgeline.study.codec import Event, event_of
from ridgeline.study.history import OpenRun


@dataclass
class RunMonitor:
    early_stops: EarlyStops
    record: Callable[[Event], None]
    _too_much: dict[int, str] = field(default_factory=dict)  # run -> what it wrote, for which it is ended

    def must_end(self, run: OpenRun) -> bool:
        """Whether it is to be ended now. True once: a controller that takes a run over asks `stop_recorded` first.

        An early stop is in the journal before this returns, so that nobody takes the ending for somebody's cancel.
        """
        if run.number in self._too_much or self.stop_recorded(run):
            return False
        study, workload = self.early_stops.study, self.early_stops.workload
        if excess := too_much_output(run.folder, workload.logs, study.job.output_bytes):
            self._too_much[run.number] = excess  # a full disk ends everybody
            return True
        if (found := self.early_stops.found(run)) is not None:
            self.record(event_of(found))
            return True
        return False

    def stop_recorded(self, run: OpenRun) -> bool:
        """Whether the journal says that it was to be stopped early."""
        return run.number in self.early_stops.history.early_stops

    def ended(self, run: OpenRun, ending: Ending) -> tuple[Ending, Outcome | None]:
        """How it ended, given what was asked of it; with an outcome where nothing it wrote can say more."""
        if run.number in self._too_much:
            study, workload = self.early_stops.study, self.early_stops.workload
            cut_output(run.folder, workload.logs, study.job.output_bytes)
            return replace(ending, cause=Cause.OUTPUT_LIMIT, reason=self._too_much.pop(run.number)), None
        if not run.folder.is_dir():
            reason = "its run folder was moved or deleted while it ran"
            return replace(ending, cause=Cause.LOST, reason=reason), None
        if ending.cause is Cause.CANCELLED and self.stop_recorded(run):
            why = self.early_stops.history.early_stops[run.number].why
            return ending, Outcome(Kind.STOPPED_EARLY, why)
        return ending, None
