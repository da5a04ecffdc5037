"""A deployed service from the journal that `service up` and `keep` write: what runs, what was repaired, and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.errors import StoreError
from ridgeline.files import stamp
from ridgeline.records.secrets import masked
from ridgeline.records.space import Knob, Point
from ridgeline.report.live.snapshot import EventLine, Gauge, RunningRun, Snapshot, State
from ridgeline.serving.service.history import RESTART, RESTART_FAILED, ServiceHistory
from ridgeline.study.instructions import Instruction
from ridgeline.study.journal import read_events
from ridgeline.study.logs import last_lines

_EVENTS_SHOWN = 60
_TAIL_LINES = 20
_SPEAK = ("why", "evidence", "reason", "url")  # details that need no name
_EVENT_TEXTS = {
    "going-up": "being started", "going-down": "being taken down", "down": "taken down", "planned": "to be started",
    RESTART: "taken out and restarted", RESTART_FAILED: "could not be restarted", "back": "back in service",
}  # fmt: skip
_RETIRED = "retired"  # another one has its place
BAD = (RESTART, RESTART_FAILED, "replace-failed", "ended")


def watched_service(path: Path) -> WatchedService | None:
    """None where no service is there."""
    return WatchedService(path) if is_service(path) else None


def is_service(path: Path) -> bool:
    return (path / "journal.jsonl").is_file() and (path / "members").is_dir() and not (path / "study.yaml").exists()


@dataclass
class WatchedService:
    """Read-only: `keep` has no instructions, and `service up` is a command."""

    path: Path
    _history: ServiceHistory = field(default_factory=ServiceHistory, init=False)

    def pulse(self) -> object:
        return [
            stamp(self.path / "journal.jsonl"),
            *(stamp(log) for name in self._history.started for log in self._logs(name)),
        ]

    def snapshot(self) -> Snapshot:
        name = self.path.name.removesuffix(".service")
        try:
            events = list(read_events(self.path / "journal.jsonl"))
        except StoreError as error:
            return Snapshot(name, State.DAMAGED, "", note=str(error), is_service=True)
        self._history.replay(events)
        restarts = Counter(str(event["member"]) for event in events if event["event"] == RESTART)
        is_down = self._history.is_down and all(start.ended for start in self._history.started.values())
        members = {name: _state(self._history, name) for name in self._history.started}
        members = {name: state for name, state in members.items() if state != _RETIRED}
        up = sum(state == "ready" for state in members.values())
        return Snapshot(
            name,
            State.STOPPED if is_down else State.RUNNING,
            "" if is_down else "according to the journal",
            headline="Taken down" if is_down else f"{up} of {len(members)} members ready",
            gauges=(
                Gauge("members ready", f"{up} of {len(members)}", up / len(members) if members else None),
                Gauge("taken out and restarted", _times(restarts.total())),
            ),
            running=[self._shown(name, state, restarts[name]) for name, state in members.items()],
            events=[_said(event) for event in reversed(events[-_EVENTS_SHOWN:])]
            or [EventLine("", "nothing has happened yet")],
            is_service=True,
        )

    def _shown(self, name: str, state: str, restarts: int) -> RunningRun:
        logs = self._logs(name)
        newest = max(logs, key=lambda log: log.stat().st_mtime, default=None) if logs else None
        restarted = f", restarted {_times(restarts)}" if restarts else ""
        title = f"{name}: {state}"
        named = "" if newest is None else newest.relative_to(self.path).as_posix()
        return RunningRun(
            0,
            title,
            f"start {self._history.generation(name)}{restarted}",
            "",
            "\n".join(last_lines(newest, _TAIL_LINES)),
            named,
        )

    def _logs(self, name: str) -> list[Path]:
        folder = self.path / "members" / name / "runs" / f"{self._history.generation(name):03d}"
        return [log for log in (folder / "stdout", folder / "stderr") if log.is_file() and log.stat().st_size]

    def knobs(self) -> tuple[Sequence[Knob], Point]:
        return (), {}

    def refusal(self, instruction: Instruction) -> str:
        return "a service takes no instructions here; use `ridgeline service`"

    def metrics(self) -> str:
        return ""

    def seen(self, name: str) -> None:
        return None

    def report(self) -> bytes:
        return b""


def _state(history: ServiceHistory, name: str) -> str:
    start, restarts = history.started[name], history.keeper_restarts.get(name, [])
    if name in history.retries:
        return "could not be repaired"
    if name in history.leaving:
        return "being restarted" if restarts and restarts[-1][0] >= start.at_s else "leaving"
    if name in history.retiring:
        return "leaving"
    if start.ended:
        return _RETIRED if name in history.retired else "ended"
    if start.ready:
        return (
            "drained" if name in history.drained else "ready, being replaced" if name in history.replacing else "ready"
        )
    return "starting" if start.ticket else "planned"


def _said(event: Mapping[str, Any]) -> EventLine:
    at = event.get("at")
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(at)) if isinstance(at, int | float) else ""
    member = f"{event['member']}: " if event.get("member") else ""
    details = {name: value for name, value in event.items() if name not in ("event", "at", "member") and value != ""}
    if isinstance(until := details.get("until"), int | float):
        details["until"] = time.strftime("%H:%M:%S", time.localtime(until))
    more = ", ".join(f"{value}" if name in _SPEAK else f"{name} {value}" for name, value in details.items())
    kind = str(event.get("event"))
    text = f"{member}{_EVENT_TEXTS.get(kind, kind)}{f' ({more})' if more else ''}"
    return EventLine(when, masked(text), event.get("event") in BAD)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
