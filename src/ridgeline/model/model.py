"""What a model costs: parameters, weight bytes, FLOPs and KV bytes, from a Hugging Face config.json.

One table, `Model.matrices`, lists every weight of the model: its shape, its dtype, the layers it sits in and the way an
engine splits it over ranks. Parameter counts, weight bytes, FLOPs per token and bytes read per step are sums over it
and so cannot disagree with one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.errors import InputError
from ridgeline.model.layer_parts import Attention as Attention
from ridgeline.model.layer_parts import Experts as Experts
from ridgeline.model.layer_parts import LinearAttention, Mixer, Reach
from ridgeline.model.weights import BYTES_PER_WEIGHT as BYTES_PER_WEIGHT
from ridgeline.model.weights import Matrix as Matrix
from ridgeline.model.weights import Weaver, feed_forward, mixture

KV_BYTES: Mapping[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
WHOLE_DTYPES = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Model:
    """A decoder-only language model. Build one with `load_model`; `with_dtype` gives it quantised otherwise."""

    name: str
    layers: int
    hidden: int
    vocab: int
    attention: Attention  # of the layers that keep every token; `mixers` lists all kinds where there are several
    ffn_width: int
    experts: Experts | None
    dense_layers: tuple[int, ...]  # layers whose feed-forward part is not a mixture
    context_tokens: int
    dtype: str  # of the linear layers; embeddings, norms, router and LM head stay in `base_dtype`
    base_dtype: str
    kv_dtype: str
    tied_embeddings: bool = False
    qk_norm: bool = False
    mixers: tuple[Mixer, ...] = ()  # empty: `attention` in every layer
    moe_layers_only: tuple[int, ...] | None = None  # where some layers have no feed-forward part at all
    ffn_widths: tuple[tuple[int, tuple[int, ...]], ...] = ()  # where dense layers differ in width
    ffn_gated: bool = True
    attention_dtype: str = ""  # where it differs from `dtype`
    expert_dtype: str = ""
    vision_params: int = 0  # held in memory beside the language model, which all other figures are about
    embedding_used: bool = True  # whether its publisher counts the embedding table as used by every token
    notes: tuple[str, ...] = ()  # what the config says and no figure here contains

    def with_dtype(self, dtype: str | None = None, kv_dtype: str | None = None) -> Model:
        """Weights and cache in other dtypes. FP4 weights leave the attention of a mixture in 16 bits, as NVFP4
        checkpoints do."""
        kv_dtype = kv_dtype or self.kv_dtype
        if kv_dtype not in KV_BYTES:
            raise InputError(f"KV cache dtype {kv_dtype!r} is not known; use one of {', '.join(KV_BYTES)}")
        if dtype is None or dtype == self.weights_dtype:
            return replace(self, kv_dtype=kv_dtype)
        if dtype not in BYTES_PER_WEIGHT:
            raise InputError(f"weight dtype {dtype!r} is not known; use one of {', '.join(BYTES_PER_WEIGHT)}")
        base = dtype if dtype in WHOLE_DTYPES else self.base_dtype
        apart = base if self.experts is not None and dtype in ("fp4", "mxfp4") else ""
        return replace(self, dtype=dtype, base_dtype=base, kv_dtype=kv_dtype, attention_dtype=apart, expert_dtype="")

    @property
    def weights_dtype(self) -> str:
        """The dtype that most of the weights are in: the experts' where there are any."""
        return (self.expert_dtype if self.experts is not None else "") or self.dtype

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        if self.experts is None:
            return ()
        if self.moe_layers_only is not None:
            return self.moe_layers_only
        dense = set(self.dense_layers)
        return tuple(n for n in range(self.layers) if n not in dense)

    @cached_property
    def all_mixers(self) -> tuple[Mixer, ...]:
        return self.mixers or (Mixer(self.attention, tuple(range(self.layers))),)

    @cached_property
    def mixing_layers(self) -> int:
        return sum(len(m.layers) for m in self.all_mixers)

    @cached_property
    def half_layers(self) -> int:
        """Token mixers and feed-forward parts: two in most layers, one in each block of a Nemotron-H."""
        return self.mixing_layers + len(self.dense_layers) + len(self.moe_layers)

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Every weight. The embedding sits in layer 0, the final norm and the LM head in the last layer."""
        every = tuple(range(self.layers))
        last = (self.layers - 1,)
        base = self.base_dtype
        head = Matrix("lm_head", "lm_head", self.hidden, self.vocab, base, "vocab", last)
        norms = 2 if self.half_layers > self.layers else 1
        return (
            Matrix("embed_tokens", "embedding", self.vocab, self.hidden, base, "vocab", (0,)),
            *(row for mixer in self.all_mixers for row in self._mixing(mixer)),
            *self._dense(),
            *self._mixture(),
            Matrix("layer_norms", "norm", self.hidden, norms, base, "none", every),
            Matrix("final_norm", "norm", self.hidden, 1, base, "none", last),
            *(() if self.tied_embeddings else (head,)),
            *(
                (Matrix("vision", "vision", self.vision_params, 1, base, "none", (0,), used=0),)
                if self.vision_params
                else ()
            ),
        )

    def _mixing(self, mixer: Mixer) -> tuple[Matrix, ...]:
        weaver = Weaver(self.hidden, self.attention_dtype or self.dtype, self.base_dtype, mixer.layers)
        if isinstance(mixer.kind, LinearAttention):
            return weaver.linear(mixer.kind)
        return weaver.attention(mixer.kind, qk_norm=self.qk_norm)

    def _dense(self) -> tuple[Matrix, ...]:
        widths = self.ffn_widths or ((self.ffn_width, self.dense_layers),)
        return tuple(
            row
            for width, layers in widths
            for row in feed_forward(
                "mlp", "dense_ffn", self.hidden, width, self.dtype, "ffn", layers, gated=self.ffn_gated
            )
        )

    def _mixture(self) -> tuple[Matrix, ...]:
        if self.experts is None:
            return ()
        return mixture(
            self.experts, self.hidden, self.moe_layers, dtype=self.weights_dtype, shared_dtype=self.dtype,
            base=self.base_dtype, gated=self.ffn_gated,
        )  # fmt: skip

    @cached_property
    def params(self) -> int:
        """Of the language model; `vision_params` come on top."""
        return sum(m.params for m in self.matrices if m.part != "vision")

    @cached_property
    def active_params(self) -> int:
        """Parameters that one token meets. Some publishers count the whole embedding table with them, some do not."""
        met = sum(m.rows * m.cols * m.used * len(m.layers) for m in self.matrices)
        return met if self.embedding_used or self.tied_embeddings else met - self.vocab * self.hidden

    @cached_property
    def weight_bytes(self) -> float:
        return sum(m.nbytes for m in self.matrices)

    def weight_bytes_by_part(self) -> dict[str, float]:
        parts: dict[str, float] = {}
        for m in self.matrices:
            parts[m.part] = parts.get(m.part, 0.0) + m.nbytes
        return parts

    @cached_property
    def reaches(self) -> tuple[tuple[Reach, int], ...]:
        """What a query meets of its past, kind by kind, and in how many layers."""
        kinds = [(m.kind, len(m.layers)) for m in self.all_mixers]
        return tuple((reach, n) for kind, n in kinds if isinstance(kind, Attention) for reach in kind.reaches())

    def layer_kv_bytes(self, kind: Attention, ranks: int = 1) -> float:
        """What one more token takes in the cache of one such layer, on each of `ranks` that share its heads."""
        held = kind.kv_values_on(ranks) * KV_BYTES[self.kv_dtype] / kind.compress
        return held + kind.index_bytes_per_token

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """What each further token of a long request adds, all heads, in the layers that keep everything.

        Divide by what the layout splits (see `layout.rank_kv_bytes_per_token`).
        """
        return sum(
            self.layer_kv_bytes(m.kind) * len(m.layers)
            for m in self.all_mixers
            if isinstance(m.kind, Attention) and m.kind.keeps_everything
        )

    @cached_property
    def window_kv(self) -> tuple[tuple[int, float], ...]:
        """(window, bytes of each of its tokens) of the layers that keep no more than a window of a request."""
        found: dict[int, float] = {}
        for m in self.all_mixers:
            if isinstance(m.kind, Attention) and m.kind.window:
                per_token = m.kind.kv_values * KV_BYTES[self.kv_dtype] * len(m.layers)
                found[m.kind.window] = found.get(m.kind.window, 0.0) + per_token
        return tuple(sorted(found.items()))

    @cached_property
    def state_bytes_per_request(self) -> float:
        """State of the linear layers: the same however long the request is."""
        return sum(m.kind.state_bytes * len(m.layers) for m in self.all_mixers if isinstance(m.kind, LinearAttention))

    def cache_bytes(self, tokens: float) -> float:
        """Cache and state of one request that holds `tokens`."""
        windows = sum(min(tokens, window) * per_token for window, per_token in self.window_kv)
        return self.kv_bytes_per_token * tokens + windows + self.state_bytes_per_request

    @cached_property
    def linear_flops_per_token(self) -> int:
        """All matrix products of one token through all layers, without the LM head.

        Absorbed MLA multiplies the two halves of kv_b_proj with the query and the output instead of with the latent:
        the count is the same.
        """
        states = sum(m.kind.token_flops * len(m.layers) for m in self.all_mixers if isinstance(m.kind, LinearAttention))
        return states + sum(m.flops_per_token for m in self.matrices if m.part not in ("lm_head", "vision"))

    @property
    def lm_head_flops(self) -> int:
        """One row of logits."""
        return 2 * self.hidden * self.vocab

    def prefill_flops(self, tokens: float, past: float = 0) -> float:
        """One sequence that adds `tokens` to `past` cached ones, causal, with one row of logits at the end."""
        attention = sum(n * r.prefill_flops * _pairs(tokens, past, r.cap) for r, n in self.reaches)
        return self.linear_flops_per_token * tokens + attention + self.lm_head_flops

    def decode_flops(self, context: float) -> float:
        """One new token of one sequence that holds `context` tokens, itself included."""
        attention = sum(n * r.decode_flops * min(context, r.cap) for r, n in self.reaches)
        return self.linear_flops_per_token + attention + self.lm_head_flops

    def weight_bytes_read(self, tokens: float) -> float:
        """Weights a step over `tokens` tokens reads: all but the embedding table and experts nobody asks for."""
        share = self.experts.touched(tokens) / self.experts.count if self.experts else 1.0
        total = 0.0
        for m in self.matrices:
            if m.part == "experts":
                total += m.nbytes * share
            elif m.part != "vision" and (m.part != "embedding" or self.tied_embeddings):
                total += m.nbytes
        return total

    def prefill_bytes(self, tokens: float, past: float = 0) -> float:
        """Memory traffic of one prefill step: weights once, cached KV read once, new KV written."""
        return self.weight_bytes_read(tokens) + self.cache_bytes(past + tokens)

    def decode_bytes(self, batch: float, context: float) -> float:
        """Memory traffic of one decode step of `batch` sequences that hold `context` tokens each."""
        read = sum(n * self._reach_bytes(r) * min(context + 1, r.cap) for r, n in self.reaches)
        return self.weight_bytes_read(batch) + batch * (read + 2 * self.state_bytes_per_request)

    def _reach_bytes(self, reach: Reach) -> float:
        return reach.kv_values * KV_BYTES[self.kv_dtype] + reach.index_bytes


def _pairs(tokens: float, past: float, cap: float) -> float:
    """Query-key pairs of `tokens` new tokens after `past`, where no query looks further back than `cap`."""
    if past >= cap:
        return tokens * cap
    rising = min(tokens, cap - past)  # queries that still see everything before them
    full = rising * past + rising * (rising + 1) / 2
    return full if rising == tokens else full + (tokens - rising) * cap
