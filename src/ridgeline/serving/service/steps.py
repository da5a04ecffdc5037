"""What becomes of a member, step by step: out of the router, ended, started again, ready, back.

No step waits for a server. Each goes on with what the journal says was begun, so that `keep`, a person's command and
whoever comes after one that was killed all take the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.serving.service import probe
from ridgeline.serving.service.members import Member
from ridgeline.serving.service.operate import DRAIN_S, Operator
from ridgeline.serving.service.router_admin import RouterAdmin
from ridgeline.serving.service.servers import server_of
from ridgeline.serving.service.service import Service

_TOKEN_S = 30.0  # for the first token of a server that was added or takes another's place


class Steps:
    """`alert` gets a kind, a member and what a person may have to know."""

    def __init__(
        self, operator: Operator, alert: Callable[[str, str, str], None] = lambda kind, member, text: None
    ) -> None:
        self._operator, self._alert = operator, alert

    def admin(self) -> RouterAdmin | None:
        router = self._operator.router
        url = self._operator.folder.url(router) if router is not None else ""
        return RouterAdmin(url, self._operator.key) if url else None

    def listed(self) -> dict[str, dict[str, Any]] | None:
        """The servers that the router knows; None where there is none, or it does not answer."""
        admin = self.admin()
        try:
            return admin.workers() if admin is not None else None
        except (OSError, ValueError, RidgelineError):
            return None

    def go_on(self, member: Member, listed: Collection[str] | None) -> None:
        """The next step of what was begun with it, by us or by somebody who was killed."""
        operator, folder = self._operator, self._operator.folder
        start = folder.started.get(member.name)
        known = listed is not None and folder.url(member) in listed
        comes = member.name in folder.growing or member.name in folder.replacing.values()
        if member.name in folder.commanded and folder.is_commanded():
            return  # whoever restarts it, or tries settings on it, is still at it
        if member.name in folder.retiring:
            self._retire(member, known)
        elif member.name in folder.leaving:
            self.leave(member, folder.generation(member.name), listed=known)
        elif start is None or (not start.ticket and not start.ended):
            operator.ensure(member)  # planned, and whoever did so never handed it over
        elif start.trial:
            self._end_trial(member)
        elif comes and start.ended and not folder.was_started(member.name):
            operator.ensure(member)  # it ran at an earlier time, and whoever wanted it back never started it
        elif comes and (start.ended or operator.ending(member) is not None):
            self._did_not_come(member)
        elif not start.ended and not start.ready:
            self._note_ready(member)
        elif start.serves and comes:
            self._arrive(member)
        elif known and member.name in folder.drained:
            self.take_out(member)

    def take_out(self, member: Member, strict: bool = False) -> None:
        """As far as the router lets it be done; its own health checks find a server that is gone.

        `strict`: what the router has against it is an error.
        """
        admin, url = self.admin(), self._operator.folder.url(member)
        if admin is None or not url or member.is_router:
            return
        try:
            admin.take_away(url)
        except (RidgelineError, OSError) as error:
            if strict:
                raise
            self._operator.say(f"{member.name}: the router keeps it: {error}")

    def put_back(self, member: Member, how: str = "serves again") -> None:
        operator, admin = self._operator, self.admin()
        with operator.action():
            operator.folder.record({"event": "back", "member": member.name})
            if member.is_router:
                self._keep_out_what_was_drained()
            elif admin is not None:
                admin.add(operator.folder.url(member), member.role)
            operator.say(f"{member.name}: {how}")
        self._alert("serves-again", member.name, f"at {operator.folder.url(member)}")

    def may_end(self, member: Member, until_s: float) -> bool:
        """It has nothing to finish, or no time left for it."""
        operator = self._operator
        start = operator.folder.started.get(member.name)
        if start is None or start.ended or time.time() >= until_s:
            return True
        metric = server_of(operator.service.engine).metrics.running
        return probe.metrics(operator.folder.url(member)).get(metric, 0.0) <= 0

    def leave(
        self,
        member: Member,
        generation: int,
        settings: Service | None = None,
        trial: bool = False,
        *,
        listed: bool = False,
    ) -> bool:
        """Ended once it is empty or out of time, then started: as it was accepted, or with these settings.

        Whether it was started since this generation, by us or by somebody else.
        """
        operator, folder = self._operator, self._operator.folder
        start = folder.started.get(member.name)
        if listed and start is not None and not start.ended:
            self.take_out(member)
        if not self.may_end(member, folder.leaving.get(member.name, 0.0)):
            return False
        with operator.action():
            if member.name not in folder.leaving or folder.is_down or folder.generation(member.name) != generation:
                return True  # somebody else was quicker
            if not operator.cancel(member):
                return False
            named = {m.name: m for m in (operator.proposed() if trial else operator.present)}
            operator.ensure(named.get(member.name, member), settings, trial)
        return True

    def _end_trial(self, member: Member) -> None:
        """Whoever tried settings on it is gone: it goes back to those that were accepted."""
        with self._operator.action():
            self._operator.folder.record({"event": "leaving", "member": member.name, "why": "its trial was given up"})
        self._operator.say(f"{member.name}: its trial was given up; started again as it was accepted")

    def _retire(self, member: Member, listed: bool) -> None:
        if listed:
            self.take_out(member)
        if not self.may_end(member, self._operator.folder.retiring[member.name]):
            return
        with self._operator.action():
            if self._operator.cancel(member):
                self._operator.folder.record({"event": "retired", "member": member.name})

    def _did_not_come(self, member: Member) -> None:
        """One that was to take another's place, or to be added, has ended before it served."""
        operator, folder = self._operator, self._operator.folder
        grows = member.name in folder.growing
        with operator.action():
            operator.note_ending(member)
            if grows:
                role = folder.growing[member.name]
                folder.record({"event": "grow-failed", "member": member.name, "role": role})
            else:
                folder.record({"event": "replace-failed", "member": self._replaced_by(member)})
        kind = "scale-failed" if grows else "replace-failed"
        self._alert(kind, member.name, f"ended before it served: {folder.started[member.name].ended}")

    def _note_ready(self, member: Member) -> None:
        """A member that was started, by us or by somebody who was killed, and answers now."""
        operator = self._operator
        if not operator.is_ready(member):
            return
        with operator.action():
            operator.folder.record({"event": "ready", "member": member.name, "url": operator.folder.url(member)})
        if member.name in operator.folder.growing or member.name in operator.folder.replacing.values():
            self._arrive(member)
        elif member.name not in operator.folder.drained:
            self.put_back(member)

    def _arrive(self, member: Member) -> None:
        """One that was added, or takes another's place, and is ready: into the router with a token from it."""
        operator, folder, admin = self._operator, self._operator.folder, self.admin()
        grows = member.name in folder.growing
        if grows and (admin is None or not self._makes_token(member)):
            return
        if admin is not None:
            admin.add(folder.url(member), member.role)
        if not grows and not self._makes_token(member):
            return
        old = "" if grows else self._replaced_by(member)
        with operator.action():
            if member.name in folder.growing:
                folder.record({"event": "grown", "member": member.name})
            elif folder.replacing.get(old) == member.name:
                until_s = round(time.time() + DRAIN_S, 3)
                folder.record({"event": "replaced", "member": old, "by": member.name, "until": until_s})
            operator.apply_journal()
        operator.say(f"{member.name}: serves{f' in place of {old}' if old else ''}")

    def _makes_token(self, member: Member) -> bool:
        return self._operator.ask_for_token(member, _TOKEN_S)

    def _keep_out_what_was_drained(self) -> None:
        """A router that starts knows every server of its command line."""
        admin, folder = self.admin(), self._operator.folder
        for member in self._operator.servers:
            if member.name in folder.drained | folder.leaving.keys() and admin is not None and folder.url(member):
                admin.take_away(folder.url(member))

    def _replaced_by(self, member: Member) -> str:
        return next(old for old, by in self._operator.folder.replacing.items() if by == member.name)
