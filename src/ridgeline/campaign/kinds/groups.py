"""Groups of knobs, in the order in which a person tells what was changed: environment first, the network late."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ridgeline.records.study import Study

REST = "the rest"
# a knob belongs to the first group whose pattern its name holds; a study's own `groups` come before these
_NETWORK = r"^(NCCL|UCX|FI|OMPI|PSM\d?|GLOO|MPICH?|RDMAV?|IBV?|SHARP)_|network|nccl|rdma|allreduce|all_reduce|dispatch"
_LAYOUT = (
    r"^(tp|pp|dp|ep|cp|sp|tpp|attn_dp|moe_dp|nodes|ranks|ranks_per_node|ppn|threads|gpus|replicas|layout)$"
    r"|parallel|_(tp|pp|dp|ep)(_|$)|(tp|pp|dp|ep)_size|OMP_NUM_THREADS"
)
_MEMORY = r"mem|batch|(^|_)bs$|running|num_seqs|chunk|prefill|cache|page|kv|pool|tokens|block|tile|buffer"
_BACK_END = r"backend|back_end|kernel|attention|dtype|quant|graph|compile|speculat|algorithm|solver|moe|^eager"
_ENVIRONMENT = r"^[A-Z][A-Z0-9_]*$|^(opt|march|flags?|cflags|compiler|env|module|image|governor|pinning|binding)$"
PATTERNS: Mapping[str, re.Pattern[str]] = {
    "environment": re.compile(_ENVIRONMENT),
    "layout": re.compile(_LAYOUT),
    "batch and memory": re.compile(_MEMORY),
    "back end": re.compile(_BACK_END),
    "network": re.compile(_NETWORK),
}
_ASKED_FIRST = ("network", "layout", "batch and memory", "back end", "environment")


def knob_groups(study: Study) -> dict[str, tuple[str, ...]]:
    """Every knob of the study in one group: the study's own groups first and in its order, then ours, then the rest."""
    own = {name: group for group, names in study.groups.items() for name in names}
    found: dict[str, list[str]] = {group: [] for group in (*study.groups, *PATTERNS, REST)}
    for knob in study.space.by_name:
        found[own.get(knob) or _group_of(knob)].append(knob)
    return {group: tuple(names) for group, names in found.items() if names}


def _group_of(knob: str) -> str:
    return next((group for group in _ASKED_FIRST if PATTERNS[group].search(knob)), REST)
