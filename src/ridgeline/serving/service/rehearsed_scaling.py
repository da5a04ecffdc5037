"""A service scaled on the twin in virtual time: an hour of traffic in seconds, decided by the same rules as `keep`.

Servers are the twin's engines behind a router that sends each request to the one with the least load. Nothing is
started and nothing is real here: not the router's own limits, and not how long an engine needs to start, which is
given.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil, inf

from ridgeline.errors import InputError
from ridgeline.serving.model.model import Model
from ridgeline.serving.service.admission import twins_of
from ridgeline.serving.service.keep.keeper import POLL_EVERY_S
from ridgeline.serving.service.keep.scale import LoadHistory, RoleCount, RoleLoad, ScaleDecision, decide
from ridgeline.serving.service.service import RoleScale, ScaleRules, Service
from ridgeline.serving.traffic.requests import Slo, Summary, summarise
from ridgeline.serving.traffic.traffic import Arrival, parse_traffic
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.cluster import Router
from ridgeline.serving.twin.disaggregation import DecodeEngine, Disaggregated
from ridgeline.serving.twin.prefill import PrefillEngine
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.serving.twin.simulate import build, within_context

_QUIET_S = 30.0  # of a prefill server that is removed: prompts may still be on their way to it


@dataclass(frozen=True, slots=True)
class ScaledTraffic:
    """What is sent. From `double_at_s` on every request comes twice."""

    traffic: str
    rate_s: float | None = None
    seconds: float | None = None
    double_at_s: float | None = None
    seed: int = 7

    def arrivals(self, model: Model | None = None) -> list[Arrival]:
        """Those that the model's context holds, where one is named."""
        count = None if self.rate_s is None or self.seconds is None else max(1, int(self.rate_s * self.seconds))
        found = parse_traffic(self.traffic, seed=self.seed)
        if found.requests and found.arrivals()[-1].at_s == 0:
            if self.rate_s is None:
                raise InputError(f"{self.traffic} has no times; say how many come with --rate, such as --rate 10")
            found = parse_traffic(self.traffic, requests=count, rate_s=self.rate_s, seed=self.seed)
        elif self.rate_s is not None:
            found = parse_traffic(self.traffic, rate_s=self.rate_s, seed=self.seed)
        if model is not None:
            found, _ = within_context(found, model)
        rows = [a for a in found.arrivals() if self.seconds is None or a.at_s < self.seconds]
        if self.double_at_s is not None:
            rows = _doubled(rows, self.double_at_s)
        return [replace(arrival, number=number) for number, arrival in enumerate(rows)]


def _doubled(rows: Sequence[Arrival], from_s: float) -> list[Arrival]:
    """The second ones come between the first ones, so that they aren't bursts of two."""
    later = [arrival for arrival in rows if arrival.at_s >= from_s]
    gaps = [(b.at_s - a.at_s) / 2 for a, b in itertools.pairwise(later)]
    again = [replace(arrival, at_s=arrival.at_s + gap) for arrival, gap in zip(later, [*gaps, 0.0], strict=True)]
    return sorted([*rows, *again], key=lambda arrival: arrival.at_s)


@dataclass(frozen=True, slots=True)
class ScaledRun:
    """`servers` is (seconds, how many serve) by role whenever that changed; `server_hours` count their starts too."""

    decisions: tuple[tuple[float, ScaleDecision], ...]
    servers: tuple[tuple[float, str, int], ...]
    server_hours: float
    seconds: float
    summary: Summary
    kept_share: float | None  # of the requests, those within every limit

    @property
    def slo_held(self) -> bool | None:
        return all(self.summary.holds(slo) for slo in self.summary.slos) if self.summary.slos else None

    @property
    def turns(self) -> int:
        """How often a role went up after down or down after up."""
        found = 0
        for role in {decision.role for _, decision in self.decisions}:
            ups = [decision.change > 0 for _, decision in self.decisions if decision.role == role]
            found += sum(a != b for a, b in itertools.pairwise(ups))
        return found

    def as_json(self) -> dict[str, object]:
        rows = [
            {"at_s": at_s, "role": d.role, "from": d.replicas, "to": d.wanted, "why": d.why}
            for at_s, d in self.decisions
        ]
        ttft = self.summary.ttft_ms
        return {
            "decisions": rows,
            "servers": [list(row) for row in self.servers],
            "server_hours": self.server_hours,
            "seconds": self.seconds,
            "turns": self.turns,
            "ttft_p95_ms": None if ttft is None else ttft.p95,
            "slo_held": self.slo_held,
            "kept_share": self.kept_share,
        }


@dataclass(frozen=True, slots=True)
class RehearsedScaling:
    """The service as it is scaled, and the same traffic on numbers of servers that stay."""

    scaled: ScaledRun
    fixed: tuple[tuple[str, ScaledRun], ...]
    first_up_s: float | None  # the first decision to add after the load doubled, from then on

    def as_json(self) -> dict[str, object]:
        fixed = {name: run.as_json() for name, run in self.fixed}
        return {"scaled": self.scaled.as_json(), "fixed": fixed, "first_up_s": self.first_up_s, "origin": "modelled"}


def rehearse_scaling(
    service: Service,
    traffic: ScaledTraffic,
    start_s: float,
    begins: datetime,
    say: Callable[[str], None] = lambda line: None,
) -> RehearsedScaling:
    """`start_s` is how long a server takes to start; `begins` what time it is when the traffic does."""
    scale = service.scale
    if scale is None:
        raise InputError("the deployment file has no `scale`; add one, such as `scale: {both: {most: 4, running: 24}}`")
    arrivals = traffic.arrivals(twins_of(service)[0][0].model)
    say("scaled ...")
    scaled = _run(service, scale, arrivals, start_s, begins)
    first = None
    if (at_s := traffic.double_at_s) is not None:
        first = next((s - at_s for s, decision in scaled.decisions if s >= at_s and decision.change > 0), None)
    mean = scaled.server_hours * 3600 / scaled.seconds if scaled.seconds else 0.0
    fixed = []
    for name, numbers in _fixed_sizes(service, scale, mean).items():
        say(f"{name} ...")
        still = {role: RoleScale(least=number, most=number) for role, number in numbers.items()}
        sized = tuple(u.model_copy(update={"replicas": numbers.get(u.role, u.replicas)}) for u in service.units)
        own = replace(service, units=sized)
        fixed.append((name, _run(own, replace(scale, roles=still, most_servers=None), arrivals, start_s, begins)))
    return RehearsedScaling(scaled, tuple(fixed), first)


def _fixed_sizes(service: Service, scale: ScaleRules, mean: float) -> dict[str, dict[str, int]]:
    """Least, most, and about as many server-hours as the scaled run took."""
    least = {role: rule.least for role, rule in scale.roles.items()}
    most = {role: rule.most for role, rule in scale.roles.items()}
    others = sum(unit.replicas for unit in service.units if unit.role not in scale.roles)
    share = (mean - others - sum(least.values())) / max(1, sum(most.values()) - sum(least.values()))
    like = {role: least[role] + ceil(share * (most[role] - least[role]) - 0.01) for role in least}
    found: dict[str, dict[str, int]] = {}
    for numbers in (least, like, most):
        shown = ", ".join(f"{number} {role}" for role, number in numbers.items())
        found.setdefault(f"{shown} all the time", numbers)
    return found


class _Servers:
    """Engines of one service, those that start and leave among them."""

    def __init__(self, service: Service) -> None:
        kinds = twins_of(service)
        if len(kinds) > 1:
            raise InputError("two kinds of servers in one role cannot be scaled; make them one unit")
        front, engines, _ = build(replace(kinds[0][0], routing="least-load"), Calibration(), parse_traffic("sharegpt"))
        self._like = {_role(engine): engine for engine in engines}
        self.every: list[Engine] = list(engines)
        self.replicas: dict[str, int] = {unit.role: unit.replicas for unit in service.units}
        # routers choose among these very lists
        self.serving = {role: [engine for engine in engines if _role(engine) == role] for role in self.replicas}
        self.leaving: list[tuple[str, Engine, float]] = []
        self._apart = front if isinstance(front, Disaggregated) else None
        self._router = Router(self.serving["both"], "least-load") if self._apart is None else None
        if self._apart is not None:
            self._apart.endings_send = False
            self._apart.to_prefill.engines = self.serving["prefill"]
            self._apart.to_decode.engines = self.serving["decode"]
        for role, count in self.replicas.items():
            for _ in range(len(self.serving[role]), count):
                self.add(role)

    def add(self, role: str) -> None:
        like, number = self._like[role], sum(_role(engine) == role for engine in self.every)
        engine = type(like)(f"{role}{number}", like.times, like.pool_tokens)
        self.every.append(engine)
        self.serving[role].append(engine)
        if self._apart is not None:
            self._apart.add(engine)

    def remove(self, role: str, at_s: float) -> None:
        self.leaving.append((role, self.serving[role].pop(), at_s))

    def empty(self, at_s: float) -> list[str]:
        """Roles of those that have finished what they had, which are gone now."""
        done = [row for row in self.leaving if row[1].load == 0 and at_s - row[2] >= _QUIET_S * (row[0] == "prefill")]
        self.leaving = [row for row in self.leaving if row not in done]
        return [role for role, _, _ in done]

    def advance(self, at_s: float) -> None:
        if self._apart is not None:
            while (now_s := self._apart.now_s) <= at_s and now_s < inf:
                self._apart.advance(at_s)
            return
        for engine in self.every:
            engine.advance_to(at_s)

    def send(self, arrival: Arrival) -> Request:
        self.advance(arrival.at_s)
        request = Request(arrival, arrival.at_s, arrival.input_tokens)
        if self._apart is not None:
            self._apart.send(request, arrival.at_s)
        else:
            assert self._router is not None
            self._router.choose(arrival).submit(request, arrival.at_s)
        return request

    def load(self, role: str, at_s: float) -> RoleLoad:
        engines = self.serving[role]
        waiting = sum(engine.load - len(engine.running) for engine in engines)
        kv = sum(engine.used_tokens / engine.pool_tokens for engine in engines)
        return RoleLoad(at_s, sum(engine.load for engine in engines), waiting, kv)


def _role(engine: Engine) -> str:
    return "prefill" if isinstance(engine, PrefillEngine) else "decode" if isinstance(engine, DecodeEngine) else "both"


def _run(
    service: Service, scale: ScaleRules, arrivals: Sequence[Arrival], start_s: float, begins: datetime
) -> ScaledRun:
    servers, history = _Servers(service), LoadHistory(scale.down_after_s)
    ratios = {role: float(number) for role, number in servers.replicas.items()}
    starting: deque[tuple[float, str]] = deque()
    decisions: list[tuple[float, ScaleDecision]] = []
    shown = [(0.0, role, len(engines)) for role, engines in servers.serving.items()]
    requests: list[Request] = []
    now_s, sent, busy_s, end_s = 0.0, 0, 0.0, arrivals[-1].at_s

    def changed(role: str, change: int = 0) -> None:
        history.change(role, now_s, change)
        shown.append((now_s, role, len(servers.serving[role])))

    while now_s < end_s:
        now_s += POLL_EVERY_S
        while sent < len(arrivals) and arrivals[sent].at_s < now_s:
            requests.append(servers.send(arrivals[sent]))
            sent += 1
        servers.advance(now_s)
        there = sum(map(len, servers.serving.values())) + len(starting) + len(servers.leaving)
        busy_s += POLL_EVERY_S * there
        while starting and starting[0][0] <= now_s:
            _, role = starting.popleft()
            servers.add(role)
            changed(role)
        for role in servers.empty(now_s):
            changed(role)
        counts = {}
        for role in scale.roles:
            history.take(role, servers.load(role, now_s))
            waits, ends = sum(of == role for _, of in starting), sum(of == role for of, _, _ in servers.leaving)
            counts[role] = RoleCount(len(servers.serving[role]), waits, ends)
        for decision in decide(scale, begins + timedelta(seconds=now_s), now_s, counts, history, ratios):
            if not decision.change:
                continue
            decisions.append((now_s, decision))
            for _ in range(decision.change):
                starting.append((now_s + start_s, decision.role))
            for _ in range(-decision.change):
                servers.remove(decision.role, now_s)
            changed(decision.role, decision.change)
    servers.advance(inf)
    summary, kept_share = _summary(service, servers, requests)
    return ScaledRun(tuple(decisions), tuple(shown), busy_s / 3600, end_s, summary, kept_share)


def _summary(service: Service, servers: _Servers, requests: Sequence[Request]) -> tuple[Summary, float | None]:
    """And of the requests, the share within every limit."""
    slos = [Slo.parse(f"{name}={limit:g}") for name, limit in service.slo.items()]
    records = [request.record() for request in requests]
    gaps = [gap for engine in servers.every for gap in engine.runs.gaps]
    kept = sum(all(slo.met_by(record) for slo in slos) for record in records) / len(records) if slos else None
    return summarise(records, slos, gaps_s=gaps), kept
