"""Every weight of a model as a row: its shape, its dtype, the layers it sits in and how an engine splits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ridgeline.model.layer_parts import Attention, Experts, LinearAttention

# Bytes of one weight, quantisation scales included: block-quantised FP8 keeps one float32 for 128 x 128 weights,
# group-quantised INT4 one float16 scale and one 4-bit zero for every 128, FP4 one byte for 16 (NVFP4) or 32 (MXFP4).
BYTES_PER_WEIGHT: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0 + 4 / 128**2,
    "int8": 1.0 + 4 / 4096,
    "int4": 0.5 + 2.5 / 128,
    "fp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}

# How an engine spreads a weight over ranks. "attention": over the ranks that share one attention (tp / attention dp);
# "ffn": over tp; "experts": over tp or ep, either way each rank holds its share; "vocab": over tp, whole on every rank
# under attention DP; "none": the same copy on every rank of the stage.
Split = Literal["attention", "ffn", "experts", "vocab", "none"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One kind of weight. `per_layer` of them sit in each of `layers`; one token multiplies with `used` of those."""

    name: str
    part: str  # embedding, attention, dense_ffn, router, experts, shared_experts, norm, lm_head, vision
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


@dataclass(frozen=True, slots=True)
class Weaver:
    """Makes the rows of one kind of layer: `base` is the dtype of what is never quantised, `dtype` of the rest."""

    hidden: int
    dtype: str
    base: str
    layers: tuple[int, ...]

    def _product(self, name: str, rows: int, cols: int, split: Split = "attention") -> Matrix:
        return Matrix(name, "attention", rows, cols, self.dtype, split, self.layers)

    def _small(self, name: str, count: int) -> Matrix:
        return Matrix(name, "norm", count, 1, self.base, "none", self.layers)

    def attention(self, a: Attention, *, qk_norm: bool) -> tuple[Matrix, ...]:
        if a.mla:
            return (*self._queries(a, a.nope_dim + a.rope_dim), *self._latent(a), *self._indexer(a))
        q, v = a.heads * a.head_dim, a.heads * a.value_dim
        keys = a.kv_heads * a.head_dim
        kv = keys if a.one_kv or a.one_kv_proj else keys + a.kv_heads * a.value_dim
        extras = []
        if a.bias:
            extras.append(self._small("qkv_bias", q + kv))
        if qk_norm:
            extras.append(self._small("qk_norm", 2 * a.head_dim))
        return (
            *self._queries(a, a.head_dim),
            self._product("kv_proj", self.hidden, kv),
            *self._outputs(a, v),
            *self._compressor(a),
            *self._indexer(a),
            *extras,
        )

    def _queries(self, a: Attention, width: int) -> tuple[Matrix, ...]:
        columns = a.heads * width * (2 if a.gated else 1)
        if not a.q_latent:
            return (self._product("q_proj", self.hidden, columns),)
        return (
            self._product("q_a_proj", self.hidden, a.q_latent, "none"),
            self._small("q_a_norm", a.q_latent),
            self._product("q_b_proj", a.q_latent, columns),
        )

    def _latent(self, a: Attention) -> tuple[Matrix, ...]:
        return (
            self._product("kv_a_proj", self.hidden, a.latent + a.rope_dim, "none"),
            self._small("kv_a_norm", a.latent),
            self._product("kv_b_proj", a.latent, a.heads * (a.nope_dim + a.v_dim)),
            self._product("o_proj", a.heads * a.v_dim, self.hidden),
        )

    def _outputs(self, a: Attention, width: int) -> tuple[Matrix, ...]:
        if not a.o_latent:
            return (self._product("o_proj", width, self.hidden),)
        return (
            self._product("o_a_proj", width // a.o_groups, a.o_latent * a.o_groups),
            self._product("o_b_proj", a.o_latent * a.o_groups, self.hidden),
        )

    def _compressor(self, a: Attention) -> tuple[Matrix, ...]:
        """Entries are gated sums over `compress` tokens; short ones overlap and so are made twice."""
        if a.compress == 1:
            return ()
        return (self._product("compressor", self.hidden, 2 * _overlap(a) * a.head_dim, "none"),)

    def _indexer(self, a: Attention) -> tuple[Matrix, ...]:
        """Queries from the compressed query, one key for a token, one weight for each head; the same on every rank."""
        if not a.top_k:
            return ()
        mine = self.layers[: round(len(self.layers) * a.index_share)]
        keys = a.index_dim if a.compress == 1 else 2 * _overlap(a) * a.index_dim
        rows = a.q_latent or self.hidden
        return (
            Matrix("index_q_proj", "attention", rows, a.index_heads * a.index_dim, self.dtype, "none", mine),
            Matrix("index_k_proj", "attention", self.hidden, keys + a.index_heads, self.dtype, "none", mine),
        )

    def linear(self, mixer: LinearAttention) -> tuple[Matrix, ...]:
        return (
            self._product("state_in_proj", self.hidden, mixer.inputs),
            self._product("state_out_proj", mixer.outputs, self.hidden),
            Matrix("state_small", "norm", mixer.small_params, 1, self.base, "attention", self.layers),
        )


def _overlap(a: Attention) -> int:
    return 2 if a.compress < 16 else 1


def feed_forward(
    name: str, part: str, hidden: int, width: int, dtype: str, split: Split, layers: tuple[int, ...],
    per_layer: int = 1, used: int = 1, *, gated: bool = True,
) -> tuple[Matrix, ...]:  # fmt: skip
    if not layers or not width:
        return ()
    up = f"{name}_gate_up" if gated else f"{name}_up"
    return (
        Matrix(up, part, hidden, (2 if gated else 1) * width, dtype, split, layers, per_layer, used),
        Matrix(f"{name}_down", part, width, hidden, dtype, split, layers, per_layer, used),
    )


def mixture(
    x: Experts, hidden: int, layers: tuple[int, ...], *, dtype: str, shared_dtype: str, base: str, gated: bool
) -> tuple[Matrix, ...]:
    narrow = x.latent or hidden
    into = (
        (
            Matrix("latent_down", "router", hidden, x.latent, base, "none", layers),
            Matrix("latent_up", "router", x.latent, hidden, base, "none", layers),
        )
        if x.latent
        else ()
    )
    return (
        Matrix("router", "router", hidden, x.count, base, "none", layers),
        *into,
        *feed_forward(
            "experts", "experts", narrow, x.width, dtype, "experts", layers, x.count, x.per_token, gated=gated
        ),
        *feed_forward("shared", "shared_experts", hidden, x.shared_width, shared_dtype, "ffn", layers, gated=gated),
    )
