"""How many servers a role should have: decided from the time, its limits, and what the servers showed.

Nothing is done here, and nothing is asked: `decide` is a function of what it is given. Servers are added fast: when the
mean of eight seconds is well above a target, or that of a minute a little (`UP`), or when requests rise so steeply that
they will be well above it in half a minute (`RISE_S`). They are removed slowly, one by one:
when one fewer would have stayed well below every target for all of `down_after_s`. Between the two lies a band in which
nothing happens, and a removal that had to be taken back makes the next one wait longer, so that noise doesn't add and
remove servers in turn. While a server starts nothing else is decided by load: what it will take over isn't known yet.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import fmean, pstdev

from ridgeline.serving.service.service import DAY_MIN, RoleScale, ScaleRules

UP = ((8.0, 0.15), (60.0, 0.05))  # seconds, and how far above its target, as a share, their mean must be
# A rise: the last seconds beside those before them. It counts where it is far beyond the noise of the load, and the
# load half of its target already; it is taken to go on for _AHEAD_S.
RISE_S, _AHEAD_S = (8.0, 30.0), 30.0
_RISE_NOISE, _RISE_FROM = 4.0, 0.5
_LEAST_POLLS = 3
_TAKEN_BACK_S, _LONGEST_WAIT = 3600.0, 8.0  # an addition so soon after a removal doubles the wait, up to so many times
_DOWN_SHARE = 0.75  # of a target, below which one fewer would have to stay
_BLOCK_S = 30.0  # the load of a long time is the largest mean of its blocks
_SETTLE_S = 30.0  # after a change, before the load says anything about the new number
_STEP = 0.25  # of the servers, where a signal says too few and not how many
_MOST_AT_ONCE = 2.0  # times as many as there are, in one decision


@dataclass(frozen=True, slots=True)
class RoleLoad:
    """One poll of the servers of a role that serve, summed over them. None: not known."""

    at_s: float
    requests: float  # on them, running or waiting
    waiting: float = 0.0
    kv_share: float | None = None


@dataclass(frozen=True, slots=True)
class RoleCount:
    """Servers of a role: those in the router, those that start, those that finish what they have and then end."""

    serving: int
    starting: int = 0
    leaving: int = 0

    @property
    def replicas(self) -> int:
        return self.serving + self.starting


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """From `replicas` to `wanted` servers. `short`: the load asks for more than the limits allow."""

    role: str
    replicas: int
    wanted: int
    why: str
    short: bool = False

    @property
    def change(self) -> int:
        return self.wanted - self.replicas


@dataclass
class LoadHistory:
    """Polls of every role, and when its number of servers changed last. `keep_s` is `down_after_s` of the rules."""

    keep_s: float
    loads: dict[str, deque[RoleLoad]] = field(default_factory=dict)
    changed_s: dict[str, float] = field(default_factory=dict)
    removed_s: dict[str, float] = field(default_factory=dict)
    caution: dict[str, float] = field(default_factory=dict)  # times the wait before a removal

    def take(self, role: str, load: RoleLoad) -> None:
        row = self.loads.setdefault(role, deque())
        if row and load.at_s < row[-1].at_s:
            row.clear()  # the clock was set back
        row.append(load)
        while row[-1].at_s - row[0].at_s > _LONGEST_WAIT * self.keep_s:
            row.popleft()

    def change(self, role: str, at_s: float, change: int = 0) -> None:
        """Servers were decided to be added or removed; 0: one that was, is there or gone now."""
        self.changed_s[role] = at_s
        if change < 0:
            self.removed_s[role] = at_s
        elif change > 0 and at_s - self.removed_s.pop(role, -math.inf) < _TAKEN_BACK_S:
            self.caution[role] = min(_LONGEST_WAIT, 2 * self.caution.get(role, 1.0))

    def since(self, role: str, at_s: float) -> list[RoleLoad]:
        latest = itertools.takewhile(lambda load: load.at_s > at_s, reversed(self.loads.get(role, ())))
        return list(latest)[::-1]

    def still_s(self, role: str, now_s: float) -> float:
        """How long the number of servers has been what it is."""
        return now_s - self.changed_s.get(role, -math.inf)


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What holds at a time, and why."""

    least: int
    most: int
    least_why: str
    most_why: str


def limits_at(rule: RoleScale, wall: datetime) -> ReplicaLimits:
    """The narrowest of the role's own limits and those of the schedule."""
    found = ReplicaLimits(rule.least, rule.most, f"least {rule.least}", f"most {rule.most}")
    minute = wall.weekday() * DAY_MIN + wall.hour * 60 + wall.minute
    for entry in rule.schedule:
        if not entry.holds_at(minute):
            continue
        if entry.most is not None and entry.most < found.most:
            found = replace(found, most=entry.most, most_why=f"{entry.text}: most {entry.most}")
        if entry.least is not None and entry.least > found.least:
            found = replace(found, least=entry.least, least_why=f"{entry.text}: least {entry.least}")
    return replace(found, least=min(found.least, found.most))


def decide(
    scale: ScaleRules,
    wall: datetime,
    now_s: float,
    counts: Mapping[str, RoleCount],
    history: LoadHistory,
    ratios: Mapping[str, float],
) -> list[ScaleDecision]:
    """What to change now, each with its reason; at most one decision a role.

    `ratios` is a role's share of servers in the deployment file: a role without targets follows the other by it.
    """
    now = _Now(scale, now_s, counts, history, {role: limits_at(rule, wall) for role, rule in scale.roles.items()})
    found: dict[str, ScaleDecision] = {}
    for role in scale.roles:
        if (decision := _by_limits_and_load(now, role)) is not None:
            found[role] = decision
    leaders = [role for role, rule in scale.roles.items() if rule.by_load]
    for role in scale.roles:
        if role not in found and role not in leaders and leaders:
            lead = leaders[0]
            leading = found[lead].wanted if lead in found else counts[lead].replicas
            if (decision := _follow(now, role, lead, leading, ratios[role] / ratios[lead])) is not None:
                found[role] = decision
    return list(_within_total(now, found))


@dataclass(frozen=True, slots=True)
class _Now:
    """All that a decision is made from."""

    scale: ScaleRules
    now_s: float
    counts: Mapping[str, RoleCount]
    history: LoadHistory
    limits: Mapping[str, ReplicaLimits]


def _by_limits_and_load(now: _Now, role: str) -> ScaleDecision | None:
    rule, limits, count = now.scale.roles[role], now.limits[role], now.counts[role]
    here = count.replicas
    if here < limits.least:
        return ScaleDecision(role, here, limits.least, limits.least_why)
    if here > limits.most:
        return _one_fewer(role, count, limits.most_why)
    if not rule.by_load:
        alone = not any(other.by_load for other in now.scale.roles.values())
        return _one_fewer(role, count, limits.least_why) if alone and here > limits.least else None
    if count.starting or not count.serving:
        return None
    return _more(role, rule, limits, now.now_s, count, now.history) or _fewer(now, role)


def _one_fewer(role: str, count: RoleCount, why: str) -> ScaleDecision | None:
    """One at a time, and never the last that serves."""
    if count.starting or count.leaving or count.serving < 2:
        return None
    return ScaleDecision(role, count.replicas, count.replicas - 1, why)


def _more(
    role: str, rule: RoleScale, limits: ReplicaLimits, now_s: float, count: RoleCount, history: LoadHistory
) -> ScaleDecision | None:
    if history.still_s(role, now_s) < _SETTLE_S:
        return None
    needs = [need for window in UP for need in _needs(rule, window, now_s, role, count.serving, history)]
    needs += _rising(rule, now_s, role, count.serving, history)
    asked = max(needs, default=None)
    if asked is None or asked[0] <= count.serving:
        return None
    need, why = asked
    wanted = min(need, int(_MOST_AT_ONCE * count.serving), limits.most)
    if wanted <= count.serving:
        return ScaleDecision(role, count.serving, count.serving, f"{why}; {limits.most_why}", short=True)
    return ScaleDecision(role, count.serving, wanted, why)


def _needs(
    rule: RoleScale, window: tuple[float, float], now_s: float, role: str, servers: int, history: LoadHistory
) -> Iterator[tuple[int, str]]:
    """How many servers each signal asks for, where it asks for more than there are."""
    seconds, above = window[0], 1 + window[1]
    row = history.since(role, max(now_s - seconds, history.changed_s.get(role, -math.inf)))
    if len(row) < _LEAST_POLLS or row[-1].at_s - row[0].at_s < 0.7 * seconds:
        return
    step = servers + max(1, math.ceil(_STEP * servers))
    on = f"{servers} servers" if servers > 1 else "1 server"
    for total, target, shown in _totals(rule, row):
        if total > target * servers * above:
            # load that rises is above its own mean
            latest = max([total, *(now for now, _, same in _totals(rule, row[-_LEAST_POLLS:]) if same is shown)])
            yield math.ceil(latest / target), f"{shown(latest / servers)} on each of {on}, target {shown(target)}"
    if rule.waiting is not None and (waiting := fmean(load.waiting for load in row) / servers) > rule.waiting * above:
        yield step, f"{waiting:.3g} requests wait on each of {on}, target {rule.waiting:g}"


def _rising(rule: RoleScale, now_s: float, role: str, servers: int, history: LoadHistory) -> Iterator[tuple[int, str]]:
    """How many servers requests will need that rise as they do."""
    recent_s, before_s = RISE_S
    row = history.since(role, max(now_s - recent_s - before_s, history.changed_s.get(role, -math.inf)))
    recent = [load.requests for load in row if load.at_s > now_s - recent_s]
    before = [load.requests for load in row if load.at_s <= now_s - recent_s]
    whole = len(recent) >= _LEAST_POLLS and len(before) >= _LEAST_POLLS and now_s - row[0].at_s >= 0.9 * sum(RISE_S)
    if rule.running is None or not whole:
        return
    now, was, target = fmean(recent), fmean(before), rule.running
    if now < _RISE_FROM * target * servers or now - was < _RISE_NOISE * math.sqrt(was):
        return
    if now - was < _RISE_NOISE * pstdev(before):
        return
    slope_s = (now - was) / (sum(RISE_S) / 2)
    ahead = now + slope_s * _AHEAD_S
    if ahead > target * servers * (1 + UP[0][1]):
        shown = (
            f"{_as_requests(now / servers)} on each of {servers}" if servers > 1 else f"{_as_requests(now)} on 1 server"
        )
        yield (
            math.ceil(ahead / target),
            f"{shown}, rising by {slope_s:.2g} a second: {_as_requests(ahead / servers)} on each in {_AHEAD_S:.0f} s, "
            f"target {_as_requests(target)}",
        )


def _as_requests(value: float) -> str:
    return f"{value:.3g} requests"


def _as_kv(value: float) -> str:
    return f"{value:.0%} of the KV pool"


def _totals(rule: RoleScale, row: Sequence[RoleLoad]) -> Iterator[tuple[float, float, Callable[[float], str]]]:
    """Signals that say how many servers are needed: the mean over all of them, the target of one, and how to say it."""
    if rule.running is not None:
        yield fmean(load.requests for load in row), rule.running, _as_requests
    used = [load.kv_share for load in row if load.kv_share is not None]
    if rule.kv is not None and used:
        yield fmean(used), rule.kv, _as_kv


def _fewer(now: _Now, role: str) -> ScaleDecision | None:
    count, history = now.counts[role], now.history
    here, wait_s = count.replicas, now.scale.down_after_s * history.caution.get(role, 1.0)
    if here <= now.limits[role].least or history.still_s(role, now.now_s) < wait_s:
        return None
    row = history.since(role, now.now_s - wait_s)
    covered = len(row) >= _LEAST_POLLS and row[-1].at_s - row[0].at_s >= 0.9 * wait_s
    if not covered or not _fits(now.scale.roles[role], row, here - 1):
        return None
    past = f"{wait_s:.0f} s" if wait_s < 120 else f"{wait_s / 60:.3g} min"
    why = f"{here - 1} would have carried the load of the last {past} below {_DOWN_SHARE:.0%} of every target"
    return _one_fewer(role, count, why)


def _fits(rule: RoleScale, row: Sequence[RoleLoad], servers: int) -> bool:
    """Whether so few would have stayed well below every target, in every block of this time."""
    for _, loads in itertools.groupby(reversed(row), lambda load: load.at_s // _BLOCK_S):
        block = list(loads)
        if any(total > _DOWN_SHARE * target * servers for total, target, _ in _totals(rule, block)):
            return False
        if rule.waiting is not None and fmean(b.waiting for b in block) > _DOWN_SHARE * rule.waiting * servers:
            return False
    return servers > 0


def _follow(now: _Now, role: str, lead: str, leading: int, ratio: float) -> ScaleDecision | None:
    """A role without targets of its own keeps the ratio of the file's units to the one that has them."""
    limits, count = now.limits[role], now.counts[role]
    wanted = min(max(math.ceil(leading * ratio - 1e-9), limits.least), limits.most)
    why = f"{wanted} {role} for {leading} {lead} servers, the ratio of the units"
    if wanted > count.replicas:
        return ScaleDecision(role, count.replicas, wanted, why)
    if wanted < count.replicas and now.history.still_s(role, now.now_s) >= now.scale.down_after_s:
        return _one_fewer(role, count, why)
    return None


def _within_total(now: _Now, found: Mapping[str, ScaleDecision]) -> Iterator[ScaleDecision]:
    """Never more than `most_servers` together: without room, a role that can spare a server gives its place."""
    total = now.scale.most_servers
    room = math.inf if total is None else total - sum(count.replicas + count.leaving for count in now.counts.values())
    blocked: list[ScaleDecision] = []
    for decision in found.values():
        if decision.change > 0 and room < 1:
            blocked.append(decision)
            continue
        granted = min(decision.change, room)
        room -= max(0, granted)
        yield replace(decision, wanted=decision.replicas + int(granted))
    if not blocked or any(decision.change < 0 for decision in found.values()):
        return
    for role, count in now.counts.items():
        rule = now.scale.roles[role]
        if role in found or not rule.by_load or count.replicas <= now.limits[role].least:
            continue
        row = now.history.since(role, now.now_s - UP[0][0])
        if len(row) >= _LEAST_POLLS and _fits(rule, row, count.replicas - 1):
            given = _one_fewer(role, count, f"gives its place to {blocked[0].role}: {blocked[0].why}")
            if given is not None:
                yield given
                return
    for decision in blocked:
        why = f"{decision.why}; most_servers {total}"
        yield replace(decision, wanted=decision.replicas, why=why, short=True)
