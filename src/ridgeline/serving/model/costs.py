"""What a model costs, as an answer: parameters, weights by part, FLOPs and bytes per token, KV bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """`ridgeline model`'s answer, for prompts and contexts of `tokens` and decode steps of `batch` requests."""

    model: Model
    tokens: int
    batch: int

    def as_json(self) -> dict[str, object]:
        m, tokens, batch = self.model, self.tokens, self.batch
        return {
            "model": m.name,
            "layers": m.layers,
            "attention": self.attention,
            "experts": None if m.experts is None else {"count": m.experts.count, "per_token": m.experts.per_token},
            "context_tokens": m.context_tokens,
            "dtype": m.dtype,
            "kv_dtype": m.kv_dtype,
            "parameters": m.params,
            "active_parameters": m.active_params,
            "weight_bytes": m.weight_bytes,
            "weight_bytes_by_part": m.weight_bytes_by_part(),
            "kv_bytes_per_token": m.kv_bytes_per_token,
            "prefill": {
                "tokens": tokens,
                "flops_per_token": m.prefill_flops(tokens) / tokens,
                "bytes_per_token": m.prefill_bytes(tokens) / tokens,
            },
            "decode": {
                "batch": batch,
                "context_tokens": tokens,
                "flops_per_token": m.decode_flops(tokens),
                "bytes_per_token": m.decode_bytes(batch, tokens) / batch,
            },
        }

    @property
    def attention(self) -> str:
        a = self.model.attention
        if a.mla:
            return f"MLA with {a.heads} heads on a latent of {a.latent} + {a.rope_dim}"
        return f"{'MHA' if a.heads == a.kv_heads else 'GQA'} with {a.heads} heads on {a.kv_heads} KV heads"


def answer_costs(name: str, dtype: str | None, kv_dtype: str | None, tokens: int, batch: int) -> ModelCosts:
    model = load_model(name).with_dtype(dtype, kv_dtype)
    if batch < 1:
        raise InputError(f"--batch is {batch}; give at least 1")
    if not 1 <= tokens <= model.context_tokens:
        raise InputError(f"--tokens is {tokens:,}; the context of {model.name} takes 1 to {model.context_tokens:,}")
    return ModelCosts(model, tokens, batch)
