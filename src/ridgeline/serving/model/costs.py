"""What a model costs, as an answer: parameters, weights by part, FLOPs and bytes per token, KV bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.fields import preset_names
from ridgeline.serving.model.layer_parts import Attention, LinearAttention, Mixer
from ridgeline.serving.model.model import KV_BYTES, Model


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """`ridgeline model show`'s answer, for prompts and contexts of `tokens` and decode steps of `batch` requests."""

    model: Model
    tokens: int
    batch: int

    def as_json(self) -> dict[str, object]:
        m, tokens, batch = self.model, self.tokens, self.batch
        return {
            "model": m.name,
            "assumed": list(m.assumed),
            "layers": m.layers,
            "attention": self.attention,
            "experts": None if m.experts is None else {"count": m.experts.count, "per_token": m.experts.per_token},
            "context_tokens": m.context_tokens,
            "dtype": m.weights_dtype,
            "attention_dtype": m.attention_dtype or m.dtype,
            "kv_dtype": m.kv_dtype,
            "parameters": m.params,
            "active_parameters": m.active_params,
            "weight_bytes": m.weight_bytes,
            "weight_bytes_by_part": m.weight_bytes_by_part(),
            "kv_bytes_per_token": m.kv_bytes_per_token,
            "window_kv": [{"window_tokens": w, "bytes_per_token": size} for w, size in m.window_kv],
            "state_bytes_per_request": m.state_bytes_per_request,
            "vision_parameters": m.vision_params,
            "layer_kinds": self.layer_kinds,
            "notes": list(m.notes),
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
        return _attention_text(self.model.attention)

    @property
    def layer_kinds(self) -> list[dict[str, object]]:
        """Each way of mixing tokens: how many layers, and what one token or one request takes in one of them."""
        return [_kind_json(self.model, mixer) for mixer in self.model.all_mixers]


def _attention_text(a: Attention) -> str:
    seen = ""
    if a.compress > 1:
        seen += f", one entry for {a.compress} tokens"
    if a.top_k:
        seen += f", {a.top_k:,} entries picked by an indexer"
    if a.window:
        seen += f", window of {a.window:,}"
    if a.borrowed:
        seen += ", on an earlier layer's cache"
    if a.mla:
        return f"MLA with {a.heads} heads on a latent of {a.latent} + {a.rope_dim}{seen}"
    return f"{'MHA' if a.heads == a.kv_heads else 'GQA'} with {a.heads} heads on {a.kv_heads} KV heads{seen}"


def _kind_json(model: Model, mixer: Mixer) -> dict[str, object]:
    kind = mixer.kind
    if isinstance(kind, LinearAttention):
        text = f"{kind.kind} with {kind.heads} states of {kind.key_dim} x {kind.value_dim}"
        return {"layers": len(mixer.layers), "kind": text, "state_bytes_per_request": kind.state_bytes}
    grows = model.layer_kv_bytes(kind) if kind.keeps_everything else 0.0
    found: dict[str, object] = {"layers": len(mixer.layers), "kind": _attention_text(kind), "kv_bytes_per_token": grows}
    if kind.window and not kind.borrowed:
        held = kind.window * kind.kv_values * KV_BYTES[model.kv_dtype]
        found["window_bytes_per_request"] = held
    return found


def answer_costs(name: str, dtype: str | None, kv_dtype: str | None, tokens: int, batch: int) -> ModelCosts:
    model = load_model(name).with_dtype(dtype, kv_dtype)
    if batch < 1:
        raise InputError(f"--batch is {batch}; give at least 1")
    if not 1 <= tokens <= model.context_tokens:
        raise InputError(f"--tokens is {tokens:,}; the context of {model.name} takes 1 to {model.context_tokens:,}")
    return ModelCosts(model, tokens, batch)


def list_presets(dtype: str | None = None) -> list[Model]:
    """The models that come with the package, smallest first."""
    return sorted((load_model(name).with_dtype(dtype) for name in preset_names()), key=lambda model: model.params)
