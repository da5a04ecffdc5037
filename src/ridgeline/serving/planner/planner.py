"""Choose a layout by asking the twin: model, GPUs, traffic and limits in, ranked ways to serve out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from ridgeline.errors import InputError, NothingFound
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.records.measurement import unit_of
from ridgeline.records.request import takes
from ridgeline.serving.engines.fitting import nearest_fits
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.memory import roomiest_plan
from ridgeline.serving.engines.settings import EngineSettings, dtype_values, parse_engine
from ridgeline.serving.hardware.cluster import GIB, load_gpu, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.candidates import ENERGY, GOALS, PlanQuestion, PlanRequest, Unit
from ridgeline.serving.planner.commands import LintPoint, unit_values, written_for
from ridgeline.serving.planner.operating_point import Knee, Option, named_scheme, schemes_for, tried, try_all
from ridgeline.serving.planner.scheme import Pair, Scheme
from ridgeline.serving.planner.study import beside, quoted, verification_study
from ridgeline.serving.planner.verdict import SplitVerdict, verdict_on
from ridgeline.serving.traffic.requests import Slo, Spread
from ridgeline.serving.traffic.traffic import AllAtOnce, AsRecorded, Fixed, OpenLoop, Traffic, dataset_of, parse_traffic
from ridgeline.serving.twin.calibration import Calibration, read_calibration
from ridgeline.serving.twin.energy import ENERGY_FIGURES
from ridgeline.serving.twin.simulate import assumed_of, within_context

# Without a TTFT limit, TTFT has taken off when it is this many times that of a lone request.
TAKE_OFF = 5.0


def _with_knee(option: Option) -> Option:
    """The same option with the burst at which its TTFT takes off, found in the twin."""
    scheme, q = option.scheme, option.scheme.question
    tokens = max(1, round(q.input_tokens)), max(1, round(q.output_tokens))
    limit_ms = _ttft_limit_ms(scheme, tokens)

    def keeps(batch: int) -> bool:
        each = max(1, -(-batch // scheme.slices))
        spread = scheme.summary(Traffic(Fixed(*tokens), each)).ttft_ms
        return spread is not None and spread.p95 <= limit_ms

    cap = scheme.main.cap * scheme.slices * max(1, scheme.parts[1])
    batch = max(1, scheme.slices)
    if not keeps(batch):
        return replace(option, knee=Knee(0, tokens[0], "prefill speed"))
    while batch < 4 * cap and keeps(2 * batch):
        batch *= 2
    low, high = batch, 2 * batch
    for _ in range(3):
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    bound = "running limit" if low >= 0.8 * cap else "prefill speed"
    return replace(option, knee=Knee(low, tokens[0], bound))


def _ttft_limit_ms(scheme: Scheme, tokens: tuple[int, int]) -> float:
    limit_s = scheme.question.limit_s("ttft")
    if limit_s is not None:
        return limit_s * 1000
    alone = scheme.summary(Traffic(Fixed(*tokens), 1)).ttft_ms
    assert alone is not None
    return TAKE_OFF * alone.p95


LATENCIES, ALIKE = ("ttft", "itl"), 0.03


def pareto(options: Sequence[Option]) -> set[int]:
    """Indices of options that no other beats in GPUs, goodput, TTFT, ITL and the loss with a GPU at once.

    Latencies within a few percent are the same: no prediction is surer than that.
    """

    def beats(a: Option, b: Option) -> bool:
        fewer, more = b.scheme.gpus - a.scheme.gpus, round(a.goodput_s - b.goodput_s, 3)
        safer = round(b.scheme.loss() - a.scheme.loss(), 3)
        if min(fewer, more, safer) < 0:
            return False
        shorter = [_p95(b, name) - _p95(a, name) for name in LATENCIES]
        same = [ALIKE * _p95(b, name) for name in LATENCIES]
        if any(gain < -limit for gain, limit in zip(shorter, same, strict=True)):
            return False
        return max(fewer, more, safer) > 0 or any(gain > limit for gain, limit in zip(shorter, same, strict=True))

    return {i for i, option in enumerate(options) if not any(beats(other, option) for other in options)}


def _p95(option: Option, latency: str) -> float:
    spread: Spread | None = getattr(option.summary, f"{latency}_ms")
    return spread.p95 if spread else 0.0


REQUESTS = 400
LIMIT_S = 3600
# what each half varies, so that steps of more than one size are measured, and what it is judged by
_VARIED = {"prefill": ("chunked_prefill_size", "input_tok_s"), "decode": ("max_running_requests", "output_tok_s")}


def _half_study(unit: Unit, traffic: Traffic, asked: PlanRequest) -> str:
    knob, metric = _VARIED[unit.role]
    values = {name: value for name, value in unit_values(unit).items() if name != knob}
    planned = unit.chunk_flag if unit.role == "prefill" else unit.cap
    flags = ", ".join(f"{name}: {value}" for name, value in values.items())
    share = unit.layout.attn_dp * unit.layout.pp
    half = max(share, planned // 2 // share * share)
    nodes, size = unit.layout.nodes, unit.layout.gpus_per_node
    lines = [
        "version: 1",
        f"name: {unit.role}-alone",
        f"question: How long do the steps of a {unit.role} engine take? Its log calibrates the twin.",
        "",
        "workload:",
        "  kind: sglang-serve",
        f"  model: {quoted(beside(asked.model))}  # or your model's folder, without the next line",
        "  load_format: dummy",
        f"  gpu: {unit.question.cluster.gpu.spelled}",
        f"  alone: {unit.role}",
        f"  flags: {{{flags}}}",
        f"  concurrency: {max(1, min(unit.cap, REQUESTS // 2))}",
        f"  traffic: {{dataset: {dataset_of(traffic)!r}, requests: {REQUESTS}, seed: {traffic.seed}}}",
        f"job: {{nodes: {nodes}, gpus: {min(size, unit.gpus)}, limit: {LIMIT_S}}}",
        "",
        "space:",
        f"  {knob}: [{half}, {planned}]" if half < planned else f"  {knob}: [{planned}]",
        f"baseline: {{{knob}: {planned}}}",
        f"goal: {{maximize: {metric}}}",
        "budget: {trials: 2}",
        "confirm: {top: 1, blocks: 3}",
        "",
    ]
    return "\n".join(lines)


# GPUs that send slower than this to each other have no NVLink.
_NVLINK_LEAST = 100e9
# Choices whose take-off is sought.
_KNEES = 8


_COSTS = ("gpu_hours_per_million", "most_joules_per_token", *ENERGY_FIGURES)


@dataclass(frozen=True)
class Choice:
    """One ranked answer. Its command lines are those of its deployment (`deploy/from_plan.py`), which must hold
    `point`."""

    rank: int
    option: Option
    on_front: bool  # no other choice is better in GPUs, goodput, TTFT and ITL at once
    point: LintPoint
    study: str

    def as_json(self) -> dict[str, object]:
        o, unit = self.option, self.option.scheme.main
        pair = o.scheme.shape if isinstance(o.scheme.shape, Pair) else None
        gpus = [unit.gpus * groups for unit, groups in o.scheme.groups]
        return {
            "rank": self.rank,
            "layout": str(o.layout),
            "kind": "disaggregated" if pair else "colocated",
            "gpus": o.scheme.gpus,
            "meets_slo": o.meets,
            "keeps_up": o.keeps_up,
            "broken_slos": [str(s) for s in o.broken],
            "goodput": round(o.goodput_s, 4),
            "offered_rate": None if o.rate_s is None else round(o.rate_s, 4),
            "capacity": None if o.capacity_s is None else round(o.capacity_s, 4),
            "total_tok_s": round(o.total_tok_s, 1),
            "costs": {name: getattr(o, name) for name in _COSTS},
            "reach": o.reach,
            "ttft_ms": o.summary.ttft_ms.as_json() if o.summary.ttft_ms else None,
            "itl_ms": o.summary.itl_ms.as_json() if o.summary.itl_ms else None,
            "interval": {name: [round(v, 4) for v in both] for name, both in o.bounds.items()},
            "max_running_requests": unit.cap,
            "requests_at_once": unit.cap * o.scheme.slices * max(1, o.scheme.parts[1]),
            "chunked_prefill_size": o.scheme.units[0].chunk_flag,
            "cuda_graph_max_bs": unit.times.applied.graph_max_bs,
            "mem_fraction": unit.memory.mem_fraction,
            "settings": {u.role: u.settings_json() for u in o.scheme.units},
            "kv_tokens": unit.memory.kv_tokens,
            "kv_margin_gib": round(o.margin_bytes / GIB, 2),
            "knee": o.knee.as_json() if o.knee else None,
            "prefill_decode_ratio": round(gpus[0] / gpus[1], 4) if pair else None,
            "prefill_gpus": gpus[0] if pair else None,
            "decode_gpus": gpus[1] if pair else None,
            "prefill_layout": str(pair.prefill.layout) if pair else None,
            "decode_layout": str(pair.decode.layout) if pair else None,
            "loss": {"gpu": round(o.scheme.loss(), 3), "node": round(o.scheme.loss(node=True), 3)},
            "pareto": self.on_front,
            "written_for": written_for(o.scheme),
            "study": self.study,
        }


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    question: PlanQuestion
    traffic: Traffic
    choices: tuple[Choice, ...]
    considered: int  # ways to serve that were compared by step times
    simulated: int
    cpu_s: float
    verdict: SplitVerdict
    asked: PlanRequest
    halves: Mapping[str, str] = field(default_factory=dict)  # studies of prefill alone and decode alone, by file name
    assumed: tuple[str, ...] = ()  # what nobody said, and what was done to the traffic before anything was asked

    def shown(self) -> TextTable:
        q = self.question
        known = "calibrated" if q.calibration.points else "not calibrated"
        rows = tuple(
            (str(c.rank), str(c.option.layout), str(c.option.scheme.gpus), f"{c.option.goodput_s:.2f}",
             f"{c.option.total_tok_s:,.0f}", "yes" if c.option.meets else "no")
            for c in self.choices
        )  # fmt: skip
        head = ("#", "layout", "GPUs", "goodput", unit_of("total_tok_s"), "keeps every limit")
        return TextTable(
            f"{q.model.name} on {q.cluster}: modelled, {known}", head, rows, notes=(*self.assumed, *q.model.notes)
        )

    def as_json(self) -> dict[str, object]:
        return {
            "model": self.question.model.name,
            "cluster": str(self.question.cluster),
            "input_tokens": self.question.input_tokens,
            "output_tokens": self.question.output_tokens,
            "slos": [str(s) for s in self.question.slos],
            "plans": [c.as_json() for c in self.choices],
            "considered": self.considered,
            "simulated": self.simulated,
            "speed_interval": list(self.choices[0].option.speed_ratios),
            "calibrated": self.question.calibration.points > 0,
            "assumed": list(self.assumed),
            "notes": list(self.question.model.notes),
            "origin": "modelled",
            "cpu_s": self.cpu_s,
            "verdict": self.verdict.as_json(),
        }


@takes(PlanRequest)
def answer_plan(asked: PlanRequest) -> Plan:
    """Ways to serve a model on given GPUs within latency limits, best first."""
    if asked.goal not in GOALS:
        raise InputError(f"goal {asked.goal!r} is not known; use one of {', '.join(GOALS)}")
    if asked.goal == ENERGY and load_gpu(asked.gpu).power_w is None:
        raise InputError(f"the limit of power of {asked.gpu} is not known; add power_w to its row, or leave out --goal")
    if asked.top < 1:
        raise InputError(f"--top {asked.top} shows nothing; give 1 or more")
    started_s = time.process_time()
    settings = parse_engine(asked.engine, EngineSettings(attention_backend=asked.attention_backend))
    recipe = parse_traffic(
        asked.traffic,
        requests=asked.requests,
        rate_s=asked.rate_s,
        concurrency=asked.concurrency,
        seed=asked.seed,
    )
    shipped = load_model(asked.model)
    model = shipped.with_dtype(asked.dtype, asked.kv_dtype)
    cluster = make_cluster(asked.gpu, asked.nodes, asked.gpus_per_node, asked.fabric)
    slos = tuple(map(Slo.parse, asked.slos))
    calibration = read_calibration(Path(asked.calibration)) if asked.calibration else Calibration()
    traffic, cut = within_context(recipe, model)
    arrivals = traffic.arrivals()
    if isinstance(traffic.pace, AsRecorded):
        # layouts are compared at the trace's mean rate; a choice can then be simulated with its own times
        lasts_s = max(a.at_s for a in arrivals) or 1.0
        traffic = replace(traffic, pace=OpenLoop(len(arrivals) / lasts_s))
    longest = max(a.input_tokens + a.output_tokens for a in arrivals)
    lengths = fmean(a.input_tokens for a in arrivals), fmean(a.output_tokens for a in arrivals)
    question = PlanQuestion(
        model, cluster, *lengths, slos, settings, calibration, _in_flight(traffic, slos), dtype_values(shipped, model)
    )
    rate_s = traffic.pace.rate_s if isinstance(traffic.pace, OpenLoop) else None
    considered, schemes = schemes_for(question, rate_s)
    if not schemes:
        raise _nothing_fits(question, longest)
    asked_for = [named_scheme(text, considered) for text in asked.named]
    kept = {scheme.layout for scheme in asked_for}
    least_energy = asked.goal == ENERGY
    found = try_all([s for s in schemes if s.layout not in kept], traffic, rate_s, every=least_energy)
    found += [tried(s, traffic) for s in asked_for]
    ranked = sorted(found, key=lambda o: _rank(o, sized=rate_s is not None, least_energy=least_energy))
    # what a rate needs of two sizes of a split may be the same few GPUs
    options = [o for n, o in enumerate(ranked) if o.scheme not in [before.scheme for before in ranked[:n]]]
    verdict = verdict_on(options)
    options = _without_doubtful_splits(options, verdict)
    options = [o for n, o in enumerate(options) if n < asked.top or o.scheme.layout in kept]
    options = [_with_knee(o) if n < _KNEES else o for n, o in enumerate(options)]
    front = pareto(options)
    choices = [_choice(n, o, n in front, traffic, longest, asked) for n, o in enumerate(options)]
    halves = verdict.apart.scheme.units if verdict.apart else ()
    return Plan(
        question,
        traffic,
        tuple(choices),
        considered=len(considered),
        simulated=len(found),
        cpu_s=time.process_time() - started_s,
        verdict=verdict,
        asked=asked,
        halves={f"{unit.role}-alone.yaml": _half_study(unit, traffic, asked) for unit in halves},
        assumed=(*assumed_of(options[0].scheme.deployment()), *cut),
    )


def _rank(option: Option, *, sized: bool, least_energy: bool) -> tuple[float, ...]:
    """`sized`: the rate was given, so that the fewest GPUs that keep the limits are best; else the most requests.
    `least_energy` of a token comes before both."""
    goodput = -option.goodput_s
    gpus = option.scheme.gpus if sized else 0
    ttft = option.summary.ttft_ms.p95 if option.summary.ttft_ms else 0.0
    joules = option.joules_per_output_token if least_energy else None
    if option.meets:
        return 0, joules or 0.0, gpus, round(goodput, 2), option.scheme.loss(), ttft
    # beyond its capacity a run's goodput is that of its first requests
    able = -(option.capacity_s or 0.0) if sized else 0.0
    return 1, round(able, 2), round(goodput, 2), round(option.summary.overshoot, 2), gpus, option.scheme.loss(), ttft


def _without_doubtful_splits(options: list[Option], verdict: SplitVerdict) -> list[Option]:
    """Where KV would go over PCIe, a split stands behind the best engine that does both unless it is clearly better."""
    best = options[0]
    slow = best.scheme.question.cluster.gpu.link.bytes_s < _NVLINK_LEAST
    if not slow or verdict.split or verdict.together is None or not isinstance(best.scheme.shape, Pair):
        return options
    first = options.index(verdict.together)
    return [options[first], *options[:first], *options[first + 1 :]]


def _in_flight(traffic: Traffic, slos: Sequence[Slo]) -> int | None:
    """The most requests there can ever be at once; None in an open loop."""
    if traffic.concurrency is not None:
        return traffic.concurrency
    return traffic.requests if isinstance(traffic.pace, AllAtOnce) and not slos else None


def _choice(number: int, option: Option, on_front: bool, traffic: Traffic, longest: int, asked: PlanRequest) -> Choice:
    scheme = option.scheme
    engines = scheme.slices * max(1, scheme.parts[1])
    q = scheme.question
    e2e_s = option.summary.e2e_ms.mean / 1000 if option.summary.e2e_ms else 0.0
    ttft_s = option.summary.ttft_ms.mean / 1000 if option.summary.ttft_ms else 0.0
    # what is under way by Little's law; the rate of a short run would count its filling and draining
    rate_s = option.requests_s if option.rate_s is None else option.rate_s
    decoding = rate_s * max(0.0, e2e_s - ttft_s)
    running = min(scheme.main.cap * engines, max(1, round(decoding)))
    point = LintPoint(running, q.context_tokens, longest)
    return Choice(number + 1, option, on_front, point, verification_study(option, traffic, asked))


def _nothing_fits(question: PlanQuestion, longest: int) -> NothingFound:
    """The widest engine there is, why it does not fit, and what would."""
    cluster, model = question.cluster, question.model
    size = cluster.node.gpus
    layout = Layout(tp=size, pp=cluster.nodes, nodes=cluster.nodes, gpus_per_node=size)
    plan_ = roomiest_plan(model, cluster.gpu, layout, question.settings)
    if plan_.fits and plan_.kv_tokens_per_rank < longest:
        return NothingFound(
            f"{model.name} fits {cluster}, but a request of {longest:,} tokens does not fit its KV pool of "
            f"{plan_.kv_tokens_per_rank:,}; send shorter requests or use more GPUs"
        )
    nearest = nearest_fits(model, cluster, layout, replace(question.settings, mem_fraction=None), plan_)
    remedy = f"\n  nearest that fits: {'; '.join(nearest)}" if nearest else ""
    return NothingFound(f"{model.name} does not fit {cluster} in any layout: {plan_.reason}{remedy}")
