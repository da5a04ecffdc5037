"""How much a router should let through: limits that follow from the twin under the user's own traffic.

A router that holds back what is over its limit keeps its servers at exactly that many requests, one let in for each
that ends: a closed loop. So the twin is asked how many requests at once its servers bear before a limit of the SLO, or
the KV pool, gives way; that is the edge, and the router stays a little below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, disaggregated
from ridgeline.serving.engines.settings import layout_of, model_of, settings_of
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.operating_point import keeps_limits
from ridgeline.serving.service.routers import ROUTERS
from ridgeline.serving.service.service import FULL_KV_SHARE, Service, ServiceUnit, server_of
from ridgeline.serving.traffic.requests import Slo, Summary, summarise
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic, parse_traffic
from ridgeline.serving.twin.simulate import SimulationResult, simulate

BELOW_EDGE = 0.9  # a router deals out unevenly, and the twin is not the engine
_WAIT_SHARE = 0.5  # of what a request's first token may still be late
_WAVES, _LEAST_WAVES = 6, 2.5  # how often each place is filled in a run
_MANY, _MOST_AT_ONCE = 2000, 4096  # requests of a run that need no more waves; at once, on one server
_NODE_GPUS = 8  # where split roles share nodes
_FLAT = 0.05  # four times the requests for less than this much more throughput bring only waiting


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of the router, and why: `edge` requests at once were the most, and `bound` gave way beyond them."""

    most_running: int
    most_waiting: int
    longest_wait_s: float
    edge: int
    bound: str
    requests_s: float  # what the servers answer with that many under way
    kv_share: float

    @property
    def reason(self) -> str:
        return (
            f"{self.edge} at once is the edge ({self.bound}); {self.most_running} keep {self.requests_s:.3g} "
            f"requests/s with the KV pool {self.kv_share:.0%} full"
        )

    def for_router(self, kind: str) -> dict[str, object]:
        """The keys of a deployment file's router. One that cannot queue refuses at once."""
        if not ROUTERS[kind].queues:
            return {"most_running": self.most_running, "most_waiting": 0, "longest_wait": None}
        wait = f"{max(1, round(self.longest_wait_s))}s"
        return {"most_running": self.most_running, "most_waiting": self.most_waiting, "longest_wait": wait}

    def as_json(self) -> dict[str, object]:
        figures = {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return {**figures, "origin": "modelled"}


def admission_of(service: Service, traffic: str) -> AdmissionLimits:
    """Limits for this service under traffic as `bench` names it. InputError where the twin cannot say."""
    slos = [Slo.parse(f"{name}={limit:g}") for name, limit in service.slo.items()]
    parts = [
        _edge_of(deployment, copies, parse_traffic(traffic, requests=1), slos)
        for deployment, copies in twins_of(service)
    ]
    running = sum(part.most_running for part in parts)
    requests_s = sum(part.requests_s for part in parts)
    wait_s = min(part.longest_wait_s for part in parts)
    return replace(
        parts[0],
        most_running=running,
        most_waiting=int(_WAIT_SHARE * wait_s * requests_s),
        longest_wait_s=wait_s,
        edge=sum(part.edge for part in parts),
        requests_s=requests_s,
        kv_share=max(part.kv_share for part in parts),
    )


def _edge_of(one: Deployment, copies: int, traffic: Traffic, slos: Sequence[Slo]) -> AdmissionLimits:
    """The edge of one server (or of all split ones together), times its copies."""
    good, bad, bound, reached = 0, 0, "", 0.0
    at_once = 1
    while not bad:
        why, rate_s = _verdict(one, traffic, at_once, slos, reached)
        if why:
            bad, bound = at_once, why
        elif at_once >= _MOST_AT_ONCE:
            good, bad, bound = at_once, at_once + 1, "more was not tried"
        else:
            good, at_once, reached = at_once, 4 * at_once, rate_s
    if not good:
        raise InputError(f"even one request at a time breaks {bound}; relax the SLO or give the servers more GPUs")
    while bad - good > max(1, good // 12):
        middle = (good + bad) // 2
        why, _ = _verdict(one, traffic, middle, slos, reached)
        good, bad, bound = (middle, bad, bound) if not why else (good, middle, why)
    chosen = max(1, int(BELOW_EDGE * good))
    result, steady = _run(one, traffic, chosen, slos)
    rate_s, wait_s = _rate_s(steady, chosen) * copies, _wait_s(steady, slos)
    return AdmissionLimits(chosen * copies, 0, wait_s, good * copies, bound, rate_s, _fullest(result))


def _verdict(
    one: Deployment, traffic: Traffic, at_once: int, slos: Sequence[Slo], before_s: float
) -> tuple[str, float]:
    """What gives way with so many at once, or nothing; and the requests a second."""
    result, steady = _run(one, traffic, at_once, slos)
    rate_s = _rate_s(steady, at_once)
    if result.retractions or _fullest(result) > FULL_KV_SHARE:
        return "KV pool", rate_s
    broken = next((f"{slo.latency}_{slo.quantile}_ms" for slo in slos if not steady.holds(slo)), "")
    if broken or not keeps_limits(steady):
        return broken or "SLO of single requests", rate_s
    if not slos and before_s and rate_s < (1 + _FLAT) * before_s:
        return "throughput", rate_s
    return "", rate_s


def _run(one: Deployment, traffic: Traffic, at_once: int, slos: Sequence[Slo]) -> tuple[SimulationResult, Summary]:
    """The first wave, which comes all at once, is not counted: a service that runs has left it behind."""
    count = int(max(_LEAST_WAVES * at_once, min(_MANY, _WAVES * at_once))) + 20
    result = simulate(one, replace(traffic, requests=count, pace=ClosedLoop(at_once)), slos=slos)
    later = [record for record in result.records if record.number >= min(at_once, count // 2)]
    return result, summarise(later, slos)


def _rate_s(steady: Summary, at_once: int) -> float:
    """Requests a second while every place is taken: the run itself ends with a long tail of empty ones."""
    return at_once * 1000 / steady.e2e_ms.mean if steady.e2e_ms else 0.0


def _fullest(result: SimulationResult) -> float:
    return max(share for _, share in result.kv_usage)


def _wait_s(steady: Summary, slos: Sequence[Slo]) -> float:
    """How long a request may wait in the router and still keep the limits that count from its sending."""
    seen = {"ttft": steady.ttft_ms, "e2e": steady.e2e_ms}
    left_ms = [slo.limit_ms - spread.p95 for slo in slos if (spread := seen.get(slo.latency)) is not None]
    answer_ms = steady.e2e_ms.p50 if steady.e2e_ms else 0.0
    return max(0.0, min([*left_ms, answer_ms]) / 1000)


# the deployment file as the twin knows it


def twins_of(service: Service) -> list[tuple[Deployment, int]]:
    """Each kind of server with its copies; split roles are one deployment, as neither serves alone."""
    if not service.gpu:
        raise InputError("name the GPU in the deployment file, such as `engine: {kind: sglang, gpu: h200}`")
    if not service.split:
        return [(_deployment(service, unit, _layout(service, unit)), unit.replicas) for unit in service.units]
    size = max(_NODE_GPUS, *(unit.gpus for unit in service.units))
    prefill, decode = (next(unit for unit in service.units if unit.role == role) for role in ("prefill", "decode"))
    groups = [replace(_layout(service, unit, unit.replicas), gpus_per_node=size) for unit in (prefill, decode)]
    found = _deployment(service, decode, disaggregated(*groups))
    return [
        (
            replace(
                found,
                prefill_settings=replace(settings_of(_values(service, prefill)), prefill_graph=False),
                decode_settings=settings_of(_values(service, decode)),
            ),
            1,
        )
    ]


def _values(service: Service, unit: ServiceUnit) -> dict[str, Value]:
    return server_of(service.engine).flags.canonical(unit.settings)


def _layout(service: Service, unit: ServiceUnit, copies: int = 1) -> Layout:
    """A file may leave GPUs out where nobody deals them out; a node is then as large as the ranks need."""
    one = layout_of(_values(service, unit), unit.nodes, unit.gpus or None)
    return one if copies == 1 else replace(one, dp=copies, nodes=copies * unit.nodes)


def _deployment(service: Service, unit: ServiceUnit, layout: Layout) -> Deployment:
    values = _values(service, unit)
    model = model_of(load_model(twin_model(service.model)), values)
    cluster = make_cluster(service.gpu, layout.nodes, layout.gpus_per_node)
    return Deployment(model, cluster, layout, settings_of(values))


def twin_model(model: str) -> str:
    """The model as the twin takes it: its config.json where the folder is here, else a preset of its folder's name."""
    config = Path(model) / "config.json"
    return str(config) if config.is_file() else Path(model).name if "/" in model else model
