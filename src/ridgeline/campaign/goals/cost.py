"""What a site's prices make of a run's throughput."""

from __future__ import annotations

from ridgeline.records.run import Run
from ridgeline.records.site import Prices

TOKEN_RATES = ("total_tok_s", "output_tok_s")  # the first that a run measured counts


def dollars_per_million_tokens(run: Run, prices: Prices, gpus_per_node: int) -> float | None:
    """At this run's throughput; None where it measured none, or nothing is known to cost anything."""
    hourly = prices.hourly(run.resources.nodes, run.resources.gpus or gpus_per_node)
    rate = next((run.metrics[name] for name in TOKEN_RATES if run.metrics.get(name, 0.0) > 0), None)
    return None if hourly is None or rate is None else hourly / (rate * 3600.0) * 1e6
