"""How long one iteration of an engine takes, term by term.

Each operator is a roofline: the slower of its FLOPs over the tensor cores' rate and its bytes over the memory's. Added
to them come collectives, a small gap per kernel, and the host, which runs beside the GPU and counts when it is slower.
docs/twin.md gives every formula; the constants are priors (`priors.py`) that calibration corrects through `Factors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ridgeline.serving.hardware import Cluster
from ridgeline.serving.layout import Layout, matrix_shards, rank_kv_bytes_per_token
from ridgeline.serving.models import BYTES_PER_WEIGHT, Model
from ridgeline.serving.twin.collectives import Network
from ridgeline.serving.twin.engine import Applied
from ridgeline.serving.twin.factors import Factors
from ridgeline.serving.twin.priors import (
    AGREE_S,
    DECODE_COMPUTE,
    DECODE_MEMORY,
    DENSE_COMPUTE,
    DENSE_MEMORY,
    ELEMENTWISE_MEMORY,
    ELEMENTWISE_PASSES,
    EXPERT_COMPUTE,
    EXPERT_IMBALANCE,
    EXPERT_MEMORY,
    EXPERT_TILE,
    HOST_OP_S,
    HOST_REQUEST_S,
    HOST_STEP_S,
    LAYER_OPS,
    MLA_OPS,
    MOE_OPS,
    OP_GAP_S,
    PIPELINE_BUBBLE,
    PREFILL_COMPUTE,
    QUANTISE_OPS,
    SAMPLING_PASSES,
    SCALED_OP_GAP_S,
    SMALL_EXPERT_TILE,
    WHOLE_EXPERT_COMPUTE,
)


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a step: seconds, and what would have to be faster for it to shrink."""

    name: str
    seconds: float
    bound: str  # compute, memory, network, latency, host


@dataclass(frozen=True, slots=True)
class _Gemm:
    """All matrices of one kind on one rank, whole model: FLOPs for each row, bytes of weights."""

    name: str
    dtype: str
    rows: str  # rank: tokens of one attention-DP rank; all: of every rank; logits: rows that need logits
    flops_per_row: float
    weight_bytes: float


class StepTime:
    """Iteration times of one engine. `batch` and `context` count requests and cached tokens of the whole engine."""

    def __init__(self, model: Model, cluster: Cluster, layout: Layout, applied: Applied, factors: Factors) -> None:
        self.model, self.layout, self.applied, self.factors = model, layout, applied, factors
        self.gpu = cluster.gpu
        self.network = Network(cluster, factors.network)
        self._gemms = _gemms(model, layout)
        self._expert_flops, self._expert_bytes = _experts(model, layout)
        self._bandwidth = self.gpu.bandwidth_bytes_s * factors.memory
        self._stream_s = 1.0 / (self.gpu.bandwidth_bytes_s * ELEMENTWISE_MEMORY * factors.memory)
        self._context_s, self._context_bound = self._decode_attention()
        self._pair_s = self._prefill_attention()
        self._decode_lines: dict[int, tuple[float, float, float]] = {}
        self._prefill_fixed: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._ops = _ops_per_step(model, layout)
        self._op_gap_s = SCALED_OP_GAP_S if _scaled(model) else OP_GAP_S

    # -- decode ---------------------------------------------------------------------------------------------------

    def decode_s(self, batch: int, context: float) -> float:
        """One decode iteration of `batch` requests that hold `context` tokens together."""
        base_s, per_token_s, host_s = self.decode_line(batch)
        return max(base_s + per_token_s * context, host_s)

    def decode_line(self, batch: int) -> tuple[float, float, float]:
        """(base, seconds per cached token, host): a step takes max(base + per token x context, host).

        While the batch stays the same the time of a step is linear in the context, so that a run of steps takes as many
        times the step in its middle.
        """
        line = self._decode_lines.get(batch)
        if line is None:
            terms, host_s = self._decode_terms(batch)
            base_s = sum(t.seconds for t in terms) * self._bubble
            agree_s = self._agree_s
            line = self._decode_lines[batch] = (base_s + agree_s, self._context_s * self._bubble, host_s + agree_s)
        return line

    def explain_decode(self, batch: int, context: float) -> list[Term]:
        """The terms of `decode_s`, adding up to it; what the host hides is listed with zero seconds."""
        terms, host_s = self._decode_terms(batch)
        terms.append(Term("attention over cached tokens", self._context_s * context, self._context_bound))
        return self._agreed(self._with_host(terms, host_s, graph=self._decode_in_graph(batch)))

    # -- prefill --------------------------------------------------------------------------------------------------

    def prefill_s(self, tokens: int, pairs: float, sequences: int, largest: int) -> float:
        """One prefill iteration.

        `pairs` counts query-key pairs, `sequences` the prompts in it, `largest` the tokens of the longest piece, which
        one attention-DP rank computes alone.
        """
        key = (tokens, sequences, largest)
        fixed = self._prefill_fixed.get(key)
        if fixed is None:
            terms, host_s = self._prefill_terms(tokens, sequences, largest)
            fixed = self._prefill_fixed[key] = (sum(t.seconds for t in terms), host_s)
        gpu_s = (fixed[0] + self._pairs_s(tokens, pairs, largest)) * self._bubble
        return self._agree_s + (gpu_s + fixed[1] if self.counted else max(gpu_s, fixed[1]))

    def explain_prefill(self, tokens: int, pairs: float, sequences: int, largest: int) -> list[Term]:
        terms, host_s = self._prefill_terms(tokens, sequences, largest)
        terms.append(Term("attention among new tokens", self._pairs_s(tokens, pairs, largest), "compute"))
        if self.counted:
            terms.append(Term("host, which waits for token counts in every layer", host_s, "host"))
            return self._agreed(terms)
        return self._agreed(self._with_host(terms, host_s, graph=self.applied.prefill_graph))

    # -- shared ---------------------------------------------------------------------------------------------------

    @property
    def counted(self) -> bool:
        """DeepEP's normal mode makes the host wait for the GPU in every layer, so their times add up."""
        return self.layout.ep > 1 and self.layout.attn_dp > 1 and self.model.experts is not None

    @property
    def _agree_s(self) -> float:
        """How long attention-DP ranks on several nodes take to agree on a batch, on top of everything else."""
        apart = self.layout.attn_dp > 1 and self.layout.tp_nodes > 1
        return AGREE_S * self.factors.host if apart else 0.0

    def _agreed(self, terms: list[Term]) -> list[Term]:
        agree = Term("attention-DP ranks agree on the batch", self._agree_s, "host")
        return [*terms, agree] if agree.seconds else terms

    @property
    def _bubble(self) -> float:
        return PIPELINE_BUBBLE if self.layout.pp > 1 else 1.0

    def _with_host(self, terms: list[Term], host_s: float, *, graph: bool) -> list[Term]:
        gpu_s = sum(t.seconds for t in terms)
        if self.layout.pp > 1:
            terms.append(Term("pipeline bubble", gpu_s * (self._bubble - 1), "latency"))
        name = "host beyond the GPU's time (CUDA graph)" if graph else "host beyond the GPU's time (no CUDA graph)"
        return [*terms, Term(name, max(0.0, host_s - gpu_s * self._bubble), "host")]

    def _decode_in_graph(self, batch: int) -> bool:
        rank_batch = math.ceil(batch / (self.layout.attn_dp * self.layout.pp))
        return rank_batch <= self.applied.graph_max_bs

    def _decode_terms(self, batch: int) -> tuple[list[Term], float]:
        drafts = self.applied.draft_tokens
        micro = max(1.0, batch / self.layout.pp)
        rank_rows = math.ceil(micro / self.layout.attn_dp) * drafts
        terms = self._pass_terms(rank_rows, micro * drafts, micro * drafts, counted=False)
        if drafts > 1:
            # the draft head is one more layer, run once for each drafted token
            share = (drafts - 1) / self.model.layers
            terms.append(Term("draft model", sum(t.seconds for t in terms) * share, "memory"))
        host_s = HOST_STEP_S + batch * HOST_REQUEST_S
        if not self._decode_in_graph(batch):
            host_s += self._ops * HOST_OP_S
        return terms, host_s * self.factors.host

    def _rank_rows(self, tokens: int, largest: int) -> float:
        """New tokens of the fullest attention-DP rank: an equal share, and at least the longest piece."""
        micro = tokens / self.layout.pp
        return max(math.ceil(micro / self.layout.attn_dp), min(largest, micro))

    def _pairs_s(self, tokens: int, pairs: float, largest: int) -> float:
        if self.layout.attn_dp == 1:
            return pairs / self.layout.pp * self._pair_s
        share = self._rank_rows(tokens, largest) / max(1.0, tokens / self.layout.pp)
        return pairs / self.layout.pp * share * self._pair_s

    def _prefill_terms(self, tokens: int, sequences: int, largest: int) -> tuple[list[Term], float]:
        micro = tokens / self.layout.pp
        rank_rows = self._rank_rows(tokens, largest)
        terms = self._pass_terms(rank_rows, micro, max(1.0, sequences / self.layout.pp), counted=True)
        host_s = HOST_STEP_S + sequences * HOST_REQUEST_S
        if not self.applied.prefill_graph:
            host_s += self._ops * HOST_OP_S
        return terms, host_s * self.factors.prefill_host

    def _pass_terms(self, rank_rows: float, all_rows: float, logit_rows: float, *, counted: bool) -> list[Term]:
        rows = {"rank": rank_rows, "all": all_rows, "logits": logit_rows}
        terms = [self._gemm_term(g, rows[g.rows]) for g in self._gemms]
        if self.model.experts is not None:
            terms.append(self._expert_term(all_rows))
        terms.append(self._elementwise_term(rank_rows, all_rows))
        sampled = logit_rows / self.layout.attn_dp * self.model.vocab * 4 * SAMPLING_PASSES
        terms.append(Term("sampling", sampled * self._stream_s, "memory"))
        terms.append(Term("kernel gaps", self._ops * self._op_gap_s, "latency"))
        terms += self._network_terms(rank_rows, all_rows, logit_rows, counted=counted)
        return terms

    def _gemm_term(self, gemm: _Gemm, rows: float) -> Term:
        rate = self.gpu.flops_of(gemm.dtype) * DENSE_COMPUTE[gemm.dtype] * self.factors.compute
        compute_s = gemm.flops_per_row * rows / rate
        memory_s = gemm.weight_bytes / (self._bandwidth * DENSE_MEMORY)
        return Term(gemm.name, max(compute_s, memory_s), "compute" if compute_s > memory_s else "memory")

    def _expert_term(self, rows: float) -> Term:
        experts = self.model.experts
        assert experts is not None
        dtype = self.model.dtype
        reached = EXPERT_COMPUTE[dtype]
        if self.layout.ep > 1:
            reached = WHOLE_EXPERT_COMPUTE.get(dtype, reached)
        rate = self.gpu.flops_of(dtype) * reached * self.factors.compute
        asked = experts.touched(rows)
        tile = EXPERT_TILE if rows > experts.count else SMALL_EXPERT_TILE
        # an asked expert gets its share of the rows, on average half a tile more than that, and a whole tile at least
        routed = rows * experts.per_token
        computed = max(routed + asked * tile / 2, asked * tile) if asked else 0.0
        compute_s = self._expert_flops * computed / experts.per_token / rate
        touched = asked / experts.count
        memory_s = self._expert_bytes * touched / (self._bandwidth * EXPERT_MEMORY)
        uneven = EXPERT_IMBALANCE if self.layout.ep > 1 else 1.0
        name = f"experts ({touched:.0%} touched)"
        return Term(name, max(compute_s, memory_s) * uneven, "compute" if compute_s > memory_s else "memory")

    def _elementwise_term(self, rank_rows: float, all_rows: float) -> Term:
        m, layout = self.model, self.layout
        nbytes = rank_rows * m.layers * ELEMENTWISE_PASSES * m.hidden * 2
        nbytes += all_rows * len(m.dense_layers) * 4 * m.ffn_width * 2 / layout.tp
        if m.experts is not None:
            # each rank gathers and sums every routed copy it computes, hidden wide; only EP divides them
            copies = all_rows * m.experts.per_token / layout.ep
            nbytes += copies * len(m.moe_layers) * (2 * m.hidden + 4 * m.experts.width * layout.ep / layout.tp) * 2
        return Term("norms, rope, activations", nbytes * self._stream_s, "memory")

    def _network_terms(self, rank_rows: float, all_rows: float, logit_rows: float, *, counted: bool) -> list[Term]:
        m, lay, net = self.model, self.layout, self.network
        wide = m.hidden * 2
        terms: list[Term] = []
        if lay.tp > 1 and lay.attn_dp == 1:
            seconds = 2 * m.layers * net.all_reduce_s(all_rows * wide, lay.tp)
            terms.append(Term(f"all-reduce over {lay.tp}", seconds, "network"))
        elif lay.attn_dp > 1:
            within = m.layers * net.all_reduce_s(rank_rows * wide, lay.attn_tp)
            terms.append(Term(f"attention all-reduce over {lay.attn_tp}", within, "network"))
            terms.append(self._exchange_term(rank_rows, all_rows, counted=counted))
        if lay.tp > 1:
            logits = net.all_gather_s(logit_rows * m.vocab * 2, lay.tp)
            terms.append(Term("logits all-gather", logits, "network"))
        if lay.pp > 1:
            between = lay.replica_nodes > 1
            hand_over = net.send_s(rank_rows * wide, between_nodes=between) * lay.pp
            terms.append(Term("stage to stage", hand_over, "network"))
        return terms

    def _exchange_term(self, rank_rows: float, all_rows: float, *, counted: bool) -> Term:
        """How attention-DP ranks meet for the feed-forward part: DeepEP under EP, gather and scatter otherwise."""
        m, lay, net = self.model, self.layout, self.network
        if lay.ep > 1 and m.experts is not None:
            copies = m.experts.per_token
            # DeepEP sends activations quantised to FP8 and brings back bf16
            there = net.all_to_all_s(rank_rows, copies, m.hidden, lay.ep, counted=counted)
            back = net.all_to_all_s(rank_rows, copies, m.hidden * 2, lay.ep, counted=False)
            return Term(f"expert all-to-all over {lay.ep}", len(m.moe_layers) * (there + back), "network")
        once = net.all_gather_s(all_rows * m.hidden * 2, lay.tp)
        return Term(f"gather and scatter over {lay.tp}", 2 * m.layers * once, "network")

    def _decode_attention(self) -> tuple[float, str]:
        """Seconds per cached token, whole model, and what bounds them."""
        a, lay = self.model.attention, self.layout
        shared = DECODE_MEMORY[self.applied.backend][1 if a.mla else 0]
        held = rank_kv_bytes_per_token(self.model, replace(lay, pp=1))
        memory_s = held / (self._bandwidth * shared * self.factors.attention)
        flops = a.pair_flops(absorbed=True) * self.model.layers / lay.attn_tp * self.applied.draft_tokens
        rate = self.gpu.flops_of("bf16") * min(DECODE_COMPUTE, shared) * self.factors.attention
        compute_s = flops / rate
        slower = max(memory_s, compute_s)
        return slower / (lay.attn_dp * lay.pp), "compute" if compute_s > memory_s else "memory"

    def _prefill_attention(self) -> float:
        """Seconds per query-key pair on one attention group, whole model."""
        flops = self.model.attention.pair_flops(absorbed=False) * self.model.layers / self.layout.attn_tp
        return flops / (self.gpu.flops_of("bf16") * PREFILL_COMPUTE[self.applied.backend] * self.factors.attention)


def _gemms(model: Model, layout: Layout) -> tuple[_Gemm, ...]:
    kinds = {
        "attention": ("attention projections", "rank"),
        "dense_ffn": ("dense FFN", "all"),
        "shared_experts": ("shared experts", "all"),
        "router": ("router", "rank"),
        "lm_head": ("LM head", "logits"),
    }
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    for m in model.matrices:
        if m.part not in kinds:
            continue
        name, rows = kinds[m.part]
        shards = matrix_shards(m, layout, model)
        if rows == "all" and shards < layout.tp:
            rows = "rank"  # a whole copy on every attention-DP rank, which feeds it its own tokens
        flops, nbytes = found.get((name, m.dtype, rows), (0.0, 0.0))
        size = m.rows * m.cols * m.copies / shards
        found[name, m.dtype, rows] = (flops + 2 * size, nbytes + size * BYTES_PER_WEIGHT[m.dtype])
    if model.tied_embeddings:
        size = model.hidden * model.vocab / layout.tp
        found["LM head", model.base_dtype, "logits"] = (2 * size, size * BYTES_PER_WEIGHT[model.base_dtype])
    return tuple(_Gemm(name, dtype, rows, *sizes) for (name, dtype, rows), sizes in found.items())


def _experts(model: Model, layout: Layout) -> tuple[float, float]:
    """FLOPs per token and weight bytes of the routed experts on one rank."""
    mine = [m for m in model.matrices if m.part == "experts"]
    return sum(m.flops_per_token for m in mine) / layout.tp, sum(m.nbytes for m in mine) / layout.tp


def _ops_per_step(model: Model, layout: Layout) -> int:
    """Kernels of one pass; a collective is one more of them."""
    per_layer = LAYER_OPS + (MLA_OPS if model.attention.mla else 0) + (2 if layout.tp > 1 else 0)
    per_layer += QUANTISE_OPS if _scaled(model) else 0
    return model.layers * per_layer + len(model.moe_layers) * MOE_OPS


def _scaled(model: Model) -> bool:
    return model.dtype in ("fp8", "fp4")
