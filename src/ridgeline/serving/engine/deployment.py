"""What is simulated: a model on a cluster, spread in one way and started with these settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.serving.engine.layout import Layout, disaggregated, group_layout
from ridgeline.serving.engine.layout_rules import require_legal
from ridgeline.serving.engine.settings import DEFAULTS, EngineSettings
from ridgeline.serving.engine.settings import PREFILL_RANK_TOKENS as PREFILL_RANK_TOKENS
from ridgeline.serving.hardware.cluster import Cluster, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model


@dataclass(frozen=True, slots=True)
class Deployment:
    """`settings` hold for every engine; `role_settings` gives what the engines of one role make of them.

    Where the servers of a role are told something of their own, `prefill_settings` and `decode_settings` hold it, with
    the running requests of a whole engine.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    settings: EngineSettings = DEFAULTS
    routing: str = "round-robin"
    prefill_settings: EngineSettings | None = None
    decode_settings: EngineSettings | None = None

    def role_settings(self, role: str) -> EngineSettings:
        """both, prefill or decode. A role of its own keeps --max-running-requests for each attention-DP rank.

        SGLang sizes the request pool of a rank by the undivided flag, and the decode role admits by that pool. The
        prefill role runs without graphs, as the published recipes start it.
        """
        own = {"prefill": self.prefill_settings, "decode": self.decode_settings}.get(role)
        if own is not None:
            return own
        lay = {"prefill": self.layout.prefill, "decode": self.layout.decode}.get(role)
        if lay is None:
            return self.settings
        running = self.settings.max_running_requests
        each = replace(self.settings, max_running_requests=None if running is None else running * lay.attn_dp)
        return each if role == "decode" else replace(each, prefill_graph=False)

    def __str__(self) -> str:
        return f"{self.model.name} on {self.cluster}, {self.layout}"


def describe(
    model: str,
    gpu: str,
    layout: Layout,
    settings: EngineSettings | None = None,
    *,
    prefill_groups: str | None = None,
    decode_groups: str | None = None,
    fabric: str | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    routing: str = "round-robin",
) -> Deployment:
    """A deployment from the words of the command line; refuses what the engine would refuse."""
    settings = settings or DEFAULTS
    chosen = load_model(model).with_dtype(dtype, kv_dtype)
    nodes = layout.nodes
    if (prefill_groups is None) != (decode_groups is None):
        raise InputError(
            "prefill and decode groups come together, for example --prefill-groups 3x3 --decode-groups 1x4"
        )
    if prefill_groups is not None and decode_groups is not None:
        shape_p, words_p = _apart(prefill_groups)
        shape_d, words_d = _apart(decode_groups)
        prefill = group_layout(chosen, shape_p, layout.gpus_per_node)
        layout = disaggregated(prefill, group_layout(chosen, shape_d, layout.gpus_per_node))
        nodes = max(nodes, layout.nodes)
    else:
        words_p = words_d = ()
    cluster = make_cluster(gpu, nodes, layout.gpus_per_node, fabric)
    require_legal(chosen, layout, cluster.gpu, settings)
    shared = Deployment(chosen, cluster, layout, settings, routing)
    return replace(
        shared, prefill_settings=_own(shared, "prefill", words_p), decode_settings=_own(shared, "decode", words_d)
    )


# What the servers of one role may be told apart from the other's: the word after the colon of a group, and the setting.
ROLE_WORDS = {
    "running": "max_running_requests",
    "graph": "cuda_graph_max_bs",
    "chunk": "chunked_prefill_size",
    "fraction": "mem_fraction",
}


def role_words(settings: EngineSettings, attn_dp: int) -> str:
    """What `describe` reads, after the colon of a group, as these settings of its servers."""
    values = {word: getattr(settings, name) for word, name in ROLE_WORDS.items()}
    if values["running"] is not None:
        values["running"] //= attn_dp
    return ",".join(f"{word}={value:g}" if word == "fraction" else f"{word}={value}" for word, value in values.items())


def _apart(groups: str) -> tuple[str, tuple[str, ...]]:
    """`1x3:ep=1,chunk=4096` is a shape, `1x3:ep=1`, and settings."""
    size, colon, rest = groups.partition(":")
    words = [w.strip() for w in rest.split(",")]
    own = tuple(w for w in words if w.partition("=")[0] in ROLE_WORDS)
    shape = ",".join(w for w in words if w not in own)
    return (f"{size}{colon}{shape}" if shape or not own else size), own


def _own(shared: Deployment, role: str, words: tuple[str, ...]) -> EngineSettings | None:
    """Running requests are said for each attention group, as a role of its own counts them."""
    if not words:
        return None
    lay = shared.layout.prefill if role == "prefill" else shared.layout.decode
    assert lay is not None
    found: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[ROLE_WORDS[name]] = float(value) if name == "fraction" else int(value)
        except ValueError:
            raise InputError(
                f"{role} groups: {word!r} is no setting; write running=, graph=, chunk= and a whole number, or "
                "fraction= and a number below 1"
            ) from None
    if "max_running_requests" in found:
        found["max_running_requests"] *= lay.attn_dp
    return replace(shared.role_settings(role), **found)  # type: ignore[arg-type]
