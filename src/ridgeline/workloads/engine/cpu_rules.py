"""What vLLM's build for processors refuses, by release, as its attention back end (`cpu_attn.py`) lists it."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.engines.knobs.releases import Version
from ridgeline.model.model import Model
from ridgeline.records.expression import Value

# The first release with each list, newest first; before 0.12 another back end was at work, which is not judged.
_HEADS: tuple[tuple[Version, tuple[int, ...]], ...] = (
    ((0, 20), (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)),
    ((0, 16), (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)),
    ((0, 12), (32, 64, 96, 128, 160, 192, 224, 256)),
)
# A block must be a multiple of this; earlier releases only warn.
_BLOCKS: tuple[tuple[Version, int], ...] = (((0, 29), 32), ((0, 24), 16))


def cpu_refusal(model: Model | None, values: Mapping[str, Value], version: Version) -> str | None:
    """Why vLLM on a processor cannot start so, or None. With latent attention it chooses its own block."""
    if model is not None and model.attention.mla:
        return None
    release = ".".join(map(str, version))
    block = values.get("page_size")
    multiple = next((size for since, size in _BLOCKS if version >= since), None)
    if multiple and isinstance(block, int) and not isinstance(block, bool) and block % multiple:
        return f"block_size {block}: vLLM {release} on a processor takes multiples of {multiple}"
    heads = next((sizes for since, sizes in _HEADS if version >= since), None)
    if heads and model is not None and model.attention.head_dim not in heads:
        known = ", ".join(map(str, heads))
        return f"heads of {model.attention.head_dim}: vLLM {release} on a processor has kernels for {known}"
    return None
