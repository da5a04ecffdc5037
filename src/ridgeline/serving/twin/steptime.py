"""How long one iteration of an engine takes, term by term.

Each operator is a roofline: the slower of its FLOPs over the tensor cores' rate and its bytes over the memory's. Added
to them come collectives, a small gap per kernel, and the host, which runs beside the GPU and counts when it is slower.
docs/twin.md gives every formula; the constants are priors (`priors.py`) that calibration corrects through `Factors`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from functools import cached_property, lru_cache

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import Applied, defaults_of
from ridgeline.serving.hardware.cluster import Cluster
from ridgeline.serving.model.layer_parts import Experts
from ridgeline.serving.model.model import WHOLE_DTYPES, Model
from ridgeline.serving.twin.calibration import Factors
from ridgeline.serving.twin.collectives import Network
from ridgeline.serving.twin.operators import (
    Busy,
    Term,
    decode_attention,
    expert_rate,
    floors_s,
    fullest_load,
    fullest_share,
    heads_on_rank,
    kernels,
    prefill_attention,
    products,
    reduction_set,
    routed_experts,
    state_costs,
    touched,
    tuned_blocks,
    verifies_by_head,
)
from ridgeline.serving.twin.passes import Held
from ridgeline.serving.twin.priors import (
    AGREE_S,
    DRAFT_AHEAD_S,
    DRAFT_PHASE_S,
    DRAFT_PHASES,
    DRAFT_PLAN_S,
    ELEMENTWISE_MEMORY,
    ELEMENTWISE_PASSES,
    FILLED_BYTES,
    FILLED_PEAK,
    HOST_STEP_S,
    PIPELINE_BUBBLE,
    PLANNED_BACKENDS,
    SAMPLING_PASSES,
    SORT_BYTES,
    SORT_LEAST_S,
    STATE_OPS,
    TUNED_COUNTS,
    UNTUNED_BLOCKS,
    UNTUNED_SHARE,
)

_UNHIDDEN = "host, which the GPU waits for"
_HEAD_TERMS = ("LM head", "sampling", "logits all-gather")


# What the GPU's part of a step depends on of what an engine applies; the rest is for its host and its scheduler.
_KERNEL_SETTINGS = ("backend", "engine", "kernel_set", "drafting", "experts", "overlap", "sorts_logits", "expert_rows")


@lru_cache(maxsize=256)
def _known_sums(
    model: Model, cluster: Cluster, layout: Layout, factors: Factors, kernel_settings: tuple[object, ...]
) -> tuple[dict[int, float], dict[tuple[int, int, int], float]]:
    """Seconds worked out so far, of decode steps and of prefill rounds: a search asks for the same layout again and
    again, with other limits, chunks and graphs."""
    return {}, {}


class StepTime:
    """Iteration times of one engine. `batch` and `context` count requests and cached tokens of the whole engine."""

    held: Held | None = None  # of the step that was asked for last, where GPUs are held to less
    idle_clock = 1.0

    def __init__(self, model: Model, cluster: Cluster, layout: Layout, applied: Applied, factors: Factors) -> None:
        self.model, self.layout, self.applied, self.factors = model, layout, applied, factors
        self.gpu, self._cluster = cluster.gpu, cluster
        self.network = Network(cluster, factors.network, reduction_set(model, self.gpu, applied))
        self._products = products(model, layout, self.gpu, applied, factors)
        self._expert_flops, self._expert_bytes = routed_experts(model, layout)
        self._experts = expert_rate(model, self.gpu, applied)
        whole = model.weights_dtype in WHOLE_DTYPES and model.experts is not None
        untuned = whole and model.experts is not None and model.experts.count not in TUNED_COUNTS
        self._tuned = UNTUNED_SHARE if untuned else 1.0
        self._tuned_blocks = 1.0 if tuned_blocks(model, layout, self.gpu, applied) else UNTUNED_BLOCKS
        self._bandwidth = self.gpu.bandwidth_bytes_s * factors.memory
        self._stream_s = 1.0 / (self.gpu.bandwidth_bytes_s * ELEMENTWISE_MEMORY * factors.memory)
        self._contexts, self._context_bound = decode_attention(model, layout, self.gpu, applied, factors)
        self._caps = tuple(cap for cap, _ in self._contexts if cap < math.inf)
        self._pair_costs = prefill_attention(model, layout, self.gpu, applied, factors)
        self._state_row_s, self._state_token_s = state_costs(model, layout, self.gpu, applied, factors)
        costs = engine_named(applied.engine).costs
        self._request_s = costs.request_s
        kernel_settings = tuple(getattr(applied, name) for name in _KERNEL_SETTINGS)
        of_kernels = replace(factors, prefill_host=1.0, decode=1.0, prefill=1.0, front_end=1.0)
        self._decode_sums, self._prefill_sums = _known_sums(model, cluster, layout, of_kernels, kernel_settings)
        self._decode_lines: dict[tuple[int, int], tuple[float, float, float]] = {}
        self._largest_in_graph = applied.graph_max_bs * layout.attn_dp * layout.pp  # a graph holds a rank's batch
        launched = kernels(model, layout, self.gpu)
        self._launch_s = launched * costs.launch_s  # the host's time for a pass without a graph
        self._launched_beside = defaults_of(applied.engine).workers_launch and layout.replica_gpus > 1
        # what no graph of prompts holds: layers that keep a state
        self._apart_s = sum(n for _, n in model.states) * STATE_OPS * costs.launch_s * factors.prefill_host
        self._eager_prefill_s = self._launch_s * factors.prefill_host
        self._graph_rows = applied.prefill_graph_tokens if applied.prefill_graph else 0.0
        self._floors_s = {decode: floors_s(model, self.gpu, applied, decode=decode) for decode in (True, False)}
        self._normed_layers = sum(n for kind, n in model.attentions if kind.norm_over_heads)
        # DeepEP's normal mode makes the host wait for the GPU in every layer, so that their times add up
        # (vLLM gathers and scatters instead, unless it is told otherwise)
        deepep = layout.ep > 1 and layout.attn_dp > 1 and defaults_of(applied.engine).deepep
        self.counted = deepep and model.experts is not None
        self._elementwise = self._elementwise_bytes()
        # how long attention-DP ranks on several nodes take to agree on a batch, on top of everything else; public rows
        # of 48 and 72 ranks behind one NVLink switch show nothing of it
        apart = layout.attn_dp > 1 and self.network.nodes_of(layout.tp) > 1
        self._agree_s = AGREE_S * factors.host if apart else 0.0
        self._bubble = PIPELINE_BUBBLE if layout.pp > 1 else 1.0
        self._decode_stretch, self._prefill_stretch = self._bubble * factors.decode, self._bubble * factors.prefill

    # -- decode ---------------------------------------------------------------------------------------------------

    def decode_s(self, batch: int, context: float) -> float:
        """One decode iteration of `batch` requests that hold `context` tokens together."""
        base_s, per_token_s, host_s = self.decode_line(batch, context)
        return max(base_s + per_token_s * context, host_s)

    def decode_line(self, batch: int, context: float) -> tuple[float, float, float]:
        """(base, seconds per cached token, host): a step takes max(base + per token x context, host).

        While the batch stays the same the time of a step is linear in the context, so that a run of steps takes as many
        times the step in its middle. Requests past a window pay for the window alone: from there on another line holds.
        """
        passed = bisect_left(self._caps, context / batch) if self._caps else 0
        line = self._decode_lines.get((batch, passed))
        if line is None:
            if batch not in self._decode_sums:
                self._decode_sums[batch] = sum(t.seconds for t in self._decode_terms(batch))
            base_s, (schedule_s, launch_s) = self._decode_sums[batch], self._decode_host_s(batch)
            few = self._few_heads(batch)
            base_s += sum(cap * batch * each_s for cap, each_s in self._contexts[:passed]) * few
            per_token_s = sum(each_s for _, each_s in self._contexts[passed:]) * few
            stretch, agree_s = self._decode_stretch, self._agree_s
            waited_s, host_s = self._waited_s(schedule_s, launch_s)
            line = (base_s * stretch + waited_s + agree_s, per_token_s * stretch, waited_s + host_s + agree_s)
            self._decode_lines[batch, passed] = line
        return line

    def explain_decode(self, batch: int, context: float) -> list[Term]:
        """The terms of `decode_s`, adding up to it; what the host hides is listed with zero seconds."""
        terms, (schedule_s, launch_s) = self._decode_terms(batch), self._decode_host_s(batch)
        seen_s = sum(each_s * min(context, cap * batch) for cap, each_s in self._contexts) * self._few_heads(batch)
        terms.append(Term("attention over cached tokens", seen_s, self._context_bound))
        terms = [t._replace(seconds=t.seconds * self.factors.decode) for t in terms]
        return self._agreed(self._with_host(terms, schedule_s, launch_s))

    # -- prefill --------------------------------------------------------------------------------------------------

    def prefill_s(self, tokens: int, pairs: float, sequences: int, largest: int) -> float:
        """One prefill iteration.

        `pairs` counts query-key pairs, `sequences` the prompts in it, `largest` the tokens of the longest piece, which
        one attention-DP rank computes alone.
        """
        key = (tokens, sequences, largest)
        fixed_s = self._prefill_sums.get(key)
        if fixed_s is None:
            terms = self._prefill_terms(tokens, sequences, largest)
            fixed_s = self._prefill_sums[key] = sum(t.seconds for t in terms)
        schedule_s, launch_s = self._prefill_schedule_s(sequences), self._prefill_launch_s(tokens, largest)
        gpu_s = (fixed_s + self._pairs_s(tokens, pairs, largest)) * self._prefill_stretch
        if self.counted:
            return self._agree_s + gpu_s + schedule_s + launch_s
        waited_s, host_s = self._waited_s(schedule_s, launch_s)
        return self._agree_s + waited_s + (gpu_s if gpu_s > host_s else host_s)

    def mixed_s(self, tokens: int, pairs: float, sequences: int, largest: int, batch: int, context: float) -> float:
        """One step that computes `tokens` of prompts and decodes `batch` requests that hold `context` tokens."""
        terms = self._prefill_terms(tokens + batch, sequences + batch, largest)
        schedule_s = self._prefill_schedule_s(sequences + batch)
        launch_s = self._prefill_launch_s(tokens + batch, largest)
        gpu_s = sum(t.seconds for t in terms) + self._pairs_s(tokens, pairs, largest)
        gpu_s += sum(each_s * min(context, cap * batch) for cap, each_s in self._contexts)
        gpu_s *= (tokens * self._prefill_stretch + batch * self._decode_stretch) / (tokens + batch)
        waited_s, host_s = self._waited_s(schedule_s, launch_s)
        return self._agree_s + waited_s + max(gpu_s, host_s)

    def explain_prefill(self, tokens: int, pairs: float, sequences: int, largest: int) -> list[Term]:
        terms = self._prefill_terms(tokens, sequences, largest)
        schedule_s, launch_s = self._prefill_schedule_s(sequences), self._prefill_launch_s(tokens, largest)
        terms.append(Term("attention among new tokens", self._pairs_s(tokens, pairs, largest), "compute"))
        terms = [t._replace(seconds=t.seconds * self.factors.prefill) for t in terms]
        if self.counted:
            waited = Term("host, which waits for token counts in every layer", schedule_s + launch_s, "host")
            return self._agreed([*terms, waited])
        return self._agreed(self._with_host(terms, schedule_s, launch_s))

    # -- what a step asks of the parts of a GPU ---------------------------------------------------------------------

    def busy(self, rows: float, logit_rows: float, context: float, pairs: float, seconds: float) -> Busy:
        """What keeps one GPU busy in a pass of `seconds`, each part at the rate that it reaches.

        `context` counts the cached tokens that it reads, `pairs` those of query and key in prompts.
        """
        lay = self.layout
        all_rows, logits = rows / lay.pp, logit_rows / lay.pp
        of = {"rank": all_rows / lay.attn_dp, "all": all_rows, "logits": logits}
        compute_s = sum(p.row_s * of[p.rows] for p in self._products)
        memory_s = sum(p.weights_s for p in self._products)
        if (experts := self.model.experts) is not None:
            asked, rate = touched(experts, all_rows, self.applied.experts), self._experts.rate
            computed_s, read_s = self._expert_s(experts, all_rows, asked)
            compute_s, memory_s = compute_s + computed_s / rate.peak, memory_s + read_s / rate.memory
        moved = self._moved_bytes(of["rank"], all_rows)
        moved += logits / lay.attn_dp * self.model.vocab * 4 * SAMPLING_PASSES
        held = context / max(1.0, logit_rows)
        memory_s += moved * self._stream_s + of["rank"] * self._state_row_s
        memory_s += sum(each_s * min(held, cap) for cap, each_s in self._contexts) * logit_rows
        mean = pairs / max(1.0, rows)
        compute_s += all_rows / lay.attn_dp * sum(each_s * min(mean, cap) for cap, each_s in self._pair_costs)
        memory_s += self._sort_s(logits / lay.attn_dp) if self.applied.sorts_logits else 0.0
        # each sequence of a pass asks for one row of logits, decoded or the last of its prompt
        prompts = max(0.0, rows - logit_rows) / rows if pairs else 0.0
        return Busy(min(1.0, compute_s / seconds), min(1.0, memory_s / seconds), prompts)

    # -- shared ---------------------------------------------------------------------------------------------------

    def _agreed(self, terms: list[Term]) -> list[Term]:
        agree = Term("attention-DP ranks agree on the batch", self._agree_s, "host")
        return [*terms, agree] if agree.seconds else terms

    def _with_host(self, terms: list[Term], schedule_s: float, launch_s: float) -> list[Term]:
        gpu_s = sum(t.seconds for t in terms)
        if self.layout.pp > 1:
            terms.append(Term("pipeline bubble", gpu_s * (self._bubble - 1), "latency"))
        waited_s, host_s = self._waited_s(schedule_s, launch_s)
        terms += [Term(_UNHIDDEN, waited_s, "host")] if waited_s else []
        name = "host beyond the GPU's time (no CUDA graph)" if launch_s else "host beyond the GPU's time (CUDA graph)"
        return [*terms, Term(name, max(0.0, host_s - gpu_s * self._bubble), "host")]

    def _waited_s(self, schedule_s: float, launch_s: float) -> tuple[float, float]:
        """The host's part that the GPU waits for, and what it hides as far as its own is as long.

        The GPU works on what was launched while the rest is launched.
        """
        if not self.applied.overlap:
            return schedule_s, launch_s
        return 0.0, max(schedule_s, launch_s) if self._launched_beside else schedule_s + launch_s

    def _decode_host_s(self, batch: int) -> tuple[float, float]:
        """Scheduling, and launching what no graph holds."""
        launch_s = self._launch_s if batch > self._largest_in_graph else 0.0
        return (HOST_STEP_S + batch * self._request_s) * self.factors.host, launch_s * self.factors.host

    def _decode_terms(self, batch: int) -> list[Term]:
        drafts = self.applied.draft_tokens
        micro = max(1.0, batch / self.layout.pp)
        rank_rows = math.ceil(micro / self.layout.attn_dp) * drafts
        terms = self._pass_terms(rank_rows, micro * drafts, micro * drafts, counted=False)
        if drafts > 1:
            terms += self._draft_terms(micro, drafts)
        return terms

    def _few_heads(self, batch: int) -> float:
        """How much longer attention takes while the heads of a batch do not fill a GPU, where each has a program."""
        if not verifies_by_head(self.applied):
            return 1.0
        programs = heads_on_rank(self.model, self.layout) * max(1.0, batch / self.layout.pp / self.layout.attn_dp)
        return max(1.0, self.gpu.sms / programs)

    def _draft_terms(self, micro: float, drafts: int) -> list[Term]:
        """Drafting for one verified step. The first drafted token follows from the last pass of the step before, over
        what was verified; each other one takes a layer and the LM head. The GPU waits while the host goes from one of
        these phases to the next."""
        passes, branches = self.applied.drafting.passes, self.applied.drafting.branches
        if not passes:  # drafts come from the text itself
            return [Term("host between drafting and verifying", DRAFT_PHASE_S * self.factors.host, "host")]
        rank_rows = math.ceil(micro / self.layout.attn_dp)
        each_s = self._drafter.one_layer_s(rank_rows * branches, micro * branches, micro * branches)
        again_s = self._drafter.one_layer_s(rank_rows * drafts, micro * drafts, micro)
        wait_s = DRAFT_PHASES * (DRAFT_AHEAD_S if self.applied.overlap else DRAFT_PHASE_S)
        if self.applied.backend in PLANNED_BACKENDS:
            wait_s += (drafts + 1) * DRAFT_PLAN_S
        return [
            Term("draft model", (passes - 1) * each_s + again_s, "memory"),
            Term("host between drafting and verifying", wait_s * self.factors.host, "host"),
        ]

    def one_layer_s(self, rank_rows: float, all_rows: float, logit_rows: float) -> float:
        """A pass over one layer of average kind and the LM head: what a model that drafts has."""
        terms = self._pass_terms(rank_rows, all_rows, logit_rows, counted=False)
        head_s = sum(t.seconds for t in terms if t.name in _HEAD_TERMS)
        return (sum(t.seconds for t in terms) - head_s) / self.model.layers + head_s

    @cached_property
    def _drafter(self) -> StepTime:
        """FP4 checkpoints leave the layer that drafts in 16 bits (SGLang's deepseek_nextn drops their quantisation)."""
        if self.model.weights_dtype != "fp4":
            return self
        plain = self.model.with_dtype(self.model.base_dtype)
        return StepTime(plain, self._cluster, self.layout, self.applied, self.factors)

    def _rank_rows(self, tokens: int, largest: int) -> float:
        """New tokens of the fullest attention-DP rank: an equal share, and at least the longest piece."""
        micro = tokens / self.layout.pp
        return max(math.ceil(micro / self.layout.attn_dp), min(largest, micro))

    def _pairs_s(self, tokens: int, pairs: float, largest: int) -> float:
        # how far back a query looks on average: a window ends sooner
        mean = pairs / max(1, tokens)
        seconds = tokens / self.layout.pp * sum(each_s * min(mean, cap) for cap, each_s in self._pair_costs)
        if self.layout.attn_dp == 1:
            return seconds
        return seconds * self._rank_rows(tokens, largest) / max(1.0, tokens / self.layout.pp)

    def _prefill_schedule_s(self, sequences: int) -> float:
        """The host's part beside launching what no graph holds."""
        return (HOST_STEP_S + sequences * self._request_s) * self.factors.prefill_host

    def _prefill_launch_s(self, tokens: int, largest: int) -> float:
        """The host's time to launch what no graph holds."""
        return self._apart_s if self._rank_rows(tokens, largest) <= self._graph_rows else self._eager_prefill_s

    def _prefill_terms(self, tokens: int, sequences: int, largest: int) -> list[Term]:
        micro = tokens / self.layout.pp
        rank_rows = self._rank_rows(tokens, largest)
        return self._pass_terms(rank_rows, micro, max(1.0, sequences / self.layout.pp), counted=True)

    def _pass_terms(self, rank_rows: float, all_rows: float, logit_rows: float, *, counted: bool) -> list[Term]:
        rows = {"rank": rank_rows, "all": all_rows, "logits": logit_rows}
        terms = [p.term(rows[p.rows]) for p in self._products]
        if self.model.experts is not None:
            terms.append(self._expert_term(all_rows))
        moved = self._moved_bytes(rank_rows, all_rows)
        terms.append(Term("norms, rope, activations", moved * self._stream_s, "memory"))
        sampled = logit_rows / self.layout.attn_dp * self.model.vocab * 4 * SAMPLING_PASSES
        if self._state_row_s:
            each_s = self._state_token_s if counted else self._state_row_s
            terms.append(Term("states of linear layers", rank_rows * each_s, "compute" if counted else "memory"))
        terms.append(Term("sampling", sampled * self._stream_s, "memory"))
        if self.applied.sorts_logits:
            terms.append(Term("logits sorted for top-p", self._sort_s(logit_rows / self.layout.attn_dp), "memory"))
        terms.append(Term("kernels' smallest times", self._floors_s[not counted], "latency"))
        terms += self._network_terms(rank_rows, all_rows, logit_rows, counted=counted)
        return terms

    def _sort_s(self, rows: float) -> float:
        return SORT_LEAST_S + rows * self.model.vocab * SORT_BYTES / self.gpu.bandwidth_bytes_s

    def _expert_s(self, experts: Experts, rows: float, asked: float) -> tuple[float, float]:
        """Seconds at peak rates that an expert rank computes and reads, were all as busy."""
        flops_s = self.gpu.flops_of(self.model.weights_dtype) * self.factors.compute
        columns = experts.width * self.layout.ep / self.layout.tp
        computed = self._experts.rows(rows * experts.per_token, asked)
        reached = self._experts.widened(columns) * self._tuned
        if self.applied.expert_rows:
            computed = self._filled_rows(experts, rows) * self.layout.ep
            reached = FILLED_PEAK[self.gpu.generation == "blackwell"] / self._experts.rate.peak
        compute_s = self._expert_flops * computed / experts.per_token / flops_s / reached
        return compute_s, self._expert_bytes * asked / experts.count / self._bandwidth / self._tuned_blocks

    def _filled_rows(self, experts: Experts, rows: float) -> float:
        """What each rank computes where all of a buffer is: it has room for every copy, whichever rank they go to, and
        for each of the rank's experts to be filled up to a whole tile."""
        return rows * experts.per_token + (self.applied.expert_rows - 1) * experts.count / self.layout.ep

    def _expert_term(self, rows: float) -> Term:
        experts = self.model.experts
        assert experts is not None
        asked, ranks = touched(experts, rows, self.applied.experts), self.layout.ep
        compute_s, memory_s = self._expert_s(experts, rows, asked)
        # expert ranks wait for the one with most to compute, or to read
        if not self.applied.expert_rows:
            compute_s *= fullest_load(experts, rows, ranks, self.applied.experts)
        memory_s *= fullest_share(experts, asked, ranks)
        share, rate = asked / experts.count, self._experts.rate
        bound = "compute" if compute_s / rate.peak > memory_s / rate.memory else "memory"
        return Term(f"experts ({share:.0%} touched)", rate.overlapped(compute_s, memory_s), bound)

    def _moved_bytes(self, rank_rows: float, all_rows: float) -> float:
        """Of activations on one rank."""
        moved = rank_rows * self._elementwise[0] + all_rows * self._elementwise[1]
        if (experts := self.model.experts) is not None and self.applied.expert_rows:
            width = experts.width * self.layout.ep / self.layout.tp
            filled = self._filled_rows(experts, all_rows) * len(self.model.moe_layers)
            moved += filled * width * FILLED_BYTES
        return moved

    def _elementwise_bytes(self) -> tuple[float, float]:
        """Bytes of activations that one row of this rank and one row of all ranks move."""
        m, layout = self.model, self.layout
        every = len(m.dense_layers) * 4 * m.ffn_width * 2 / layout.tp
        if m.experts is not None:
            # each rank gathers and sums every routed copy it computes, hidden wide; only EP divides them. Copies that
            # other ranks compute are left out where an all-to-all brings each rank its own
            mine = m.experts.per_token / layout.ep
            copies = self._experts.crossings(mine, mine if self.counted else m.experts.per_token)
            every += copies * len(m.moe_layers) * (2 * m.hidden + 4 * m.experts.width * layout.ep / layout.tp) * 2
        return m.half_layers / 2 * ELEMENTWISE_PASSES * m.hidden * 2, every

    def _network_terms(self, rank_rows: float, all_rows: float, logit_rows: float, *, counted: bool) -> list[Term]:
        m, lay, net = self.model, self.layout, self.network
        wide = m.hidden * 2
        terms: list[Term] = []
        if lay.tp > 1 and lay.attn_dp == 1:
            seconds = m.half_layers * net.all_reduce_s(all_rows * wide, lay.tp)
            terms.append(Term(f"all-reduce over {lay.tp}", seconds, "network"))
        elif lay.attn_dp > 1:
            within = m.mixing_layers * net.all_reduce_s(rank_rows * wide, lay.attn_tp)
            terms.append(Term(f"attention all-reduce over {lay.attn_tp}", within, "network"))
            terms.append(self._exchange_term(rank_rows, all_rows, counted=counted))
        if (normed := self._normed_layers) and lay.attn_tp > 1:
            summed = normed * net.all_reduce_s(rank_rows * 8, lay.attn_tp)  # two float32 a row
            terms.append(Term("norm over all ranks' heads", summed, "network"))
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
        if self.counted and m.experts is not None:
            copies = m.experts.per_token
            # DeepEP sends activations quantised to FP8 and brings back bf16
            there = net.all_to_all_s(rank_rows, copies, m.hidden, lay.ep, counted=counted)
            back = net.all_to_all_s(rank_rows, copies, m.hidden * 2, lay.ep, counted=False)
            return Term(f"expert all-to-all over {lay.ep}", len(m.moe_layers) * (there + back), "network")
        once = net.all_gather_s(all_rows * m.hidden * 2, lay.tp)
        return Term(f"gather and scatter over {lay.tp}", 2 * (m.half_layers - m.mixing_layers) * once, "network")
