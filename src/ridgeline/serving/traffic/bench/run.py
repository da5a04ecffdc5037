"""What a result file of another load generator says, in our units and words, without judging it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# how tools that keep no token times make up a time per token
AVERAGED = "(latency - TTFT) / (tokens - 1) of each request: spikes inside a request are averaged away"


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request as the tool recorded it. What it did not record is None; `gaps_s` are times between tokens."""

    ok: bool
    input_tokens: int
    output_tokens: int
    sent_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run of a tool. `latencies_ms` maps ttft, itl, tpot and e2e to their mean and percentiles.

    `derived` names figures that the tool computed from others rather than measured, with the way it did. `server` is
    what the server said of itself, under its own names. `dataset` and `seed` are the recipe of the lengths, where the
    tool is ours. `flaw`: why the tool itself says that its figures must not be trusted.
    """

    tool: str
    source: str
    model: str = ""
    concurrency: int | None = None
    rate_s: float | None = None
    duration_s: float | None = None
    requests: int = 0
    failed: int = 0
    requests_s: float | None = None
    input_tok_s: float | None = None
    output_tok_s: float | None = None
    latencies_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[BenchRequest, ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    burstiness: float = 1.0
    dataset: str = ""
    seed: int = 0
    shared_prefix_tokens: int = 0
    flaw: str = ""


def number(value: Any) -> float | None:
    """A finite number or None; tools write NaN, -1, "inf" and text where they have none."""
    if isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int:
    found = number(value)
    return int(found) if found is not None and found > 0 else 0


def spread(fields: Mapping[str, Any], names: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
    """The percentiles of one latency: `names` maps ours to the tool's; `scale` turns its unit into milliseconds."""
    found = {ours: number(fields.get(theirs)) for ours, theirs in names.items()}
    return {ours: value * scale for ours, value in found.items() if value is not None}


def without_empty(latencies: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    return {name: values for name, values in latencies.items() if values}
