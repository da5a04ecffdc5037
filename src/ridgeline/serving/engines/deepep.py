"""DeepEP's modes: `normal` for large batches, `low_latency` for decode steps in graphs, `auto` for both in turn."""

from __future__ import annotations

from ridgeline.records.expression import Value
from ridgeline.serving.engines.knobs.releases import Version, release_meant
from ridgeline.serving.engines.layout import Layout

# the first release that starts with both DeepEP's `auto` and attention DP; its predecessors stop at an assertion
_AUTO_WITH_ATTENTION_DP: Version = (0, 4, 9)


def deepep_mode(role: str, version: Version) -> str:
    """--deepep-mode for an engine with attention DP; `role` is both, prefill or decode.

    An engine that does both needs `auto`, or `normal` where the release refuses it: low_latency cannot take a prompt.
    """
    together = "auto" if release_meant(version) >= _AUTO_WITH_ATTENTION_DP else "normal"
    return {"prefill": "normal", "decode": "low_latency"}.get(role, together)


def graphless(layout: Layout, role: str, version: Version) -> bool:
    """Whether an engine of this layout runs without CUDA graphs: SGLang drops them where DeepEP's mode is `normal`."""
    return uses_deepep(layout) and deepep_mode(role, version) == "normal"


def uses_deepep(layout: Layout) -> bool:
    """Experts spread over ranks that each have requests of their own: tokens travel to their experts."""
    return layout.ep > 1 and layout.attn_dp == layout.tp


def mode_refusal(mode: object, role: str, attn_dp: int, version: Version) -> str | None:
    """Why SGLang would not run in this mode; None where it would. `mode` is `auto` where nobody names one."""
    if role == "prefill" and mode == "low_latency":
        return "a prefill engine needs --deepep-mode normal: its batches exceed what low_latency dispatches"
    if role == "decode" and mode == "normal":
        return "a decode engine needs --deepep-mode low_latency: normal cannot be captured in CUDA graphs"
    if mode in (None, "auto") and attn_dp > 1 and release_meant(version) < _AUTO_WITH_ATTENTION_DP:
        return (
            "SGLang before 0.4.9 refuses --deepep-mode auto, its default, with attention DP; set deepep_mode: "
            f"{deepep_mode(role, version)}, or use a newer engine"
        )
    return None


def deepep_values(layout: Layout, role: str, version: Version) -> dict[str, Value]:
    """How tokens travel to their experts, where they do."""
    if not uses_deepep(layout):
        return {}
    return {"moe_a2a_backend": "deepep", "deepep_mode": deepep_mode(role, version), "moe_dense_tp_size": 1}
