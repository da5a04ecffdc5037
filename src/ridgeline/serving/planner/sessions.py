"""How many sessions a layout holds within limits, what ends it, and whether KV in host memory pays.

Each number of sessions is one run of the twin, a closed loop of so many. Searches bracket and bisect, so that an answer
takes some ten runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from ridgeline.errors import InputError
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, also_in_json, in_json
from ridgeline.records.measurement import unit_of
from ridgeline.serving.engines.deployment import Deployment, describe
from ridgeline.serving.engines.fitting import with_room
from ridgeline.serving.engines.flags import engine_flags
from ridgeline.serving.engines.layout import Layout, rank_kv_bytes_per_token
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.engines.settings import EngineSettings, defaults_of, host_tier_values, parse_engine
from ridgeline.serving.hardware.cluster import GIB, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.candidates import PlanQuestion, colocated_units
from ridgeline.serving.planner.operating_point import varied
from ridgeline.serving.planner.planner import TAKE_OFF
from ridgeline.serving.planner.scheme import copied
from ridgeline.serving.traffic.requests import RequestRecord, Slo, Spread, summarise
from ridgeline.serving.traffic.session_mix import shared_by_all
from ridgeline.serving.traffic.traffic import Traffic, parse_traffic, sessions_at_once
from ridgeline.serving.twin.calibration import Calibration, read_calibration
from ridgeline.serving.twin.cluster import CACHE_AWARE, POLICIES
from ridgeline.serving.twin.served_runs import ENOUGH
from ridgeline.serving.twin.simulate import (
    SimulationResult,
    assumed_of,
    host_tier_gib,
    simulate,
    step_time,
    tier_assumed,
    within_context,
)

# A search ends when the number that fails is at most so many times the one that holds.
NEAR, _NEAR_TIER = 1.1, 1.25
# Sessions to begin with where the pool has room for more: a run of many takes long.
_FIRST_SESSIONS, MOST_SESSIONS = 64, 20_000
# How often a run of one session is made twice as long to have requests enough for a p95.
_DOUBLED = 6
# A run lacks room for KV where it must compute this many times what others did of their prompts, and so much more.
_MISSED_TIMES, _MISSED_MORE = 1.5, 0.02
_OWN_WORK = 0.3  # of TTFT: a prompt that takes so much of it by itself is what is slow
_BUSY = 0.5  # what goes on for more of the time than this is what requests wait for
UNATTRIBUTED = "can't be attributed"
EVERY_ROUTING = "all"
_HOST_GPU_BYTES = 256 * GIB  # of a node with 2 TiB and eight GPUs


@dataclass(frozen=True, slots=True)
class SessionsRequest:
    """What is to be served, on what, within which limits. Without a layout the best for all GPUs are compared; with
    `routing` all, the routers of its copies."""

    model: str
    gpu: str
    layout: Layout | None = None
    settings: EngineSettings | None = None
    engine: str = USUAL_ENGINE
    nodes: int = 1
    gpus_per_node: int = 8
    traffic: str = "sessions:agent"
    idle_cap_s: float | None = None
    start_within: float = 0.7
    duration_s: float = 1200.0
    slos: Sequence[str] = ()
    host_memory_gib: float | None = None
    routing: str = "cache-aware"
    fabric: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    calibration: str | Path | None = None
    seed: int = 0
    top: int = 3


@dataclass(frozen=True, slots=True)
class SessionLoad(JsonForm):
    """So many sessions at once, after their first requests, which find a cold cache.

    `live_tokens`: contexts of the sessions that are alive, what all of them begin with counted once. Shares are of the
    time: prefill steps, and copies from host memory. `slow_tokens`: what must be computed of a prompt on average, of
    the slowest twentieth. `host_tier`: its size as the engine counts it.
    """

    JSON_DIGITS = 4
    sessions: int
    holds: bool
    broken: tuple[str, ...]
    requests: int  # that latencies are of
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    requests_s: float
    hit_rate: float
    host_hit_rate: float
    live_tokens: int
    prefill_share: float
    host_share: float
    slow_tokens: int
    host_tier: float = 0.0

    @property
    def found(self) -> float:
        """Share of the prompt tokens that were found, wherever."""
        return self.hit_rate + self.host_hit_rate


@dataclass(frozen=True, slots=True)
class TierAdvice(JsonForm):
    """Whether KV in host memory lets a layout hold more sessions; the smallest size that does, and the flags for it."""

    pays: bool
    why: str
    sessions: int | None = None
    size: float | None = None
    flags: str = ""


@dataclass(frozen=True, repr=False)
class SessionsPlan(JsonForm, Shown):
    """`sessions` is the most that keep the limits (0: none does), `fails` the least that was seen to break one."""

    deployment: Deployment = field(metadata=in_json("layout", lambda deployment: str(deployment.layout)))
    limits: tuple[Slo, ...] = field(metadata=in_json(to=lambda limits: [str(slo) for slo in limits]))
    sessions: int
    fails: int | None
    cause: str
    why: str
    pool_tokens: int
    loads: tuple[SessionLoad, ...]
    host_tier: TierAdvice | None
    simulations: int
    reach: str = ""
    assumed: tuple[str, ...] = ()
    calibrated: bool = field(default=False, metadata=NOT_IN_JSON)

    @property
    @also_in_json()
    def routing(self) -> str:
        """What deals sessions to copies of the engine; empty where there is one."""
        return self.deployment.routing if self.deployment.layout.dp > 1 else ""

    def shown(self) -> TextTable:
        limits = ", ".join(map(str, self.limits))
        head = f"at most {self.sessions:,} sessions" if self.sessions else "no number of sessions"
        sure = "calibrated" if self.calibrated else "not calibrated"
        notes = [f"knee: {self.cause}, {self.why}"] if self.why else []
        if self.host_tier is not None:
            notes.append(f"host tier: {self.host_tier.why}")
            notes += [f"  {self.host_tier.flags}"] if self.host_tier.flags else []
        if any(load.requests < ENOUGH for load in self.loads):
            notes.append(f"p95 of fewer than {ENOUGH} requests says of how many; a longer --duration has more")
        notes += [f"reach: {self.reach}"] if self.reach else []
        notes += [f"left out: {text}" for text in self.deployment.model.notes]
        rows = tuple(self._row(load) for load in self.loads)
        columns = ("sessions", "TTFT p50", "TTFT p95", "TPOT p50", "hit GPU", "hit host", unit_of("requests_s"), "")
        what = ", ".join(filter(None, (str(self.deployment), self.routing)))
        title = f"{what}: {head} within {limits}   (modelled, {sure})"
        return TextTable(title, columns, rows, notes=(*notes, *(f"assumed: {text}" for text in self.assumed)))

    def _row(self, load: SessionLoad) -> tuple[str, ...]:
        ttft, tpot = load.ttft_ms, load.tpot_ms
        times = (ttft and ttft.p50, ttft and ttft.p95, tpot and tpot.p50)
        shown = ["-" if value is None else f"{value:,.0f} ms" for value in times]
        if ttft and load.requests < ENOUGH:
            shown[1] += f" of {load.requests}"
        advice = self.host_tier
        knees = [(0.0, self.sessions), (advice.size, advice.sessions) if advice else None]
        mark = "<- knee" if (load.host_tier, load.sessions) in knees else "" if load.holds else "breaks a limit"
        tier = f"host tier {load.host_tier:,.0f} " if load.host_tier else ""
        return (
            f"{load.sessions:,}",
            *shown,
            f"{load.hit_rate:.1%}",
            f"{load.host_hit_rate:.1%}",
            f"{load.requests_s:.2f}",
            f"{tier}{mark}".strip(),
        )


@dataclass(frozen=True, repr=False)
class SessionsAnswer(JsonForm, Shown):
    """A plan for each layout or router that was tried, the one that holds most sessions first."""

    traffic: str
    plans: tuple[SessionsPlan, ...]
    cpu_s: float

    @property
    def best(self) -> SessionsPlan:
        return self.plans[0]

    @property
    @also_in_json()
    def sessions(self) -> int:
        return self.best.sessions

    def shown(self) -> TextTable:
        return self.best.shown()


def plan_sessions(asked: SessionsRequest) -> SessionsAnswer:
    """How many sessions a layout holds within limits, where its knee is and why, and whether a host tier pays."""
    started_s = time.process_time()
    if asked.host_memory_gib is not None and not 0 <= asked.host_memory_gib < math.inf:
        raise InputError(f"--host-memory {asked.host_memory_gib:g} GiB is no memory; give 0 or more")
    if asked.top < 1:
        raise InputError(f"--top {asked.top} would compare no layout; use 1 or more")
    traffic = parse_traffic(
        asked.traffic,
        sessions=1,
        idle_cap_s=asked.idle_cap_s,
        start_within=asked.start_within,
        duration_s=asked.duration_s,
        seed=asked.seed,
    )
    calibration = read_calibration(Path(asked.calibration)) if asked.calibration else Calibration()
    slos = tuple(map(Slo.parse, asked.slos))
    searches, refused = list[_Search](), list[InputError]()
    for deployment in _deployments(asked, traffic, slos, calibration):
        try:
            search = _Search(deployment, traffic, calibration, slos)
            _require_host_memory(search, asked.host_memory_gib)
            search.alone_ms()
        except InputError as error:  # too small a pool for the longest request
            refused.append(error)
        else:
            searches.append(search)
    if not searches:
        raise refused[0]
    _limit_waiting(searches, slos)
    for search in searches:
        search.most()
    searches.sort(key=lambda search: -search.holding)
    host_bytes = _HOST_GPU_BYTES if asked.host_memory_gib is None else asked.host_memory_gib * GIB / asked.gpus_per_node
    plans = [search.plan(host_bytes if n == 0 else None) for n, search in enumerate(searches)]
    return SessionsAnswer(asked.traffic, tuple(plans), time.process_time() - started_s)


def _require_host_memory(search: _Search, has_gib: float | None) -> None:
    takes_gib = host_tier_gib(search.deployment, search.times.applied)
    if has_gib is not None and takes_gib > has_gib:
        raise InputError(
            f"the host tiers of a node take {takes_gib:,.0f} GiB, and --host-memory says {has_gib:g}; "
            "ask for a smaller --host-tier"
        )


def _deployments(
    asked: SessionsRequest, traffic: Traffic, slos: tuple[Slo, ...], calibration: Calibration
) -> Iterator[Deployment]:
    settings = parse_engine(asked.engine, asked.settings or EngineSettings())
    if asked.layout is not None:
        names = {name: getattr(asked, name) for name in ("fabric", "dtype", "kv_dtype", "routing")}
        found = with_room(describe(asked.model, asked.gpu, asked.layout, settings, **names))[0]
        if asked.routing == EVERY_ROUTING:
            if asked.layout.dp < 2:
                raise InputError("--routing all compares routers, and a single engine needs none; say --dp 2 or more")
            yield from (replace(found, routing=policy) for policy in POLICIES)
        else:
            yield found
        return
    if asked.routing == EVERY_ROUTING:
        raise InputError("--routing all compares the routers of one layout; say which, by --tp and --dp")
    model = load_model(asked.model).with_dtype(asked.dtype, asked.kv_dtype)
    cluster = make_cluster(asked.gpu, asked.nodes, asked.gpus_per_node, asked.fabric)
    arrivals = within_context(traffic, model)[0].arrivals()
    lengths = fmean(a.input_tokens for a in arrivals), fmean(a.output_tokens for a in arrivals)
    question = PlanQuestion(model, cluster, *lengths, slos, settings, calibration)
    units = varied(colocated_units(question, cluster.gpus))
    if not units:
        raise InputError(f"no layout of {model.name} fits {cluster} with such contexts; use more GPUs, or larger ones")
    for unit in units[: asked.top]:
        layout = copied(unit, cluster.gpus // unit.gpus)
        yield Deployment(model, cluster, layout, unit.settings, asked.routing)


def _limit_waiting(searches: Sequence[_Search], slos: Sequence[Slo]) -> None:
    """Where no limit says how long users wait, TTFT must not take off: the same limit for all layouts, so that none
    holds more for being slow when it is alone."""
    if not any(slo.latency in ("ttft", "e2e") for slo in slos):
        most_ms = TAKE_OFF * min(search.alone_ms() for search in searches)
        for search in searches:
            search.keep(Slo("ttft", "p95", float(f"{most_ms:.3g}")))


class _Search:
    """Runs of one deployment, each made once."""

    def __init__(
        self, deployment: Deployment, traffic: Traffic, calibration: Calibration, slos: tuple[Slo, ...]
    ) -> None:
        self.deployment, self.calibration, self.limits = deployment, calibration, slos
        if deployment.layout.disaggregated:
            raise InputError("sessions are planned for engines that both prefill and decode; leave the groups out")
        self.traffic, cut = within_context(traffic, deployment.model)
        self.times, _, pool = step_time(deployment, deployment.layout, "both", calibration)
        self.assumed = (*assumed_of(deployment), *tier_assumed(deployment, self.times.applied), *cut)
        self.rank_tokens = pool // deployment.layout.attn_dp
        self.pool_tokens = pool * deployment.layout.dp
        rows = [row for row in self.traffic.arrivals() if row.session is not None]
        firsts = {row.session: row for row in reversed(rows)}
        self.shared_tokens = shared_by_all([(row.text, row.input_tokens) for row in firsts.values()])
        self.context_tokens = fmean(row.input_tokens + row.output_tokens for row in rows)
        chunk = self.times.applied.chunk_tokens
        self.token_s = self.times.prefill_s(chunk, chunk * self.context_tokens, 1, chunk) / chunk
        self.loads: dict[tuple[float, int], SessionLoad] = {}
        self.reach = ""

    def alone_ms(self) -> float:
        """TTFT p95 of one session alone, and of the next ones where it has few requests."""
        load, traffic = self.at(1), self.traffic
        ttft_ms = load.ttft_ms
        if ttft_ms is None:
            raise InputError(
                f"in {self.traffic.duration_s:g} s one session alone gets no answer after its first; plan a longer "
                "--duration"
            )
        for _ in range(_DOUBLED):
            if load.requests >= ENOUGH or traffic.duration_s is None:
                break
            traffic = replace(traffic, duration_s=2 * traffic.duration_s)
            run = simulate(self.deployment, sessions_at_once(traffic, 1), self.calibration)
            load = self._load(1, 0.0, run, traffic)
        return (load.ttft_ms or ttft_ms).p95

    def keep(self, limit: Slo) -> None:
        """From now on loads must keep this too."""
        self.limits = (*self.limits, limit)
        self.loads.clear()

    @property
    def holding(self) -> int:
        """The most sessions without a host tier that were seen to hold."""
        return max((n for (tier, n), load in self.loads.items() if not tier and load.holds), default=0)

    def at(self, sessions: int, tier: float = 0.0) -> SessionLoad:
        found = self.loads.get((tier, sessions))
        if found is None:
            deployment = self.deployment
            if tier:
                deployment = replace(
                    deployment, settings=replace(deployment.settings, host_tier_size=tier, host_tier_ratio=0.0)
                )
            result = simulate(deployment, sessions_at_once(self.traffic, sessions), self.calibration)
            found = self.loads[tier, sessions] = self._load(sessions, tier, result, self.traffic)
            self.reach = result.reach
        return found

    def most(self) -> int:
        """The most sessions that keep the limits without a host tier; 0 where one alone does not."""
        if not self.at(1).holds:
            return 0
        own = max(1.0, self.context_tokens - self.shared_tokens)
        room = round((self.pool_tokens - self.shared_tokens) / own)
        return _bracketed(lambda n: self.at(n).holds, max(2, min(room, _FIRST_SESSIONS)))

    def plan(self, host_bytes: float | None) -> SessionsPlan:
        """`host_bytes`: what a rank may have of the host's memory; None: no host tier is sought."""
        holds = self.holding
        failing = [load for (tier, _), load in self.loads.items() if not tier and not load.holds]
        first = min(failing, key=lambda load: load.sessions, default=None)
        cause, why = ("", "") if first is None else self._why(first)
        own = self.deployment.settings
        sought = host_bytes is not None and first is not None and not (own.host_tier_size or own.host_tier_ratio)
        advice = self._host_tier(holds, first, cause, host_bytes) if sought and first and host_bytes else None
        return SessionsPlan(
            self.deployment,
            self.limits,
            holds,
            None if first is None else first.sessions,
            cause,
            why,
            self.pool_tokens,
            tuple(sorted(self.loads.values(), key=lambda load: (load.host_tier, load.sessions))),
            advice,
            len(self.loads),
            self.reach,
            self.assumed,
            self.calibration.points > 0,
        )

    def _load(self, sessions: int, tier: float, result: SimulationResult, traffic: Traffic) -> SessionLoad:
        whole_s = traffic.duration_s or result.summary.duration_s
        from_s = min(_warm_s(result.records), whole_s / 2)
        sent = [record for record in result.records if record.sent_s >= from_s]
        ended = [r for r in result.records if r.end_s is not None and from_s <= r.end_s <= whole_s]
        gaps = None if any(slo.latency == "itl" for slo in self.limits) else ()
        seen = summarise(sent, self.limits, whole_s - from_s, gaps, ended)
        context = fmean(r.input_tokens + r.output_tokens for r in sent) if sent else self.context_tokens
        engines_s = max(result.summary.duration_s, 1e-9) * self.deployment.layout.dp
        cache = result.cache
        computed = cache.prompt_tokens - cache.hit_tokens - cache.host_hit_tokens
        slowest = sorted(sent, key=lambda r: -(r.ttft_s or 0.0))[: math.ceil(len(sent) / 20)]
        return SessionLoad(
            sessions,
            all(seen.holds(slo) for slo in self.limits),
            tuple(str(slo) for slo in self.limits if not seen.holds(slo)),
            seen.ok,
            seen.ttft_ms,
            seen.tpot_ms,
            seen.requests_s,
            result.hit_rate,
            result.host_hit_rate,
            round(sessions * context - (sessions - 1) * min(self.shared_tokens, context)),
            min(1.0, computed * self.token_s / engines_s),
            min(1.0, cache.host_hit_tokens * self.times.applied.host_token_s / engines_s),
            round(fmean(r.input_tokens - r.cached_tokens for r in slowest)) if slowest else 0,
            tier,
        )

    def _why(self, load: SessionLoad) -> tuple[str, str]:
        """What ends it at the first load that fails."""
        missed, least = 1 - load.found, 1 - max(each.found for each in self.loads.values())
        if missed > max(_MISSED_TIMES * least, least + _MISSED_MORE):
            deployment = self.deployment
            strays = deployment.layout.dp > 1 and deployment.routing != CACHE_AWARE
            if strays and load.live_tokens < self.pool_tokens / 2:
                return "router", (
                    f"{deployment.routing} sends turns to copies that do not hold their context: {missed:.1%} of "
                    f"prompt tokens are in no cache, {least:.1%} where most are, while the KV pool has room"
                )
            return "KV pool", (
                f"{load.sessions:,} sessions hold {load.live_tokens:,} tokens of context, the pool has room for "
                f"{self.pool_tokens:,}; {missed:.1%} of prompt tokens are in no cache, {least:.1%} where all fit"
            )
        if load.host_share > _BUSY:
            return "host link", f"KV is on its way from the host's memory {load.host_share:.0%} of the time"
        slow_s, waited_s = load.slow_tokens * self.token_s, load.ttft_ms.p95 / 1000 if load.ttft_ms else 0.0
        first = any(text.startswith(("ttft", "e2e")) for text in load.broken)
        if load.sessions == 1:
            return "one session", f"alone it breaks {', '.join(load.broken)}"
        if load.prefill_share > _BUSY or (first and slow_s > _OWN_WORK * waited_s):
            return "prefill", (
                f"it takes {load.prefill_share:.0%} of the time; the slowest twentieth of the prompts have "
                f"{load.slow_tokens:,} tokens that no cache holds, {slow_s:.1f} s of work each"
            )
        step = "" if load.tpot_ms is None else f", TPOT p50 {load.tpot_ms.p50:.1f} ms"
        if not first:
            return "decode", f"steps of {load.sessions:,} sessions take too long{step}, while the KV pool has room"
        return UNATTRIBUTED, (
            f"{', '.join(load.broken)} is broken while the KV pool has room; prefill takes {load.prefill_share:.0%} of "
            f"the time, and {slow_s:.1f} of the {waited_s:.1f} s of TTFT p95 are the prompt's own work{step}"
        )

    def _host_tier(self, holds: int, fails: SessionLoad, cause: str, host_bytes: float) -> TierAdvice:
        if not holds:
            return TierAdvice(False, "does not pay: one session alone fails")
        if cause != "KV pool":
            other = "" if cause == UNATTRIBUTED else f" but {cause}'s"
            return TierAdvice(False, f"does not pay: the knee is not the KV pool's{other}")
        largest = float(math.floor(host_bytes / self._rank_bytes(1.0)))
        if largest < 1:
            return TierAdvice(False, "does not pay: there is no room for one")
        most = _bracketed(lambda n: self.at(n, largest).holds, fails.sessions, holds, _NEAR_TIER)
        if most == holds:
            return TierAdvice(False, f"does not pay: with {self._named(largest)} no more than {holds:,} sessions hold")
        # contexts that are alive are what it must hold at least; beyond that, what is worth keeping of others
        token_bytes = rank_kv_bytes_per_token(self.deployment.model, self.deployment.layout)
        lay = self.deployment.layout
        live = self.at(most, largest).live_tokens / lay.dp / lay.attn_dp * token_bytes / self._rank_bytes(1.0)
        low, high = 0.0, largest
        size = min(largest, math.ceil(live))
        for _ in range(3):
            if low < size < high:
                low, high = (low, float(size)) if self.at(most, size).holds else (float(size), high)
            size = math.ceil(math.sqrt(max(low, high / 4) * high))
        return TierAdvice(
            True,
            f"pays: {self._named(high)} holds {most:,} sessions instead of {holds:,}",
            most,
            high,
            self._flags(high),
        )

    def _rank_bytes(self, size: float) -> float:
        settings = replace(self.deployment.settings, host_tier_size=size)
        return defaults_of(settings.engine).host_rank_bytes(settings, self.deployment.layout)

    def _named(self, size: float) -> str:
        return f"{size:,.0f} ({self._rank_bytes(size) / GIB:,.0f} GiB for each rank)"

    def _flags(self, size: float) -> str:
        settings = replace(self.deployment.settings, host_tier_size=size, host_tier_ratio=0.0)
        return " ".join(engine_flags(settings.engine).arguments(host_tier_values(settings), settings.version))


def _warm_s(records: Sequence[RequestRecord]) -> float:
    """When the first requests of the sessions that began first were answered."""
    firsts = {record.session: record for record in reversed(records) if record.sent_s == 0.0}
    return max((record.first_token_s or 0.0 for record in firsts.values()), default=0.0)


def _bracketed(holds: Callable[[int], bool], guess: int, good: int = 1, near: float = NEAR) -> int:
    """The largest number that holds, within `near`, where `good` does and more never hold better."""
    bad, number = MOST_SESSIONS + 1, guess
    while bad - good > 1 and bad > near * good:
        if holds(number):
            good = number
        else:
            bad = number
        if bad > MOST_SESSIONS:
            number = min(MOST_SESSIONS, max(good + 1, round(1.5 * good)))
            if good == MOST_SESSIONS:
                break
        else:
            low = max(good, bad / 4) if good == 1 else good
            number = min(bad - 1, max(good + 1, round(math.sqrt(low * bad))))
    return good
