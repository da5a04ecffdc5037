"""The two halves of a layer: how it attends, and which experts it holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (kv_heads == heads is MHA), or multi-head latent attention when `latent` is set."""

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    latent: int = 0  # MLA: width of the compressed KV (kv_lora_rank)
    q_latent: int = 0  # MLA: width of the compressed query; 0 when queries are not compressed
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0

    @property
    def mla(self) -> bool:
        return self.latent > 0

    @property
    def kv_values(self) -> int:
        """Numbers kept per token and layer, over all KV heads."""
        return self.latent + self.rope_dim if self.mla else 2 * self.kv_heads * self.head_dim

    def pair_flops(self, *, absorbed: bool) -> int:
        """FLOPs of one query meeting one key, in one layer over all heads.

        MLA has two forms: decompressed, as prefill runs it, and absorbed, as decode runs it on the latent itself.
        """
        if not self.mla:
            return 4 * self.heads * self.head_dim
        if absorbed:
            return 2 * self.heads * (2 * self.latent + self.rope_dim)
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts half of a layer. `shared` experts see every token and are `shared_width` wide together."""

    count: int
    per_token: int
    width: int
    shared: int = 0
    shared_width: int = 0

    def touched(self, tokens: float) -> float:
        """Experts of one layer that at least one of `tokens` tokens is sent to, when routing is balanced."""
        if tokens <= 0:
            return 0.0
        missed: float = (1.0 - self.per_token / self.count) ** tokens
        return self.count * (1.0 - missed)
