"""How a model is spread over GPUs: TP, PP, DP, EP, attention DP, and prefill and decode groups.

Words as engines use them. `tp` ranks share every layer; `pp` stages share the list of layers; `dp` whole copies of that
share the traffic. Inside one tensor-parallel group `attn_dp` groups keep their own requests and their own KV cache, and
`ep` ranks hold whole experts instead of slices of all of them; neither takes more GPUs. Which layouts an engine accepts
is the business of `layout_rules`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.serving.model.layer_parts import Attention, Mixer
from ridgeline.serving.model.model import BYTES_PER_WEIGHT, Matrix, Model

# Tokens that SGLang's pool of windowed layers holds for each token of the others' (--swa-full-tokens-ratio), and bytes
# that it gives to states of linear layers for each byte of KV pool (--mamba-full-memory-ratio).
WINDOW_POOL_SHARE = 0.8
STATE_POOL_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to serve. A disaggregated layout holds two more, `prefill` and `decode`; their `dp` counts the groups."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    attn_dp: int = 1
    nodes: int = 1
    gpus_per_node: int = 8
    prefill: Layout | None = None
    decode: Layout | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "ep", "attn_dp", "nodes", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise InputError(f"layout: {name} is {getattr(self, name)}; it must be at least 1")
        one = self.tp * self.pp
        have = self.nodes * self.gpus_per_node
        if self.dp == self.attn_dp > 1 and one <= have < one * self.dp:
            # SGLang long spelled attention DP `--dp-size N --enable-dp-attention`: the same N said twice, no copies
            object.__setattr__(self, "dp", 1)
        if (self.prefill is None) != (self.decode is None):
            raise InputError("layout: prefill and decode groups come together; give both or neither")

    @property
    def disaggregated(self) -> bool:
        return self.prefill is not None

    @property
    def roles(self) -> dict[str, Layout]:
        """The engines there are, by what they do: `prefill` and `decode`, or `both`."""
        if self.prefill is not None and self.decode is not None:
            return {"prefill": self.prefill, "decode": self.decode}
        return {"both": self}

    @property
    def gpus(self) -> int:
        """GPUs that work."""
        return sum(groups.tp * groups.pp * groups.dp for groups in self.roles.values())

    @property
    def replica_gpus(self) -> int:
        """GPUs of one engine, which stop together when one of them dies."""
        return self.tp * self.pp

    @property
    def replica_nodes(self) -> int:
        return -(-self.replica_gpus // self.gpus_per_node)

    @property
    def tp_nodes(self) -> int:
        """Nodes that one tensor-parallel group spans; its all-reduces cross the fabric when this is above 1."""
        return -(-self.tp // self.gpus_per_node)

    @property
    def attn_tp(self) -> int:
        """Ranks that share one attention and one KV cache."""
        return max(1, self.tp // self.attn_dp)

    def stage_layers(self, layers: int) -> tuple[range, ...]:
        """The layers of each pipeline stage; the last stages take the remainder, as SGLang does."""
        short, extra = divmod(layers, self.pp)
        sizes = [short + (stage >= self.pp - extra) for stage in range(self.pp)]
        starts = [sum(sizes[:stage]) for stage in range(self.pp)]
        return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))

    def __str__(self) -> str:
        if self.prefill is not None and self.decode is not None:
            return f"{_group_name(self.prefill, 'P')}{_group_name(self.decode, 'D')}"
        parts = [f"tp {self.tp}"]
        parts += [
            f"{w} {n}"
            for w, n in (("pp", self.pp), ("dp", self.dp), ("ep", self.ep), ("attn-dp", self.attn_dp))
            if n > 1
        ]
        return " ".join(parts)


def _group_name(groups: Layout, letter: str) -> str:
    """P3x3: three groups of three nodes; P4: one group of four nodes; a group smaller than a node is P2x4gpu."""
    if groups.replica_gpus % groups.gpus_per_node:
        return f"{letter}{groups.dp}x{groups.replica_gpus}gpu"
    return f"{letter}{groups.replica_nodes}" if groups.dp == 1 else f"{letter}{groups.dp}x{groups.replica_nodes}"


def matrix_shards(matrix: Matrix, layout: Layout, model: Model) -> int:
    """Over how many ranks of one stage one copy of this weight is spread."""
    if matrix.split == "attention":
        if matrix.name == "kv_proj":
            # a rank never holds less than one KV head: beyond that many ranks the heads are copied
            return min(layout.attn_tp, model.attention.kv_heads)
        return layout.attn_tp
    if matrix.split == "vocab":
        # under attention DP every rank embeds its own tokens; the LM head stays split
        return layout.tp if layout.attn_dp == 1 or matrix.part == "lm_head" else 1
    if matrix.part == "shared_experts" and layout.ep > 1 and layout.attn_dp == layout.tp:
        # all-to-all engines compute the shared expert where the token is
        return 1
    return layout.tp if matrix.split in ("ffn", "experts") else 1


def rank_weight_bytes(model: Model, layout: Layout, stage: int | None = None) -> float:
    """Weights one GPU of a stage holds; without a stage, those of the fullest stage."""
    stages = layout.stage_layers(model.layers)
    chosen = stages if stage is None else (stages[stage],)
    return max(sum(_bytes_in(m, layers, model, layout) for m in model.matrices) for layers in chosen)


def _bytes_in(matrix: Matrix, layers: range, model: Model, layout: Layout) -> float:
    copies = _how_many(matrix.layers, layers) * matrix.per_layer
    return matrix.rows * matrix.cols * copies * BYTES_PER_WEIGHT[matrix.dtype] / matrix_shards(matrix, layout, model)


def rank_kv_bytes_per_token(model: Model, layout: Layout, stage: int | None = None) -> float:
    """KV bytes one token takes on one GPU that keeps it; without a stage, on the stage with most layers."""
    stages = layout.stage_layers(model.layers)
    chosen = stages if stage is None else (stages[stage],)
    held = max(sum(_pool_bytes_in(m, layers, model, layout) for m in model.all_mixers) for layers in chosen)
    # every stage of a pipeline needs some pool to count tokens by, even one whose layers all keep states
    return max(held, 1.0) * (1 + STATE_POOL_SHARE if model.state_bytes_per_request else 1)


def state_slots(model: Model, layout: Layout, pool_tokens: int) -> int:
    """Requests whose states fit beside a KV pool of so many tokens on one rank."""
    both = rank_kv_bytes_per_token(model, layout)
    room = pool_tokens * both * STATE_POOL_SHARE / (1 + STATE_POOL_SHARE)
    return max(1, int(room * layout.attn_tp * layout.pp / model.state_bytes_per_request))


def _pool_bytes_in(mixer: Mixer, layers: range, model: Model, layout: Layout) -> float:
    kind = mixer.kind
    if not isinstance(kind, Attention):
        return 0.0
    share = 1.0 if kind.keeps_everything else WINDOW_POOL_SHARE
    return model.layer_kv_bytes(kind, layout.attn_tp) * share * _how_many(mixer.layers, layers)


def _how_many(ascending: Sequence[int], stage: range) -> int:
    """Of these layers, those of a stage. A plan asks it of every matrix in hundreds of layouts."""
    return bisect_left(ascending, stage.stop) - bisect_left(ascending, stage.start)


_GROUPS = re.compile(r"(?:(\d{1,6})x)?(\d{1,6})(gpu)?(?::(.+))?")
_PD = re.compile(r"[Pp]((?:\d+x)?\d+)[Dd]((?:\d+x)?\d+)")


def group_layout(model: Model, text: str, gpus_per_node: int = 8) -> Layout:
    """`3x3`: three groups of three nodes; `4`: one group of four; `2x4gpu`: two of four GPUs. A group is one engine.

    MLA models with experts run as the published DeepSeek systems do: attention DP and expert parallelism over the whole
    group. Others use TP inside a node and pipeline stages between nodes, for their KV heads seldom allow more. Another
    shape is said after a colon: `2x4:attn-dp=1,ep=32`.
    """
    match = _GROUPS.fullmatch(text.strip())
    if not match:
        raise InputError(
            f"groups {text!r}: write 3x3 for three groups of three nodes, 4 for one group of four, 2x4gpu for two of "
            "four GPUs; a shape of their own goes after a colon, as in 3x3:attn-dp=1,ep=24"
        )
    count, size = int(match[1] or 1), int(match[2])
    if count < 1 or size < 1:
        raise InputError(f"groups {text!r}: both numbers must be at least 1")
    width = size if match[3] else size * gpus_per_node
    nodes = -(-count * width // gpus_per_node)
    shape = _group_shape(model, width, gpus_per_node)
    if match[4]:
        shape |= _own_shape(text, match[4], width)
    tp, pp, ep, attn_dp = (shape[name] for name in ("tp", "pp", "ep", "attn_dp"))
    return Layout(tp, pp, count, ep, attn_dp, nodes=nodes, gpus_per_node=gpus_per_node)


def _group_shape(model: Model, width: int, gpus_per_node: int) -> dict[str, int]:
    if model.attention.mla and model.experts is not None:
        return {"tp": width, "pp": 1, "ep": width, "attn_dp": width}
    tp = gpus_per_node if width % gpus_per_node == 0 else width
    return {"tp": tp, "pp": width // tp, "ep": 1, "attn_dp": 1}


def _own_shape(text: str, shape: str, width: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in shape.split(","):
        name, _, value = part.strip().replace("-", "_").partition("=")
        if name not in ("tp", "pp", "ep", "attn_dp") or not value.isdecimal() or not 0 < int(value) <= width:
            raise InputError(
                f"groups {text!r}: {part!r} is no shape of {width} GPUs; write tp=, pp=, ep= or attn-dp= and a number "
                f"from 1 to {width}"
            )
        found[name] = int(value)
    if "tp" in found or "pp" in found:
        found.setdefault("tp", width // found.get("pp", 1))
        found.setdefault("pp", width // found["tp"])
        if found["tp"] * found["pp"] != width:
            raise InputError(
                f"groups {text!r}: tp {found['tp']} x pp {found['pp']} is not the {width} GPUs of a group; "
                f"make the product {width}, or leave both out"
            )
    return found


def group_text(groups: Layout, model: Model) -> str:
    """What `group_layout` reads as these groups."""
    size = groups.gpus_per_node
    whole = groups.replica_gpus % size == 0
    counted = f"{groups.dp}x{groups.replica_nodes}" if whole else f"{groups.dp}x{groups.replica_gpus}gpu"
    usual = _group_shape(model, groups.replica_gpus, size)
    if (groups.tp, groups.pp) == (usual["tp"], usual["pp"]):
        usual = {name: value for name, value in usual.items() if name in ("ep", "attn_dp")}
    own = {name: getattr(groups, name) for name, value in usual.items() if getattr(groups, name) != value}
    shape = ",".join(f"{name.replace('_', '-')}={value}" for name, value in own.items())
    return f"{counted}:{shape}" if shape else counted


def disaggregated(prefill: Layout, decode: Layout) -> Layout:
    """Two sets of groups that serve one stream of requests together."""
    if prefill.gpus_per_node != decode.gpus_per_node:
        raise InputError("prefill and decode groups must sit on nodes of the same size")
    size, nodes = prefill.gpus_per_node, prefill.nodes + decode.nodes
    if max(prefill.replica_gpus, decode.replica_gpus) < size:
        nodes = -(-(prefill.gpus + decode.gpus) // size)  # engines smaller than a node share one
    return Layout(nodes=nodes, gpus_per_node=size, prefill=prefill, decode=decode)


def parse_layout(text: str, model: Model, gpus_per_node: int = 8) -> Layout:
    """P4D6, P3x3D4: prefill and decode groups in nodes."""
    match = _PD.fullmatch(text.strip())
    if not match:
        raise InputError(
            f"layout {text!r}: write P4D6 or P3x3D4 (three prefill groups of three nodes, four decode nodes)"
        )
    return disaggregated(group_layout(model, match[1], gpus_per_node), group_layout(model, match[2], gpus_per_node))
