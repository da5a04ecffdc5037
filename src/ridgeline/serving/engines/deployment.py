"""What is simulated: a model on a cluster, spread in one way and started with these settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.knobs import ROWS
from ridgeline.serving.engines.layout import Layout, disaggregated, group_layout
from ridgeline.serving.engines.layout_rules import require_legal
from ridgeline.serving.engines.settings import DEFAULTS, EngineSettings, settings_of
from ridgeline.serving.hardware.cluster import Cluster, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model


@dataclass(frozen=True, slots=True)
class Deployment:
    """`settings` hold for every engine; `role_settings` gives what the engines of one role make of them.

    Where the servers of a role have settings of their own, `prefill_settings` and `decode_settings` hold it.
    Numbers are those of a whole engine, whatever its role.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    settings: EngineSettings = DEFAULTS
    routing: str = "round-robin"
    prefill_settings: EngineSettings | None = None
    decode_settings: EngineSettings | None = None

    def role_settings(self, role: str) -> EngineSettings:
        """both, prefill or decode. The prefill role runs without graphs, as the published recipes start it."""
        own = {"prefill": self.prefill_settings, "decode": self.decode_settings}.get(role)
        if own is not None:
            return own
        apart = role == "prefill" and self.layout.prefill is not None
        return replace(self.settings, prefill_graph=False) if apart else self.settings

    def __str__(self) -> str:
        return f"{self.model.name} on {self.cluster}, {self.layout}"


def describe(
    model: str,
    gpu: str,
    layout: Layout,
    settings: EngineSettings = DEFAULTS,
    *,
    prefill_groups: str | None = None,
    decode_groups: str | None = None,
    fabric: str | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    routing: str = "round-robin",
) -> Deployment:
    """A deployment from the text of the command line; refuses what the engine would refuse."""
    chosen = load_model(model).with_dtype(dtype, kv_dtype)
    nodes = layout.nodes
    if (prefill_groups is None) != (decode_groups is None):
        raise InputError(
            "prefill and decode groups come together, for example --prefill-groups 3x3 --decode-groups 1x4"
        )
    if prefill_groups is not None and decode_groups is not None:
        shape_p, own_p = _apart(prefill_groups)
        shape_d, own_d = _apart(decode_groups)
        prefill = group_layout(chosen, shape_p, layout.gpus_per_node)
        layout = disaggregated(prefill, group_layout(chosen, shape_d, layout.gpus_per_node))
        nodes = max(nodes, layout.nodes)
    else:
        own_p = own_d = ()
    cluster = make_cluster(gpu, nodes, layout.gpus_per_node, fabric)
    shared = Deployment(chosen, cluster, layout, settings, routing)
    found = replace(
        shared, prefill_settings=_own(shared, "prefill", own_p), decode_settings=_own(shared, "decode", own_d)
    )
    for role, lay in layout.roles.items():
        require_legal(chosen, lay, cluster.gpu, found.role_settings(role), role)
    return found


# Settings that the servers of one role may have of their own: the word after the colon of a group, and the knob.
_ROLE_KNOBS = {
    "running": "max_running_requests",
    "graph": "cuda_graph_max_bs",
    "chunk": "chunked_prefill_size",
    "fraction": "mem_fraction_static",
}


def role_text(settings: EngineSettings) -> str:
    """What `describe` reads, after the colon of a group, as these settings of its servers."""
    values = {name: getattr(settings, ROWS[knob].field) for name, knob in _ROLE_KNOBS.items()}
    return ",".join(f"{name}={value:g}" if name == "fraction" else f"{name}={value}" for name, value in values.items())


def _apart(groups: str) -> tuple[str, tuple[str, ...]]:
    """`1x3:ep=1,chunk=4096` is a shape, `1x3:ep=1`, and settings."""
    size, colon, rest = groups.partition(":")
    parts = [w.strip() for w in rest.split(",")]
    own = tuple(w for w in parts if w.partition("=")[0] in _ROLE_KNOBS)
    shape = ",".join(w for w in parts if w not in own)
    return (f"{size}{colon}{shape}" if shape or not own else size), own


def _own(shared: Deployment, role: str, parts: tuple[str, ...]) -> EngineSettings | None:
    if not parts:
        return None
    found: dict[str, Value] = {}
    for part in parts:
        name, _, value = part.partition("=")
        try:
            found[_ROLE_KNOBS[name]] = float(value) if name == "fraction" else int(value)
        except ValueError:
            raise InputError(
                f"{role} groups: {part!r} is no setting; write running=, graph=, chunk= and a whole number, or "
                "fraction= and a number below 1"
            ) from None
    return settings_of(found, shared.role_settings(role))
