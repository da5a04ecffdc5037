"""What a page of an engine's metrics says of its server at one moment."""

from __future__ import annotations

from ridgeline.service import probe
from ridgeline.service.keep.watch import STEP_TOKENS, ServerLook
from ridgeline.service.servers import server_of
from ridgeline.service.service import ServiceUnit

_STEP_KNOBS = ("max_num_batched_tokens", "chunked_prefill_size")


def look_at(engine: str, role: str, page: str, now_s: float) -> ServerLook:
    """An empty page gives a look that says nothing."""
    metrics, seen = server_of(engine).metrics, probe.figures(page)
    live = [seen[name] for name in metrics.live if name in seen]
    tokens = sum(live) if live else seen.get(metrics.output_tokens)
    made = [seen[name] for name in (*metrics.live, *metrics.progress) if name in seen]
    return ServerLook(
        now_s,
        running=seen.get(metrics.running),
        tokens=tokens,
        kv_share=seen.get(metrics.kv_share),
        waiting=seen.get(metrics.waiting, 0.0),
        progress=sum(made) if made else None,
        role=role,
    )


def step_tokens(engine: str, unit: ServiceUnit) -> int:
    """Prompt tokens that an engine so set takes into one step."""
    settings = server_of(engine).flags.canonical(unit.settings)
    told = [value for name in _STEP_KNOBS if isinstance(value := settings.get(name), int) and value > 0]
    return max(told, default=STEP_TOKENS)
