"""What becomes of a member, step by step: out of the router, ended, started again, ready, back.

No step waits for a server. Each goes on with what the journal says was begun, so that `keep`, a person's command and
whoever comes after one that was killed all take the same ones. What a person does to servers while the others serve
(drain, put back, restart, try a change on one of them first) does wait, from step to step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from ridgeline.errors import InputError, RidgelineError, SiteError
from ridgeline.serving.service import probe
from ridgeline.serving.service.keep.watch import ServerPoll, poll_from
from ridgeline.serving.service.members import Member
from ridgeline.serving.service.operate import DRAIN_S, POLL_S, Operator
from ridgeline.serving.service.routers import RouterAdmin
from ridgeline.serving.service.service import Service

_TOKEN_S = 30.0  # for the first token of a server that takes another's place


class Steps:
    """`alert` gets a kind, a member and what a person may have to know."""

    def __init__(
        self, operator: Operator, alert: Callable[[str, str, str], None] = lambda kind, member, text: None
    ) -> None:
        self._operator, self._folder, self._alert = operator, operator.folder, alert

    def admin(self) -> RouterAdmin | None:
        router = self._operator.router
        url = self._folder.url(router) if router is not None else ""
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
        operator, folder = self._operator, self._folder
        start = folder.started.get(member.name)
        known = listed is not None and folder.url(member) in listed
        comes = member.name in folder.replacing.values()
        if member.name in folder.commanded and folder.is_commanded():
            return  # whoever restarts it, or tries settings on it, is still at it
        if member.name in folder.retiring:
            if known:
                self.take_out(member)
            if self.may_end(member, folder.retiring[member.name]):
                with operator.action():
                    if operator.cancel(member):
                        folder.record({"event": "retired", "member": member.name})
        elif member.name in folder.leaving:
            self.leave(member, folder.generation(member.name), listed=known)
        elif start is None or (not start.ticket and not start.ended):
            operator.ensure(member)  # planned, and whoever did so never handed it over
        elif start.trial:  # whoever tried settings on it is gone: it goes back to those that were accepted
            with operator.action():
                folder.record({"event": "leaving", "member": member.name, "why": "its trial was given up"})
            operator.say(f"{member.name}: its trial was given up; started again as it was accepted")
        elif comes and start.ended and not folder.was_started(member.name):
            operator.ensure(member)  # it ran at an earlier time, and whoever wanted it back never started it
        elif comes and (start.ended or operator.ending(member) is not None):
            with operator.action():
                operator.note_ending(member)
                folder.record({"event": "replace-failed", "member": self._replaced_by(member)})
            ended = folder.started[member.name].ended
            self._alert("replace-failed", member.name, f"ended before it served: {ended}")
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
        admin, url = self.admin(), self._folder.url(member)
        if admin is None or not url or member.is_router:
            return
        try:
            admin.take_away(url)
        except (RidgelineError, OSError) as error:
            if strict:
                raise
            self._operator.say(f"{member.name}: the router keeps it: {error}")

    def put_back(self, member: Member, how: str = "serves again") -> None:
        operator, folder, admin = self._operator, self._folder, self.admin()
        with operator.action():
            folder.record({"event": "back", "member": member.name})
            if admin is not None and not member.is_router:
                admin.add(folder.url(member), member.role)
            elif admin is not None:  # one that starts knows every server of its command line
                for server in operator.servers:
                    if server.name in folder.drained | folder.leaving.keys() and folder.url(server):
                        admin.take_away(folder.url(server))
            operator.say(f"{member.name}: {how}")
        self._alert("serves-again", member.name, f"at {folder.url(member)}")

    def may_end(self, member: Member, until_s: float) -> bool:
        """It has nothing to finish, or no time left for it."""
        start = self._folder.started.get(member.name)
        if start is None or start.ended or time.time() >= until_s:
            return True
        return self._operator.running(member) <= 0

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
        operator, folder = self._operator, self._folder
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

    def _note_ready(self, member: Member) -> None:
        """A member that was started, by us or by somebody who was killed, and answers now."""
        folder = self._folder
        if not self._operator.is_ready(member):
            return
        with self._operator.action():
            folder.record({"event": "ready", "member": member.name, "url": folder.url(member)})
        if member.name in folder.replacing.values():
            self._arrive(member)
        elif member.name not in folder.drained:
            self.put_back(member)

    def _arrive(self, member: Member) -> None:
        """One that takes another's place and is ready: into the router, with a token from it."""
        operator, folder, admin = self._operator, self._folder, self.admin()
        if admin is not None:
            admin.add(folder.url(member), member.role)
        if not operator.ask_for_token(member, _TOKEN_S):
            return
        old = self._replaced_by(member)
        with operator.action():
            if folder.replacing.get(old) == member.name:
                until_s = round(time.time() + DRAIN_S, 3)
                folder.record({"event": "replaced", "member": old, "by": member.name, "until": until_s})
            operator.apply_journal()
        operator.say(f"{member.name}: serves in place of {old}")

    def _replaced_by(self, member: Member) -> str:
        return next(old for old, by in self._folder.replacing.items() if by == member.name)


_SAY_AFTER_S = 10.0


def drain(operator: Operator, member: Member) -> None:
    """No new request goes to it, and what it had is finished; it keeps running until `restart` or `undrain`."""
    steps, until_s = _behind_router(operator, member), time.time() + DRAIN_S
    with operator.action():
        operator.folder.record({"event": "drained", "member": member.name, "url": operator.folder.url(member)})
        steps.take_out(member, strict=True)
    while not steps.may_end(member, until_s):
        time.sleep(POLL_S)
    if not steps.may_end(member, math.inf):
        raise SiteError(
            f"{member.name} still has requests after {DRAIN_S:g} s, and gets no new ones; wait, or end them with "
            f"`ridgeline service restart FILE {member.name} --force`"
        )
    operator.say(f"{member.name}: drained")


def undrain(operator: Operator, member: Member) -> None:
    """Back into the router, as it is."""
    steps = _behind_router(operator, member)
    if not operator.folder.serves(member.name) or not probe.is_healthy(operator.folder.url(member)):
        raise SiteError(f"{member.name} does not run; start it with `ridgeline service restart FILE {member.name}`")
    steps.put_back(member)


def restart(
    operator: Operator, members: Sequence[Member], limit_s: float, force: bool = False, trial: bool = False
) -> None:
    """One after the other: out of the router, ended, started as the file says, ready, back. The others serve meanwhile.

    A server has ten minutes for the requests that it has, or none with `force`. Killed at any point, it is finished by
    `keep`, or by the next `restart`: with the settings that it had, up to the moment at which it is started with
    those of the file. With `trial` these are not accepted by that.
    """
    proposed = {member.name: member for member in operator.proposed()}
    for name in [member.name for member in members]:
        if name not in proposed:
            raise InputError(f"{name} is no longer in the file; `ridgeline service down FILE` ends it with the others")
        _restart(operator, proposed[name], limit_s, operator.file, force, trial)


def _restart(
    operator: Operator,
    member: Member,
    limit_s: float,
    settings: Service | None = None,
    force: bool = False,
    trial: bool = False,
) -> None:
    """With these settings, or those that were accepted."""
    steps, folder = Steps(operator), operator.folder
    before = next((m for m in operator.present if m.name == member.name), member)
    began_s, generation = time.time(), folder.generation(member.name)
    # of a router, or a server without one, nobody takes the requests meanwhile: waiting only refuses more of them
    at_once = force or member.is_router or operator.router is None
    until_s = 0.0 if at_once else began_s + DRAIN_S
    with operator.action():
        folder.record({"event": "leaving", "member": member.name, "why": "restart", "until": until_s, "command": True})
        if operator.router is not None and not folder.url(operator.router):
            raise InputError(f"the router of {operator.service.name} is not up; start it with `ridgeline service up`")
        steps.take_out(before, strict=True)
    said = False
    while not steps.leave(before, generation, settings, trial):
        if not said and time.time() - began_s > _SAY_AFTER_S:
            said = True
            operator.say(f"{member.name}: waits for the requests that it has; `--force` would end them")
        time.sleep(POLL_S)
        operator.refresh()
    operator.until_ready([member], limit_s)
    steps.put_back(member, "serves again" if settings is not None else "serves again, as before")


def _behind_router(operator: Operator, member: Member) -> Steps:
    if member.is_router or operator.router is None:
        raise InputError(f"{member.name} is not behind a router; take the service down and up instead")
    if not operator.folder.url(operator.router):
        raise InputError(f"the router of {operator.service.name} is not up; start it with `ridgeline service up`")
    return Steps(operator)


def refuse_last(operator: Operator, member: Member) -> None:
    """InputError where no other server of its role is left in the router: users would be refused until it is back."""
    if not (url := operator.folder.url(member)):
        return
    listed = _behind_router(operator, member).listed()
    if listed is None:
        raise SiteError(
            f"the router of {operator.service.name} does not say which servers it has, and {member.name} may be the "
            "last; look at `ridgeline service status FILE`, and try again when the router answers"
        )
    others = [m for m in operator.servers if m.role == member.role and m.name != member.name]
    if url in listed and not any(operator.folder.url(other) in listed for other in others):
        role = "server" if member.role == "both" else f"{member.role} server"
        raise InputError(
            f"{member.name} is the last {role} in the router, and without it every request is refused; put another one "
            f"back first with `ridgeline service restart FILE NAME`, or end all of it with `ridgeline service down "
            "FILE`"
        )


# A change tried on one server of a role first, under the load it gets: then the others follow, or it goes back.
#
# Servers are compared at the same moments by tokens a second for each request on them, running or waiting: what its
# users notice. The change goes on only where it is shown to cost them no more than `LOSS`; without that it goes back.

_LOSS = 0.1  # of the others' speed, which a change may cost
STEP_S = 5.0  # between two polls: long enough for a mean of many tokens
_ERROR = 0.05  # how often a change that costs exactly LOSS would go on, or back, by chance

_Polls = Mapping[str, ServerPoll]


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """Whether the others follow, and what was seen."""

    goes_on: bool
    reason: str


def _judge(canary: str, others: Sequence[str], rows: Sequence[_Polls]) -> CanaryVerdict:
    """What rows of polls of all of them say, taken at the same moments."""
    if (last := rows[-1][canary] if rows else None) is not None and last.ended:
        return CanaryVerdict(False, f"{canary} ended: {last.ended}")
    ratios = [
        own / theirs
        for before, after in pairwise(rows)
        if (own := _speed([canary], before, after)) is not None
        and (theirs := _speed(others, before, after)) is not None
        and theirs > 0
    ]
    if (outside := _outside(len(ratios))) is None:
        seen = f"{canary} and the others had requests at the same time in {len(ratios)} polls"
        return CanaryVerdict(False, f"too little load to compare them: {seen}; watch for longer, or under load")
    ordered = sorted(ratios)
    middle, low, high = median(ordered), ordered[outside], ordered[-1 - outside]
    seen = f"{canary} makes {middle:.2f} of the others' tokens a second and request ({low:.2f} to {high:.2f})"
    if low >= 1 - _LOSS:
        return CanaryVerdict(True, seen)
    why = "slower" if high < 1 - _LOSS else f"not shown to keep {1 - _LOSS:.0%} of it"
    return CanaryVerdict(False, f"{seen}: {why}")


def canary_restart(
    operator: Operator,
    members: Sequence[Member],
    limit_s: float,
    watch_s: float,
    polls: Callable[[], _Polls] | None = None,
) -> None:
    """Restarts all `members`, role by role: one, which is watched, then the others. SiteError where one went back."""
    by_role = {role: [m for m in members if m.role == role] for role in dict.fromkeys(m.role for m in members)}
    proposed = {member.name: member for member in operator.proposed()}
    for role, alike in by_role.items():
        if len(alike) < 2:
            what = "server" if role == "both" else f"{role} server"
            raise InputError(f"there is one {what}, and nothing to compare it with; restart without --canary")
    for first, *others in by_role.values():
        if first.name in proposed and proposed[first.name].ports != first.ports:
            raise InputError("other ports cannot be tried on one server first; restart without --canary")
        verdict = _tried(operator, first, others, limit_s, watch_s, polls or (lambda: _poll(operator)))
        operator.say(f"{first.name}: {verdict.reason}")
        if not verdict.goes_on:
            _restart(operator, first, limit_s)  # as it was accepted, which the trial has not touched
            raise SiteError(
                f"{verdict.reason}; {first.name} runs as it did before, and no other server was restarted for it. "
                "Correct the file and try again, or restart all of them with --rolling alone"
            )
        assert operator.file is not None
        with operator.action():
            operator.accept_member(first.name, operator.file)
            operator.folder.record({"event": "accepted", "member": first.name})
        restart(operator, others, limit_s)


def _tried(
    operator: Operator,
    canary: Member,
    others: Sequence[Member],
    limit_s: float,
    watch_s: float,
    polls: Callable[[], _Polls],
) -> CanaryVerdict:
    try:
        restart(operator, [canary], limit_s, trial=True)
    except SiteError as error:
        return CanaryVerdict(False, str(error))
    rows = [polls()]
    for _ in range(math.ceil(watch_s / STEP_S)):
        time.sleep(min(STEP_S, watch_s))
        rows.append(polls())
        if rows[-1][canary.name].ended:
            break
    return _judge(canary.name, [member.name for member in others], rows)


def _poll(operator: Operator) -> _Polls:
    now_s = time.monotonic()
    found = {}
    for member in operator.servers:
        if (ending := operator.ending(member)) is not None:
            found[member.name] = ServerPoll(now_s, ended=ending.reason or str(ending.cause), role=member.role)
        else:
            page = probe.metrics_page(operator.folder.url(member))
            found[member.name] = poll_from(operator.service.engine, member.role, page, now_s)
    return found


def _speed(names: Sequence[str], before: _Polls, after: _Polls) -> float | None:
    """Tokens a second and request of these servers together between two polls; None where they had none on them."""
    pairs = [(before[name], after[name]) for name in names]
    known = [(a, b) for a, b in pairs if a.made is not None and b.made is not None and not b.ended]
    load_s = sum((a.on_it + b.on_it) / 2 * (b.at_s - a.at_s) for a, b in known)
    return sum(max(0.0, (b.made or 0.0) - (a.made or 0.0)) for a, b in known) / load_s if load_s > 0 else None


def _outside(count: int) -> int | None:
    """How many of so many ordered values lie below an interval for their median; None: too few for one."""
    below, chance = -1, 0.0
    while below + 1 < count / 2:
        chance += math.comb(count, below + 1) / 2**count
        if 2 * chance > _ERROR:
            break
        below += 1
    return below if below >= 0 else None
