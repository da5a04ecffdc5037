"""Send traffic to a simulated cluster: memory first, then engines, then the records a real benchmark writes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

from ridgeline.errors import InputError
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, also_in_json, digits, in_json
from ridgeline.records.measurement import Origin
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.fitting import nearest_fits
from ridgeline.serving.engines.layout import Layout, rank_kv_bytes_per_token
from ridgeline.serving.engines.memory import STARTUP_OOM, MemoryPlan, plan_memory
from ridgeline.serving.engines.releases import release_text, release_written
from ridgeline.serving.engines.settings import Applied, acceptance_assumed, resolve
from ridgeline.serving.hardware.cluster import GIB
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.flow import Flow, flow_of
from ridgeline.serving.traffic.lengths import Fixed
from ridgeline.serving.traffic.replay import Replay
from ridgeline.serving.traffic.requests import RequestRecord, Slo, Summary, stated_rows, summarise
from ridgeline.serving.traffic.session_mix import SessionMix
from ridgeline.serving.traffic.session_summary import SessionSummary, summarise_sessions
from ridgeline.serving.traffic.traffic import (
    AllAtOnce,
    Arrival,
    AsRecorded,
    ClosedLoop,
    OpenLoop,
    Traffic,
    beyond_context,
    lasting,
    no_collection,
)
from ridgeline.serving.traffic.turns import Again
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.cluster import Front, Replicas, serve
from ridgeline.serving.twin.disaggregation import (
    DecodeEngine,
    Disaggregated,
    KvTransfer,
    PrefillEngine,
    Proxied,
    PullingEngine,
)
from ridgeline.serving.twin.energy import ENERGY_FIGURES, Energy, Worked, energy_of
from ridgeline.serving.twin.front_end import FrontEnd
from ridgeline.serving.twin.held_back import step_times
from ridgeline.serving.twin.mixed import MixedEngine
from ridgeline.serving.twin.prefix_cache import CacheUse
from ridgeline.serving.twin.reach import (
    COMPILE_WAIT_S,
    UncertaintySources,
    at_once,
    factors_for,
    intervals,
    queued_share,
    reach,
    validation,
)
from ridgeline.serving.twin.request import FirstTokens
from ridgeline.serving.twin.scheduler import Engine, PolledEngine
from ridgeline.serving.twin.steptime import StepTime

# Compiling one kernel shape's variants the first time (DeepGEMM); ten to twenty minutes for a 671B model.
_COMPILE_S_PER_SHAPE = 75.0
_USAGE_POINTS = 200


class DoesNotFit(InputError):  # noqa: N818  a verdict, not a malfunction
    """The engine would not start. `plan` says what is missing."""

    def __init__(self, message: str, plan: MemoryPlan) -> None:
        super().__init__(message)
        self.plan = plan


@dataclass(frozen=True, repr=False)
class SimulationResult(JsonForm, Shown):
    """`records` are those of a real benchmark; `kv_usage` is (seconds, share of the pool) of the fullest engine."""

    records: tuple[RequestRecord, ...] = field(metadata=NOT_IN_JSON)
    summary: Summary = field(metadata=in_json(flat=True))
    memory: tuple[MemoryPlan, ...]
    kv_usage: tuple[tuple[float, float], ...]
    retractions: int
    cache: CacheUse
    sessions: SessionSummary | None  # where turns wait for answers
    interval: dict[str, tuple[float, float]]
    kv_transfer_bytes_s: float | None  # what one prefill rank sent on average while prompts were computed
    ttft_parts_ms: Mapping[str, float]  # of split roles: what the mean TTFT is made of
    cpu_s: float
    first_run_tax_s: float
    calibrated: bool
    notes: tuple[str, ...] = ()  # what the model's config says and the twin leaves out
    assumed: tuple[str, ...] = ()  # what nobody said and the answer rests on
    reach: str = ""  # how far the calibration holds here or, without one, what of this was never compared
    doubts: UncertaintySources = field(
        default_factory=UncertaintySources, metadata=NOT_IN_JSON
    )  # what the bounds rest on
    engines: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # what each role's engine applies
    energy: Energy | None = field(default=None, metadata=NOT_IN_JSON)  # None: the GPU's limit of power is not known
    flow: Flow | None = None  # of requests that are sent whether others were answered or not
    origin: Origin = field(default="modelled", init=False)

    @property
    @also_in_json()
    def verdict(self) -> str:
        """fits, or the first memory risk of any role."""
        return next((m.verdict for m in self.memory if not m.fits), self.memory[0].verdict)

    @property
    @also_in_json()
    def gpu_power_w(self) -> float | None:
        """Watts of one GPU, mean over all of them and the run."""
        return None if self.energy is None else self.energy.gpu_power_w

    @property
    @also_in_json()
    def joules_per_output_token(self) -> float | None:
        """Of all GPUs, those that compute prompts included."""
        made = self.summary.output_tok_s * self.summary.duration_s
        return None if self.energy is None or not made else self.energy.joules / made

    @property
    @also_in_json("hit_rate", digits(4))
    def hit_rate(self) -> float:
        """Share of all prompt tokens that were found in the prefix cache of the GPUs."""
        return self.cache.hit_tokens / max(1, self.cache.prompt_tokens)

    @property
    @also_in_json("host_hit_rate", digits(4))
    def host_hit_rate(self) -> float:
        """Share of all prompt tokens that came back from the host's memory."""
        return self.cache.host_hit_tokens / max(1, self.cache.prompt_tokens)

    @property
    @also_in_json("ttft_last_ms", lambda seconds: seconds * 1000)
    def last_ttft_s(self) -> float | None:
        """First token of the request that waited longest, which bench_one_batch_server reports as TTFT."""
        return _longest_ttft_s(self.records)

    @property
    def keeping_up(self) -> str:
        """What speaks against latencies of so short a run; empty where nothing does."""
        return self.flow.doubt(self.summary.e2e_ms) if self.flow else ""

    def shown(self) -> TextTable:
        known = "calibrated" if self.calibrated else "not calibrated"
        title = f"modelled, {known}: {self.summary.ok} of {self.summary.requests} requests, memory {self.verdict}"
        notes = tuple(text for text in (self.keeping_up, self.reach, *self.notes, *self.assumed) if text)
        energy = {name: getattr(self, name) for name in ENERGY_FIGURES}
        rows = (*self.summary.rows(self.interval), *stated_rows(energy, self.interval))
        return TextTable(title, ("", "predicted", "9 of 10 lie in"), rows, notes=notes)


@lru_cache(maxsize=2)
def _arrivals(traffic: Traffic) -> tuple[Arrival, ...]:
    """A search simulates the same traffic on hundreds of settings."""
    return tuple(traffic.arrivals())


@no_collection()
def simulate(
    deployment: Deployment,
    traffic: Traffic,
    calibration: Calibration | None = None,
    slos: Sequence[Slo] = (),
    *,
    kv_tokens_per_rank: int | None = None,
    front_end: bool = True,
) -> SimulationResult:
    """One run. The same arguments always give the same result.

    `kv_tokens_per_rank` replaces the modelled KV pool by one that was read in a log. Without `front_end` requests reach
    the scheduler when they are sent, and tokens are seen when they are made.
    """
    calibration = calibration or Calibration()
    run = run_to_end(deployment, traffic, calibration, slos, kv_tokens_per_rank=kv_tokens_per_rank, front_end=front_end)
    return result_of(run, deployment, calibration, slos)


def result_of(
    run: EndedRun, deployment: Deployment, calibration: Calibration, slos: Sequence[Slo] = ()
) -> SimulationResult:
    """What `run_to_end` of the same arguments says, and how sure that is."""
    traffic, front, engines, records, summary = run.traffic, run.front, run.engines, run.records, run.summary
    under_way = at_once(summary, deployment.layout)
    known = reach(calibration, deployment, under_way)
    doubts = _doubts(engines, summary, traffic, records)
    if not calibration.points:
        doubts = replace(doubts, validation=validation(deployment, under_way))
    worked = [Worked(engine.times, engine.passes) for engine in engines]
    energy = energy_of(worked, deployment.cluster.gpu, summary.duration_s)
    if energy is not None:
        doubts = replace(doubts, held_back=energy.held_back)
    bounds = intervals(summary, _longest_ttft_s(records), known.calibration, doubts)
    if energy is not None and (made_s := summary.output_tok_s):
        slow, fast = (bound / made_s for bound in bounds["output_tok_s"])
        bounds |= energy.bounds(made_s * summary.duration_s, slow, fast)
    in_sessions = any(arrival.after for arrival in run.arrivals)
    return SimulationResult(
        records=records,
        summary=summary,
        memory=run.memory,
        kv_usage=_usage(engines),
        retractions=sum(e.retractions for e in engines),
        cache=_cache_use(engines),
        sessions=summarise_sessions(records, run.unsent, slos, summary.duration_s) if in_sessions else None,
        interval=bounds,
        energy=energy,
        doubts=doubts,
        kv_transfer_bytes_s=front.transfer_bytes_s if isinstance(front, Disaggregated) else None,
        ttft_parts_ms=_ttft_parts_ms(front.waited_s, summary) if isinstance(front, Disaggregated) else {},
        cpu_s=time.process_time() - run.started_cpu_s,
        first_run_tax_s=first_run_tax_s(deployment.model),
        calibrated=calibration.points > 0,
        notes=deployment.model.notes,
        assumed=(
            *assumed_of(deployment),
            *tier_assumed(deployment, engines[-1].applied),
            *run.cut,
            *_in_step(traffic),
        ),
        reach=known.line or doubts.validation.line,
        flow=run.flow,
        # engines of a role are equal, and those that prefill come first
        engines={
            role: _applied(engine, role, deployment)
            for role, engine in zip(deployment.layout.roles, (engines[0], engines[-1]), strict=False)
        },
    )


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run when its last request has ended."""

    started_cpu_s: float
    traffic: Traffic
    arrivals: Sequence[Arrival]
    front: Front
    engines: Sequence[Engine]
    memory: tuple[MemoryPlan, ...]
    records: tuple[RequestRecord, ...]
    unsent: Mapping[int, int]
    summary: Summary
    cut: tuple[str, ...]  # what was done to the traffic

    @property
    def flow(self) -> Flow | None:
        """None where users wait for answers, or everything is sent at once."""
        last_s = max(r.scheduled_s for r in self.records)
        waits = self.traffic.concurrency is not None or any(a.after for a in self.arrivals)
        return None if waits or not last_s else flow_of(self.records, last_s)


@no_collection()
def run_to_end(
    deployment: Deployment,
    traffic: Traffic,
    calibration: Calibration,
    slos: Sequence[Slo] = (),
    *,
    kv_tokens_per_rank: int | None = None,
    front_end: bool = True,
    most_late: float | None = None,
) -> EndedRun:
    """The run of `simulate`, for those who ask for no more. Raises TooLate once first tokens beyond a limit of `slos`
    are more than `most_late` of all requests."""
    started_cpu_s = time.process_time()
    traffic, cut = within_context(lasting(traffic), deployment.model)
    arrivals = _arrivals(traffic)
    front, engines, plans = build(deployment, calibration, traffic, kv_tokens_per_rank)
    _check_pool(arrivals, engines)
    # offline everything is handed to an engine at once
    served = front_end and not isinstance(traffic.pace, AllAtOnce)
    before = put_in_front(engines, deployment, calibration) if served else None
    limit_ms = min((slo.limit_ms for slo in slos if slo.latency == "ttft"), default=None)
    if most_late is not None and limit_ms is not None:
        # one more than the share, which rounding can't undo
        first_tokens = FirstTokens(limit_ms, most_late * len(arrivals) + 1)
        for engine in engines:
            engine.first_tokens = first_tokens
    until_s = math.inf if traffic.duration_s is None else traffic.duration_s
    endless = traffic.concurrency is not None and traffic.duration_s is not None
    again = Again.of(traffic, arrivals) or Again.over(arrivals) if endless else None
    requests, unsent = serve(front, arrivals, traffic.concurrency, before, until_s, again)
    records = tuple(r.record() for r in requests)
    summary = summarise(records, slos, gaps_s=[g for e in engines for g in e.runs.gaps])
    sent = arrivals if again is None else again.arrivals
    return EndedRun(started_cpu_s, traffic, sent, front, engines, plans, records, unsent, summary, cut)


def put_in_front(engines: Sequence[Engine], deployment: Deployment, calibration: Calibration) -> FrontEnd:
    """The processes between these engines and their users."""
    times = engines[-1].times
    front_end = FrontEnd.of(deployment.settings, times.layout, times.applied.overlap, calibration.factors.front_end)
    for engine in engines:
        engine.front_end = front_end
    return front_end


def build(
    deployment: Deployment, calibration: Calibration, traffic: Traffic, kv_tokens_per_rank: int | None = None
) -> tuple[Front, list[Engine], tuple[MemoryPlan, ...]]:
    """The engines of a deployment behind their router, at time zero."""
    lay = deployment.layout
    used, has = lay.gpus, deployment.cluster.gpus
    if used > has:
        raise InputError(
            f"layout {lay} takes {used} GPUs, {deployment.cluster} has {has}; "
            f"use at least {-(-used // deployment.cluster.node.gpus)} nodes or a smaller layout"
        )
    if lay.prefill is None or lay.decode is None:
        times, plan, pool = step_time(deployment, lay, "both", calibration, kv_tokens_per_rank)
        kind = MixedEngine if times.applied.mixed else PolledEngine if times.applied.recv_interval > 1 else Engine
        engines = [kind(f"engine{n}", times, pool) for n in range(lay.dp)]
        return Replicas(engines, deployment.routing), engines, (plan,)
    times_p, plan_p, pool_p = step_time(deployment, lay.prefill, "prefill", calibration, kv_tokens_per_rank)
    times_d, plan_d, pool_d = step_time(deployment, lay.decode, "decode", calibration, kv_tokens_per_rank)
    prefill = [PrefillEngine(f"prefill{n}", times_p, pool_p) for n in range(lay.prefill.dp)]
    fabric, gpus = deployment.cluster.fabric, deployment.cluster.node.gpus
    transfer = KvTransfer.between(deployment.model, lay.prefill, fabric, gpus, deployment.settings.page_size)
    if times_d.applied.pulls_kv:
        pulling = [PullingEngine(f"decode{n}", times_d, pool_d) for n in range(lay.decode.dp)]
        return Proxied(prefill, pulling, transfer, deployment.routing), [*prefill, *pulling], (plan_p, plan_d)
    decode = [DecodeEngine(f"decode{n}", times_d, pool_d) for n in range(lay.decode.dp)]
    return Disaggregated(prefill, decode, transfer, deployment.routing), [*prefill, *decode], (plan_p, plan_d)


def step_time(
    deployment: Deployment,
    layout: Layout,
    role: str,
    calibration: Calibration,
    kv_tokens_per_rank: int | None = None,
) -> tuple[StepTime, MemoryPlan, int]:
    """Step times, memory and KV tokens of one engine. Raises DoesNotFit where it would not start."""
    model, gpu = deployment.model, deployment.cluster.gpu
    settings = deployment.role_settings(role)
    plan = plan_memory(model, gpu, layout, settings, role)
    if plan.verdict == STARTUP_OOM:
        nearest = nearest_fits(model, deployment.cluster, layout, settings, plan)
        remedy = f"nearest that fits: {'; '.join(nearest)}" if nearest else "use more GPUs for each copy (tp x pp)"
        raise DoesNotFit(f"{deployment}: does not fit: {plan.reason}\n  {remedy}", plan)
    pool = kv_tokens_per_rank or plan.kv_tokens_per_rank
    applied = resolve(settings, model, gpu, layout, pool)
    times = step_times(model, deployment.cluster, layout, applied, factors_for(calibration, deployment))
    return times, plan, pool * layout.attn_dp


def first_run_tax_s(model: Model) -> float:
    """Seconds of compiling that only the first run of a setting pays: one kernel family per FP8 matrix shape."""
    shapes = {(m.rows, m.cols) for m in model.matrices if m.dtype == "fp8"}
    return _COMPILE_S_PER_SHAPE * len(shapes)


def _usage(engines: Sequence[Engine]) -> tuple[tuple[float, float], ...]:
    """The fullest engine's KV use over time, thinned out, its highest point kept."""
    engine = max(engines, key=lambda e: max(u for _, u in e.usage) / e.pool_tokens)
    points = engine.usage
    every = max(1, len(points) // _USAGE_POINTS)
    kept = set(range(0, len(points), every)) | {len(points) - 1, max(range(len(points)), key=lambda n: points[n][1])}
    return tuple((points[n][0], points[n][1] / engine.pool_tokens) for n in sorted(kept))


def _cache_use(engines: Sequence[Engine]) -> CacheUse:
    found = [[getattr(engine.cache_use, each.name) for each in fields(CacheUse)] for engine in engines]
    return CacheUse(*(sum(column) for column in zip(*found, strict=True)))


def assumed_of(deployment: Deployment) -> tuple[str, ...]:
    """What nobody said of a model and its engine, and every figure of them rests on."""
    settings = deployment.role_settings("both" if deployment.layout.decode is None else "decode")
    found = []
    if settings.version > release_written(settings.engine, settings.version):
        newest = release_text(settings.engine, settings.version)
        asked = ".".join(map(str, settings.version))
        found.append(f"{asked} is newer than {newest}, the newest release that is known, and is taken to run like it")
    if settings.draft_tokens > 1 and settings.accept_length is None:
        found.append(acceptance_assumed(deployment.model, settings))
    return (*deployment.model.assumed, *found)


def host_tier_gib(deployment: Deployment, applied: Applied) -> float:
    """What tiers of KV in host memory take of a node."""
    layout = deployment.layout
    rank_bytes = applied.host_tokens / layout.attn_dp * rank_kv_bytes_per_token(deployment.model, layout)
    return rank_bytes * min(layout.gpus_per_node, layout.replica_gpus * layout.dp) / GIB


def tier_assumed(deployment: Deployment, applied: Applied) -> tuple[str, ...]:
    size = host_tier_gib(deployment, applied)
    if not size or deployment.layout.disaggregated:
        return ()
    return (f"each node has {size:,.0f} GiB of memory for the host tier",)


def _applied(engine: Engine, role: str, deployment: Deployment) -> dict[str, object]:
    """What this engine is taken to run with, whoever chose it: the person who asked, or the engine's own defaults."""
    settings, model = deployment.role_settings(role), deployment.model
    return {
        "engine": settings.engine,
        "release": ".".join(map(str, settings.version)),
        "weights": model.weights_dtype,
        "kv_cache": model.kv_dtype,
        "attention_backend": engine.applied.backend,
        "max_running_requests": engine.applied.running_limit,
        "chunk_tokens": engine.applied.chunk_tokens,
        "graph_max_bs": engine.applied.graph_max_bs,
        "prefill_graph": engine.applied.prefill_graph,
        "radix_cache": engine.applied.radix_cache,
        "draft_tokens": engine.applied.draft_tokens,
    }


def _longest_ttft_s(records: Sequence[RequestRecord]) -> float | None:
    return max((t for r in records if (t := r.ttft_s) is not None), default=None)


def _doubts(
    engines: Sequence[Engine], summary: Summary, traffic: Traffic, records: Sequence[RequestRecord]
) -> UncertaintySources:
    """Shares of the engine that each of them weighs most on."""
    if summary.duration_s <= 0:
        return UncertaintySources()
    burst = isinstance(traffic.pace, AllAtOnce)
    compiles = any(e.times.counted for e in engines)
    return UncertaintySources(
        prefill_share=min(1.0, max(e.prefill_s for e in engines) / summary.duration_s),
        host_share=min(1.0, max(e.host_s for e in engines) / summary.duration_s),
        stall_s=COMPILE_WAIT_S if burst and compiles else 0.0,
        apart=isinstance(engines[0], PrefillEngine),
        # vLLM before 0.14: its steps are mixed, and nothing hides the host's part
        old_experts=any(e.applied.mixed and not e.applied.overlap and e.times.model.experts for e in engines),
        queued_share=0.0 if burst else queued_share(records),
        sent_for_s=max(record.sent_s for record in records) if isinstance(traffic.pace, OpenLoop | AsRecorded) else 0.0,
    )


def within_context(traffic: Traffic, model: Model) -> tuple[Traffic, tuple[str, ...]]:
    """The traffic without requests that the model's context does not hold, and what was done to them.

    Drawn lengths are cut, rows of a trace left out, as a server would refuse them; a length that somebody stated is
    refused.
    """
    arrivals, context = _arrivals(traffic), model.context_tokens
    beyond = [a for a in arrivals if a.input_tokens + a.output_tokens > context]
    if not beyond:
        return traffic, traffic.notes
    recorded = isinstance(traffic.lengths, Replay | SessionMix)
    if isinstance(traffic.lengths, Fixed) or (recorded and len(beyond) == len(arrivals)):
        longest = max(beyond, key=lambda a: a.input_tokens + a.output_tokens)
        tokens = longest.input_tokens + longest.output_tokens
        raise InputError(
            f"request {longest.number} needs {tokens:,} tokens, the context of {model.name} holds "
            f"{context:,}; shorten it to {_nearest_lengths(longest, context)} "
            "or choose a model with a longer context"
        )
    what = "are left out, as a server would refuse them" if recorded else "are cut to it"
    cut = f"{beyond_context([a.input_tokens + a.output_tokens for a in arrivals], context)} and {what}"
    return replace(traffic, most_tokens=context), (*traffic.notes, cut)


def _ttft_parts_ms(waited_s: Mapping[str, float], summary: Summary) -> dict[str, float]:
    """What is left of the mean is the step that makes a first token, or that it joins, and its way to the user."""
    if summary.ttft_ms is None:
        return {}
    parts = {part: round(seconds * 1000 / summary.ok, 1) for part, seconds in waited_s.items()}
    return parts | {"first step": round(summary.ttft_ms.mean - sum(parts.values()), 1)}


def _in_step(traffic: Traffic) -> tuple[str, ...]:
    """Requests of one length that are sent when others end, end together: no users do that."""
    if not (isinstance(traffic.lengths, Fixed) and isinstance(traffic.pace, ClosedLoop)):
        return ()
    lengths = f"{traffic.lengths.input_tokens}:{traffic.lengths.output_tokens}"
    return (
        "all requests are equally long, so they run in lock-step: they end together, and the next ones wait for each "
        f"other's prompts, which shows in TTFT; for users that differ, use uniform ranges or lognormal:{lengths}",
    )


def _nearest_lengths(request: Arrival, context_tokens: int) -> str:
    """The shorter answer, or where that is not enough the shorter prompt, with which a request fits."""
    answer = context_tokens - request.input_tokens
    if answer >= 1:
        return f"{request.input_tokens:,} in + {answer:,} out"
    answer = min(request.output_tokens, context_tokens // 2)
    return f"{context_tokens - answer:,} in + {answer:,} out"


def _check_pool(arrivals: Sequence[Arrival], engines: Sequence[Engine]) -> None:
    longest = max(a.input_tokens + a.output_tokens for a in arrivals)
    for engine in engines:
        rank_pool = engine.pool_tokens // engine.times.layout.attn_dp
        if longest > rank_pool:
            raise InputError(
                f"a request of {longest:,} tokens cannot run: the KV pool of one rank holds {rank_pool:,}; "
                "raise the mem fraction, use more GPUs for each copy, or send requests of at most that length"
            )
