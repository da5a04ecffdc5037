"""What is simulated: a model on a cluster, spread in one way and started with these settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.serving.hardware import Cluster, make_cluster
from ridgeline.serving.layout import Layout, disaggregated, group_layout
from ridgeline.serving.layout_rules import require_legal
from ridgeline.serving.models import Model, load_model
from ridgeline.serving.twin.engine import DEFAULTS, EngineSettings
from ridgeline.serving.twin.engine import PREFILL_RANK_TOKENS as PREFILL_RANK_TOKENS


@dataclass(frozen=True, slots=True)
class Deployment:
    """`settings` hold for every engine; `role_settings` gives what the engines of one role make of them."""

    model: Model
    cluster: Cluster
    layout: Layout
    settings: EngineSettings = DEFAULTS
    routing: str = "round-robin"

    def role_settings(self, role: str) -> EngineSettings:
        """both, prefill or decode. A role of its own keeps --max-running-requests for each attention-DP rank.

        SGLang sizes the request pool of a rank by the undivided flag, and the decode role admits by that pool. The
        prefill role runs without graphs, as the published recipes start it.
        """
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
        prefill = group_layout(chosen, prefill_groups, layout.gpus_per_node)
        layout = disaggregated(prefill, group_layout(chosen, decode_groups, layout.gpus_per_node))
        nodes = max(nodes, layout.nodes)
    cluster = make_cluster(gpu, nodes, layout.gpus_per_node, fabric)
    require_legal(chosen, layout, cluster.gpu, settings)
    return Deployment(chosen, cluster, layout, settings, routing)
