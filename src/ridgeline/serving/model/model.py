"""What a model costs: parameters, weight bytes, FLOPs and KV bytes, from a Hugging Face config.json.

One table, `Model.matrices`, lists every weight of the model: its shape, its dtype, the layers it sits in and the way an
engine splits it over ranks. Parameter counts, weight bytes, FLOPs per token and bytes read per step are sums over it
and so cannot disagree with one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ridgeline.errors import InputError
from ridgeline.serving.model.layer_parts import Attention as Attention
from ridgeline.serving.model.layer_parts import Experts as Experts

# Bytes of one weight, quantisation scales included: block-quantised FP8 keeps one float32 for 128 x 128 weights,
# group-quantised INT4 one float16 scale and one 4-bit zero for every 128.
BYTES_PER_WEIGHT: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0 + 4 / 128**2,
    "int8": 1.0 + 4 / 4096,
    "int4": 0.5 + 2.5 / 128,
    "fp4": 0.5 + 1 / 16,
}
KV_BYTES: Mapping[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}

# How an engine spreads a weight over ranks. "attention": over the ranks that share one attention (tp / attention dp);
# "ffn": over tp; "experts": over tp or ep, either way each rank holds its share; "vocab": over tp, whole on every rank
# under attention DP; "none": the same copy on every rank of the stage.
Split = Literal["attention", "ffn", "experts", "vocab", "none"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One kind of weight. `per_layer` of them sit in each of `layers`; one token multiplies with `used` of those."""

    name: str
    part: str  # embedding, attention, dense_ffn, router, experts, shared_experts, norm, lm_head
    rows: int
    cols: int
    dtype: str
    split: Split
    layers: tuple[int, ...]
    per_layer: int = 1
    used: int = 1

    @property
    def copies(self) -> int:
        return self.per_layer * len(self.layers)

    @property
    def params(self) -> int:
        return self.rows * self.cols * self.copies

    @property
    def nbytes(self) -> float:
        return self.params * BYTES_PER_WEIGHT[self.dtype]

    @property
    def flops_per_token(self) -> int:
        """Multiply-adds count as two. Looking up an embedding and scaling by a norm are not matrix products."""
        if self.part in ("embedding", "norm"):
            return 0
        return 2 * self.rows * self.cols * self.used * len(self.layers)


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer. Build one with `load_model`; `with_dtype` gives it quantised otherwise."""

    name: str
    layers: int
    hidden: int
    vocab: int
    attention: Attention
    ffn_width: int
    experts: Experts | None
    dense_layers: tuple[int, ...]  # layers whose feed-forward part is not a mixture
    context_tokens: int
    dtype: str  # of the linear layers; embeddings, norms, router and LM head stay in `base_dtype`
    base_dtype: str
    kv_dtype: str
    tied_embeddings: bool = False
    qk_norm: bool = False

    def with_dtype(self, dtype: str | None = None, kv_dtype: str | None = None) -> Model:
        dtype, kv_dtype = dtype or self.dtype, kv_dtype or self.kv_dtype
        if dtype not in BYTES_PER_WEIGHT:
            raise InputError(f"weight dtype {dtype!r} is not known; use one of {', '.join(BYTES_PER_WEIGHT)}")
        if kv_dtype not in KV_BYTES:
            raise InputError(f"KV cache dtype {kv_dtype!r} is not known; use one of {', '.join(KV_BYTES)}")
        base = dtype if dtype in ("fp32", "bf16", "fp16") else self.base_dtype
        return replace(self, dtype=dtype, base_dtype=base, kv_dtype=kv_dtype)

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        dense = set(self.dense_layers)
        return tuple(n for n in range(self.layers) if n not in dense)

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Every weight. The embedding sits in layer 0, the final norm and the LM head in the last layer."""
        every = tuple(range(self.layers))
        last = (self.layers - 1,)
        base = self.base_dtype
        head = Matrix("lm_head", "lm_head", self.hidden, self.vocab, base, "vocab", last)
        return (
            Matrix("embed_tokens", "embedding", self.vocab, self.hidden, base, "vocab", (0,)),
            *self._attention(every),
            *self._ffn("mlp", "dense_ffn", self.ffn_width, "ffn", self.dense_layers),
            *self._mixture(),
            Matrix("layer_norms", "norm", self.hidden, 2, base, "none", every),
            Matrix("final_norm", "norm", self.hidden, 1, base, "none", last),
            *(() if self.tied_embeddings else (head,)),
        )

    def _attention(self, layers: tuple[int, ...]) -> tuple[Matrix, ...]:
        a, h, dtype, base = self.attention, self.hidden, self.dtype, self.base_dtype
        if a.mla:
            qk = a.nope_dim + a.rope_dim
            queries = (
                (
                    Matrix("q_a_proj", "attention", h, a.q_latent, dtype, "none", layers),
                    Matrix("q_a_norm", "norm", a.q_latent, 1, base, "none", layers),
                    Matrix("q_b_proj", "attention", a.q_latent, a.heads * qk, dtype, "attention", layers),
                )
                if a.q_latent
                else (Matrix("q_proj", "attention", h, a.heads * qk, dtype, "attention", layers),)
            )
            return (
                *queries,
                Matrix("kv_a_proj", "attention", h, a.latent + a.rope_dim, dtype, "none", layers),
                Matrix("kv_a_norm", "norm", a.latent, 1, base, "none", layers),
                Matrix(
                    "kv_b_proj", "attention", a.latent, a.heads * (a.nope_dim + a.v_dim), dtype, "attention", layers
                ),
                Matrix("o_proj", "attention", a.heads * a.v_dim, h, dtype, "attention", layers),
            )
        q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
        extras = []
        if a.bias:
            extras.append(Matrix("qkv_bias", "norm", q + 2 * kv, 1, base, "none", layers))
        if self.qk_norm:
            extras.append(Matrix("qk_norm", "norm", a.head_dim, 2, base, "none", layers))
        return (
            Matrix("q_proj", "attention", h, q, dtype, "attention", layers),
            Matrix("kv_proj", "attention", h, 2 * kv, dtype, "attention", layers),
            Matrix("o_proj", "attention", q, h, dtype, "attention", layers),
            *extras,
        )

    def _ffn(
        self, name: str, part: str, width: int, split: Split, layers: tuple[int, ...], per_layer: int = 1, used: int = 1
    ) -> tuple[Matrix, ...]:
        if not layers or not width:
            return ()
        return (
            Matrix(f"{name}_gate_up", part, self.hidden, 2 * width, self.dtype, split, layers, per_layer, used),
            Matrix(f"{name}_down", part, width, self.hidden, self.dtype, split, layers, per_layer, used),
        )

    def _mixture(self) -> tuple[Matrix, ...]:
        x = self.experts
        if x is None:
            return ()
        layers = self.moe_layers
        return (
            Matrix("router", "router", self.hidden, x.count, self.base_dtype, "none", layers),
            *self._ffn("experts", "experts", x.width, "experts", layers, x.count, x.per_token),
            *self._ffn("shared", "shared_experts", x.shared_width, "ffn", layers),
        )

    @cached_property
    def params(self) -> int:
        return sum(m.params for m in self.matrices)

    @cached_property
    def active_params(self) -> int:
        """Parameters that one token meets, embedding table included as published counts do."""
        return sum(m.rows * m.cols * m.used * len(m.layers) for m in self.matrices)

    @cached_property
    def weight_bytes(self) -> float:
        return sum(m.nbytes for m in self.matrices)

    def weight_bytes_by_part(self) -> dict[str, float]:
        parts: dict[str, float] = {}
        for m in self.matrices:
            parts[m.part] = parts.get(m.part, 0.0) + m.nbytes
        return parts

    @property
    def kv_bytes_per_token(self) -> float:
        """All layers and heads; divide by what the layout splits (see `layout.kv_bytes_per_token`)."""
        return self.layers * self.attention.kv_values * KV_BYTES[self.kv_dtype]

    @cached_property
    def linear_flops_per_token(self) -> int:
        """All matrix products of one token through all layers, without the LM head.

        Absorbed MLA multiplies the two halves of kv_b_proj with the query and the output instead of with the latent:
        the count is the same.
        """
        return sum(m.flops_per_token for m in self.matrices if m.part != "lm_head")

    @property
    def lm_head_flops(self) -> int:
        """One row of logits."""
        return 2 * self.hidden * self.vocab

    def prefill_flops(self, tokens: float, past: float = 0) -> float:
        """One sequence that adds `tokens` to `past` cached ones, causal, with one row of logits at the end."""
        pairs = tokens * past + tokens * (tokens + 1) / 2
        attention = self.layers * self.attention.pair_flops(absorbed=False) * pairs
        return self.linear_flops_per_token * tokens + attention + self.lm_head_flops

    def decode_flops(self, context: float) -> float:
        """One new token of one sequence that holds `context` tokens, itself included."""
        attention = self.layers * self.attention.pair_flops(absorbed=True) * context
        return self.linear_flops_per_token + attention + self.lm_head_flops

    def weight_bytes_read(self, tokens: float) -> float:
        """Weights a step over `tokens` tokens reads: all but the embedding table and experts nobody asks for."""
        share = self.experts.touched(tokens) / self.experts.count if self.experts else 1.0
        total = 0.0
        for m in self.matrices:
            if m.part == "experts":
                total += m.nbytes * share
            elif m.part != "embedding" or self.tied_embeddings:
                total += m.nbytes
        return total

    def prefill_bytes(self, tokens: float, past: float = 0) -> float:
        """Memory traffic of one prefill step: weights once, cached KV read once, new KV written."""
        return self.weight_bytes_read(tokens) + self.kv_bytes_per_token * (past + tokens)

    def decode_bytes(self, batch: float, context: float) -> float:
        """Memory traffic of one decode step of `batch` sequences that hold `context` tokens each."""
        return self.weight_bytes_read(batch) + self.kv_bytes_per_token * batch * (context + 1)
