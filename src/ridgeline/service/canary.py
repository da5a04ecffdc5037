"""A change tried on one server of a role first, under the load it gets: then the others follow, or it goes back.

Servers are compared at the same moments by tokens a second for each request on them, running or waiting: what its users
notice. The change goes on only where it is shown to cost them no more than `LOSS`; without that it goes back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ridgeline.errors import InputError, SiteError
from ridgeline.files import read_text
from ridgeline.service import probe
from ridgeline.service.keep.watch import ServerPoll, poll_from
from ridgeline.service.members import Member
from ridgeline.service.operate import Operator
from ridgeline.service.rolling import RouterAdmin, drain, restart, start_again
from ridgeline.service.scripts import START_FILE

LOSS = 0.1  # of the others' speed, which a change may cost
STEP_S = 5.0  # between two polls: long enough for a mean of many tokens
ERROR = 0.05  # how often a change that costs exactly LOSS would go on, or back, by chance

Polls = Mapping[str, ServerPoll]


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """`ratio` is the canary's speed over the others', between `low` and `high`; None: nothing to compare."""

    goes_on: bool
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def judge(canary: str, others: Sequence[str], rows: Sequence[Polls]) -> CanaryVerdict:
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
    if low >= 1 - LOSS:
        return CanaryVerdict(True, seen, middle, low, high)
    why = "slower" if high < 1 - LOSS else f"not shown to keep {1 - LOSS:.0%} of it"
    return CanaryVerdict(False, f"{seen}: {why}", middle, low, high)


def canary_restart(
    operator: Operator,
    members: Sequence[Member],
    limit_s: float,
    watch_s: float,
    polls: Callable[[], Polls] | None = None,
) -> None:
    """Restarts all `members`, role by role: one, which is watched, then the others. SiteError where one went back."""
    roles = dict.fromkeys(member.role for member in members)
    for role in roles:
        if sum(member.role == role for member in members) < 2:
            what = "server" if role == "both" else f"{role} server"
            raise InputError(f"there is one {what}, and nothing to compare it with; restart without --canary")
    for role in roles:
        first, *others = [member for member in members if member.role == role]
        script = operator.folder.of(first) / START_FILE
        before = read_text(script)
        verdict = _tried(operator, first, others, limit_s, watch_s, polls or (lambda: _poll(operator)))
        operator.say(f"{first.name}: {verdict.reason}")
        if not verdict.goes_on:
            _go_back(operator, first, before, limit_s)
            raise SiteError(
                f"{verdict.reason}; {first.name} runs as it did before, and no other server was restarted for it. "
                "Correct the file and try again, or restart all of them with --rolling alone"
            )
        restart(operator, others, limit_s)


def _tried(
    operator: Operator,
    canary: Member,
    others: Sequence[Member],
    limit_s: float,
    watch_s: float,
    polls: Callable[[], Polls],
) -> CanaryVerdict:
    try:
        restart(operator, [canary], limit_s)
    except SiteError as error:
        return CanaryVerdict(False, str(error))
    rows = [polls()]
    for _ in range(math.ceil(watch_s / STEP_S)):
        time.sleep(min(STEP_S, watch_s))
        rows.append(polls())
        if rows[-1][canary.name].ended:
            break
    return judge(canary.name, [member.name for member in others], rows)


def _go_back(operator: Operator, member: Member, script: str, limit_s: float) -> None:
    """Started as it was; only what a batch system is asked for is the new file's."""
    folder = operator.folder
    assert operator.router is not None, "a service of several servers has one"
    if operator.ending(member) is None and folder.url(member):
        drain(operator, member)
    start_again(operator, member, folder.started[member.name].generation, script)
    operator.until_ready([member], limit_s)
    with operator.action():
        folder.record({"event": "back", "member": member.name})
        RouterAdmin(folder.url(operator.router), operator.key).add(folder.url(member), member.role)
    operator.say(f"{member.name}: serves again, as before")


def _poll(operator: Operator) -> Polls:
    now_s = time.monotonic()
    found = {}
    for member in operator.servers:
        if (ending := operator.ending(member)) is not None:
            found[member.name] = ServerPoll(now_s, ended=ending.reason or str(ending.cause), role=member.role)
        else:
            page = probe.metrics_page(operator.folder.url(member))
            found[member.name] = poll_from(operator.service.engine, member.role, page, now_s)
    return found


def _speed(names: Sequence[str], before: Polls, after: Polls) -> float | None:
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
        if 2 * chance > ERROR:
            break
        below += 1
    return below if below >= 0 else None
