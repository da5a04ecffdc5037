"""SGLang's side of a start, written down from its source: what it makes of a command line, and what its log prints.

`server_args.py` of the releases 0.4.8 to 0.5.18, `arg_groups/` of 0.5.20 to 0.5.23, and `managers/tp_worker.py`,
`model_executor/`, `mem_cache/kv_cache_configurator.py` for the running limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Release = tuple[int, ...]
RELEASES: list[Release] = [*((0, 4, n) for n in range(8, 11)), *((0, 5, n) for n in range(1, 24))]
ATTENTION_DP: Release = (0, 5, 22)
# flags whose field is called otherwise
HELD = {"fp8_gemm_backend": "fp8_gemm_runner_backend", "fp4_gemm_backend": "fp4_gemm_runner_backend"}


def parsed(arguments: Sequence[str], release: Release) -> dict[str, Any]:
    """As the parser leaves them: flags that were not given have their defaults."""
    fields: dict[str, Any] = {
        "tp_size": 1, "pp_size": 1, "dp_size": 1, "ep_size": 1, "enable_dp_attention": False,
        "max_running_requests": None, "chunked_prefill_size": 8192, "max_prefill_tokens": 16384, "page_size": 1,
        "schedule_conservativeness": 1.0, "mem_fraction_static": 0.88, "attention_backend": None,
        "disable_radix_cache": False, "disable_cuda_graph": False, "quantization": None, "kv_cache_dtype": "auto",
        "context_length": None, "speculative_num_draft_tokens": None,
    }  # fmt: skip
    fields |= {"attn_dp_size": 1} if release >= ATTENTION_DP else {}
    words = list(arguments)
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        name = HELD.get(name, name)
        values = []
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        fields[name] = True if not values else _value(values[0]) if len(values) == 1 else [int(v) for v in values]
    return fields


def applied(arguments: Sequence[str], release: Release) -> dict[str, Any]:
    """After `__post_init__`, or from 0.5.20 on `resolved_dict`, has made its own of them."""
    fields = parsed(arguments, release)
    groups = attention_groups(fields, release)
    if (
        fields.get("enable_ep_moe")
        or fields.get("enable_deepep_moe")
        or fields.get("moe_a2a_backend", "none") != "none"
    ):
        fields["ep_size"] = fields["tp_size"]
    if groups > 1:
        fields["schedule_conservativeness"] *= 0.3
        fields["chunked_prefill_size"] //= groups
    if release >= ATTENTION_DP:
        fields["enable_dp_attention"] = groups > 1  # for clients that still read it
    return fields


def attention_groups(fields: dict[str, Any], release: Release) -> int:
    if release >= ATTENTION_DP:
        return int(fields["attn_dp_size"])
    return int(fields["dp_size"]) if fields["enable_dp_attention"] else 1


def log_line(arguments: Sequence[str], release: Release) -> str:
    fields = {"model_path": "/m", **applied(arguments, release)}
    if release >= (0, 5, 20):
        return f"[2026-01-01 00:00:00] server_args={fields!r}"
    return f"[2026-01-01 00:00:00] server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in fields.items())})"


def rank_limit(arguments: Sequence[str], release: Release) -> int:
    """Requests that one attention-DP rank runs; AssertionError as SGLang raises it.

    Every role and every release divides the flag by the attention-DP size. Up to 0.5.22 a share of zero ends the
    start (`assert self.max_running_requests > 0`, tp_worker.py); 0.5.23 takes `max(1, limit // attn_dp_size)`.
    """
    fields = parsed(arguments, release)
    share = int(fields["max_running_requests"]) // attention_groups(fields, release)
    share = max(1, share) if release >= (0, 5, 23) else share
    assert share > 0, "max_running_request is zero"
    return share


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
