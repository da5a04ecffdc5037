"""What a page of an engine's metrics says of its server at one moment."""

from __future__ import annotations

from ridgeline.engines.knobs.engine_flags import engine_flags
from ridgeline.service import probe
from ridgeline.service.keep.watch import STEP_TOKENS, ServerLook
from ridgeline.service.servers import SERVERS
from ridgeline.service.service import ServiceUnit

# Tokens as they come out. SGLang counts an answer's tokens when it is finished: one of minutes would look like
# a hang, but for the gaps between its tokens, which are counted as they happen.
_LIVE = {
    "sglang": ("sglang:time_to_first_token_seconds_count", "sglang:inter_token_latency_seconds_count"),
    "vllm": ("vllm:generation_tokens_total",),
}
# And what else grows only while a server works. vLLM counts a prompt when all of it is done; the share of the KV pool
# that is used, which every look has, moves with each piece of it.
_OTHER = {
    "sglang": ("sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:num_used_tokens"),
    "vllm": ("vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_count"),
}
_STEP_KNOBS = ("max_num_batched_tokens", "chunked_prefill_size")


def look_at(engine: str, role: str, page: str, now_s: float) -> ServerLook:
    """An empty page gives a look that says nothing."""
    dialect, seen = SERVERS[engine], probe.figures(page)
    family = "vllm" if engine == "vllm" else "sglang"
    live = [seen[name] for name in _LIVE[family] if name in seen]
    tokens = sum(live) if live else seen.get(dialect.token_metric)
    made = [seen[name] for name in (*_LIVE[family], *_OTHER[family]) if name in seen]
    return ServerLook(
        now_s,
        running=seen.get(dialect.load_metric),
        tokens=tokens,
        kv_share=seen.get(dialect.kv_metric),
        waiting=seen.get(dialect.queue_metric, 0.0),
        progress=sum(made) if made else None,
        role=role,
    )


def step_tokens(engine: str, unit: ServiceUnit) -> int:
    """Prompt tokens that an engine so set takes into one step."""
    settings = engine_flags(SERVERS[engine].flags_of).canonical(unit.settings)
    told = [value for name in _STEP_KNOBS if isinstance(value := settings.get(name), int) and value > 0]
    return max(told, default=STEP_TOKENS)
