"""What a service's journal says: who was started, what is being done to whom, and what `keep` did lately.

The only replay of it: the verbs of `service` and `watch` all read a service through this.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ridgeline.serving.service.members import first_slot

# events of a service's journal: `keep` takes a member out and starts it again, or could not
RESTART, RESTART_FAILED = "mend", "mend-failed"
DEAD_WAITS_S = (0.0, 15.0, 60.0, 240.0, 600.0)  # before a member that died again is started again
RESTARTS_WITHIN_S = 1800.0  # restarts of a member that count
_POLLED_S = 30.0  # within so much of the end of its wait a member that waited is started again
STEADY_S = 300.0  # a member that served for so long was cured by its last restart: the next trouble is a new one


def _dead_wait_s(deaths: int) -> float:
    return DEAD_WAITS_S[min(deaths, len(DEAD_WAITS_S) - 1)]


@dataclass
class Started:
    """The latest start of a member. Without a ticket it was planned and perhaps never handed over."""

    generation: int
    ticket: str = ""
    ended: str = ""  # why, once its end was seen
    ready: bool = False
    at_s: float = 0.0  # when it was planned, wall-clock time, as all times of the journal
    ready_at_s: float = 0.0
    trial: bool = False  # by `restart --canary`, with settings that were not accepted

    @property
    def serves(self) -> bool:
        return self.ready and not self.ended


@dataclass
class ServiceHistory:
    """What an act still has to do follows from its lines alone, so that whoever comes next can go on with it.

    A member that is `leaving` is ended when it is empty and started again, one that is `retiring` is only ended, one
    that was planned without a ticket is handed over, one that is ready and neither drained nor leaving is in the
    router.
    """

    started: dict[str, Started] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)  # by hand, and not put back yet
    leaving: dict[str, float] = field(default_factory=dict)  # out of the router; ended then, or earlier when empty
    by_command: set[str] = field(default_factory=set)  # those of them that a person's command restarts
    retiring: dict[str, float] = field(default_factory=dict)  # the same for one whose replacement serves
    retired: set[str] = field(default_factory=set)  # ended by that, and not started since
    replacing: dict[str, str] = field(default_factory=dict)  # member -> the one that will take its place
    not_replaced: dict[str, float] = field(default_factory=dict)  # when that failed last
    second: set[str] = field(default_factory=set)  # servers that run in their second slot: they were replaced
    before_coming: dict[str, int] = field(default_factory=dict)  # generation of one that replaces, before that
    keeper_restarts: dict[str, list[tuple[float, str]]] = field(default_factory=dict)  # when, and why
    retries: dict[str, float] = field(default_factory=dict)  # member -> when an action that failed is tried again
    is_down: bool = False  # or on its way there

    def replay(self, events: Iterable[Mapping[str, Any]]) -> None:
        """From the beginning."""
        self._forget()
        self.started.clear()
        self.is_down = False
        for event in events:
            self.apply(event)

    def apply(self, event: Mapping[str, Any]) -> None:
        name, what, at_s = str(event.get("member", "")), event["event"], float(event.get("at", 0.0))
        if what == "planned":
            self.started[name] = Started(int(event["generation"]), at_s=at_s, trial=bool(event.get("trial")))
            self.leaving.pop(name, None)
            self.retired.discard(name)
        elif what == RESTART:
            if self._was_steady(name, at_s):
                self.keeper_restarts.pop(name, None)
            self.keeper_restarts.setdefault(name, []).append((at_s, str(event.get("why", ""))))
            self.leaving[name] = float(event.get("until", at_s))
        elif what == RESTART_FAILED:
            self.retries[name] = at_s + float(event.get("again_s", 0.0))
        elif what == "leaving":
            self.leaving[name] = float(event.get("until", at_s))
            (self.by_command.add if event.get("command") else self.by_command.discard)(name)
        elif what == "replacing":
            self.replacing[name] = str(event["by"])
            self.before_coming[str(event["by"])] = self.generation(str(event["by"]))
        elif what == "replaced":
            self.replacing.pop(name, None)
            self.second ^= {first_slot(name)}
            self.retiring[name] = float(event["until"])
        elif what == "replace-failed":
            self.replacing.pop(name, None)
            self.not_replaced[name] = at_s
        elif what == "retired":
            self.retiring.pop(name, None)
            self.retired.add(name)
        elif what == "drained":
            self.drained.add(name)
            self.leaving.pop(name, None)
        elif what == "back":
            self.drained.discard(name)
            self.leaving.pop(name, None)
        elif what == "down":
            self._forget()
        elif (start := self.started.get(name)) is None:
            pass
        elif what == "submitted":
            start.ticket = str(event["ticket"])
            self.retries.pop(name, None)
        elif what == "ready":
            start.ready, start.ready_at_s = True, at_s
        elif what == "accepted":
            start.trial = False
        elif what == "ended":
            start.ended = str(event["reason"]) or "ended"
        if what in ("down", "going-down"):
            self.is_down = True
        elif what in ("planned", "going-up"):
            self.is_down = False

    def _forget(self) -> None:
        """What a service that is taken down leaves behind for the next one: nothing but who runs where."""
        for each in fields(ServiceHistory):
            if each.name not in ("started", "is_down"):
                getattr(self, each.name).clear()

    # what follows from it

    def serves(self, name: str) -> bool:
        return name in self.started and self.started[name].serves

    def generation(self, name: str) -> int:
        """Of its latest start; 0 where there was none."""
        return self.started[name].generation if name in self.started else 0

    @property
    def commanded(self) -> set[str]:
        """Whom a person's command restarts, or tries settings on; as long as it runs, others leave them alone."""
        tried = {name for name, start in self.started.items() if start.trial}
        return (self.by_command & self.leaving.keys()) | tried

    @property
    def moving(self) -> set[str]:
        """Whom something is being done to: what they show meanwhile says nothing about how they are."""
        return {*self.leaving, *self.retiring, *self.replacing.values()} | self.commanded

    @property
    def out(self) -> set[str]:
        """Who is not in the router, or shall not be."""
        return self.moving | self.drained

    def was_started(self, name: str) -> bool:
        """One that replaces another: since it began to, not at an earlier time."""
        return self.generation(name) > self.before_coming.get(name, 0)

    def restarts(self, name: str, why: tuple[str, ...] = ()) -> list[float]:
        """When `keep` started it again lately, for one of these reasons or any; none where it has served well since."""
        now_s = time.time()
        restarts = () if self._was_steady(name, now_s) else self.keeper_restarts.get(name, ())
        return [at_s for at_s, own in restarts if now_s - at_s < RESTARTS_WITHIN_S and (not why or own in why)]

    def _was_steady(self, name: str, at_s: float) -> bool:
        """Whether it had served for long by then; time that it spent dead in back-off is no service."""
        start, before = self.started.get(name), self.keeper_restarts.get(name, ())
        if start is None or not start.ready or at_s - start.ready_at_s < STEADY_S:
            return False
        if before and before[-1][0] > start.ready_at_s:
            return False  # it is being restarted
        deaths = [s for s, why in before if why == "dead" and at_s - s < RESTARTS_WITHIN_S]
        return not deaths or at_s > deaths[-1] + _dead_wait_s(len(deaths)) + _POLLED_S

    def next_try_in_s(self, name: str) -> float:
        """Until `keep` starts a member again that has ended; 0: at its next poll. What keeps dying waits longer.

        Only deaths count: a server that hung and was started again has not shown that its start fails.
        """
        lately = self.restarts(name, ("dead",))
        next_s = max(lately[-1] + _dead_wait_s(len(lately)) if lately else 0.0, self.retries.get(name, 0.0))
        return max(0.0, next_s - time.time())
