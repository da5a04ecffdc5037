"""What a model costs: parameters, weight bytes, FLOPs and KV bytes, from a Hugging Face config.json.

One table, `Model.matrices`, lists every weight of the model: its shape, its dtype, the layers it sits in and the way an
engine splits it over ranks. Parameter counts, weight bytes, FLOPs per token and bytes read per step are sums over it
and so cannot disagree with one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ridgeline.errors import InputError
from ridgeline.serving.model.layer_parts import Attention, Experts, LinearAttention, Mixer, Reach

# Every weight of a model as a row: its shape, its dtype, the layers it sits in and how an engine splits it.

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
_Split = Literal["attention", "ffn", "experts", "vocab", "none"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One kind of weight. `per_layer` of them sit in each of `layers` (ascending); a token multiplies with `used`."""

    name: str
    part: str  # embedding, attention, dense_ffn, router, experts, shared_experts, norm, lm_head, vision
    rows: int
    cols: int
    dtype: str
    split: _Split
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
class _LayerRows:
    """Makes the rows of one kind of layer: `base` is the dtype of what is never quantised, `dtype` of the rest."""

    hidden: int
    dtype: str
    base: str
    layers: tuple[int, ...]

    def _product(self, name: str, rows: int, cols: int, split: _Split = "attention") -> Matrix:
        return Matrix(name, "attention", rows, cols, self.dtype, split, self.layers)

    def _small(self, name: str, count: int) -> Matrix:
        return Matrix(name, "norm", count, 1, self.base, "none", self.layers)

    def attention(self, a: Attention, *, qk_norm: bool) -> tuple[Matrix, ...]:
        if a.mla:
            return (*self._queries(a, a.nope_dim + a.rope_dim), *self._latent(a), *self._indexer(a))
        q, v = a.heads * a.head_dim, a.heads * a.value_dim
        keys = 0 if a.borrowed else a.kv_heads * a.head_dim
        kv = keys if a.one_kv or a.one_kv_proj or a.borrowed else keys + a.kv_heads * a.value_dim
        extras = []
        if a.bias:
            extras.append(self._small("qkv_bias", q + kv))
        if qk_norm:
            extras.append(self._small("qk_norm", 2 * a.head_dim))
        return (
            *self._queries(a, a.head_dim),
            *((self._product("kv_proj", self.hidden, kv),) if kv else ()),
            *self._outputs(a, v),
            *self._compressor(a),
            *self._indexer(a),
            *extras,
        )

    def _queries(self, a: Attention, width: int) -> tuple[Matrix, ...]:
        columns = a.heads * width * (2 if a.gated and not a.mla else 1)
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
            *((self._product("gate_proj", self.hidden, a.heads * a.v_dim),) if a.gated else ()),
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
        gates = mixer.narrow_gates * mixer.outputs
        return (
            self._product("state_in_proj", self.hidden, mixer.inputs),
            *((self._product("state_gate_proj", mixer.key_dim, gates),) if gates else ()),
            self._product("state_out_proj", mixer.outputs, self.hidden),
            Matrix("state_small", "norm", mixer.small_params, 1, self.base, "attention", self.layers),
        )


def _overlap(a: Attention) -> int:
    return 2 if a.compress < 16 else 1


def _feed_forward(whole: Matrix, *, gated: bool) -> tuple[Matrix, ...]:
    """`whole` says all but the halves: its rows are the hidden width, its columns the feed-forward part's own."""
    if not whole.layers or not whole.cols:
        return ()
    up = f"{whole.name}_gate_up" if gated else f"{whole.name}_up"
    return (
        replace(whole, name=up, cols=(2 if gated else 1) * whole.cols),
        replace(whole, name=f"{whole.name}_down", rows=whole.cols, cols=whole.rows),
    )


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
    layer_input: int = 0  # width of what each layer looks up for a token in a table of its own (Gemma-4's small models)
    layer_input_vocab: int = 0
    draft_layers: int = 0  # multi-token prediction, which no figure here contains
    attention_dtype: str = ""  # where it differs from `dtype`
    expert_dtype: str = ""
    attention_sinks: bool = False  # each head may look at nothing (gpt-oss), which few kernels know
    weight_block: int = 0  # rows and columns of weights that share a scale, as the checkpoint says; 0: it says none
    vision_params: int = 0  # held in memory beside the language model, which all other figures are about
    embedding_used: bool = True  # whether its publisher counts the embedding table as used by every token
    notes: tuple[str, ...] = ()  # what the config says and no figure here contains
    assumed: tuple[str, ...] = field(default=(), compare=False)  # of which other model it has the shape, and why
    own_code: bool = False  # whether its files bring code of their own, which engines run only when told to
    folder: str = field(default="", compare=False)  # that holds its weights, where they are on this machine

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
        weights = replace(self, dtype=dtype, attention_dtype=apart, expert_dtype="", weight_block=0)
        return replace(weights, base_dtype=base, kv_dtype=kv_dtype)

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
    def attentions(self) -> tuple[tuple[Attention, int], ...]:
        """Each kind of attention, and in how many layers."""
        return tuple((m.kind, len(m.layers)) for m in self.all_mixers if isinstance(m.kind, Attention))

    @cached_property
    def states(self) -> tuple[tuple[LinearAttention, int], ...]:
        """Each kind of state, and in how many layers."""
        return tuple((m.kind, len(m.layers)) for m in self.all_mixers if isinstance(m.kind, LinearAttention))

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
            *self._layer_inputs(every),
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
        rows = _LayerRows(self.hidden, self.attention_dtype or self.dtype, self.base_dtype, mixer.layers)
        if isinstance(mixer.kind, LinearAttention):
            return rows.linear(mixer.kind)
        return rows.attention(mixer.kind, qk_norm=self.qk_norm)

    def _dense(self) -> tuple[Matrix, ...]:
        widths = self.ffn_widths or ((self.ffn_width, self.dense_layers),)
        parts = (Matrix("mlp", "dense_ffn", self.hidden, width, self.dtype, "ffn", layers) for width, layers in widths)
        return tuple(row for part in parts for row in _feed_forward(part, gated=self.ffn_gated))

    def _mixture(self) -> tuple[Matrix, ...]:
        x, hidden, base, layers = self.experts, self.hidden, self.base_dtype, self.moe_layers
        if x is None:
            return ()
        narrow = (
            Matrix("latent_down", "router", hidden, x.latent, base, "none", layers),
            Matrix("latent_up", "router", x.latent, hidden, base, "none", layers),
        )
        within = x.latent or hidden
        routed = Matrix(
            "experts", "experts", within, x.width, self.weights_dtype, "experts", layers, x.count, x.per_token
        )
        shared = Matrix("shared", "shared_experts", hidden, x.shared_width, self.dtype, "ffn", layers)
        return (
            Matrix("router", "router", hidden, x.count, base, "none", layers),
            *(narrow if x.latent else ()),
            *_feed_forward(routed, gated=self.ffn_gated),
            *_feed_forward(shared, gated=self.ffn_gated),
        )

    def _layer_inputs(self, every: tuple[int, ...]) -> tuple[Matrix, ...]:
        """Per-layer embeddings: one wide table, of which a token looks up a row, and a way into each layer."""
        wide, width, base = self.layer_input * self.layers, self.layer_input, self.base_dtype
        if not width:
            return ()
        return (
            Matrix("embed_per_layer", "embedding", self.layer_input_vocab, wide, base, "vocab", (0,), used=0),
            Matrix("per_layer_proj", "dense_ffn", self.hidden, wide, base, "none", (0,)),
            Matrix("per_layer_gate", "dense_ffn", self.hidden, width, base, "none", every),
            Matrix("per_layer_up", "dense_ffn", width, self.hidden, base, "none", every),
        )

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

    def reaches(self, ranks: int = 1) -> list[tuple[Reach, int]]:
        """What a query meets of its past on each of `ranks` that share the heads, kind by kind, and in how many
        layers."""
        return [(reach, n) for kind, n in self.attentions for reach in kind.reaches(ranks)]

    def layer_kv_bytes(self, kind: Attention, ranks: int = 1) -> float:
        """What one more token takes in the cache of one such layer, on each of `ranks` that share its heads."""
        held = kind.kv_values_on(ranks) * KV_BYTES[self.kv_dtype] / kind.compress
        return 0.0 if kind.borrowed else held + kind.index_bytes_per_token

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """What each further token of a long request adds, all heads, in the layers that keep everything.

        Divide by what the layout splits (see `layout.rank_kv_bytes_per_token`).
        """
        return sum(self.layer_kv_bytes(kind) * n for kind, n in self.attentions if kind.keeps_everything)

    @cached_property
    def window_kv(self) -> tuple[tuple[int, float], ...]:
        """(window, bytes of each of its tokens) of the layers that keep no more than a window of a request."""
        found: dict[int, float] = {}
        for kind, n in self.attentions:
            if kind.window and not kind.borrowed:
                found[kind.window] = found.get(kind.window, 0.0) + kind.kv_values * KV_BYTES[self.kv_dtype] * n
        return tuple(sorted(found.items()))

    @cached_property
    def state_bytes_per_request(self) -> float:
        """State of the linear layers: the same however long the request is."""
        return sum(kind.state_bytes * n for kind, n in self.states)

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
        states = sum(kind.token_flops * n for kind, n in self.states)
        return states + sum(m.flops_per_token for m in self.matrices if m.part not in ("lm_head", "vision"))

    @property
    def lm_head_flops(self) -> int:
        """One row of logits."""
        return 2 * self.hidden * self.vocab

    def prefill_flops(self, tokens: float) -> float:
        """One sequence of `tokens`, causal, with one row of logits at the end."""
        attention = sum(n * r.prefill_flops * _pairs(tokens, r.cap) for r, n in self.reaches())
        return self.linear_flops_per_token * tokens + attention + self.lm_head_flops

    def decode_flops(self, context: float) -> float:
        """One new token of one sequence that holds `context` tokens, itself included."""
        attention = sum(n * r.decode_flops * min(context, r.cap) for r, n in self.reaches())
        return self.linear_flops_per_token + attention + self.lm_head_flops

    def weight_bytes_read(self, tokens: float) -> float:
        """Weights a step over `tokens` tokens reads: all but the embedding table and experts nobody asks for."""
        share = self.experts.touched(tokens) / self.experts.count if self.experts else 1.0
        total = 0.0
        for m in self.matrices:
            if m.part == "experts":
                total += m.nbytes * share
            elif m.part != "vision" and (m.part != "embedding" or (self.tied_embeddings and m.used)):
                total += m.nbytes
        return total

    def prefill_bytes(self, tokens: float) -> float:
        """Memory traffic of one prefill step: weights once, new KV written."""
        return self.weight_bytes_read(tokens) + self.cache_bytes(tokens)

    def decode_bytes(self, batch: float, context: float) -> float:
        """Memory traffic of one decode step of `batch` sequences that hold `context` tokens each."""
        values = KV_BYTES[self.kv_dtype]
        read = sum(n * (r.kv_values * values + r.index_bytes) * min(context + 1, r.cap) for r, n in self.reaches())
        return self.weight_bytes_read(batch) + batch * (read + 2 * self.state_bytes_per_request)


def _pairs(tokens: float, cap: float) -> float:
    """Query-key pairs of so many tokens, where no query looks further back than `cap`."""
    rising = min(tokens, cap)  # queries that still see everything before them
    full = rising * (rising + 1) / 2
    return full if rising == tokens else full + (tokens - rising) * cap
