"""The two halves of a layer: how it mixes tokens (attention of some kind, or a state), and which experts it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# An indexer of sparse attention keeps FP8 keys with one float32 scale each.
_INDEX_SCALE_BYTES = 4


class Reach(NamedTuple):
    """What one query meets of its past in one layer: this much for each token of it, for `cap` tokens at most."""

    kv_values: float  # of the KV cache, all heads
    index_bytes: float  # of an indexer's own cache
    decode_flops: float
    prefill_flops: float
    cap: float = math.inf


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (kv_heads == heads is MHA), or multi-head latent attention when `latent` is set.

    `window`, `top_k` and `compress` say what a query sees of its past: the last tokens, those an indexer picked, or one
    entry for so many tokens.
    """

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    latent: int = 0  # MLA: width of the compressed KV (kv_lora_rank)
    q_latent: int = 0  # width of the compressed query; 0 when queries are not compressed
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0  # width of a value where it is not head_dim
    window: int = 0  # tokens a query looks back over, and all that the cache need keep; 0: everything
    top_k: int = 0  # entries an indexer picks for each query; 0: no indexer
    index_heads: int = 0
    index_dim: int = 0
    index_share: float = 1.0  # share of layers that hold an indexer of their own
    compress: int = 1  # tokens summed up in one entry of the cache
    gated: bool = False  # queries come with a gate of the same width
    one_kv: bool = False  # keys are the values too: one projection, and one entry of the cache
    one_kv_proj: bool = False  # keys and values come out of one projection, and are cached apart
    o_latent: int = 0  # width of a compressed output, for each of `o_groups`
    o_groups: int = 1
    norm_over_heads: bool = False  # queries and keys are normed over all heads, so that ranks must add up their squares
    borrowed: bool = False  # reads what an earlier layer of its kind cached, and keeps no keys and values of its own

    @property
    def mla(self) -> bool:
        return self.latent > 0

    @property
    def value_dim(self) -> int:
        return self.v_dim or self.head_dim

    @property
    def kv_values(self) -> int:
        """Numbers kept for one entry and layer, over all KV heads."""
        return self.kv_values_on(1)

    def kv_values_on(self, ranks: int) -> int:
        """The same on each of `ranks` that share the heads: at least one head, and a latent cannot be split at all."""
        if self.mla:
            return self.latent + self.rope_dim
        return max(1, -(-self.kv_heads // ranks)) * (self.head_dim + (0 if self.one_kv else self.value_dim))

    def pair_flops(self, *, absorbed: bool) -> int:
        """FLOPs of one query meeting one entry, in one layer over all heads.

        MLA has two forms: decompressed, as prefill runs it, and absorbed, as decode runs it on the latent itself.
        """
        if not self.mla:
            return 2 * self.heads * (self.head_dim + self.value_dim)
        if absorbed:
            return 2 * self.heads * (2 * self.latent + self.rope_dim)
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim)

    @property
    def keeps_everything(self) -> bool:
        """Whether a request's cache in such a layer grows with every token."""
        return self.window == 0 or self.compress > 1

    def reaches(self, ranks: int = 1) -> tuple[Reach, ...]:
        """What a query meets, on each of `ranks` that share the heads."""
        kv = float(self.kv_values_on(ranks))
        decode, prefill = (self.pair_flops(absorbed=a) / ranks for a in (True, False))
        every = self.compress
        if self.window and every == 1:
            return (Reach(kv, 0.0, decode, prefill, self.window),)
        picked = Reach(kv / every, 0.0, decode / every, prefill / every, self.top_k * every or math.inf)
        if not self.top_k:
            return (picked, *self._own_window(kv, decode, prefill))
        flops = 2.0 * self.index_heads * self.index_dim * self.index_share / every
        scan = Reach(0.0, self.index_bytes_per_token, flops, flops)
        return (picked, scan, *self._own_window(kv, decode, prefill))

    def _own_window(self, kv: float, decode: float, prefill: float) -> tuple[Reach, ...]:
        """Compressed attention reads its latest tokens one by one as well."""
        return (Reach(kv, 0.0, decode, prefill, self.window),) if self.window else ()

    @property
    def index_bytes_per_token(self) -> float:
        if not self.top_k:
            return 0.0
        return (self.index_dim + _INDEX_SCALE_BYTES) * self.index_share / self.compress


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A layer that keeps a state of fixed size for each request instead of a cache that grows.

    Gated and Kimi's delta nets, Mamba-2 and lightning attention alike: `inputs` columns come out of the hidden vector,
    `channels` of them pass a short convolution, and `heads` states of key_dim x value_dim are read and written for
    every token.
    """

    kind: str  # gated-delta, kimi-delta, mamba2, lightning
    heads: int
    key_dim: int
    value_dim: int
    inputs: int
    channels: int
    kernel: int
    state_bytes_each: float = 4.0
    narrow_gates: int = 0  # gates that go through a vector of key_dim; its first half is among the inputs

    @property
    def outputs(self) -> int:
        return self.heads * self.value_dim

    @property
    def state_bytes(self) -> float:
        """One request's state and the tail of its convolution (in 16 bits)."""
        state = self.heads * self.key_dim * self.value_dim * self.state_bytes_each
        return state + self.channels * (self.kernel - 1) * 2.0

    @property
    def small_params(self) -> int:
        """Convolution, decay and step of each head, and the norm of the output."""
        return self.channels * self.kernel + 3 * self.heads + self.outputs

    @property
    def token_flops(self) -> int:
        """Decay, update and read-out of every state, for one token."""
        return 6 * self.heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class Mixer:
    """One kind of token mixing and the layers it sits in, which ascend."""

    kind: Attention | LinearAttention
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts half of a layer. `shared` experts see every token and are `shared_width` wide together."""

    count: int
    per_token: int
    width: int
    shared: int = 0
    shared_width: int = 0
    latent: int = 0  # experts that work on a narrower copy of the hidden vector; 0: on the vector itself
    biased: bool = False  # whether the router adds a bias of each expert to its scores

    def touched(self, tokens: float) -> float:
        """Experts of one layer that at least one of `tokens` tokens is sent to, when routing is balanced."""
        if tokens <= 0:
            return 0.0
        missed: float = (1.0 - self.per_token / self.count) ** tokens
        return self.count * (1.0 - missed)
