"""Which engines are worth simulating, each with settings for the traffic.

A `Unit` is one engine with settings derived for the traffic: how many requests it should run at once, how large a
prefill step, what memory that leaves. Its rates come straight from step times; they rank candidates, no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ridgeline.records.expression import Value
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.layout_rules import graphless, layout_problems
from ridgeline.serving.engines.memory import MemoryPlan, plan_memory, roomiest_plan
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.engines.settings import PREFILL_RANK_TOKENS, EngineSettings, defaults_of, resolve
from ridgeline.serving.hardware.cluster import Cluster
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.simulate import step_time
from ridgeline.serving.twin.steptime import StepTime

# A step may fill this share of the ITL limit, so that it is kept when contexts are longer than average and, where an
# engine does both, prompts come between steps. Steps that wait for the network hardly grow with the batch: next to the
# limit there is room for many requests.
_ITL_SHARE = {"both": 0.8, "decode": 0.95}
# Tokens in the KV pool beyond the average that long requests need.
_KV_SHARE = 0.85
# A plan leaves this share of the GPU unclaimed beyond all that is accounted for.
_SPARE_SHARE = 0.01
# Longer pipelines wait more for each other than they gain.
_MOST_STAGES = 4


# What is best of the ways that keep every limit: most requests (or fewest GPUs for a rate), or least energy a token.
THROUGHPUT, ENERGY = GOALS = ("throughput", "energy")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be served, on what, within which limits; as the command line and the Python API give it."""

    model: str
    gpu: str
    nodes: int = 1
    gpus_per_node: int = 8
    traffic: str = "sharegpt"
    fabric: str | None = None
    rate_s: float | None = None
    concurrency: int | None = None
    requests: int | None = None
    slos: Sequence[str] = ()
    engine: str = USUAL_ENGINE
    attention_backend: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    calibration: str | Path | None = None
    top: int = 8
    named: Sequence[str] = ()
    goal: str = THROUGHPUT
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """What is to be served: model and GPUs, mean lengths, limits, and what is known about the site."""

    model: Model
    cluster: Cluster
    input_tokens: float
    output_tokens: float
    slos: tuple[Slo, ...]
    settings: EngineSettings
    calibration: Calibration
    in_flight: int | None = None  # the most requests there can be at once, where the traffic sets one
    # knobs that keep the model in dtypes that its files are not in
    dtype_settings: Mapping[str, Value] = field(default_factory=dict, hash=False)

    def limit_s(self, *latencies: str) -> float | None:
        """The lowest limit on any of these."""
        return min((s.limit_ms / 1000 for s in self.slos if s.latency in latencies), default=None)

    @property
    def itl_limit_s(self) -> float | None:
        return self.limit_s("itl", "tpot")

    @property
    def context_tokens(self) -> float:
        """What a running request holds on average."""
        return self.input_tokens + self.output_tokens / 2


@dataclass(frozen=True)
class Unit:
    """One engine of a role, ready to be copied."""

    question: PlanQuestion
    layout: Layout  # of one engine: dp is 1
    role: str  # both, prefill, decode
    settings: EngineSettings  # what is simulated and what the printed command says: none of its flags is left open
    cap: int  # requests it runs at once, all attention groups together
    memory: MemoryPlan
    times: StepTime

    @property
    def gpus(self) -> int:
        return self.layout.replica_gpus

    @property
    def chunk_flag(self) -> int:
        """What --chunked-prefill-size must say: of one pipeline stage, all attention groups together."""
        return self.times.applied.chunk_tokens // self.layout.pp

    def settings_json(self) -> dict[str, object]:
        """As the flags of its servers say them."""
        return {
            "max_running_requests": self.cap,
            "chunked_prefill_size": self.chunk_flag,
            "mem_fraction": self.settings.mem_fraction,
            "cuda_graph_max_bs": self.settings.cuda_graph_max_bs,
            "attention_backend": self.settings.attention_backend,
            "enable_mixed_chunk": self.settings.mixed_chunk,
        }

    @cached_property
    def prefill_s(self) -> float:
        """Seconds of prefill work per request when steps are full."""
        tokens = self.times.applied.chunk_tokens
        prompts = max(1.0, tokens / self.question.input_tokens)
        pairs = tokens * (self.question.input_tokens + 1) / 2
        piece = min(tokens, math.ceil(self.question.input_tokens))
        step_s = self.times.prefill_s(tokens, pairs, math.ceil(prompts), piece)
        return step_s * self.question.input_tokens / tokens

    @cached_property
    def decode_s(self) -> float:
        """Seconds of decode work per request at the cap."""
        step_s = self.times.decode_s(self.cap, self.cap * self.question.context_tokens)
        return step_s * self.question.output_tokens / self.cap

    @cached_property
    def rate_s(self) -> float:
        """Requests per second this engine could do in its role, queues and burstiness aside."""
        work = {"prefill": self.prefill_s, "decode": self.decode_s}.get(self.role, self.prefill_s + self.decode_s)
        return 1.0 / work


def colocated_units(question: PlanQuestion, gpus: int) -> list[Unit]:
    """Engines whose copies fill `gpus` GPUs, fastest first."""
    return sorted(units(question, gpus, "both"), key=lambda u: -u.rate_s / u.gpus)


def units(question: PlanQuestion, gpus: int, role: str) -> list[Unit]:
    """An engine of every layout that can be; those of a split have no pipeline stages."""
    found = (make_unit(question, lay, role) for lay in one_engine_layouts(question, gpus, stages=role == "both"))
    return [unit for unit in found if unit is not None]


def make_unit(
    question: PlanQuestion,
    layout: Layout,
    role: str,
    chunk: int | None = None,
    cap: int | None = None,
    *,
    mixed: bool = False,
) -> Unit | None:
    """One engine with settings for this traffic; None where it does not fit or the engine would refuse it.

    `mixed`: prompts are computed in the steps that decode.
    """
    q = question
    settings = _with_defaults(q, layout, role, chunk, mixed=mixed)
    if layout_problems(q.model, layout, q.cluster.gpu, settings, role):
        return None
    first = roomiest_plan(q.model, q.cluster.gpu, layout, settings, role)
    request_tokens = q.input_tokens + (0 if role == "prefill" else q.output_tokens)
    if not first.kv_tokens_per_rank or first.kv_tokens_per_rank < request_tokens:
        return None
    times = _times(q, layout, replace(settings, mem_fraction=first.mem_fraction), role)
    ceiling = cap or int(first.groups * min(4096, _KV_SHARE * first.kv_tokens_per_rank / request_tokens))
    ceiling = ceiling if q.in_flight is None else min(ceiling, q.in_flight)
    cap = _within_itl(q, layout, times, ceiling, role)
    while cap:
        asked = _asked(q, layout, settings, cap, role)
        memory = roomiest_plan(q.model, q.cluster.gpu, layout, asked, role)
        short = memory.margin_bytes < _SPARE_SHARE * memory.free_bytes
        # whole thousandths, as a flag is written
        fraction = math.floor(1000 * (memory.mem_fraction - (_SPARE_SHARE if short else 0)) + 1e-6) / 1000
        asked = replace(asked, mem_fraction=fraction)
        memory = plan_memory(q.model, q.cluster.gpu, layout, asked, role)
        if memory.fits:
            return Unit(q, layout, role, asked, cap, memory, _times(q, layout, asked, role))
        cap = _whole(cap // 2, layout)
    return None


def _with_defaults(
    question: PlanQuestion, layout: Layout, role: str, chunk: int | None, *, mixed: bool
) -> EngineSettings:
    """The settings of the question, with values for what it leaves open and what does not depend on the batch."""
    q, own = question, defaults_of(question.settings.engine)
    without = graphless(layout, role, q.settings.version)
    return replace(
        q.settings,
        attention_backend=q.settings.attention_backend or own.backend(q.model, q.cluster.gpu, layout),
        chunked_prefill_size=chunk or q.settings.chunked_prefill_size,
        # the published recipes start prefill servers without graphs
        prefill_graph=False if role == "prefill" or without else q.settings.prefill_graph,
        cuda_graph_max_bs=0 if without else q.settings.cuda_graph_max_bs,
        mixed_chunk=mixed or q.settings.mixed_chunk,
    )


def _asked(question: PlanQuestion, layout: Layout, settings: EngineSettings, cap: int, role: str) -> EngineSettings:
    groups = layout.attn_dp * layout.pp
    eager = role == "prefill" or graphless(layout, role, settings.version)
    graph = 0 if eager else min(512, max(8, -(-cap // groups)))
    chunk = settings.chunked_prefill_size
    if role == "prefill" and chunk is None and layout.ep > 1:
        chunk = PREFILL_RANK_TOKENS * layout.attn_dp
    asked = replace(settings, max_running_requests=cap, cuda_graph_max_bs=graph, chunked_prefill_size=chunk)
    applied = resolve(asked, question.model, question.cluster.gpu, layout, pool_tokens=1)
    return replace(asked, chunked_prefill_size=applied.chunk_tokens // layout.pp)


def _times(question: PlanQuestion, layout: Layout, settings: EngineSettings, role: str) -> StepTime:
    deployment = Deployment(question.model, question.cluster, layout, settings)
    return step_time(deployment, layout, role, question.calibration)[0]


def _within_itl(question: PlanQuestion, layout: Layout, times: StepTime, ceiling: int, role: str) -> int:
    """The largest batch whose decode step stays below the ITL limit; the smallest there is when none does."""
    least = layout.attn_dp * layout.pp
    ceiling = max(least, _whole(ceiling, layout))
    limit_s = question.itl_limit_s
    if limit_s is None or role == "prefill":
        return ceiling
    share = _ITL_SHARE[role]
    low, high = least, ceiling
    while high - low > least:
        middle = _whole((low + high + 1) // 2, layout)
        if middle == low:
            break
        step_s = times.decode_s(middle, middle * question.context_tokens)
        low, high = (middle, high) if step_s <= share * limit_s else (low, middle)
    return low


def _whole(batch: int, layout: Layout) -> int:
    """Attention groups and pipeline stages each take an equal share of the running limit."""
    share = layout.attn_dp * layout.pp
    return batch // share * share


def one_engine_layouts(question: PlanQuestion, gpus: int, *, stages: bool) -> Iterator[Layout]:
    """One-engine layouts whose size divides `gpus`."""
    model, size = question.model, question.cluster.node.gpus
    whole = engine_named(question.settings.engine).planned_whole
    for total in (n for n in range(1, gpus + 1) if gpus % n == 0 or n % size == 0):
        if whole and total > size:
            break
        for pp in (n for n in range(1, _MOST_STAGES + 1 if stages else 2) if total % n == 0):
            tp = total // pp
            for attn_dp in (
                sorted({1, max(1, tp // 4), max(1, tp // 2), tp}) if model.attention.mla and not whole else (1,)
            ):
                for ep in (1, tp) if model.experts is not None and tp > 1 and attn_dp in (1, tp) else (1,):
                    used = -(-total // size)
                    yield Layout(tp, pp, 1, ep, attn_dp, nodes=used, gpus_per_node=size)
